r"""How 1, 2 and 4 workers scale over a slow network, and what each ingredient does for that.

    python benchmarks/communication.py --output=benchmarks/results/communication.md

Each worker is a process of `MultiWorkerMirroredStrategy` on one core of its own, in a network
namespace of its own; virtual cables join them to a bridge, and token buckets at both ends of each
cable shape what it carries (Linux, root, iproute2). Where that is not allowed only the loopback
device is measured, and the figures for a network are the cost model's alone: the measured time plus
2(n−1)/n · bytes / bandwidth.

The ingredients are those of arXiv 2008.00177, "Multi-node BERT-pretraining: Cost-efficient
Approach", with one of them off at a time.
"""

import contextlib
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import machine
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("output", None, "Where the table goes; the plot beside it as .png.")
flags.DEFINE_integer("rounds", 5, "Rounds over all variants; medians of them are reported.")
flags.DEFINE_string("worker", None, "Set by this script for its workers: the records.")

WORKERS = (1, 2, 4)
MICRO_BATCH, LENGTH, PREDICTIONS = 8, 64, 10  # sequences a worker, tokens, masked tokens
ACCUMULATION = 4
SEQUENCES = 4 * ACCUMULATION * MICRO_BATCH  # that a worker goes through in one measurement
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
SCALING = (  # a variant, what its gradients travel in, and the variant of one worker beside it
    ("neither", "float32", "without accumulation"),
    (FLOAT32_WIRE, "float32", "all on"),
    ("all on", "bfloat16", "all on"),
)


def variants(workers):
    """Names and settings of what so many workers measure."""
    every = {"all on": ALL_ON}
    every |= {f"without {name}": ALL_ON | {name: False} for name in ALL_ON}
    every["neither"] = every["without accumulation"] | {"16-bit gradients on the wire": False}
    wanted = {
        1: ["all on", "without accumulation"],
        2: list(every),
        4: ["all on", FLOAT32_WIRE, "neither"],
    }
    return {name: every[name] for name in wanted[workers]}


# A worker.


def work(records):
    """Makes the variants; then, for every line of stdin, times each of them once."""
    from official_bert.system import quiet_tensorflow

    quiet_tensorflow.import_tensorflow()
    from official_bert.engines import strategies
    from official_bert.engines.tf_distribute import TfDistribute

    index, count = int(os.environ["INDEX"]), int(os.environ["COUNT"])
    if count == 1:
        strategy = strategies.make_strategy("off")
    else:
        hosts = os.environ["HOSTS"]
        strategy = strategies.make_strategy("multi_worker_mirrored", 0, "", hosts, index)
    cells = {
        name: make_cell(settings, strategy, index, count, records)
        for name, settings in variants(count).items()
    }
    answer({name: cell.about for name, cell in cells.items()}, index)
    for _ in sys.stdin:
        seconds = {}
        for name, cell in cells.items():
            TfDistribute(strategy).all_gather([0])
            started = time.perf_counter()
            cell()
            seconds[name] = time.perf_counter() - started
        answer(seconds, index)


def answer(value, index):
    if index == 0:
        print("ANSWER " + json.dumps(value), flush=True)


def make_cell(settings, strategy, index, count, records):
    """A function that takes a worker through `SEQUENCES`, with `about` what an update reduces."""
    import tensorflow as tf

    import lamb_tf
    from official_bert import stages
    from official_bert.data import input_pipeline
    from official_bert.engines import loop_state, tf_update
    from official_bert.engines.tf_distribute import TfDistribute
    from official_bert.model import pretrainer
    from official_bert.model.config import BertConfig

    class PlainLAMB(lamb_tf.LAMB):
        """The same equations, an operation at a time."""

        has_kernels = False

    parts = ACCUMULATION if settings["accumulation"] else 1
    config = BertConfig.from_json_file(pathlib.Path(records).with_name("bert_config.json"))
    stage = stages.Stage(
        steps=10**6,
        batch_size=MICRO_BATCH * parts * count,
        max_seq_length=LENGTH,
        max_predictions_per_seq=PREDICTIONS,
        learning_rate=1e-4,
    )
    run = stages.Run(
        config=config,
        stages=(stage,),
        optimizer=stages.Optimizer(),
        input_files=(records,),
        dtype="bf16" if settings["mixed precision"] else "fp32",
        reduce_dtype="bf16" if settings["16-bit gradients on the wire"] else "fp32",
        gradient_accumulation_steps=parts,
    )

    def open_batches(shard_index, num_shards):
        return input_pipeline.Batches(
            [records],
            stage.batch_size,
            LENGTH,
            PREDICTIONS,
            shard_index=shard_index,
            num_shards=num_shards,
        )

    def whole_batches(_):
        """This worker's rows of batches that it makes as a whole, each when it is asked for."""
        batches = open_batches(0, 1)
        rows = slice(index * MICRO_BATCH * parts, (index + 1) * MICRO_BATCH * parts)

        def generate():
            for step in range(stage.steps):
                yield {name: value[rows] for name, value in batches[step].items()}

        signature = {
            name: tf.TensorSpec((MICRO_BATCH * parts, *value.shape[1:]), value.dtype)
            for name, value in batches[0].items()
        }
        return tf.data.Dataset.from_generator(generate, output_signature=signature)

    with strategy.scope():
        model = pretrainer.BertPretrainer(config, dtype=stages.DTYPE_POLICIES[run.dtype])
        kind = lamb_tf.LAMB if settings["fused update"] else PlainLAMB
        optimizer = kind(0.0, weight_decay=0.01, global_clipnorm=1.0)
        optimizer.build(model.trainable_variables)
    loop = tf_update.make_training_loop(run, model, optimizer, strategy)
    if settings["input sharding and prefetch"]:
        iterator = TfDistribute(strategy).feed(open_batches, range(stage.steps))
    else:
        iterator = iter(strategy.distribute_datasets_from_function(whole_batches))
    state = loop_state.first_state(run)
    updates = SEQUENCES // (MICRO_BATCH * parts)

    def cell():
        for _ in range(updates):
            loop(iterator, 1, 1, state)

    loop(iterator, 1, 1, state)
    reductions = loop.reductions(iterator, state)
    cell.about = {"updates": updates, "reductions": reductions.count, "bytes": reductions.bytes}
    return cell


# The network.


class Network:
    """A namespace for each worker, with a cable to a bridge.

    Raises:
        OSError: if the system does not allow it.
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
        """Limits every cable, in both directions; `None` takes the limit away."""
        for i in range(self._size):
            for where in (f"dev lambv{i}", "dev eth0"):
                tc = ["tc", *(["-n", f"lamb{i}"] if where == "dev eth0" else [])]
                _call([*tc, *f"qdisc del {where} root".split()], check=False)
                if bits_per_second:
                    limit = f"rate {bits_per_second:.0f}bit burst 512kb latency 100ms"
                    _call([*tc, *f"qdisc add {where} root tbf {limit}".split()])

    def rate(self):
        """Bits a second that one connection between the first two gets."""
        script = (
            "import socket,sys,time\n"
            "n = 40_000_000\n"
            "if sys.argv[1] == 'receive':\n"
            "    s = socket.create_server(('10.77.0.1', 29400)); print('ready', flush=True)\n"
            "    c, _ = s.accept(); t = time.perf_counter(); got = 0\n"
            "    while got < n: got += len(c.recv(1 << 20))\n"
            "    print(8 * got / (time.perf_counter() - t))\n"
            "else:\n"
            "    socket.create_connection(('10.77.0.1', 29400)).sendall(bytes(n))\n"
        )
        receive, send = (
            [*self.enter(i), sys.executable, "-c", script, what]
            for i, what in enumerate(("receive", "send"))
        )
        with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
            receiver.stdout.readline()
            _call(send)
            return float(receiver.stdout.read())

    def enter(self, index):
        """What a command line begins with to run as worker `index`."""
        return ["ip", "netns", "exec", f"lamb{index}"]

    def host(self, index):
        return f"10.77.0.{index + 1}:{PORT}"

    def close(self):
        for i in range(self._size):
            _ip(f"netns del lamb{i}", check=False)
        _ip("link del lambbr", check=False)


class Loopback:
    """What is measured where no network can be made."""

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
        print(f"no network namespaces ({error}): the loopback device and the cost model it is")
        return Loopback()


def _ip(arguments, check=True):
    _call(["ip", *arguments.split()], check)


def _call(command, check=True):
    subprocess.run(command, check=check, capture_output=True)


# The measurement.


def main(_):
    if FLAGS.worker:
        return work(FLAGS.worker)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(make_network()) as network:
        records = make_records(pathlib.Path(folder))
        print("records made", flush=True)
        shaped = isinstance(network, Network)
        networks = list(NETWORKS) if shaped else ["unshaped"]
        rates = {}
        for name in networks if shaped else ():
            network.shape(NETWORKS[name])
            rates[name] = network.rate()
        found = {}
        for count in WORKERS:
            found[count] = measure(count, network, records, networks)
    text = report(found, rates)
    print(text)
    if FLAGS.output:
        pathlib.Path(FLAGS.output).write_text(text)
        plot(found, pathlib.Path(FLAGS.output).with_suffix(".png"))
    return 0


def make_records(folder):
    import stdlib_records

    from official_bert.model.config import BertConfig

    records, size = stdlib_records.make(folder, LENGTH, PREDICTIONS, num_documents=150)
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


def measure(count, network, records, networks):
    """Seconds by network, variant and round; and what an update of each variant reduces."""
    if isinstance(network, Network):
        network.shape(None)
    hosts = ",".join(network.host(i) for i in range(count))
    workers = [start(index, count, hosts, network, records) for index in range(count)]
    try:
        about = listen(workers[0])
        seconds = {}
        for name in networks if count > 1 else networks[:1]:
            if isinstance(network, Network):
                network.shape(NETWORKS[name])
            rounds = []
            for _ in range(FLAGS.rounds):
                for worker in workers:
                    worker.stdin.write("go\n")
                    worker.stdin.flush()
                rounds.append(listen(workers[0]))
            seconds[name] = {v: statistics.median(r[v] for r in rounds) for v in about}
            print(count, name, seconds[name], flush=True)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return about, seconds


def start(index, count, hosts, network, records):
    cores = sorted(os.sched_getaffinity(0))
    core = cores[index % len(cores)]
    return subprocess.Popen(
        [
            *(*network.enter(index), "taskset", "-c", str(core)),
            *(sys.executable, __file__, f"--worker={records}"),
        ],
        env=os.environ
        | {"INDEX": str(index), "COUNT": str(count), "HOSTS": hosts}
        | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def listen(worker):
    for line in worker.stdout:
        if line.startswith("ANSWER "):
            return json.loads(line.removeprefix("ANSWER "))
    raise RuntimeError("a worker ended; its output is above")


# The report.


def report(found, rates):

    parameters = found[2][0][FLOAT32_WIRE]["bytes"] / 4e6
    reached = "; ".join(f"{name}: {rate / 1e9:.2f} Gb/s" for name, rate in rates.items())
    return f"""# Workers and the network between them, {datetime.date.today():%B %Y}

{machine.describe("tensorflow", "tensorflow-cpu")}.
Made by `python benchmarks/communication.py`: medians of {FLAGS.rounds} rounds, in which the
variants follow one another in the same processes.

Each worker has **one core**; with 4 workers none is left for the system, and all share one memory
bus, so what 4 workers lose on the unshaped network is this machine's doing as well. The model has 2
layers of 256 units; a worker takes micro-batches of {MICRO_BATCH} × {LENGTH} tokens. One connection
through a shaped cable got: {reached or "not measured, no namespaces here"}.

## Scaling

Sequences a second of all workers, and of {ACCUMULATION} micro-batches an update against 1, with
bfloat16 computation, a fused update, sharded and prefetched input. *Model* is the cost model's
estimate, not a measurement: the unshaped time plus 2(n−1)/n · bytes / bandwidth for each update.

| {" | ".join(SCALING_COLUMNS)} |
|{"---|" * len(SCALING_COLUMNS)}
{chr(10).join(scaling_rows(found))}

## What each ingredient does

2 workers; seconds for {2 * SEQUENCES} sequences, and how much longer it takes without one of them.
The records are in memory and their masks in the records, and the optimizer has {parameters:.1f} M
parameters only: so the input and the fused update, which `benchmarks/data.py` and
`benchmarks/optimizer_step.py` measure by themselves, weigh little here.

| | {" | ".join(found[2][1])} |
|---|{"---|" * len(found[2][1])}
{chr(10).join(ablation_rows(found))}
"""


SCALING_COLUMNS = (
    "workers",
    "network",
    "gradients in",
    "micro-batches an update",
    "reductions an update",
    "MB in them",
    "sequences/s",
    "model",
    "share of n × one worker",
)


def scaling_rows(found):
    one = found[1][1]["unshaped"]
    for alone in ("without accumulation", "all on"):
        parts = ACCUMULATION if alone == "all on" else 1
        yield f"| 1 | – | – | {parts} | 0 | 0 | {SEQUENCES / one[alone]:.1f} | – | 100% |"
    for count in WORKERS[1:]:
        about, seconds = found[count]
        for network in NETWORKS:
            for variant, wire, alone in SCALING:
                told, measured = about[variant], seconds.get(network, {}).get(variant)
                cells = [
                    *(str(count), network, wire),
                    str(SEQUENCES // told["updates"] // MICRO_BATCH),
                    *(str(told["reductions"]), f"{told['bytes'] / 1e6:.1f}"),
                    f"{count * SEQUENCES / measured:.1f}" if measured else "–",
                    modelled(count, network, told, seconds, variant),
                    f"{one[alone] / measured:.0%}" if measured else "–",
                ]
                yield f"| {' | '.join(cells)} |"


def modelled(count, network, told, seconds, variant):
    if not NETWORKS[network]:
        return "–"
    sent = 8 * 2 * (count - 1) / count * told["bytes"] * told["updates"]
    return f"{count * SEQUENCES / (seconds['unshaped'][variant] + sent / NETWORKS[network]):.1f}"


def ablation_rows(found):
    _, seconds = found[2]
    for variant in ["all on", *(f"without {name}" for name in ALL_ON)]:
        cells = []
        for of_network in seconds.values():
            more = of_network[variant] / of_network["all on"] - 1
            cells.append(
                f"{of_network[variant]:.2f}" + (f" ({more:+.0%})" if variant != "all on" else "")
            )
        yield f"| {variant} | {' | '.join(cells)} |"


def plot(found, path):
    """Sequences a second over the workers, a line for each network and accumulation."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(6.5, 4), layout="constrained")
    axes = drawing.subplots()
    for color, network in zip(("tab:gray", "tab:blue", "tab:red"), found[2][1]):
        for (variant, _, alone), style in zip(SCALING[:2], ("--", "-")):
            rates = [SEQUENCES / found[1][1]["unshaped"][alone]]
            rates += [n * SEQUENCES / found[n][1][network][variant] for n in WORKERS[1:]]
            parts = ACCUMULATION if style == "-" else 1
            label = f"{network}, {parts} micro-batch{'es' if parts > 1 else ''}"
            axes.plot(WORKERS, rates, style, color=color, marker="o", label=label)
    axes.set_xticks(WORKERS)
    axes.set_xlabel("workers, one core each")
    axes.set_ylabel("sequences/s")
    axes.set_ylim(bottom=0)
    axes.legend()
    drawing.savefig(path, dpi=120)


if __name__ == "__main__":
    app.run(main)
