"""A digest of arrays, by which other examples are detected."""

import hashlib
from collections.abc import Mapping

import numpy as np


def fingerprint(arrays: Mapping[str, np.ndarray]) -> str:
    """A digest of the names, types, shapes and values of arrays."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
