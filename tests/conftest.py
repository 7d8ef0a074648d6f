"""What must be set before TensorFlow is imported, and the fixtures that many test files share.

The rooms `small_…` are imported by their fixtures: the tests of `lamb_tf` run without what
`official_bert` needs.
"""

import importlib.util
import os

# tf.keras is then tf_keras, which TensorFlow Addons (a reference here) was written for. Our own
# code never says tf.keras; `import keras` is Keras 3 either way.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")

import keras
import pytest

# Two devices, so that MirroredStrategy(["CPU:0", "CPU:1"]) works in any test; the number is fixed
# as soon as a first operation has run. Keras on JAX or PyTorch may be there without TensorFlow.
if importlib.util.find_spec("tensorflow"):
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )


@pytest.fixture
def float64():
    """float64 on every backend: JAX makes it float32 where it is not asked to leave it."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    enable = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with enable(True):
        yield


@pytest.fixture(scope="session")
def small_text(tmp_path_factory):
    """A `small_text.SmallText`: topics of Python's language reference, and a vocabulary."""
    import small_text

    return small_text.make(tmp_path_factory.mktemp("small_text"))


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory):
    """A `small_corpus.SmallCorpus`: records of two lengths, and a BERT to train on them."""
    import small_corpus

    return small_corpus.make(tmp_path_factory.mktemp("small_corpus"))


@pytest.fixture(scope="session")
def small_sentences(small_corpus, tmp_path_factory):
    """A `small_sentences.SmallSentences`: tables of labelled sentences."""
    import small_sentences

    return small_sentences.make(tmp_path_factory.mktemp("small_sentences"), small_corpus)


@pytest.fixture(scope="session")
def small_questions(tmp_path_factory):
    """A `small_questions.SmallQuestions`: texts, and questions that a tiny BERT can learn."""
    import small_questions

    return small_questions.make(tmp_path_factory.mktemp("small_questions"))
