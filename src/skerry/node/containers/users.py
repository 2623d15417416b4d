"""Who a container runs as: names and numbers, by the image's own `/etc/passwd` and `/etc/group`.

The same rules as Docker's: a name or a number is looked up, a number need not be there, and a group that is
given replaces the user's own and its further ones. The node's own users are never asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from skerry.model import errors
from skerry.node.containers import rootfs_files

_LARGEST_FILE: Final = 4 * 1024 * 1024
NODE_IDS: Final = 2**31  # without a user namespace; runtimes take no larger one than the last of these
_LARGEST_ID: Final = NODE_IDS - 1
_MOST_GROUPS: Final = 65_536  # the kernel takes no more


class ContainerUser(msgspec.Struct, frozen=True):
    """A user as the kernel knows it, with the home that the image gives it."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    home: str = "/"


class _User(NamedTuple):
    name: str
    uid: int
    gid: int
    home: str


class _Group(NamedTuple):
    name: str
    gid: int
    members: frozenset[str]


def resolve_user(user: str, rootfs: Path, ids: int = NODE_IDS) -> ContainerUser:
    """`name`, `uid`, `name:group` or `uid:gid`; empty is root. There are `ids` of each. Raises Invalid naming
    what the image, or the container, lacks."""
    identity = _resolve(user, rootfs)
    largest = max(identity.uid, identity.gid, *identity.groups)
    if largest >= ids:
        raise errors.Invalid(
            f"a container in a user namespace has users and groups 0 to {ids - 1}, and {largest} is asked "
            "for; choose another, or have an admin run it with userns host",
            field="user",
        )
    return identity


def _resolve(user: str, rootfs: Path) -> ContainerUser:
    wanted, colon, wanted_group = user.partition(":")
    wanted = wanted or "0"
    if colon and not wanted_group:
        raise errors.Invalid(f'user "{user}" names no group after ":"; leave the ":" out', field="user")
    found = next((one for one in _users(rootfs) if wanted in (one.name, str(one.uid))), None)
    if found is None:
        uid = _number(wanted)
        if uid is None:
            raise errors.Invalid(
                f'image has no user "{wanted}"; name one of its /etc/passwd, or give a number from 0 to '
                f"{_LARGEST_ID}",
                field="user",
            )
        found = _User("", uid, 0, "/")
    if wanted_group:
        return ContainerUser(found.uid, _group(wanted_group, rootfs), (), found.home)
    groups = {one.gid for one in _groups(rootfs) if found.name in one.members} if found.name else set()
    return ContainerUser(found.uid, found.gid, tuple(sorted(groups))[:_MOST_GROUPS], found.home)


def _group(wanted: str, rootfs: Path) -> int:
    found = next((one.gid for one in _groups(rootfs) if wanted in (one.name, str(one.gid))), None)
    gid = _number(wanted) if found is None else found
    if gid is None:
        raise errors.Invalid(
            f'image has no group "{wanted}"; name one of its /etc/group, or give a number from 0 to '
            f"{_LARGEST_ID}",
            field="user",
        )
    return gid


def _users(rootfs: Path) -> Iterator[_User]:
    for fields in _lines(rootfs, "etc/passwd", 7):
        uid, gid = _number(fields[2]), _number(fields[3])
        if uid is not None and gid is not None:
            yield _User(fields[0], uid, gid, fields[5] or "/")


def _groups(rootfs: Path) -> Iterator[_Group]:
    for fields in _lines(rootfs, "etc/group", 4):
        gid = _number(fields[2])
        if gid is not None:
            yield _Group(fields[0], gid, frozenset(fields[3].split(",")) - {""})


def _lines(rootfs: Path, path: str, fields: int) -> Iterator[list[str]]:
    """Lines that are whole; others say nothing, as for the C library."""
    data = rootfs_files.read_file(rootfs, path, _LARGEST_FILE) or b""
    for line in data.decode(errors="replace").split("\n"):
        parts = line.strip().split(":")
        if len(parts) >= fields and parts[0] and not parts[0].startswith("#"):
            yield parts


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        return None
    number = int(text)
    return number if number <= _LARGEST_ID else None
