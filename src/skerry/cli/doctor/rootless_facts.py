"""Gathers what this machine gives a node of an ordinary user."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import Final

from skerry.cli.doctor.facts import RootlessFacts
from skerry.cli.doctor.rootless_checks import FORBIDDING

_SYSTEM: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_TUN: Final = Path("/dev/net/tun")


def rootless(machine: Path = Path("/")) -> RootlessFacts:
    """Of the user who asks; `machine` is the root folder, where its settings are."""
    from skerry.node.cgroups import detection, mounts
    from skerry.node.rootless import delegation, id_maps

    uid = os.getuid()
    user = _name(uid)
    files = [machine / "etc" / name for name in ("subuid", "subgid")]
    delegated = delegation.find(
        mounts.parse(detection.MOUNTINFO.read_text()).unified, Path("/proc/self/cgroup").read_text()
    )
    sysctls = machine / "proc" / "sys"
    first_port = _text(sysctls / "net/ipv4/ip_unprivileged_port_start")
    return RootlessFacts(
        user=user,
        forbidding=next(
            (
                f"{name}={value}"
                for name, value in FORBIDDING.items()
                if _text(sysctls / name.replace(".", "/")) == value
            ),
            "",
        ),
        missing_programs=tuple(name for name in ("newuidmap", "newgidmap") if not _which(name)),
        missing_ranges=tuple(
            f"/etc/{file.name}" for file in files if not id_maps.parse_ranges(_text(file), user, uid)
        ),
        controllers=None if delegated is None else delegated.controllers,
        tun_failure=_open_failure(_TUN),
        has_network_program=bool(_which("pasta") or _which("slirp4netns")),
        first_port=int(first_port) if first_port.isdecimal() else 1024,
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _which(name: str) -> bool:
    return shutil.which(name, path=_SYSTEM) is not None


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _open_failure(device: Path) -> str:
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    return ""
