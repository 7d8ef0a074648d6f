"""BERT with large batches, from raw text to a model in use; `load` loads a trained model."""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from official_bert.prediction.predictors import (
        BlankFiller,
        QuestionAnswerer,
        SentenceClassifier,
        TextEncoder,
    )
    from official_bert.prediction.tagger import WordTagger

NEEDED = {  # required modules, each with the extra of lamb_tf that installs it
    "absl": "bert",
    "google_crc32c": "bert",
    "sentencex": "bert",
    "tokenizers": "bert",
    "tensorflow": "cpu",
}

_MODELS = {  # the Keras models, and where each is defined
    "BertEncoder": "official_bert.model.encoder",
    "BertPretrainer": "official_bert.model.pretrainer",
    "BertClassifier": "official_bert.model.fine_tuning",
    "BertQuestionAnswering": "official_bert.model.fine_tuning",
    "BertTagger": "official_bert.model.fine_tuning",
}


def _check_installed():
    """Raises an ImportError where a module is missing; in a command, ends it with one line."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing == ["tensorflow"] and importlib.util.find_spec("jax"):
        return  # `load`, and training with --engine=jax, need none
    if not missing:
        return
    extras = ",".join(sorted({NEEDED[name] for name in missing}))
    message = (
        f"official_bert needs {', '.join(missing)}, not installed here: "
        f'`pip install "lamb_tf[{extras}]"`.'
    )
    # argv[0] is "-m" while `python -m` looks for a module.
    if os.path.basename(sys.argv[0]) not in ("-m", "lamb-bert"):
        raise ImportError(message)
    print(message, file=sys.stderr)
    sys.exit(2)


def load(
    folder: str | os.PathLike,
    vocab_file: str | os.PathLike | None = None,
    do_lower_case: bool | None = None,
    dtype: str = "fp32",
    strip_accents: bool | None = None,
    step: int | None = None,
) -> "BlankFiller | SentenceClassifier | QuestionAnswerer | WordTagger | TextEncoder":
    """Loads a trained model for use, of the kind that the folder holds.

    | the folder is from | the result, whose `predict` takes |
    |---|---|
    | `run_pretraining`, or any pre-trained BERT | `BlankFiller`: texts with `[MASK]` |
    | `run_classifier`, or any fine-tuned classifier | `SentenceClassifier`: texts or pairs |
    | `run_squad`, or any such model | `QuestionAnswerer`: pairs (question, context) |
    | `run_tagger`, or any such model | `WordTagger`: texts or lists of words |
    | an encoder without a head | `TextEncoder`: texts or pairs, which become vectors |

    Each has the Keras model as `.model` and the tokenizer as `.tokenizer`. The checkpoint can have
    any format that `convert_checkpoint` reads: TensorFlow 1's, Hugging Face's, a run's.

    Args:
        folder: The folder, or the path of one checkpoint in it. From a run, the newest complete
            checkpoint is loaded.
        vocab_file: The model's vocabulary; default: `tokenizer.json` or `vocab.txt` in its folder,
            or for a run's `best/`, `initial/` and `pretrained/`, in the run's folder.
        do_lower_case: Whether it is uncased; default: as in the run, `tokenizer.json` or
            `tokenizer_config.json`, or else whether it has no upper-case letter.
        dtype: Data type of the arithmetic, `"fp32"`, `"bf16"` or `"fp16"`.
        strip_accents: Whether lower-cased text loses its accents; default: as in the same files, or
            else True.
        step: Of a run, the step of the weights instead of the newest; 0: before the first.

    Returns:
        A `BlankFiller`, `SentenceClassifier`, `QuestionAnswerer` or `TextEncoder` of
        `official_bert.prediction.predictors`, or a `WordTagger` of `.tagger`.

    Raises:
        ValueError: if the model is missing or damaged, or its vocabulary is missing or another
            model's, or the run has no weights of that step; it lists those that it has.
        OSError: if a file cannot be read.

    Example:

    >>> import official_bert
    >>> model = official_bert.load("reviews")     # doctest: +SKIP
    >>> model.predict(["A good cat."])            # doctest: +SKIP
    [ClassPrediction(label='5', probabilities={'1': 0.02, …, '5': 0.81})]
    """
    from official_bert.prediction import loading

    return loading.load(folder, vocab_file, do_lower_case, dtype, strip_accents, step=step)


# `keras.models.load_model` finds models by name, but this package is imported without Keras.


def _register_models(keras):
    """Registers a stand-in per model, which imports the model when a file contains one."""

    def stand_in(name, module):
        def from_config(config):
            return getattr(importlib.import_module(module), name).from_config(config)

        members = {"from_config": staticmethod(from_config), "get_config": None}
        keras.saving.register_keras_serializable("official_bert", name)(type(name, (), members))

    for name, module in _MODELS.items():
        stand_in(name, module)


class _WhenKerasIsImported:
    """An import hook that registers the models after Keras is imported, then removes itself."""

    def find_spec(self, name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == "keras" else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _register_models(module)

        spec.loader.exec_module = exec_module
        return spec


_check_installed()
if "keras" in sys.modules:
    _register_models(sys.modules["keras"])
else:
    sys.meta_path.insert(0, _WhenKerasIsImported())
