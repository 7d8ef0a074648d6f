"""The libraries that only some tests need: peers to compare with, compilers, plotting.

Where one is missing, its tests are skipped. `make test` installs all of them and sets
LAMB_TF_ALL_PEERS, with which a missing one, or one that no longer imports, is a failure.
"""

import importlib
import importlib.util
import os
import sys
import types
import warnings
from pathlib import Path

import keras
import pytest


def load(name):
    """The module `name`, or a skip where it does not import."""
    try:
        with warnings.catch_warnings():  # of what other libraries deprecate
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        _is_missing(name, error)


def addons():
    """The module `tensorflow_addons`.

    Addons looks for `keras.src.engine`, which Keras 3 has not; tf_keras lends its own.
    """
    if keras.__version__.startswith("3."):
        engine = types.ModuleType("keras.src.engine")
        engine.keras_tensor = load("tf_keras.src.engine.keras_tensor")
        sys.modules["keras.src.engine"] = engine
        sys.modules["keras.src.engine.keras_tensor"] = engine.keras_tensor
    return load("tensorflow_addons")


def module_alone(name):
    """The module `name` of an installed package, without the `__init__` of the packages it lies in.

    For peers of which one file is wanted, while the whole would ask for much more to be installed.
    """
    if name in sys.modules:
        return sys.modules[name]
    packages = name.split(".")[:-1]
    if packages[0] not in sys.modules:
        found = importlib.util.find_spec(packages[0])
        if found is None:
            _is_missing(name, f"there is no package {packages[0]}")
        sys.modules[packages[0]] = importlib.util.module_from_spec(found)
    folder = Path(sys.modules[packages[0]].__path__[0])
    for depth in range(2, len(packages) + 1):
        package = types.ModuleType(".".join(packages[:depth]))
        package.__path__ = [str(folder.joinpath(*packages[1:depth]))]
        sys.modules[package.__name__] = package
    return importlib.import_module(name)


def folder(name):
    """The folder of an installed package, of which nothing is run."""
    found = importlib.util.find_spec(name)
    if found is None:
        _is_missing(name, "there is no such package")
    return Path(found.origin).parent


def _is_missing(name, reason):
    if os.environ.get("LAMB_TF_ALL_PEERS"):
        pytest.fail(f"{name} does not import: {reason}")
    pytest.skip(f"{name} does not import: {reason}", allow_module_level=True)
