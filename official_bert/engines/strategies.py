"""The `tf.distribute` strategy that the flags select, and the meaning of its errors."""

import os
import re
import signal

import tensorflow as tf

from official_bert.engines import cluster
from official_bert.system import child_commands, messages

STRATEGIES = ("off", "one_device", "mirrored", "multi_worker_mirrored", "tpu")

_ON_ONE_HOST = {
    None: None,
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
}
_BETWEEN_HOSTS = {
    None: tf.distribute.experimental.CommunicationImplementation.AUTO,
    "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
    "ring": tf.distribute.experimental.CommunicationImplementation.RING,
}

# Gradients are reduced in buckets of this size: the first while later ones are computed, and with
# little memory.
BYTES_PER_BUCKET = 16 * 2**20


def make_strategy(
    name: str,
    num_gpus: int | None = None,
    tpu: str | None = "",
    worker_hosts: str | None = None,
    task_index: int = -1,
    all_reduce_alg: str | None = None,
) -> tf.distribute.Strategy:
    """The strategy that the flags of the official script select.

    Args:
        name: One of `STRATEGIES`.
        num_gpus: GPUs of this host to use; 0 trains on the CPU. `None`: one if there is one; with
            `"multi_worker_mirrored"`, all. Not for `"tpu"`.
        tpu: Name or address of a Cloud TPU, with `name="tpu"` only.
        worker_hosts: Comma-separated `host:port` list of all workers, for
            `"multi_worker_mirrored"`; without, the environment names them (`cluster.find`).
        task_index: The index of this worker in `worker_hosts`.
        all_reduce_alg: Algorithm of the sums of gradients: `"nccl"` or `"hierarchical_copy"` on one
            host, `"nccl"` or `"ring"` between hosts; `None`, TensorFlow's choice.

    Raises:
        ValueError: if the arguments contradict each other, or devices are missing.
    """
    if name not in STRATEGIES:
        hint = (
            " Asynchronous parameter servers change the meaning of a large batch, so they are not "
            "supported. Pass multi_worker_mirrored."
            if name == "parameter_server"
            else ""
        )
        raise ValueError(
            f"distribution_strategy must be one of {', '.join(STRATEGIES)}; got {name!r}.{hint}"
        )
    if tpu and name != "tpu":
        raise ValueError(
            f"distribution_strategy must be tpu with tpu={tpu!r}; got {name!r}, which would train "
            "without the TPU. Pass distribution_strategy=tpu, or leave tpu out."
        )
    if (worker_hosts or task_index != -1) and name != "multi_worker_mirrored":
        given = "worker_hosts" if worker_hosts else "task_index"
        raise ValueError(
            f"distribution_strategy must be multi_worker_mirrored with {given}; got {name!r}. Pass "
            f"it, or leave {given} out."
        )
    if all_reduce_alg and name not in ("mirrored", "multi_worker_mirrored"):
        raise ValueError(
            "distribution_strategy must be mirrored or multi_worker_mirrored with all_reduce_alg; "
            f"got {name!r}. Leave all_reduce_alg out."
        )
    if num_gpus is not None and name == "off":
        _require_first_gpu(num_gpus)
    if name == "one_device" and (num_gpus or 0) > 1:
        raise ValueError(
            f"num_gpus must be at most 1 with one_device; got {num_gpus}. Pass mirrored."
        )
    if name == "tpu":
        return _tpu_strategy(tpu)
    if name == "multi_worker_mirrored":
        found = cluster.find(worker_hosts, task_index, os.environ)
        if num_gpus is not None:
            _check_gpus(num_gpus, len(tf.config.list_physical_devices("GPU")))
            tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[:num_gpus], "GPU")
        tf.get_logger().setLevel("WARNING")  # else each worker lists every collective operation
        os.environ["TF_CONFIG"] = found.tf_config()  # which TensorFlow reads
        print(
            f"worker {found.index} of {len(found.hosts)}, {found.hosts[found.index]} (by "
            f"{found.source}): waiting for the others …",
            flush=True,
        )
        options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=BYTES_PER_BUCKET,
            implementation=_chosen(all_reduce_alg, _BETWEEN_HOSTS),
        )
        # SIGINT ends the process at once: nothing has to be saved yet, and while TensorFlow waits
        # no handler of Python could run. (It handles SIGTERM itself, to no effect until all workers
        # have joined.)
        with child_commands.handling(signal.SIG_DFL, signal.SIGINT):
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    _check_that_no_workers_are_meant(name)
    if name == "off":
        return tf.distribute.get_strategy()
    devices = _local_devices(num_gpus)
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy(devices[0])
    reduction = _chosen(all_reduce_alg, _ON_ONE_HOST)
    if reduction and len(devices) == 1:
        messages.warn(
            f"--all_reduce_alg has no effect with one device, {devices[0]}. Leave it out, or use "
            "several GPUs (--num_gpus)."
        )
        reduction = None
    return tf.distribute.MirroredStrategy(devices, reduction and reduction())


def _require_first_gpu(num_gpus):
    """Refuses another number of GPUs than TensorFlow uses without a strategy."""
    taken = min(1, len(tf.config.list_physical_devices("GPU")))
    if num_gpus != taken:
        raise ValueError(
            f"num_gpus must be {taken} with distribution_strategy='off', which uses the first GPU "
            f"if there is one; got {num_gpus}. Pass one_device or mirrored."
        )


def _tpu_strategy(tpu):
    if not tpu:
        raise ValueError(
            "--tpu is required with distribution_strategy=tpu: the name or address of a Cloud TPU, "
            "or local."
        )
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (tf.errors.OpError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"No TPU could be reached as --tpu={tpu!r}: {reason} On a TPU VM, install the extra "
            "[tpu] and pass --tpu=local; without a TPU, rehearse estimates a run."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _check_that_no_workers_are_meant(name):
    """Refuses to train on one host if a `TF_CONFIG` of several workers is set."""
    found = cluster.configured(os.environ)
    if found and len(found.hosts) > 1:
        raise ValueError(
            f"distribution_strategy must be multi_worker_mirrored for the {len(found.hosts)} "
            f"workers of TF_CONFIG; got {name!r}, which trains on this host only. Pass "
            "multi_worker_mirrored, or unset TF_CONFIG."
        )


def lost_worker(error: Exception) -> str | None:
    """The message if a TensorFlow error means that another worker is lost, or `None`.

    A worker that ends closes its connections. A lost machine or a process that hangs is detected by
    its missing heartbeats, within 20 s.
    """
    text = str(error)
    if "Collective ops is aborted" not in text and not isinstance(
        error, (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
    ):
        return None
    named = re.findall(r"/job:worker/(?:replica:0/)?task:(\d+)", text)
    who = f" TensorFlow names worker {named[-1]}." if named else ""
    return cluster.LOST.format(who=who)


def _local_devices(num_gpus):
    present = len(tf.config.list_logical_devices("GPU"))
    wanted = min(1, present) if num_gpus is None else num_gpus
    _check_gpus(wanted, present)
    return [f"GPU:{i}" for i in range(wanted)] or ["CPU:0"]


def _check_gpus(wanted, present):
    if not 0 <= wanted <= present:
        raise ValueError(
            f"num_gpus must be at most {present}, the number of GPUs found here; got {wanted}. "
            "Pass num_gpus=0 to train on the CPU."
        )


def _chosen(all_reduce_alg, choices):
    if all_reduce_alg not in choices:
        names = " or ".join(name for name in choices if name)
        raise ValueError(f"all_reduce_alg must be {names} here; got {all_reduce_alg!r}.")
    return choices[all_reduce_alg]
