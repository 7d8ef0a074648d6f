"""How TensorFlow is imported: beside JAX it leaves the GPUs alone; without what nobody needs."""

import subprocess
import sys

import jax_training
import peers
import pytest

# As if TensorFlow had found a GPU.
SCRIPT = """
import os

from official_bert.system import quiet_tensorflow

quiet_tensorflow.import_tensorflow()
import tensorflow as tf
from tensorflow.python.eager import context

from official_bert.system import quiet_tensorflow

cpus = tf.config.list_physical_devices()
gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
found = context.context()
found._physical_devices = [*cpus, gpu]
found._visible_device_list = [*cpus, gpu]
for _ in range(2):
    quiet_tensorflow.import_tensorflow()
assert tf.config.list_physical_devices("GPU") == [gpu]
if os.environ["KERAS_BACKEND"] == "jax":  # which finds its TPUs afterwards
    assert "TPU_LOAD_LIBRARY" not in os.environ
print(len(tf.config.get_visible_devices("CPU")), len(tf.config.get_visible_devices("GPU")))
"""


@pytest.mark.parametrize(("backend", "gpus"), [("jax", 0), ("tensorflow", 1)])
def test_tensorflow_takes_no_gpu_where_jax_computes(backend, gpus):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=jax_training.environment() | {"KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"1 {gpus}\n", done.stderr


def test_a_command_does_not_wait_for_jax_and_matplotlib_and_can_import_them_later():
    for peer in ("jax", "matplotlib"):
        peers.load(peer)
    script = """
import sys
from official_bert.system import quiet_tensorflow
quiet_tensorflow.import_tensorflow()
assert "keras" in sys.modules
assert not {"jax", "matplotlib"} & set(sys.modules)
import jax
import matplotlib.pyplot
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
