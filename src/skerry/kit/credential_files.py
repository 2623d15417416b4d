"""Files with credentials of an operator: lines `KEY=VALUE`, which only their owner can read.

The text of the raised errors says what is wrong with the file, and never what is in it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_MAX_FILE: Final = 64 * 1024


class UnusableCredentials(Exception):
    """The file cannot be read, or others can read it."""


def read(path: Path) -> dict[str, str]:
    """The values by their keys; lines without `=` are skipped. Raises `UnusableCredentials`."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UnusableCredentials(f"{path} cannot be read: {error.strerror}") from error
    with open(file, encoding="utf-8") as text:
        if stat.S_IMODE(os.fstat(file).st_mode) & 0o077:
            raise UnusableCredentials(f"{path} can be read by others; chmod 600 {path}")
        try:
            lines = text.read(_MAX_FILE).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UnusableCredentials(f"{path} cannot be read: {error}") from error
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}
