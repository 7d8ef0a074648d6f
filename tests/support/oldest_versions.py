"""Prints the lowest versions that pyproject.toml accepts: `make test-oldest` installs them."""

import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def oldest_versions():
    """What `lamb_tf[cpu]` requires, as `name==version`."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    requirements = project["dependencies"] + project["optional-dependencies"]["cpu"]
    return [requirement.replace(">=", "==") for requirement in requirements]


if __name__ == "__main__":
    print(*oldest_versions())
