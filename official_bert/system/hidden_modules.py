"""Temporarily blocks imports of slow optional modules.

TensorFlow imports JAX, where it is installed, for its Lite converter, and Keras imports matplotlib
for its galleries: more than a quarter of the seconds in which a command starts.
"""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def hidden(*names: str) -> Iterator[None]:
    """While the block runs, those of these modules that are not loaded yet cannot be imported."""
    missing = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]  # None: no such module
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]
