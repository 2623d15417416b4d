"""Default paths on this machine.

`os.environ` is read only here, in `discovery` and in `settings`.
"""

from __future__ import annotations

import os
from pathlib import Path

import click


def data_folder(named: str | None) -> Path:
    """The data folder: the given one, else that of the system for root and of the user for others."""
    if named:
        return absolute(named)
    if os.geteuid() == 0:
        return Path("/var/lib/skerry")
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else absolute("~/.local/share")) / "skerry"


def absolute(named: str) -> Path:
    """An absolute path, relative to the current folder."""
    try:
        return Path(named).expanduser().absolute()
    except RuntimeError:
        raise click.UsageError(f"'{named}': there is no such home folder. Give an absolute path.") from None
    except OSError:
        raise click.UsageError(f"'{named}': the current folder was deleted. Give an absolute path.") from None


def config_file() -> Path | None:
    """The default settings file, if it exists."""
    home = os.environ.get("XDG_CONFIG_HOME")
    own = [Path(home)] if home else _own_config_folder()
    for path in (*(folder / "skerry" / "skerry.toml" for folder in own), Path("/etc/skerry/skerry.toml")):
        if path.is_file():
            return path
    return None


def _own_config_folder() -> list[Path]:
    try:
        return [Path.home() / ".config"]
    except RuntimeError:
        return []  # a user without a home folder
