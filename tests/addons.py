"""Peers that do not import by themselves: TensorFlow Addons, and single files of packages."""

import importlib
import importlib.util
import sys
import types
from pathlib import Path

import keras
import pytest


def load():
    """The module `tensorflow_addons`, or a skip where it is not installed.

    Addons looks for `keras.src.engine`, which Keras 3 has not; tf_keras lends its own.
    """
    if keras.__version__.startswith("3."):
        from tf_keras.src.engine import keras_tensor

        engine = types.ModuleType("keras.src.engine")
        engine.keras_tensor = keras_tensor
        sys.modules["keras.src.engine"] = engine
        sys.modules["keras.src.engine.keras_tensor"] = keras_tensor
    return pytest.importorskip("tensorflow_addons", exc_type=ImportError)


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
            pytest.skip(f"{packages[0]} is not installed")
        sys.modules[packages[0]] = importlib.util.module_from_spec(found)
    folder = Path(sys.modules[packages[0]].__path__[0])
    for depth in range(2, len(packages) + 1):
        package = types.ModuleType(".".join(packages[:depth]))
        package.__path__ = [str(folder.joinpath(*packages[1:depth]))]
        sys.modules[package.__name__] = package
    return importlib.import_module(name)
