"""Compares the optimizer state in a file with the state that the optimizer needs."""

from collections.abc import Mapping
from typing import Any

import keras

from lamb_tf._selection import path_of

MASTER = "master_"  # begins the key of a master copy in a file


def difference(variables: Mapping[str, keras.Variable], saved: Mapping[str, Any]) -> str:
    """What keeps a saved state from being read into these variables; "" if nothing does."""
    needed, found = (sum(not key.startswith(MASTER) for key in keys) for keys in (variables, saved))
    if needed != found:
        return f"the file holds {found} of its variables, expected {needed}"
    for key in [key for key in variables if key in saved]:
        shape, there = tuple(variables[key].shape), tuple(saved[key].shape)
        if shape != there:
            name = path_of(variables[key])
            return f"in the file {name} has shape {there}, expected {shape}"
    return ""
