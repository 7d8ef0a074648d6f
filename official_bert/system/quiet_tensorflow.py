"""Imports TensorFlow without what its C++ code says on stderr meanwhile.

TensorFlow greets with some ten lines about oneDNN and CUDA that no setting turns off, and a user
who reads them looks for an error.
"""

import contextlib
import os
import sys
import tempfile


def import_tensorflow():
    """Imports TensorFlow in silence.

    Call it before whatever else imports TensorFlow.
    """
    if "tensorflow" in sys.modules:
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with silence():
        import tensorflow as tf

        tf.config.list_physical_devices("GPU")  # the first look for a GPU has greetings, too
        tf.get_logger().setLevel("WARNING")  # below it are names of devices and of operations


@contextlib.contextmanager
def silence():
    """Keeps what is written to stderr, by C++ code too, and shows it only if the work fails."""
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
