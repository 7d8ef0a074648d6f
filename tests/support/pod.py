"""A stand-in for a TPU slice: two hosts that run nothing of official_bert, and one client.

    python pod.py host HOST:PORT,HOST:PORT INDEX
    python pod.py client JSON

The hosts are TensorFlow servers in network namespaces of their own, so that they cannot reach the
client's loopback address, as on a slice. Their CPUs take the place of the chips. Needs root.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import warm_python
from bucket import Bucket

HOSTS = 2


class Network(NamedTuple):
    """Namespaces of the hosts, and their addresses beside the client's."""

    namespaces: list[str]
    addresses: list[str]
    client: str


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network of the client and the hosts."""
    name, net = f"pod{os.getpid()}", f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
    addresses = [f"{net}.{number + 2}" for number in range(HOSTS)]
    made = Network([f"{name}n{number}" for number in range(HOSTS)], addresses, f"{net}.1")
    with contextlib.ExitStack() as stack:
        _ip(f"link add {name} type bridge")
        stack.callback(_ip, f"link del {name}")
        _ip(f"addr add {made.client}/24 dev {name}")
        _ip(f"link set {name} up")
        for number, (space, address) in enumerate(zip(made.namespaces, addresses, strict=True)):
            _ip(f"netns add {space}")
            stack.callback(_ip, f"netns del {space}")
            _ip(f"link add {name}v{number} type veth peer name eth0 netns {space}")
            _ip(f"link set {name}v{number} master {name} up")
            _ip(f"-n {space} addr add {address}/24 dev eth0")
            _ip(f"-n {space} link set eth0 up")
            _ip(f"-n {space} link set lo up")
        yield made


@contextlib.contextmanager
def hosts(network: Network, bucket: Bucket, folder: Path) -> Iterator[list[str]]:
    """The addresses of hosts that run meanwhile; what they say goes to the folder."""
    addresses = [f"{address}:5000" for address in network.addresses]
    with contextlib.ExitStack() as stack:
        running = [
            _start(space, bucket, addresses, number, folder)
            for number, space in enumerate(network.namespaces)
        ]
        for process in running:
            stack.callback(process.stdout.close)
            stack.callback(process.wait)
            stack.callback(process.kill)
        for process in running:
            assert process.stdout.readline() == b"ready\n", (folder / "host0.txt").read_text()
        yield addresses


def _ip(command):
    subprocess.run(["ip", *command.split()], check=True)


def _start(space, bucket, addresses, number, folder):
    words = (__file__, "host", ",".join(addresses), str(number))
    command = bucket.inside(*words, network=space)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | bucket.environment
    with (folder / f"host{number}.txt").open("w") as said:
        return warm_python.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=said,
            cwd="/",
            env=environment,
        )


def strategy(addresses: list[str]):
    """Connects this process to the hosts as TPUClusterResolver does; one replica on each."""
    import tensorflow as tf
    from tensorflow.python.distribute import mirrored_strategy, numpy_dataset

    cluster = tf.train.ClusterSpec({"worker": addresses})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, master=f"grpc://{addresses[0]}"
    )
    tf.config.experimental_connect_to_cluster(resolver, protocol="grpc")
    tasks = [f"/job:worker/replica:0/task:{number}" for number in range(len(addresses))]

    class OverHosts(mirrored_strategy.MirroredExtended):
        """As TPUStrategy: an input pipeline on every host, and all of them in one graph."""

        def _initialize_single_worker(self, devices):
            self._devices = tuple(devices)
            self._input_workers_devices = tuple(
                (f"{task}/device:CPU:0", (device,))
                for task, device in zip(tasks, devices, strict=True)
            )
            self._host_input_device = numpy_dataset.SingleDevice(f"{tasks[0]}/device:CPU:0")
            self._default_device = tasks[0]

    class PodStrategy(tf.distribute.Strategy):
        _collective_key_base = 0

        def __init__(self):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(mirrored_strategy, "_is_device_list_single_worker", lambda _: True)
                extended = OverHosts(
                    self,
                    devices=[f"{task}/device:CPU:0" for task in tasks],
                    cross_device_ops=tf.distribute.ReductionToOneDevice(),
                )
            super().__init__(extended)

    return PodStrategy()


def serve(addresses: str, index: str) -> None:
    """A host: a TensorFlow server."""
    import tensorflow as tf

    cluster = tf.train.ClusterSpec({"worker": addresses.split(",")})
    number = int(index)
    server = tf.distribute.Server(cluster, job_name="worker", task_index=number, protocol="grpc")
    print("ready", flush=True)
    server.join()


def run_and_options(corpus):
    """The run of a corpus: anything with `config`, `train` and `held_out`."""
    import small_runs

    config = small_runs.without_dropout(corpus.config)
    run = small_runs.make_run(corpus, config=config)
    return run, dataclasses.replace(small_runs.QUIET, eval_files=(corpus.held_out,))


def train(settings: str) -> None:
    """The client: trains a run on its hosts."""
    import small_runs

    from official_bert.model.config import BertConfig

    given = json.loads(settings)
    given["config"] = BertConfig(**given["config"])
    run, options = run_and_options(types.SimpleNamespace(**given))
    trainer = small_runs.begin(run, given["model_dir"], options, strategy(given["hosts"]))
    if given["damaged"]:  # after the checks of this process
        path = Path(given["damaged"])
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    trainer.train()


if __name__ == "__main__":
    {"host": serve, "client": train}[sys.argv[1]](*sys.argv[2:])
