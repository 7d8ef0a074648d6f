"""Cluster configuration: all workers and this one's index, from flags, `TF_CONFIG` or Slurm.

The first of these that is given decides:

1. `--worker_hosts` and `--task_index`;
2. the environment's `TF_CONFIG`, as Kubernetes operators and cloud services set it;
3. the variables that Slurm gives to every task of an `srun` step.

A `TF_CONFIG` that contradicts the flags is refused. Everything in a Slurm job has its variables, so
they come last.
"""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

# Slurm names no ports. A job takes 64 below Linux's own range for outgoing connections (32768 …).
_FIRST_PORT, _PORTS_OF_A_JOB, _PORT_RANGES = 20000, 64, 190
LOST = (  # `who`: " " and a sentence on which one it is, or nothing
    "Another worker has ended or cannot be reached, and a step needs all of them.{who} Its own "
    "output gives the reason, unless it was killed. Start all workers again with the same "
    "commands: they resume from the last checkpoint."
)


class Cluster(NamedTuple):
    """The workers of a job.

    Attributes:
        hosts: `host:port` of each, in order; the first writes checkpoints and logs.
        index: The index of this process.
        source: The origin of the configuration, for messages.
    """

    hosts: tuple[str, ...]
    index: int  # type: ignore[assignment]  # tuple.index is never called
    source: str

    def tf_config(self) -> str:
        """The equivalent `TF_CONFIG`."""
        return json.dumps(
            {
                "cluster": {"worker": list(self.hosts)},
                "task": {"type": "worker", "index": self.index},
            }
        )


def find(worker_hosts: str | None, task_index: int, environment: Mapping[str, str]) -> Cluster:
    """The cluster of this process.

    Args:
        worker_hosts: Comma-separated `host:port` of all workers, or `None`.
        task_index: The index of this worker, or −1.
        environment: `os.environ`, with `TF_CONFIG` or Slurm's variables.

    Raises:
        ValueError: if there is no cluster or only one worker, or its sources contradict each other.
    """
    configured = _from_tf_config(environment["TF_CONFIG"]) if "TF_CONFIG" in environment else None
    if worker_hosts:
        cluster = Cluster(tuple(worker_hosts.split(",")), task_index, "worker_hosts and task_index")
        if configured and configured[:2] != cluster[:2]:
            raise ValueError(
                "worker_hosts and task_index must agree with TF_CONFIG; got worker "
                f"{task_index} of {worker_hosts}, but worker {configured.index} of "
                f"{','.join(configured.hosts)} in TF_CONFIG. Unset one of the two."
            )
    else:
        cluster = configured or _from_slurm(environment)
        if task_index not in (-1, cluster.index):
            raise ValueError(
                f"task_index must be {cluster.index}, as in {cluster.source}; got {task_index}. "
                "Leave task_index out, or give worker_hosts too."
            )
    _check(cluster)
    return cluster


def configured(environment: Mapping[str, str]) -> Cluster | None:
    """The cluster of the environment's `TF_CONFIG`; `None` without a valid one."""
    try:
        return _from_tf_config(environment.get("TF_CONFIG", "{}"))
    except ValueError:
        return None


def _check(cluster):
    hosts, index, source = cluster
    for host in hosts:
        if not re.fullmatch(r"\S+:\d+", host):
            raise ValueError(f"Each worker must be given as host:port; got {host!r} in {source}.")
    repeated = [host for host in hosts if hosts.count(host) > 1]
    if repeated:
        raise ValueError(
            f"Each worker must have its own host:port; got {repeated[0]} twice in {source}."
        )
    if len(hosts) < 2:
        raise ValueError(
            "multi_worker_mirrored must have at least two workers; got only "
            f"{hosts[0]} in {source}. To train on one host, leave distribution_strategy and these "
            "out."
        )
    if not 0 <= index < len(hosts):
        raise ValueError(
            f"task_index must be in 0 … {len(hosts) - 1} for the {len(hosts)} workers of {source}; "
            f"got {index}."
        )


def _from_tf_config(text):
    """A chief is the first worker; `None` without a cluster."""
    try:
        config = json.loads(text)
        jobs = {job: tuple(hosts) for job, hosts in config.get("cluster", {}).items()}
        if not jobs:
            return None
        job, index = config["task"]["type"], int(config["task"]["index"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            'TF_CONFIG must be JSON like {"cluster": {"worker": ["host:port", …]}, "task": '
            f'{{"type": "worker", "index": 0}}}}; got {text!r} ({type(error).__name__}: {error}).'
        ) from None
    if not {*jobs, job} <= {"chief", "worker"}:
        raise ValueError(
            "TF_CONFIG must have no other jobs than worker and chief; got "
            f"{', '.join(sorted({*jobs, job}))}. Remove parameter servers and evaluators."
        )
    chiefs = jobs.get("chief", ())
    if not 0 <= index < len(jobs.get(job, ())):
        raise ValueError(
            f"The task of TF_CONFIG must be in its cluster, {jobs}; got {job} {index}. "
            "Correct the task or the cluster."
        )
    place = index if job == "chief" else len(chiefs) + index
    return Cluster(chiefs + jobs.get("worker", ()), place, "TF_CONFIG")


def _from_slurm(environment):
    def first(*names):
        return next((environment[name] for name in names if environment.get(name)), None)

    index = first("SLURM_PROCID")
    count = first("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    nodes = first("SLURM_STEP_NODELIST")
    if index is None or count is None:
        raise ValueError(
            "distribution_strategy=multi_worker_mirrored must have a list of workers; got none. "
            "Pass worker_hosts and task_index, set TF_CONFIG, or start it with srun in a Slurm job."
        )
    if nodes is None:
        raise ValueError(
            "In a Slurm job, the command must be a task of an srun step; got no "
            "SLURM_STEP_NODELIST. Put `srun` before the command."
        )
    hosts = expand_hosts(nodes)
    counts = _tasks_per_node(
        first("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
        len(hosts),
        int(count),
    )
    places = [(node, local) for node, tasks in enumerate(counts) for local in range(tasks)]
    if len(places) != int(count) or len(counts) != len(hosts):
        raise ValueError(
            f"Slurm's numbers of tasks must agree; got {count} in all, but {counts} on the nodes "
            f"{','.join(hosts)}. Give srun --ntasks-per-node."
        )
    cluster = Cluster(
        tuple(f"{hosts[node]}:{_port(environment) + local}" for node, local in places),
        int(index),
        "Slurm",
    )
    told = tuple(int(environment.get(f"SLURM_{name}", -1)) for name in ("NODEID", "LOCALID"))
    if cluster.index in range(len(places)) and -1 not in told and told != places[cluster.index]:
        raise ValueError(
            f"Slurm must place task {index} on node {places[cluster.index][0]} as its task "
            f"{places[cluster.index][1]}; got node {told[0]} and task {told[1]}. Start the step "
            "with srun --distribution=block."
        )
    return cluster


def expand_hosts(text: str) -> list[str]:
    """Slurm's list of nodes, written out.

    Example:

    >>> expand_hosts("login,rack[1-2]node[08-09,12]")[:4]
    ['login', 'rack1node08', 'rack1node09', 'rack1node12']
    """
    if not re.fullmatch(r"([^\[\],\s]|\[[\d,-]+\])+(,([^\[\],\s]|\[[\d,-]+\])+)*", text):
        raise ValueError(f"SLURM_STEP_NODELIST must be like node[01-04,7],login; got {text!r}.")
    return [host for part in re.split(r",(?![^\[]*\])", text) for host in _expand(part)]


def _expand(part):
    match = re.search(r"\[(.+?)\]", part)
    if match is None:
        return [part]
    numbers = []
    for bounds in match[1].split(","):
        first, _, last = bounds.partition("-")
        numbers += [f"{n:0{len(first)}}" for n in range(int(first), int(last or first) + 1)]
    rests = _expand(part[match.end() :])
    return [part[: match.start()] + number + rest for number in numbers for rest in rests]


def _tasks_per_node(text, nodes, tasks):
    """`"2(x3),1"` → [2, 2, 2, 1]; one number holds for all nodes; `None`: an even division."""
    if text is None:
        return [tasks // nodes + (node < tasks % nodes) for node in range(nodes)]
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"Slurm's tasks per node must be like 2(x3),1; got {text!r}.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts * nodes if len(counts) == 1 else counts


def _port(environment):
    job = int(environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID") or 0)
    step = int(environment.get("SLURM_STEP_ID") or 0)
    return _FIRST_PORT + _PORTS_OF_A_JOB * ((job + step) % _PORT_RANGES)
