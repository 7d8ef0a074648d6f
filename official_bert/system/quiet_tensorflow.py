"""Imports TensorFlow and Keras without messages on stderr, and without what no command needs.

TensorFlow prints some ten lines about oneDNN and CUDA that no setting turns off. A user who reads
them would look for an error.
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator

from official_bert.system import environment, hidden_modules

# TensorFlow fetches 64 MB of an object in a bucket for any read; a block of records has up to 1 MB.
_BYTES_OF_A_REQUEST = 1 << 22


def import_tensorflow() -> None:
    """Imports TensorFlow in silence.

    Call it before any other import of TensorFlow. Beside JAX it serves files alone, and leaves GPUs
    and TPUs to JAX: it would take the whole memory of each.

    Raises:
        ValueError: if it is not installed.
    """
    beside_jax = os.environ.get("KERAS_BACKEND") == "jax"
    if "tensorflow" not in sys.modules:
        _import(beside_jax)
    if beside_jax:
        sys.modules["tensorflow"].config.set_visible_devices([], "GPU")


def _import(beside_jax):
    if importlib.util.find_spec("tensorflow") is None:
        without = "" if beside_jax else " (run_pretraining needs only JAX with --engine=jax.)"
        raise ValueError(f'This needs TensorFlow: `pip install "lamb_tf[bert,cpu]"`.{without}')
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GCS_READAHEAD_BUFFER_SIZE_BYTES", str(_BYTES_OF_A_REQUEST))
    leave_tpus = {"TPU_LOAD_LIBRARY": "0"} if beside_jax else {}  # to TensorFlow's plug-in
    unneeded = ("matplotlib",) if beside_jax else ("matplotlib", "jax")
    with environment.variables(**leave_tpus), silence(), hidden_modules.hidden(*unneeded):
        import keras  # noqa: F401  # here, where it finds no matplotlib
        import tensorflow as tf

        tf.config.list_physical_devices("GPU")  # the first look for a GPU prints such lines too
        tf.get_logger().setLevel("WARNING")  # lower levels print names of devices and operations


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Captures stderr, also of C++ code, and shows it only if the work fails."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            said.seek(0)
            os.write(stderr, said.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
