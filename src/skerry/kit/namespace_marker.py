"""The user namespace that this process is in, if it is one of ours, and the users of the machine outside.

    /run/skerry-namespace     JSON, written by the holder when it created the namespace

The namespace has its own /run, to which no other process of the machine can write, so the file is there for
processes of the namespace alone. User 0 in it is an ordinary user of the machine, and the kernel gives all
ids as they are in the namespace: whoever asks for root asks `is_machine_root`, and whoever asks who somebody
is asks for `machine_uid`.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

FILE: Final = Path("/run/skerry-namespace")
_UID_MAP: Final = Path("/proc/self/uid_map")


class NamespaceMarker(msgspec.Struct, frozen=True):
    """How the namespace was created."""

    holder: int  # pid
    folder: str  # data folder of the node
    uid: int  # on the machine, of user 0
    gid: int
    user_ids: int
    group_ids: int
    home: str = ""  # folder of the user
    reasons: tuple[str, ...] = ()  # why it has no more ids


def read(file: Path = FILE) -> NamespaceMarker | None:
    """None outside of such a namespace."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=NamespaceMarker)
    except FileNotFoundError:
        return None


def is_machine_root() -> bool:
    """True if this process is root, and not the root of our user namespace of an ordinary user."""
    return os.geteuid() == 0 and not FILE.exists()


def own_uid() -> int:
    """Of this process, on the machine."""
    uid = os.geteuid()
    return uid if (outside := machine_uid(uid)) is None else outside


def machine_uid(uid: int) -> int | None:
    """The user of the machine that the kernel calls `uid` here. None for one that may be several: the kernel
    gives one number to all users that are not in the namespace, root of the machine among them."""
    rows = _rows()
    return uid if rows is None else outside(uid, rows, _overflow())


def outside(uid: int, rows: tuple[tuple[int, int, int], ...], overflow: int) -> int | None:
    """`uid` by the rows of a map: first id inside, first id outside, count. `overflow` stands for all ids
    that are in no row, also where it is in one itself."""
    if uid == overflow:
        return None
    for inside, first, count in rows:
        if inside <= uid < inside + count:
            return first + uid - inside
    return None


@cache
def _rows() -> tuple[tuple[int, int, int], ...] | None:
    """None outside of our namespaces. A process enters one before it asks for users."""
    if not FILE.exists():
        return None
    rows = (line.split() for line in _UID_MAP.read_text().splitlines())
    return tuple((int(inside), int(first), int(count)) for inside, first, count in rows)


@cache
def _overflow() -> int:
    return int(Path("/proc/sys/kernel/overflowuid").read_text())
