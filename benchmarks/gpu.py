"""LAMB's step, pre-training and attention on one NVIDIA GPU, on JAX, compared with PyTorch.

    python benchmarks/gpu.py [--only=pretraining] [--model=BERT-Base] [--length=128]
    python benchmarks/gpu.py --quick     # a small form of all rows, on whatever is there

It needs JAX with CUDA, Keras and the requirements of official_bert, but not TensorFlow; PyTorch,
optax, transformers and a LAMB for PyTorch are peers that are measured where they are installed.
A batch has its tokens ÷ the length sequences: the defaults are meant for 80 GiB, twice the tokens
for 141. The sides are processes that stay alive and take turns on the device, so that each round
measures all ways under the same conditions. The results are written after every row. Measurements
of earlier commands on the same machine with the same versions are kept, so that the rows can be
divided among several commands.
"""

import argparse
import contextlib
import datetime
import importlib.util
import json
import math
import pathlib
import sys
import tempfile

import evidence
import gpu_jax
import gpu_page
import machine
import optimizer_step
import turns

SECTIONS = {  # and the ways of each that PyTorch is needed for
    "optimizer": (gpu_page.ADAMW, gpu_page.TORCH_LAMB),
    "pretraining": (gpu_page.PEER,),
    "attention": (),
}
MODELS = {  # layers, width, heads
    "BERT-Base": (12, 768, 12),
    "BERT-Large": (24, 1024, 16),
}
PREDICTIONS = {128: 20, 512: 80}  # by sequence length
TINY_MODELS, TINY_PREDICTIONS = {"tiny": (1, 64, 2)}, {32: 5}
PACKAGES = ("jax", "jaxlib", "keras", "numpy", "optax", "torch", "transformers")
PACKAGES += ("apex", "torch_optimizer", "pytorch_optimizer", "timm")  # with a LAMB for PyTorch
ROOT = pathlib.Path(__file__).parents[1]


def main():
    arguments = parse()
    if arguments.worker:
        work(*arguments.worker)
        return
    line = missing() or refused(arguments)
    if line:
        print(line, file=sys.stderr)
        sys.exit(2)
    on_jax = probe("jax")
    if on_jax["platform"] != "gpu" and not arguments.quick:
        print(
            f"JAX sees no GPU here, only {on_jax['kind']!r}: install jax[cuda13] on a machine with "
            "an NVIDIA GPU; --quick runs a small form without one.",
            file=sys.stderr,
        )
        sys.exit(2)
    measure_all(arguments, on_jax)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", choices=list(SECTIONS), action="append", help="sections to measure")
    add("--model", choices=list(MODELS), action="append", help="models to measure")
    add("--length", choices=list(PREDICTIONS), type=int, action="append", help="of sequences")
    add("--base_tokens", type=int, default=32768, help="tokens of a batch of BERT-Base")
    add("--large_tokens", type=int, default=16384, help="the same of BERT-Large")
    add("--rounds", type=int, default=5, help="turns of each way, in alternation")
    add("--updates", type=int, default=20, help="updates or calls per turn")
    add("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    add("--output_dir", type=pathlib.Path, help="default: benchmarks/results; quick: none")
    add("--worker", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def missing():
    """The missing packages as a line, or None."""
    absent = [name for name in ("jax", "keras", "h5py") if not importlib.util.find_spec(name)]
    if absent:
        return f'{", ".join(absent)}: not installed; `pip install "lamb_tf[bert,jax]"`.'
    sys.path.append(str(ROOT))  # the packages of this folder need not be installed
    try:
        import official_bert  # noqa: F401  (it says what it needs)
    except ImportError as error:
        return str(error)
    return None


def refused(arguments):
    """The error in the flags as a line, or None."""
    if arguments.quick and (arguments.model or arguments.length):
        return "--quick has sizes of its own: leave out --model and --length."
    if min(arguments.rounds, arguments.updates) < 1:
        return "--rounds and --updates must be at least 1."
    if min(arguments.base_tokens, arguments.large_tokens) < max(PREDICTIONS):
        return f"--base_tokens and --large_tokens must be at least {max(PREDICTIONS)}."
    return None


def probe(side):
    """The device as a side sees it, from a process that ends again."""
    with worker(side, "device", {}) as process:
        return process.ask("device")


def worker(side, section, cell):
    environment = gpu_jax.ENVIRONMENT if side == "jax" else {}
    return turns.Worker(__file__, side, section, json.dumps(cell), environment=environment)


def work(side, section, cell):
    """A worker's life."""
    if side == "jax":
        sections = gpu_jax.SECTIONS
    else:
        import gpu_torch

        sections = gpu_torch.SECTIONS
    turns.take(lambda: sections[section](json.loads(cell)))


def without_torch(on_gpu):
    """The reason to leave out PyTorch's ways, or None."""
    if not importlib.util.find_spec("torch"):
        return "PyTorch is not installed"
    if on_gpu and not probe("torch")["gpu"]:
        return "this PyTorch sees no GPU"
    return None


def measure_all(arguments, on_jax):
    on_gpu = on_jax["platform"] == "gpu"
    values, no_torch = first_values(arguments, on_jax), without_torch(on_gpu)
    with tempfile.TemporaryDirectory() as folder:
        for section in arguments.only or SECTIONS:
            for name, cell in cells(section, arguments, folder, on_gpu):
                row = measure(section, name, cell, arguments.rounds, no_torch)
                values["rows"].setdefault(section, {})[name] = row
                write(values, arguments)
    print(evidence.text(pathlib.Path(), gpu_page.contents(values)))


def first_values(arguments, on_jax):
    """The results of earlier commands if they were measured in the same way, or empty ones."""
    on_gpu = on_jax["platform"] == "gpu"
    trial = "A trial of the measurements on a GPU: tiny sizes" + ("" if on_gpu else ", on a CPU")
    devices = f"{', '.join(machine.gpus()) or on_jax['kind']}; " if on_gpu else ""
    values = {
        "title": trial if arguments.quick else "Measurements on a GPU",
        "date": f"{datetime.date.today():%B %Y}",
        "machine": f"{devices}{machine.describe(*PACKAGES)}",
        "commands": [],
        "rows": {},
    }
    path = output(arguments, "json")
    if path and path.exists():
        earlier = json.loads(path.read_text())
        if all(earlier[key] == values[key] for key in ("title", "date", "machine")):
            values = earlier
    values["commands"] = list(dict.fromkeys([*values["commands"], machine.command()]))
    return values


def output(arguments, suffix):
    """The path of a result; None where none is written."""
    folder = arguments.output_dir or (None if arguments.quick else ROOT / "benchmarks/results")
    return folder and folder / f"gpu.{suffix}"


def write(values, arguments):
    if output(arguments, "json"):
        output(arguments, "json").parent.mkdir(parents=True, exist_ok=True)
        output(arguments, "json").write_text(json.dumps(values, indent=1) + "\n")
        page = output(arguments, "md")
        page.unlink(missing_ok=True)
        evidence.write(page, gpu_page.contents(values))


def cells(section, arguments, folder, on_gpu):
    """Yields name and sizes of each row of a section."""
    tiny = arguments.quick
    models = TINY_MODELS if tiny else {m: MODELS[m] for m in arguments.model or MODELS}
    predictions = TINY_PREDICTIONS if tiny else PREDICTIONS
    for model, (layers, hidden, heads) in models.items():
        shapes = optimizer_step.tensor_shapes(layers, hidden)
        cell = {
            **{"layers": layers, "hidden": hidden, "heads": heads, "updates": arguments.updates},
            "device": "cuda" if on_gpu else "cpu",
            "parameters": sum(math.prod(shape) for shape in shapes),
            "copied_bytes": 2**24 if tiny else 2**31,
        }
        if section == "optimizer":
            yield model, cell
            continue
        for length in predictions if tiny else arguments.length or predictions:
            tokens = batch_tokens(section, model, arguments)
            sizes = {"length": length, "predictions": predictions[length]}
            sizes |= {"batch_size": tokens // length, "documents": 40 if tiny else 400}
            yield f"{model}, {length}", cell | sizes | {"folder": f"{folder}/{length}"}


def batch_tokens(section, model, arguments):
    if arguments.quick:
        return 128
    if section == "attention":
        return 65536  # a call is then long enough to hide what its start costs the host
    return arguments.base_tokens if model == "BERT-Base" else arguments.large_tokens


def measure(section, name, cell, rounds, no_torch):
    """A row: the result of `turns.measure`, what was left out, and the sides' later answers."""
    if section == "pretraining" and not pathlib.Path(cell["folder"]).exists():
        with worker("jax", "records", cell):
            pass
    with contextlib.ExitStack() as stack:
        sides = ["jax", *(["torch"] if SECTIONS[section] and not no_torch else [])]
        processes = [stack.enter_context(worker(side, section, cell)) for side in sides]
        left_out = dict.fromkeys(SECTIONS[section], no_torch) if no_torch else {}
        workers, after = {}, {}
        for process in processes:
            offer = process.ask("ways")
            workers |= dict.fromkeys(offer["ways"], process)
            left_out |= offer["left_out"]
        result = turns.measure(f"{section}, {name}", workers, rounds)
        for process in processes:
            after |= process.ask("after")
        if "error" in after:
            print(f"{section}, {name}, after the rounds: {after['error']}", file=sys.stderr)
    sizes = {name: value for name, value in cell.items() if name != "folder"}  # which is temporary
    return result | {"cell": sizes, "left_out": left_out, "after": after}


if __name__ == "__main__":
    main()
