"""Where a program of this machine is: on our PATH, else in the usual folders, not all of which are on that of
an ordinary user."""

from __future__ import annotations

import shutil
from typing import Final

_USUAL: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find(name: str, path: str | None = None) -> str:
    """Its path; empty if it is not installed. `path` is searched instead of all others."""
    return shutil.which(name, path=path) or shutil.which(name, path=path or _USUAL) or ""
