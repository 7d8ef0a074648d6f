"""This process's own CPU, where TensorFlow may know those of other machines too."""

_CLIENT = "/job:localhost/replica:0/task:0/device:CPU:0"


def local_cpu() -> str:
    """The device for work that must happen in this process: reading and writing its files.

    The client of a TPU slice works on the slice's first host by default, and there `CPU:0` is the
    CPU of that host.
    """
    import tensorflow as tf

    names = {device.name for device in tf.config.list_logical_devices("CPU")}
    return _CLIENT if _CLIENT in names else "CPU:0"
