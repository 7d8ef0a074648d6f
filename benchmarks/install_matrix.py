"""Installs the wheel into clean environments and tests it there: the versions it works with.

    make test-installs                                # all of it: an hour or two on one core
    make test-installs INSTALLS="--only=bert-3.13"    # one combination, or some, with commas

Each combination is an environment with nothing but the wheel, the requirements of the combination
and pytest. The results are written to benchmarks/results/installs.json, one entry per combination,
and from there to the tables of docs/installing.md.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import evidence

ROOT = evidence.ROOT
RESULTS = ROOT / "benchmarks/results/installs.json"
PACKAGES = "keras", "tensorflow-cpu", "jax", "torch", "tf-keras", "numpy", "h5py"
SECONDS = 3600  # most that one run of tests may take

# Files of tests/lamb_tf, and warnings that are ignored in them. What only TensorFlow can run are
# the tests of replicas, schedules in graphs and extras.
TESTS = {
    "short": ("optimizers lamb lars",),
    "backend": (
        "optimizers lamb lars layerwise selection multipliers master_weights telemetry "
        "gradient_noise loss_scale",
        # NumPy 2 deprecates how Keras requests arrays on these backends.
        "ignore:__array__ implementation:DeprecationWarning",
    ),
    # From older versions of tf_keras, when a layer chooses its seed.
    "legacy": ("legacy", "ignore:non-integer arguments to randrange:DeprecationWarning"),
}
LEGACY = {  # tf-keras: TensorFlow
    **{"2.15": "2.15.1", "2.16": "2.16.2", "2.17": "2.17.1", "2.18": "2.18.1", "2.19": "2.19.1"},
    **{"2.20": "2.20.0", "2.21": "2.21.0"},
}


# The environments


@dataclasses.dataclass(frozen=True)
class Combination:
    """One environment.

    Args:
        name: Its name in the table.
        python: Version of Python, such as "3.11".
        requirements: Installed by pip with the wheel.
        tests: "core": the optimizers on TensorFlow; "short": a part of them; "backend": what runs
            on any backend; "legacy": the optimizers for tf_keras; "command": `lamb-bert`;
            "older": one step with each version of Keras that is excluded.
        extras: Extras of the wheel.
        backend: Keras' backend.
        alone: Packages that are installed last, without their requirements.
    """

    name: str
    python: str
    requirements: tuple[str, ...]
    tests: str
    extras: str = ""
    backend: str = "tensorflow"
    alone: tuple[str, ...] = ()


def oldest():
    command = [sys.executable, ROOT / "tests/support/oldest_versions.py"]
    return tuple(subprocess.check_output(command, text=True).split())


def combinations() -> list[Combination]:
    """All combinations, in the order of the table."""
    of, pythons = Combination, ("3.11", "3.12", "3.13")
    keras = {"3.11": "2.17", "3.12": "2.18", "3.13": "2.19", "3.14": "2.20"}
    jax = ("keras==3.10.*", "jax==0.6.0")
    return [
        of("oldest-3.11", "3.11", oldest(), "core"),
        *(
            of(f"keras-{k}", "3.11", (f"keras=={k}.*", f"tensorflow-cpu=={t}.*"), "short")
            for k, t in keras.items()
        ),
        *(of(f"newest-{p}", p, ("tensorflow-cpu",), "core") for p in pythons),
        of("keras-older", "3.11", ("tensorflow-cpu==2.16.2",), "older"),
        of("jax-oldest", "3.11", jax, "backend", backend="jax"),
        of("jax-newest", "3.13", ("jax",), "backend", backend="jax"),
        of("torch-newest", "3.11", ("torch==2.13.0",), "backend", backend="torch"),
        *(of(f"bert-{p}", p, (), "command", extras="bert,cpu") for p in pythons),
        *(
            of(
                f"legacy-{version}",
                "3.11",
                # tf-keras would also install the full "tensorflow".
                (f"tensorflow-cpu=={tensorflow}", "packaging>=23", "typeguard>=2.7,<3"),
                "legacy",
                alone=(f"tf-keras=={version}.*", "tensorflow-addons==0.23.0"),
            )
            for version, tensorflow in LEGACY.items()
        ),
    ]


# One environment


def interpreter(version: str) -> str | None:
    """The newest Python of that version, on PATH or among pyenv's; None if there is none."""
    home = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    installed = sorted(
        home.glob(f"versions/{version}.*/bin/python"),
        key=lambda path: [int(n) for n in re.findall(r"\d+", path.parents[1].name)],
    )
    candidates = [shutil.which(f"python{version}"), *map(str, reversed(installed))]
    return next((c for c in candidates if c and _answers(c, version)), None)


def _answers(candidate, version):
    """Whether it starts: a shim of pyenv may be there for a version that is not active."""
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([candidate, "-c", script], capture_output=True, text=True)
    return done.stdout.strip() == version


def run(combination: Combination, wheel: pathlib.Path, core: list[str], folder: pathlib.Path):
    """The entry of one combination: installed versions and the outcome of its tests."""
    entry = {"name": combination.name, "tests": combination.tests, "backend": combination.backend}
    entry["date"] = datetime.date.today().isoformat()
    python = interpreter(combination.python)
    if python is None:
        return entry | {"python": combination.python, "outcome": "no such Python here"}
    environment = folder / combination.name
    try:
        _install(combination, python, environment, wheel)
        entry |= _installed(environment)
        if combination.tests == "older":
            entry["older"], outcome = _older(environment), "see below"
        elif combination.tests == "command":
            outcome = _command(environment)
        else:
            outcome = _pytest(combination, environment, core)
    except subprocess.CalledProcessError as error:
        outcome = f"not installed: {_last_line(error.stderr or error.stdout)}"
    except subprocess.TimeoutExpired:
        outcome = f"failed: not done after {SECONDS} s"
    finally:
        shutil.rmtree(environment, ignore_errors=True)
    return {"python": combination.python, **entry, "outcome": outcome}


def _install(combination, python, environment, wheel):
    _call(python, "-m", "venv", environment)
    pip = _pip(environment)
    extras = f"[{combination.extras}]" if combination.extras else ""
    wanted = [*combination.requirements, "pytest>=8.4"]
    if combination.requirements[:1] == ("tensorflow-cpu==2.15.1",):
        # With Keras 2, which the wheel's own requirement excludes: for lamb_tf.legacy only.
        _call(*pip, "h5py>=3.11", *wanted)
        _call(*pip, "--no-deps", wheel)
    else:
        _call(*pip, f"lamb_tf{extras} @ {wheel.as_uri()}", *wanted)
    if combination.alone:
        _call(*pip, "--no-deps", *combination.alone)


def _pip(environment):
    return environment / "bin/python", "-m", "pip", "install", "--quiet", "--no-compile"


def _call(*command, check=True, cwd="/", **more):
    """Runs a command on the environment's own packages; returns the finished process."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | more
    options = {"capture_output": True, "text": True, "timeout": SECONDS}
    return subprocess.run(command, check=check, cwd=cwd, env=environment, **options)


def _installed(environment):
    """Versions of Python and of the packages of the table."""
    python = environment / "bin/python"
    listed = _call(python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check")
    packages = {p["name"]: p["version"] for p in json.loads(listed.stdout)}
    packages = {name.lower().replace("_", "-"): version for name, version in packages.items()}
    exact = _call(python, "-c", "import platform; print(platform.python_version())").stdout.strip()
    return {"python": exact, "versions": {p: packages[p] for p in PACKAGES if p in packages}}


# Tests


def _pytest(combination, environment, core):
    """The outcome of this checkout's tests on the package of the environment."""
    names, *ignored = TESTS.get(combination.tests, ("",))
    files = [f"tests/lamb_tf/test_{name}.py" for name in names.split()] or core
    command = [environment / "bin/pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    command += ["-c", ROOT / "pyproject.toml", "-o", f"pythonpath={ROOT / 'tests/support'}"]
    command += [option for warning in ignored for option in ("-W", warning)]
    command += [ROOT / file for file in files]
    done = _call(*command, check=False, cwd=environment, KERAS_BACKEND=combination.backend)
    print(done.stdout[-3000:] + done.stderr[-1000:] if done.returncode else "", end="")
    return outcome_of(done.stdout, done.returncode)


def outcome_of(output: str, code: int) -> str:
    """`591 passed, 2 skipped` or `failed: …` from the last line of pytest."""
    ends = re.findall(r"\d+ (?:passed|failed|skipped|errors?)\b.*? in ", output)
    words = [
        w
        for w in "".join(ends[-1:]).removesuffix(" in ").split(", ")
        if not re.search("warn|desel", w)
    ]
    counts = ", ".join(words) or _last_line(output)
    passed = code == 0 and "passed" in counts
    return counts if passed else f"failed: {counts}"


def _command(environment):
    """Runs `lamb-bert` from text to a checkpoint of two updates, and its list of commands."""
    folder = environment / "smoke"
    folder.mkdir()
    text = (ROOT / "docs/algorithm.md").read_text(encoding="utf-8")
    (folder / "text.txt").write_text("\n".join(re.findall(r"[A-Z][^.|`]+\.", text)))
    config = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config |= {"vocab_size": 300, "intermediate_size": 32, "max_position_embeddings": 32}
    (folder / "bert_config.json").write_text(json.dumps(config))
    for command in COMMANDS:
        done = _call(environment / "bin/lamb-bert", *shlex.split(command), check=False, cwd=folder)
        if done.returncode:
            return f"failed: lamb-bert {command.split()[0]}: {_last_line(done.stderr)}"
    return f"{len(COMMANDS)} commands passed"


COMMANDS = (
    "--help",
    "learn-vocabulary --input_file=text.txt --vocab_file=vocab.txt --vocab_size=300",
    "create-data --input_file=text.txt --output_file=data.tfrecord --vocab_file=vocab.txt "
    "--max_seq_length=32 --max_predictions_per_seq=5",
    "pretrain --input_files=data.tfrecord --bert_config_file=bert_config.json --model_dir=model "
    "--train_batch_size=4 --max_seq_length=32 --max_predictions_per_seq=5 --num_train_epochs=1 "
    "--num_steps_per_epoch=2 --warmup_steps=1 --optimizer_type=lamb",
    "fill-blanks --model_dir=model --vocab_file=vocab.txt 'The [MASK] is one.'",
)
# One update of a layer, with the options that most models have.
ONE_STEP = """
import keras, lamb_tf, numpy
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(lamb_tf.LAMB(0.01, weight_decay=0.1, exclude_from_weight_decay=["bias"]), "mse")
model.fit(numpy.ones((8, 4)), numpy.ones((8, 1)), verbose=0)
"""


def _older(environment):
    """{version of Keras: the last line of the error of a step with it, or "works"}."""
    found = {}
    (keras,) = (r for r in oldest() if r.startswith("keras=="))  # the lower bound, 3.N
    for minor in range(int(keras.split(".")[1]) - 1, -1, -1):
        _call(*_pip(environment), f"keras==3.{minor}.*", "tensorflow-cpu==2.16.2")
        done = _call(environment / "bin/python", "-c", ONE_STEP, check=False, cwd=environment)
        found[f"3.{minor}"] = _last_line(done.stderr) if done.returncode else "works"
    return found


def _last_line(text):
    return (text or "").strip().rpartition("\n")[2][:300]


# All of it


def build_wheel(folder: pathlib.Path) -> pathlib.Path:
    """The wheel of this checkout, in `folder`."""
    source = folder / "source"  # so that nothing is left in the checkout
    ignored = shutil.ignore_patterns(".*", "build", "demo_output", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    _call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tests", required=True, help="files of the core tests, with spaces")
    parser.add_argument("--short", action="store_true", help="LAMB and LARS instead of core tests")
    parser.add_argument("--only", default="", help="names of combinations, with commas")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else [c.name for c in combinations()]
    chosen = [c for c in combinations() if c.name in wanted]
    if given.short:
        chosen = [dataclasses.replace(c, tests="short") if c.tests == "core" else c for c in chosen]
    if len(chosen) < len(wanted):
        names = ", ".join(c.name for c in combinations())
        sys.exit(f"--only must be among {names}; got {given.only}.")
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(pathlib.Path(folder))
        for combination in chosen:
            entry = run(combination, wheel, given.tests.split(), pathlib.Path(folder))
            print(f"{combination.name:<16}{entry['outcome']}", flush=True)
            _keep(entry)


def _keep(entry):
    """Replaces the entry of the same name, and writes the page."""
    entries = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    entries = {e["name"]: e for e in [*entries, entry]}
    order = [c.name for c in combinations()]
    entries = sorted(
        (e for e in entries.values() if e["name"] in order), key=lambda e: order.index(e["name"])
    )
    RESULTS.write_text(json.dumps(entries, indent=1) + "\n")
    for page, contents in kept():
        evidence.write(page, contents)


def kept():
    """docs/installing.md and its tables."""
    entries = json.loads(RESULTS.read_text())
    rows = [
        (
            *(e["name"], e["python"]),
            ", ".join(f"{name} {version}" for name, version in e.get("versions", {}).items()),
            *(e["tests"], e["outcome"], e["date"]),
        )
        for e in entries
    ]
    older = [entry["older"].items() for entry in entries if "older" in entry]
    errors = [(version, f"`{said}`") for found in older for version, said in found]
    tables = {
        "environments": [("environment", "Python", "packages", "tests", "result", "date"), *rows],
        "older": [("Keras", "error"), *errors],
    }
    yield ROOT / "docs/installing.md", evidence.Contents("Installing", tables)


if __name__ == "__main__":
    main()
