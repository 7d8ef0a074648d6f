"""BERT pre-training with large batches, from raw text to a checkpoint."""

import importlib.util
import sys

NEEDED = {  # each module that all of this needs, and the extra of lamb_tf that brings it
    "absl": "bert",
    "google_crc32c": "bert",
    "ml_dtypes": "bert",
    "sentencex": "bert",
    "tokenizers": "bert",
    "tensorflow": "cpu",
}


def _check_installed():
    """Raises an ImportError where a module is missing; in a command, ends it with one line."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return
    extras = ",".join(sorted({NEEDED[name] for name in missing}))
    message = (
        f"official_bert needs {', '.join(missing)}, not installed here: "
        f'`pip install "lamb_tf[{extras}]"`.'
    )
    if sys.argv[0] != "-m":  # which stands there while `python -m` looks for a module
        raise ImportError(message)
    print(message, file=sys.stderr)
    sys.exit(2)


_check_installed()
