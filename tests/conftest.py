"""What must be set before TensorFlow is imported, and the fixtures that many test files share.

The rooms `small_…` are imported by their fixtures: the tests of `lamb_tf` run without what
`official_bert` needs.
"""

import atexit
import collections
import importlib.util
import os
import shutil
import signal
import tempfile

# tf.keras is then tf_keras, which TensorFlow Addons (a reference here) was written for. Our own
# code never says tf.keras; `import keras` is Keras 3 either way.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")
# Programs of JAX are compiled once for all processes of this run, which begins here.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    COMPILED = tempfile.mkdtemp(prefix="lamb_tf_compiled_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    atexit.register(shutil.rmtree, COMPILED, ignore_errors=True)

import keras
import pytest

# Two devices, so that MirroredStrategy(["CPU:0", "CPU:1"]) works in any test; the number is fixed
# as soon as a first operation has run. Keras on JAX or PyTorch may be there without TensorFlow.
if importlib.util.find_spec("tensorflow"):
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )


_BYTES_OF_A_PROCESS = 3 << 30


def pytest_xdist_auto_num_workers(config):
    """`--numprocesses=auto`: one more than cores, as some tests wait, as far as memory allows."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)) + 1, memory // _BYTES_OF_A_PROCESS))


def pytest_collection_modifyitems(items):
    """Files with the most slow tests come first: the last ones must not leave a core idle."""
    slow = collections.Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])  # stable


@pytest.fixture(autouse=True)
def handlers_of_signals():
    """Those of before each test: commands that run in this process set their own."""
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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
