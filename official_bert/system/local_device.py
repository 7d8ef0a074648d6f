"""This process's own CPU, where TensorFlow may know those of other machines too."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf


def local_cpu() -> str:
    """The device for work that must happen in this process: reading and writing its files.

    The client of a TPU slice works on the slice's first host by default, and there `CPU:0` is the
    CPU of that host. A worker among workers goes by the name of its job, and works for itself.
    """
    import tensorflow as tf

    is_localhost = any(map(_is_localhost, tf.config.list_logical_devices("CPU")))
    return "/job:localhost/replica:0/task:0/device:CPU:0" if is_localhost else "CPU:0"


def _is_localhost(device: "tf.config.LogicalDevice") -> bool:
    import tensorflow as tf

    return tf.DeviceSpec.from_string(device.name).job in (None, "localhost")
