"""Where things are by default on this machine.

`os.environ` is read only here, in `client` and in `settings`.
"""

from __future__ import annotations

import os
from pathlib import Path


def data_folder(named: str | None) -> Path:
    """The data folder: the one named, else the machine's for root and the user's own for others."""
    if named:
        return Path(named).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/skerry")
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "skerry"


def config_file() -> Path | None:
    """The settings file that is read if none is named, if there is one."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    for path in (Path(home) / "skerry" / "skerry.toml", Path("/etc/skerry/skerry.toml")):
        if path.is_file():
            return path
    return None
