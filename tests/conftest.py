"""Settings before TensorFlow is imported, and the fixtures that many test files share.

The modules `small_…` are imported by their fixtures: the tests of `lamb_tf` run without the
dependencies of `official_bert`.
"""

import atexit
import collections
import fcntl
import importlib.util
import os
import pickle
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
# Models here are tiny: a second thread of TensorFlow, PyTorch, NumPy or XLA would gain nothing, and
# takes the core of another test process. The processes that tests start have one each, too.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NPROC", "1")
# XLA's programs for them run for milliseconds, so it skips the optimizations: to compile then takes
# an eighth of the time on JAX, half on TensorFlow. `XLA_FLAGS= make test` compiles as for users.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1",
)
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


# Property tests have no time limit of an example: how long one takes depends on what else runs.
if importlib.util.find_spec("hypothesis"):
    import hypothesis

    hypothesis.settings.register_profile("suite", deadline=None)
    hypothesis.settings.load_profile("suite")


# A process of tests is renewed at 2.5 GB (tests/support/forked_files.py); few grow so far.
_BYTES_OF_A_PROCESS = 2 << 30


def pytest_xdist_auto_num_workers(config):
    """`--numprocesses=auto`: one more than cores, as some tests wait, as far as memory allows."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)) + 1, memory // _BYTES_OF_A_PROCESS))


def pytest_configure(config):
    if hasattr(config, "workerinput"):  # one of several processes that run tests
        import forked_files

        config.pluginmanager.register(forked_files.ForkedFiles(config))


# Files of more than a minute, the longest first.
_LONGEST = ["backends", "any_optimizer", "pod", "pages", "workers", "run_pretraining", "notebooks"]
_LONGEST += ["jax_workers", "jax_engine", "bucket", "gpu_benchmark", "jax_fine_tuning", "training"]
_LONGEST += ["replicas", "demo", "claims_of_bert", "peer_suites"]


def pytest_collection_modifyitems(items):
    """Long files come first: the last ones must not leave a core idle."""
    slow = collections.Counter(item.path for item in items if item.get_closest_marker("slow"))
    places = {f"test_{name}": place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: (places.get(item.path.stem, len(places)), -slow[item.path]))


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


def _made_once(tmp_path_factory, name, *arguments, make="make"):
    """The result of a module's function `make` in a folder; all processes of a run share it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= f"{name}_{make}"
    folder.mkdir(exist_ok=True)
    made = folder / "made.pickle"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            (folder / "files").mkdir()
            value = getattr(importlib.import_module(name), make)(folder / "files", *arguments)
            made.write_bytes(pickle.dumps(value))
        return pickle.loads(made.read_bytes())


@pytest.fixture(scope="session")
def small_text(tmp_path_factory):
    """A `small_text.SmallText`: topics of Python's language reference, and a vocabulary."""
    return _made_once(tmp_path_factory, "small_text")


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory):
    """A `small_text.SmallCorpus`: records of two lengths, and a BERT to train on them."""
    return _made_once(tmp_path_factory, "small_text", make="make_corpus")


@pytest.fixture(scope="session")
def small_sentences(small_corpus, tmp_path_factory):
    """A `small_sentences.SmallSentences`: tables of labelled sentences."""
    return _made_once(tmp_path_factory, "small_sentences", small_corpus)


@pytest.fixture(scope="session")
def small_questions(tmp_path_factory):
    """A `small_squad.SmallQuestions`: texts, and questions that a tiny BERT can learn."""
    return _made_once(tmp_path_factory, "small_squad", make="make_questions")


@pytest.fixture(scope="session")
def small_tags(tmp_path_factory):
    """A `small_tags.SmallTags`: tagged words that a tiny BERT can learn."""
    return _made_once(tmp_path_factory, "small_tags", make="make_tags")


@pytest.fixture
def peer():
    """The module that makes Hugging Face's BERT of ours, where PyTorch is installed."""
    import peers

    torch = peers.load("torch")
    peers.load("transformers")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for matrices this small; where all cores are busy, by far
    yield importlib.import_module("benchmarks.hugging_face")  # for those that name it in BUILD
    torch.set_num_threads(threads)
