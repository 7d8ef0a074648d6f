"""A real `TPUStrategy` whose TPUs are names alone: what is traced under it can be read, not run."""

import collections

import tensorflow as tf
from tensorflow.python.tpu import tpu_system_metadata

_Device = collections.namedtuple("_Device", "name device_type")


class _Resolver:
    """What TPUStrategy asks of a TPUClusterResolver."""

    task_type, task_id = None, None

    def __init__(self, hosts, cores):
        self._hosts, self._cores = hosts, cores

    def get_tpu_system_metadata(self):
        devices = [
            _Device(f"/job:worker/replica:0/task:{host}/device:{kind}:{number}", kind)
            for host in range(self._hosts)
            for kind, count in (("CPU", 1), ("TPU", self._cores))
            for number in range(count)
        ]
        return tpu_system_metadata.TPUSystemMetadata(
            num_cores=self._hosts * self._cores,
            num_hosts=self._hosts,
            num_of_cores_per_host=self._cores,
            topology=None,
            devices=devices,
        )

    def get_job_name(self):
        return "worker"

    def master(self, *_, **__):
        return ""

    def cluster_spec(self):
        return tf.train.ClusterSpec({"worker": [f"host{n}:1" for n in range(self._hosts)]})


def strategy(hosts: int, cores: int) -> tf.distribute.TPUStrategy:
    """A slice of this many hosts with this many cores each; call it in a `tf.Graph`."""
    return tf.distribute.TPUStrategy(_Resolver(hosts, cores))


def assigned(graph: tf.Graph) -> set[str]:
    """Names of what the TPUs' program in a function's graph assigns, all captured variables."""
    placeholders = {placeholder.op.name: tensor.name for tensor, placeholder in graph.captures}
    definition = graph.as_graph_def()
    nodes = {node.name: node for node in definition.node}
    found = set()
    for node in definition.node:
        if node.op == "AssignVariableOp":
            handle = node.input[0].split(":")[0]
            sources = [name for name in nodes[handle].input if not name.startswith("^")]
            found |= {placeholders[name.split(":")[0]].split(":")[0] for name in sources}
    return found


def captured_raw(graph: tf.Graph) -> set[str]:
    """Names of captured variables that reach a function's graph but as replicated input."""
    placeholders = {placeholder.op.name: tensor.name for tensor, placeholder in graph.captures}
    used = [
        name.split(":")[0]
        for node in graph.as_graph_def().node
        if node.op != "TPUReplicatedInput"
        for name in node.input
    ]
    return {placeholders[name] for name in used if name in placeholders}
