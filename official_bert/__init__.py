"""BERT with large batches, from raw text to a model in use: `load` loads one that was trained."""

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

NEEDED = {  # each module that all of this needs, and the extra of lamb_tf that brings it
    "absl": "bert",
    "google_crc32c": "bert",
    "sentencex": "bert",
    "tokenizers": "bert",
    "tensorflow": "cpu",
}

_MODELS = {  # the Keras models, and where each is defined
    "BertEncoder": "official_bert.model.encoder",
    "BertPretrainer": "official_bert.model.pretrainer",
    "BertClassifier": "official_bert.model.classifier",
    "BertQuestionAnswering": "official_bert.model.question_answering",
}


def _check_installed():
    """Raises an ImportError where a module is missing; in a command, ends it with one line."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing == ["tensorflow"] and importlib.util.find_spec("jax"):
        return  # `run_pretraining --engine=jax` needs none
    if not missing:
        return
    extras = ",".join(sorted({NEEDED[name] for name in missing}))
    message = (
        f"official_bert needs {', '.join(missing)}, not installed here: "
        f'`pip install "lamb_tf[{extras}]"`.'
    )
    # "-m" stands there while `python -m` looks for a module.
    if os.path.basename(sys.argv[0]) not in ("-m", "lamb-bert"):
        raise ImportError(message)
    print(message, file=sys.stderr)
    sys.exit(2)


def load(
    folder: str | os.PathLike,
    vocab_file: str | os.PathLike | None = None,
    do_lower_case: bool | None = None,
    dtype: str = "fp32",
) -> "BlankFiller | SentenceClassifier | QuestionAnswerer | TextEncoder":
    """Loads a trained model for use, of the kind that the folder holds.

    | the folder | the result, whose `predict` takes |
    |---|---|
    | of `run_pretraining`, or any pre-trained BERT | `BlankFiller`: texts with `[MASK]` |
    | of `run_classifier`, or any fine-tuned classifier | `SentenceClassifier`: texts or pairs |
    | of `run_squad`, or any such model | `QuestionAnswerer`: pairs (question, context) |
    | of an encoder without a head | `TextEncoder`: texts or pairs, which become vectors |

    Each has the Keras model as `.model` and the tokenizer as `.tokenizer`. Any checkpoint that
    `convert_checkpoint` reads will do: TensorFlow 1's, Hugging Face's, one of a run here.

    Args:
        folder: The folder, or the path of one checkpoint in it. Of a run, the newest whole
            checkpoint is taken.
        vocab_file: The model's vocabulary; default: the `tokenizer.json` or `vocab.txt` in its
            folder; of `best/` and `pretrained/` of a run, in the run's.
        do_lower_case: Whether that is an uncased one; default: what the run, `tokenizer.json` or
            `tokenizer_config.json` says, or else whether it holds no upper-case letter.
        dtype: Data type of the arithmetic, `"fp32"`, `"bf16"` or `"fp16"`.

    Returns:
        A `BlankFiller`, `SentenceClassifier`, `QuestionAnswerer` or `TextEncoder` of
        `official_bert.prediction.predictors`.

    Raises:
        ValueError: if there is no such model, or it is damaged, or its vocabulary is missing or
            another model's.
        OSError: if a file cannot be read.

    Example:

    >>> import official_bert
    >>> model = official_bert.load("reviews")     # doctest: +SKIP
    >>> model.predict(["A good cat."])            # doctest: +SKIP
    [ClassPrediction(label='5', probabilities={'1': 0.02, …, '5': 0.81})]
    """
    from official_bert.prediction import loading

    return loading.load(folder, vocab_file, do_lower_case, dtype)


# `keras.models.load_model` finds the models by name, but this package is imported without Keras.


def _register_models(keras):
    """Registers for each model a stand-in, which imports the model when a file holds one."""

    def stand_in(name, module):
        def from_config(config):
            return getattr(importlib.import_module(module), name).from_config(config)

        members = {"from_config": staticmethod(from_config), "get_config": None}
        keras.saving.register_keras_serializable("official_bert", name)(type(name, (), members))

    for name, module in _MODELS.items():
        stand_in(name, module)


class _WhenKerasIsImported:
    """A finder of modules that registers the models after the import of Keras, then goes."""

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
