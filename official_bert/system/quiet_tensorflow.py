"""Imports TensorFlow and Keras quietly, and sets the environment variables of TPUs.

On import TensorFlow prints some ten lines about oneDNN and CUDA, which look like errors and which
no setting turns off.
"""

import contextlib
import glob
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, MutableMapping

LOCAL = "local"
# The chips of a TPU VM: v2 to v4, then later generations.
_CHIPS = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
# TensorFlow fetches 64 MB of an object in a bucket for any read; a block of records has up to 1 MB.
_BYTES_OF_A_REQUEST = 1 << 22


def import_tensorflow() -> None:
    """Imports TensorFlow in silence.

    Call it before any other import of TensorFlow. With JAX as the backend it only reads and writes
    files: GPUs and TPUs, whose whole memory it would take, are left to JAX.

    Raises:
        ValueError: if it is not installed.
    """
    beside_jax = os.environ.get("KERAS_BACKEND") == "jax"
    if "tensorflow" not in sys.modules:
        _import(beside_jax)
    if beside_jax:
        sys.modules["tensorflow"].config.set_visible_devices([], "GPU")


def import_keras() -> None:
    """Imports Keras and its backend in silence; JAX is the backend where only that is installed.

    Raises:
        ValueError: if neither is installed.
    """
    if importlib.util.find_spec("tensorflow") or not importlib.util.find_spec("jax"):
        import_tensorflow()
        if os.environ.get("KERAS_BACKEND") != "jax":
            return
    os.environ.setdefault("KERAS_BACKEND", "jax")
    skip_tpu_query(os.environ)
    with silence(), blocked_imports("matplotlib"):
        import jax
        import keras  # noqa: F401

        jax.local_devices()  # the first query prints such lines too


def _import(beside_jax):
    if importlib.util.find_spec("tensorflow") is None:
        without = "" if beside_jax else " (Training needs only JAX with --engine=jax.)"
        raise ValueError(f'This needs TensorFlow: `pip install "lamb_tf[bert,cpu]"`.{without}')
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GCS_READAHEAD_BUFFER_SIZE_BYTES", str(_BYTES_OF_A_REQUEST))
    leave_tpus = {"TPU_LOAD_LIBRARY": "0"} if beside_jax else {}  # to TensorFlow's plug-in
    unneeded = ("matplotlib",) if beside_jax else ("matplotlib", "jax")
    with environment(**leave_tpus), silence(), blocked_imports(*unneeded):
        import keras  # noqa: F401  # here, where it finds no matplotlib
        import tensorflow as tf

        tf.config.list_physical_devices("GPU")  # the first query prints such lines too
        tf.get_logger().setLevel("WARNING")  # lower levels print names of devices and operations


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Captures stderr, also of C++ code, and shows it only if the work fails."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException:
            captured.seek(0)
            os.write(stderr, captured.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@contextlib.contextmanager
def blocked_imports(*names: str) -> Iterator[None]:
    """Temporarily blocks imports of slow optional modules, unless they are loaded already.

    TensorFlow imports JAX for its Lite converter, and Keras imports matplotlib for its galleries:
    more than a quarter of a command's start-up time.
    """
    missing = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]  # None: no such module
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Temporarily sets environment variables, here and for children that are started."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# TPUs


def prepare_tpu(
    tpu: str, environment: MutableMapping[str, str], chips: tuple[str, ...] = _CHIPS
) -> None:
    """Sets environment variables for a TPU. Call it before TensorFlow is imported.

    For this host's TPU, TensorFlow loads libtpu as a plug-in device. A named TPU belongs to other
    hosts, and this process must not look for its own chips.

    Args:
        tpu: The name or address of a TPU, or `LOCAL`.
        environment: `os.environ`; existing values stay.
        chips: Globs of the devices that a TPU VM has.

    Raises:
        ValueError: if the TPU is to be this host's, which has none or lacks libtpu.
    """
    settings = _of_this_host(chips) if tpu == LOCAL else {"TPU_LOAD_LIBRARY": "0"}
    for name, value in settings.items():
        environment.setdefault(name, value)


def skip_tpu_query(environment: MutableMapping[str, str], chips: tuple[str, ...] = _CHIPS) -> None:
    """Keeps libtpu on a host without TPU from querying Google's metadata server for a slice.

    The query is slow to time out. A host with chips must query, because it may be one of several.

    Args:
        environment: `os.environ`, before JAX is imported; existing values stay.
        chips: Globs of the devices that a TPU VM has.
    """
    if not _has(chips):
        environment.setdefault("TPU_SKIP_MDS_QUERY", "1")


def _has(chips):
    return any(map(glob.glob, chips))


def _of_this_host(chips):
    if not _has(chips):
        raise ValueError(
            f"No TPU could be reached as --tpu={LOCAL!r}: this host has none (looked for "
            f"{' and '.join(chips)}). Give the name of a TPU; without a TPU, rehearse "
            "estimates a run."
        )
    try:
        import libtpu
    except ImportError:
        raise ValueError(
            f"--tpu={LOCAL} needs libtpu, not installed here: install the extra [tpu]."
        ) from None
    return {
        "PJRT_DEVICE": "TPU",
        "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
        "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": libtpu.get_library_path(),
    }
