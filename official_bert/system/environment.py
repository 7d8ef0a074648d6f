"""Temporarily sets environment variables."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def variables(**values: str) -> Iterator[None]:
    """Meanwhile these have these values, here and in children that are started."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
