"""Whether this machine has IPv6, and its forwarding of IPv6 packets.

Everything concerns the network namespace of the calling thread, and blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_CONF: Final = Path("/proc/sys/net/ipv6/conf")
_LISTENS: Final = "1"  # to routers, unless it forwards
_ALWAYS_LISTENS: Final = "2"


def has_ipv6() -> bool:
    """False if the kernel has no IPv6, or it was turned off."""
    return all(_read(_CONF / name / "disable_ipv6") == "0" for name in ("all", "default"))


def enable() -> None:
    """Forward IPv6 packets. A machine that forwards does not listen to routers any more, and would lose its
    own address and default route if it has those from one: its interfaces are first set to keep listening."""
    if _read(_CONF / "all/forwarding") != "0":
        return
    for interface in _CONF.iterdir():
        if _read(interface / "accept_ra") == _LISTENS and _read(interface / "forwarding") == "0":
            (interface / "accept_ra").write_text(_ALWAYS_LISTENS)
    (_CONF / "all/forwarding").write_text("1")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
