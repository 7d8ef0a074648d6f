"""The environments of install_matrix.py: which versions go together."""

import dataclasses
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Combination:
    """One environment.

    Args:
        name: Its name in the table.
        python: Version of Python, such as "3.11".
        requirements: What pip installs beside the wheel.
        tests: "core": the optimizers on TensorFlow; "short": a part of them; "backend": what runs
            on any backend; "legacy": the optimizers for tf_keras; "command": `lamb-bert`;
            "older": one step with each version of Keras that is excluded.
        extras: Extras of the wheel.
        backend: Keras' backend.
        alone: What is installed without what it requires, after the rest.
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


def _legacy(version, tensorflow, python="3.11"):
    return Combination(
        name=f"legacy-{version}",
        python=python,
        # tf-keras would bring the full "tensorflow" in beside "tensorflow-cpu".
        requirements=(f"tensorflow-cpu=={tensorflow}", "packaging>=23", "typeguard>=2.7,<3"),
        tests="legacy",
        alone=(f"tf-keras=={version}.*", "tensorflow-addons==0.23.0"),
    )


def combinations() -> list[Combination]:
    """All that is run, in the order of the table."""
    keras = [
        Combination(f"keras-{k}", "3.11", (f"keras=={k}.*", f"tensorflow-cpu=={t}.*"), "short")
        for k, t in (("3.11", "2.17"), ("3.12", "2.18"), ("3.13", "2.19"), ("3.14", "2.20"))
    ]
    return [
        Combination("oldest-3.11", "3.11", oldest(), "core"),
        *keras,
        *(
            Combination(f"newest-{p}", p, ("tensorflow-cpu",), "core")
            for p in ("3.11", "3.12", "3.13")
        ),
        Combination("keras-older", "3.11", ("tensorflow-cpu==2.16.2",), "older"),
        Combination(
            "jax-oldest", "3.11", ("keras==3.10.*", "jax==0.6.0"), "backend", backend="jax"
        ),
        Combination("jax-newest", "3.13", ("jax",), "backend", backend="jax"),
        Combination("torch-newest", "3.11", ("torch==2.13.0",), "backend", backend="torch"),
        *(
            Combination(f"bert-{p}", p, (), "command", extras="bert,cpu")
            for p in ("3.11", "3.12", "3.13")
        ),
        *(
            _legacy(version, tensorflow)
            for version, tensorflow in (
                ("2.15", "2.15.1"),
                ("2.16", "2.16.2"),
                ("2.17", "2.17.1"),
                ("2.18", "2.18.1"),
                ("2.19", "2.19.1"),
                ("2.20", "2.20.0"),
                ("2.21", "2.21.0"),
            )
        ),
    ]
