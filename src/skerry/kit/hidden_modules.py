"""Hides modules from libraries that import them if they are there, and work without."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden_modules(*names: str) -> Iterator[None]:
    """Importing one of `names` inside fails as if it was not installed; those that are loaded stay so."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: there is no such module
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
