"""Records of the documentation that comes with Python: what is trained on to measure time."""

import itertools
import pathlib

from official_bert.create_pretraining_data import create_pretraining_data
from official_bert.data import tokenization
from official_bert.data.instances import Settings
from official_bert.demonstration import stdlib_text

VOCAB_SIZE = 4096


def make(
    folder: pathlib.Path,
    max_seq_length: int = 128,
    max_predictions_per_seq: int = 20,
    num_documents: int | None = None,
) -> tuple[str, int]:
    """Writes text, vocabulary and records with masks into a folder.

    Args:
        folder: where; it exists.
        max_seq_length, max_predictions_per_seq: the shape of the records.
        num_documents: of the text; None: all.

    Returns:
        The path of the records, and the number of word pieces.
    """
    found = itertools.islice(stdlib_text.documents(), num_documents)
    documents = ["\n".join(paragraphs) for _, paragraphs in found]
    text, vocab, records = (str(folder / name) for name in ("text.txt", "vocab.txt", "records"))
    pathlib.Path(text).write_text("\n\n".join(documents))
    size = tokenization.learn(documents, vocab, VOCAB_SIZE)
    settings = Settings(
        max_seq_length=max_seq_length,
        max_predictions_per_seq=max_predictions_per_seq,
        dupe_factor=1,
    )
    create_pretraining_data(text, records, vocab, settings, input_format="paragraphs")
    return records, size
