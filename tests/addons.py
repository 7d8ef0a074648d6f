"""TensorFlow Addons, the peer that users come from, importable beside Keras 3."""

import sys
import types

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
