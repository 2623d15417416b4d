"""Who a container runs as: names and numbers, by the image's own `/etc/passwd` and `/etc/group`."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Identity(msgspec.Struct, frozen=True):
    """A user as the kernel knows it, with the home that the image gives it."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    home: str = "/"


def resolve_user(user: str, rootfs: Path) -> Identity:
    """`name`, `uid`, `name:group` or `uid:gid`; empty is root. Raises Invalid naming what the image lacks."""
    raise NotImplementedError
