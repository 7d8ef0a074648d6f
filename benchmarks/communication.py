r"""Scaling of 1, 2 and 4 workers over a slow network, and the effect of each ingredient.

    python benchmarks/communication.py --output=benchmarks/results/communication.md

Each worker is a process of `MultiWorkerMirroredStrategy` on one core, in a network namespace of its
own; virtual cables join them to a bridge, and token buckets at both ends of each cable shape its
traffic (Linux, root, iproute2). Where that is not allowed, only the loopback device is measured,
and the figures for a network are the cost model's: the measured time plus
2(n−1)/n · bytes / bandwidth.

The ingredients are from arXiv 2008.00177, "Multi-node BERT-pretraining: Cost-efficient Approach",
with one of them off at a time.
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from unittest import mock

import loops
import machine
import turns

WORKERS = (1, 2, 4)
MICRO_BATCH, LENGTH, PREDICTIONS = 8, 64, 10  # sequences per worker, tokens, masked tokens
ACCUMULATION = 4
SEQUENCES = 4 * ACCUMULATION * MICRO_BATCH  # per worker in one measurement
NETWORKS = {"unshaped": None, "10 Gb/s": 10e9, "1 Gb/s": 1e9}
PORT = 29500

ALL_ON = {
    "accumulation": True,
    "16-bit gradients on the wire": True,
    "mixed precision": True,
    "fused update": True,
    "input sharding and prefetch": True,
}
FLOAT32_WIRE = "without 16-bit gradients on the wire"
SCALING = (  # a variant, the type of its gradients on the wire, and the variant of one worker
    ("neither", "float32", "without accumulation"),
    (FLOAT32_WIRE, "float32", "all on"),
    ("all on", "bfloat16", "all on"),
)
SCALING_HEAD = ("workers", "network", "gradients in", "micro-batches per update")
SCALING_HEAD += ("reductions per update", "MB in them", "sequences/s", "model")
SCALING_HEAD += ("share of n × one worker",)


def variants(workers):
    """{variant: settings} of a number of workers."""
    every = {"all on": ALL_ON}
    every |= {f"without {name}": ALL_ON | {name: False} for name in ALL_ON}
    every["neither"] = every["without accumulation"] | {"16-bit gradients on the wire": False}
    wanted = {
        1: ["all on", "without accumulation"],
        2: list(every),
        4: ["all on", FLOAT32_WIRE, "neither"],
    }
    return {name: every[name] for name in wanted[workers]}


# A worker


def make_ways(records, index, hosts):
    """The variants as functions that time one of them each; "about" answers their reductions."""
    from official_bert.system import quiet_tensorflow

    quiet_tensorflow.import_tensorflow()
    from official_bert.engines import strategies

    count = hosts.count(",") + 1
    if count == 1:
        strategy = strategies.make_strategy("off")
    else:
        strategy = strategies.make_strategy("multi_worker_mirrored", 0, "", hosts, index)
    cells = {
        name: make_cell(settings, strategy, index, count, records)
        for name, settings in variants(count).items()
    }
    about = {name: described for name, (described, _) in cells.items()}
    return {name: timed for name, (_, timed) in cells.items()} | {"about": lambda: about}


def make_cell(settings, strategy, index, count, records):
    """The reductions of a variant, and a function that times `SEQUENCES` sequences of it."""
    import lamb_tf
    from official_bert.engines.tf_distribute import TfDistribute
    from official_bert.model.config import BertConfig

    parts = ACCUMULATION if settings["accumulation"] else 1
    rows, updates = MICRO_BATCH * parts, SEQUENCES // (MICRO_BATCH * parts)
    run = loops.make_run(
        BertConfig.from_json_file(pathlib.Path(records).with_name("bert_config.json")),
        records,
        rows * count,
        LENGTH,
        PREDICTIONS,
        dtype="bf16" if settings["mixed precision"] else "fp32",
        reduce_dtype="bf16" if settings["16-bit gradients on the wire"] else "fp32",
        gradient_accumulation_steps=parts,
    )
    engine, feed = TfDistribute(strategy), None
    if not settings["input sharding and prefetch"]:
        mine = slice(index * rows, (index + 1) * rows)
        make_input = whole_batches(run, mine)
        feed = iter(strategy.distribute_datasets_from_function(make_input))
    with mock.patch.object(lamb_tf.LAMB, "has_kernels", settings["fused update"]):
        cell = loops.engine_loop(run, engine, updates, feed)
        cell()
        reductions = cell.reductions()

    def timed():
        engine.all_gather([0])  # barrier: all workers begin together
        return turns.timed(cell, 1)

    about = {"updates": updates, "reductions": reductions.count, "bytes": reductions.bytes}
    return about, timed


def whole_batches(run, mine):
    """Makes a dataset of this worker's rows of batches that it reads as a whole, on demand."""
    import tensorflow as tf

    (stage,) = run.stages
    files = run.input_files, stage.lengths, stage.batch_size, run.config
    batches = run.task.batches(*files, seed=run.seed, shard=(0, 1))

    def generate():
        for step in range(stage.steps):
            yield {name: value[mine] for name, value in batches[step].items()}

    signature = {
        name: tf.TensorSpec((mine.stop - mine.start, *value.shape[1:]), value.dtype)
        for name, value in batches[0].items()
    }
    return lambda _: tf.data.Dataset.from_generator(generate, output_signature=signature)


# The network


class Network:
    """A namespace for each worker, with a cable to a bridge.

    Raises:
        OSError, subprocess.CalledProcessError: if the system does not allow it.
    """

    def __init__(self, size):
        self._size = size
        self.close()
        try:
            _ip("link add lambbr type bridge")
            _ip("link set lambbr up")
            for i in range(size):
                _ip(f"netns add lamb{i}")
                _ip(f"link add lambv{i} type veth peer name eth0 netns lamb{i}")
                _ip(f"link set lambv{i} master lambbr up")
                _ip(f"-n lamb{i} addr add 10.77.0.{i + 1}/24 dev eth0")
                _ip(f"-n lamb{i} link set eth0 up")
                _ip(f"-n lamb{i} link set lo up")
        except BaseException:
            self.close()
            raise

    def shape(self, bits_per_second):
        """Limits every cable, in both directions; `None` removes the limit."""
        for i in range(self._size):
            for tc, device in (["tc"], f"lambv{i}"), (["tc", "-n", f"lamb{i}"], "eth0"):
                _call([*tc, *f"qdisc del dev {device} root".split()], check=False)
                if bits_per_second:
                    limit = f"rate {bits_per_second:.0f}bit burst 512kb latency 100ms"
                    _call([*tc, *f"qdisc add dev {device} root tbf {limit}".split()])

    def rate(self):
        """Bits per second of one connection between the first two."""
        receive, send = (
            [*self.enter(i), sys.executable, "-c", script] for i, script in enumerate(TRANSFER)
        )
        with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
            receiver.stdout.readline()
            _call(send)
            return float(receiver.stdout.read())

    def enter(self, index):
        """The beginning of a command line that runs as worker `index`."""
        return ["ip", "netns", "exec", f"lamb{index}"]

    def host(self, index):
        return f"10.77.0.{index + 1}:{PORT}"

    def close(self):
        for i in range(self._size):
            _ip(f"netns del lamb{i}", check=False)
            _ip(f"link del lambv{i}", check=False)
        _ip("link del lambbr", check=False)


TRANSFER = (  # the scripts that receive and send 40 MB
    "import socket, time\n"
    "s = socket.create_server(('10.77.0.1', 29400)); print('ready', flush=True)\n"
    "c, _ = s.accept(); t = time.perf_counter(); got = 0\n"
    "while got < 40_000_000: got += len(c.recv(1 << 20))\n"
    "print(8 * got / (time.perf_counter() - t))\n",
    "import socket\nsocket.create_connection(('10.77.0.1', 29400)).sendall(bytes(40_000_000))\n",
)


class Loopback:
    """Takes the place of the network where none can be made."""

    def shape(self, _):
        """Nothing can be limited."""

    def enter(self, _):
        return []

    def host(self, index):
        return f"127.0.0.1:{PORT + index}"

    def close(self):
        """Nothing was made."""


def make_network():
    try:
        return Network(max(WORKERS))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no network namespaces ({error}): measuring the loopback device only")
        return Loopback()


def _ip(arguments, check=True):
    _call(["ip", *arguments.split()], check)


def _call(command, check=True):
    subprocess.run(command, check=check, capture_output=True)


# The measurement


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--output", type=pathlib.Path, help="the page; the plot is written next to it as .png")
    add("--rounds", type=int, default=5, help="rounds over all variants; medians are reported (5)")
    add("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        records, index, hosts = given.worker
        turns.take(lambda: make_ways(records, int(index), hosts))
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(make_network()) as network:
        records = make_records(pathlib.Path(folder))
        print("records made", flush=True)
        networks = list(NETWORKS) if isinstance(network, Network) else ["unshaped"]
        rates = {}
        for name in networks if isinstance(network, Network) else ():
            network.shape(NETWORKS[name])
            rates[name] = network.rate()
        found = {n: measure(n, network, records, networks, given.rounds) for n in WORKERS}
    text = report(found, rates, given.rounds)
    print(text)
    if given.output:
        given.output.write_text(text)
        plot(found, given.output.with_suffix(".png"))


def make_records(folder):
    from official_bert.model.config import BertConfig

    records, size = loops.make_records(folder, LENGTH, PREDICTIONS, num_documents=150)
    config = BertConfig(
        vocab_size=size,
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=LENGTH,
    )
    (folder / "bert_config.json").write_text(config.to_json())
    return records


def measure(count, network, records, networks, rounds):
    """The reductions of each variant; and {network: {variant: median seconds}}."""
    network.shape(None)
    hosts = ",".join(network.host(i) for i in range(count))
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        workers = []
        for i in range(count):
            prefix = *network.enter(i), "taskset", "-c", str(cores[i % len(cores)])
            workers.append(turns.Worker(__file__, records, str(i), hosts, prefix=prefix))
        for worker in workers:  # all have to be there before one is ready
            stack.enter_context(worker)

        def ask(way):
            for worker in workers:
                worker.tell(way)
            chief, *_ = [worker.answer() for worker in workers]
            return chief

        about, seconds = ask("about"), {}
        about.pop("idle_load")
        for name in networks if count > 1 else networks[:1]:
            network.shape(NETWORKS[name])
            every = [{v: ask(v)["seconds"] for v in about} for _ in range(rounds)]
            seconds[name] = {v: statistics.median(each[v] for each in every) for v in about}
            print(count, name, seconds[name], flush=True)
    return about, seconds


# The page


def report(found, rates, rounds):
    parameters = found[2][0][FLOAT32_WIRE]["bytes"] / 4e6
    reached = "; ".join(f"{name}: {rate / 1e9:.2f} Gb/s" for name, rate in rates.items())
    return machine.page(
        "Workers and the network between them",
        f"Medians of {rounds} rounds, in which the variants follow one another in the same "
        "processes. Each worker has **one core**; with 4 workers none is left for the system, and "
        "all share one memory bus, so a part of the loss of 4 workers on the unshaped network is "
        "due to this machine. The model has 2 layers of 256 units; a worker takes micro-batches of "
        f"{MICRO_BATCH} × {LENGTH} tokens. One connection through a shaped cable got: "
        f"{reached or 'not measured, no namespaces here'}.",
        "## Scaling",
        f"Sequences per second of all workers, and of {ACCUMULATION} micro-batches per update "
        "compared with 1, with bfloat16 computation, a fused update, sharded and prefetched input. "
        "*Model* is the cost model's estimate, not a measurement: the unshaped time plus "
        "2(n−1)/n · bytes / bandwidth for each update.",
        [SCALING_HEAD, *scaling_rows(found)],
        "## Effect of each ingredient",
        f"2 workers; seconds for {2 * SEQUENCES} sequences, and the increase without one of them. "
        "The records are in memory with their masks, and the optimizer has only "
        f"{parameters:.1f} M parameters: so input and fused update, which `benchmarks/data.py` and "
        "`benchmarks/optimizer_step.py` measure separately, weigh little here.",
        [("", *found[2][1]), *ablation_rows(found)],
    )


def scaling_rows(found):
    one = found[1][1]["unshaped"]
    for alone, parts in ("without accumulation", 1), ("all on", ACCUMULATION):
        yield 1, "–", "–", parts, 0, 0, f"{SEQUENCES / one[alone]:.1f}", "–", "100%"
    for count in WORKERS[1:]:
        about, seconds = found[count]
        for network in NETWORKS:
            for variant, wire, alone in SCALING:
                known, measured = about[variant], seconds.get(network, {}).get(variant)
                yield (
                    *(count, network, wire, SEQUENCES // known["updates"] // MICRO_BATCH),
                    *(known["reductions"], f"{known['bytes'] / 1e6:.1f}"),
                    f"{count * SEQUENCES / measured:.1f}" if measured else "–",
                    modelled(count, network, known, seconds, variant),
                    f"{one[alone] / measured:.0%}" if measured else "–",
                )


def modelled(count, network, known, seconds, variant):
    if not NETWORKS[network]:
        return "–"
    sent = 8 * 2 * (count - 1) / count * known["bytes"] * known["updates"]
    return f"{count * SEQUENCES / (seconds['unshaped'][variant] + sent / NETWORKS[network]):.1f}"


def ablation_rows(found):
    _, seconds = found[2]
    for variant in ["all on", *(f"without {name}" for name in ALL_ON)]:
        times = [(of[variant], of[variant] / of["all on"] - 1) for of in seconds.values()]
        more = " ({:+.0%})" if variant != "all on" else ""
        yield variant, *(f"{time:.2f}" + more.format(share) for time, share in times)


def plot(found, path):
    """Sequences per second over the workers, a line for each network and accumulation."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(6.5, 4), layout="constrained")
    axes = drawing.subplots()
    for color, network in zip(("tab:gray", "tab:blue", "tab:red"), found[2][1]):
        for (variant, _, alone), style in zip(SCALING[:2], ("--", "-")):
            rates = [SEQUENCES / found[1][1]["unshaped"][alone]]
            rates += [n * SEQUENCES / found[n][1][network][variant] for n in WORKERS[1:]]
            parts = f"{ACCUMULATION} micro-batches" if style == "-" else "1 micro-batch"
            label = f"{network}, {parts}"
            axes.plot(WORKERS, rates, style, color=color, marker="o", label=label)
    axes.set_xticks(WORKERS)
    axes.set(xlabel="workers, one core each", ylabel="sequences/s", ylim=(0, None))
    axes.legend()
    drawing.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
