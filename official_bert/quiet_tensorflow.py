"""Importing this module imports TensorFlow without what its C++ code says on stderr meanwhile.

TensorFlow greets with some ten lines about oneDNN and CUDA that no setting turns off, and a user
who reads them looks for an error. If the import fails, they are shown after all.
"""

import os
import sys
import tempfile


def _import_tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices("GPU")  # the first look for a GPU has its own greetings
        except BaseException:
            said.seek(0)
            os.write(stderr, said.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


if "tensorflow" not in sys.modules:
    _import_tensorflow()
