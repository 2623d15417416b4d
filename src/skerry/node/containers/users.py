"""The user of a container: names and numbers, by the image's own `/etc/passwd` and `/etc/group`.

Docker's rules: a name or a number is looked up, a number need not exist, and an explicit group replaces the
user's primary and supplementary groups. The node's users are never looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from skerry.model import errors
from skerry.node.containers import rootfs_files
from skerry.node.user_namespaces import IDS

_LARGEST_FILE: Final = 4 * 1024 * 1024
NODE_IDS: Final = 2**31  # without a user namespace; runtimes support no larger ones
_LARGEST_ID: Final = NODE_IDS - 1
_MOST_GROUPS: Final = 65_536  # the kernel's limit


class ContainerUser(msgspec.Struct, frozen=True):
    """Uid, gids and home folder in the image."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    home: str = "/"
    ids: int = NODE_IDS  # uids, and gids, that exist for the container


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
    """`name`, `uid`, `name:group` or `uid:gid`; empty is root. There are `ids` of each. Raises Invalid with
    what the image, or the container, lacks."""
    identity = _resolve(user, rootfs)
    largest = max(identity.uid, identity.gid, *identity.groups)
    if largest >= ids:
        remedy = (
            "or have an admin run it with userns host"
            if ids == IDS
            else "or have root give the user of this node more ids (`usermod --add-subuids`, --add-subgids)"
        )
        raise errors.Invalid(
            f"a container in a user namespace has users and groups 0 to {ids - 1}, and {largest} was "
            f"requested; choose another, {remedy}",
            field="user",
        )
    return msgspec.structs.replace(identity, ids=ids)


def _resolve(user: str, rootfs: Path) -> ContainerUser:
    name, colon, group = user.partition(":")
    name = name or "0"
    if colon and not group:
        raise errors.Invalid(f'user "{user}" has no group after ":"; leave the ":" out', field="user")
    found = next((one for one in _users(rootfs) if name in (one.name, str(one.uid))), None)
    if found is None:
        uid = _number(name)
        if uid is None:
            raise errors.Invalid(
                f'image has no user "{name}"; name one of its /etc/passwd, or give a number from 0 to '
                f"{_LARGEST_ID}",
                field="user",
            )
        found = _User("", uid, 0, "/")
    if group:
        return ContainerUser(found.uid, _group(group, rootfs), (), found.home)
    groups = {one.gid for one in _groups(rootfs) if found.name in one.members} if found.name else set()
    return ContainerUser(found.uid, found.gid, tuple(sorted(groups))[:_MOST_GROUPS], found.home)


def _group(name: str, rootfs: Path) -> int:
    found = next((one.gid for one in _groups(rootfs) if name in (one.name, str(one.gid))), None)
    gid = _number(name) if found is None else found
    if gid is None:
        raise errors.Invalid(
            f'image has no group "{name}"; name one of its /etc/group, or give a number from 0 to '
            f"{_LARGEST_ID}",
            field="user",
        )
    return gid


def _users(rootfs: Path) -> Iterator[_User]:
    for fields in _rows(rootfs, "etc/passwd", 7):
        uid, gid = _number(fields[2]), _number(fields[3])
        if uid is not None and gid is not None:
            yield _User(fields[0], uid, gid, fields[5] or "/")


def _groups(rootfs: Path) -> Iterator[_Group]:
    for fields in _rows(rootfs, "etc/group", 4):
        gid = _number(fields[2])
        if gid is not None:
            yield _Group(fields[0], gid, frozenset(fields[3].split(",")) - {""})


def _rows(rootfs: Path, path: str, fields: int) -> Iterator[list[str]]:
    """Fields of well-formed lines; others are ignored, as in the C library."""
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
