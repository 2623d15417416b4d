"""Mounts: what an instance has in its file system beside its image.

Part of `skerry.model.workloads.InstanceSpec`; the node of the instance mounts them
(`skerry.node.containers.mounts`). A mount is a volume (`skerry.model.volumes`), a volume of a template of a
service, a tmpfs, or a path of the node. Validation only: whether a volume exists is known to the control
plane.
"""

from __future__ import annotations

import enum
import itertools
import posixpath
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from skerry.model import errors
from skerry.model.ids import NAMESPACE_PATTERN, VolumeId
from skerry.model.resources import MAX_AMOUNT

MAX_MOUNTS: Final = 32
MAX_VOLUME_NAME: Final = 63
_MAX_PATH: Final = 1024
_NAME: Final = re.compile(NAMESPACE_PATTERN)
# The runtime's own, or the kernel's.
_RESERVED: Final = ("/proc", "/sys", "/dev")
_MODES: Final = {"ro": True, "rw": False}


class MountKind(enum.StrEnum):
    """What is mounted."""

    VOLUME = "volume"
    TEMPLATE = "template"  # of a service: each copy has a volume of its own
    TMPFS = "tmpfs"  # in memory, which counts as the instance's
    HOST = "host"  # a path of the node. For admins only


class Mount(msgspec.Struct, frozen=True, omit_defaults=True):
    """One mount."""

    kind: MountKind
    path: str  # in the instance
    source: str = ""  # the name of a volume or template, or a path of the node
    read_only: bool = False
    size: int = 0  # GB of each volume of a template; MB of a tmpfs, 0: half of the memory
    is_granted: bool = False  # a path of the node: an admin named it
    is_exclusive: bool = False  # a volume that a template made: one instance at a time has it
    volume: VolumeId = VolumeId("")  # in orders: the volume that the source is

    def __post_init__(self) -> None:
        check_path(self.path)
        if not 0 <= self.size <= MAX_AMOUNT:
            raise errors.Invalid(f"the size of a mount is 0 to {MAX_AMOUNT}", field="volumes")
        match self.kind:
            case MountKind.VOLUME | MountKind.TEMPLATE:
                check_volume_name(self.source, field="volumes")
                if self.kind is MountKind.TEMPLATE and not self.size:
                    raise errors.Invalid(
                        "a volume template needs the size of each volume in GB, as in data:/var/lib/db:10",
                        field="volume_templates",
                    )
            case MountKind.HOST:
                if not is_host_path(self.source) or posixpath.normpath(self.source) != self.source:
                    raise errors.Invalid(
                        f"{self.source[:60]!r} is no path of a node; write it in full, without `..` and `//`",
                        field="volumes",
                    )
            case MountKind.TMPFS:
                if self.source or self.read_only:
                    raise errors.Invalid("a tmpfs has neither a source nor `ro`", field="tmpfs")

    @property
    def is_volume(self) -> bool:
        return self.kind is MountKind.VOLUME

    def __str__(self) -> str:
        """As `parse` of its kind reads it."""
        mode = ":ro" if self.read_only else ""
        match self.kind:
            case MountKind.TMPFS:
                return f"{self.path}:{self.size}" if self.size else self.path
            case MountKind.TEMPLATE:
                return f"{self.source}:{self.path}:{self.size}"
            case _:
                return f"{self.source}:{self.path}{mode}"


def parse_volume(text: str) -> Mount:
    """`db:/var/lib/db`, `db:/var/lib/db:ro`; with a path of the node `/srv/www:/www:ro`."""
    source, path, *rest = _parts(text, "volumes", "NAME:/path or NAME:/path:ro, as in db:/var/lib/db")
    mode = rest[0] if rest else "rw"
    if len(rest) > 1 or mode not in _MODES:
        raise errors.Invalid(f"{text[:60]!r}: after the path comes `ro` or `rw`, or nothing", field="volumes")
    kind = MountKind.HOST if is_host_path(source) else MountKind.VOLUME
    return Mount(kind, path, source, _MODES[mode])


def parse_template(text: str) -> Mount:
    """`data:/var/lib/db:10`: each copy has a volume `data-INDEX` of 10 GB."""
    form = "NAME:/path:GB, as in data:/var/lib/db:10"
    source, path, *rest = _parts(text, "volume_templates", form)
    if len(rest) != 1 or not (rest[0].isascii() and rest[0].isdigit()):
        raise errors.Invalid(f"{text[:60]!r} is no volume template; write {form}", field="volume_templates")
    return Mount(MountKind.TEMPLATE, path, source, size=int(rest[0][:12]))


def parse_tmpfs(text: str) -> Mount:
    """`/scratch`, or with its size in MB `/scratch:64`."""
    path, colon, size = text.partition(":")
    if colon and not (size.isascii() and size.isdigit()):
        raise errors.Invalid(
            f"{text[:60]!r} is no tmpfs; write /path or /path:MB, as in /scratch:64", field="tmpfs"
        )
    return Mount(MountKind.TMPFS, path, size=int(size[:12]) if colon else 0)


def _parts(text: str, field: str, form: str) -> list[str]:
    parts = text.split(":")
    if len(parts) < 2:
        raise errors.Invalid(f"{text[:60]!r} is no mount; write {form}", field=field)
    return parts


def is_host_path(source: str) -> bool:
    """True if the source of a mount is a path of the node, and no name."""
    return source.startswith("/")


def check_volume_name(text: str, *, field: str = "name") -> str:
    """The name of a volume, or of a template."""
    if len(text) > MAX_VOLUME_NAME or not _NAME.fullmatch(text):
        raise errors.Invalid(
            f"volume name {text[:MAX_VOLUME_NAME]!r} must be 1 to {MAX_VOLUME_NAME} lower-case letters, "
            "digits or '-', and begin with a letter and end with a letter or digit",
            field=field,
        )
    return text


def check_path(path: str) -> None:
    """Raise unless something can be mounted at `path` of an instance."""
    is_plain = path.startswith("/") and path.isprintable() and posixpath.normpath(path) == path
    if not is_plain or path in ("/", "//") or len(path) > _MAX_PATH or ".." in path.split("/"):
        raise errors.Invalid(
            f"{path[:60]!r} is no path to mount at; write it in full, as in /var/lib/db", field="volumes"
        )
    if any(_is_within(path, own) for own in _RESERVED):
        raise errors.Invalid(
            f"nothing can be mounted at {path[:60]}: /proc, /sys and /dev are the kernel's; "
            "choose another path, or set `shm` for /dev/shm",
            field="volumes",
        )


def check_mounts(mounts: Sequence[Mount], files: Sequence[str] = ()) -> None:
    """Raise if there are too many, or one is at or in another: the program in one could exchange a folder for
    a link while the other is mounted there. Neither can one of `files`, which are mounted, too, be in one."""
    if len(mounts) > MAX_MOUNTS:
        raise errors.Invalid(f"{len(mounts)} mounts are too many; at most {MAX_MOUNTS}", field="volumes")
    paths = sorted(mount.path for mount in mounts)
    for outer, inner in itertools.pairwise(paths):
        if outer == inner:
            raise errors.Invalid(f"two mounts are at {outer}; each needs a path of its own", field="volumes")
    for inner in paths:
        if (outer := next((one for one in paths if one != inner and _is_within(inner, one)), "")) != "":
            raise errors.Invalid(
                f"{inner} is inside the mount at {outer}; mount it beside that", field="volumes"
            )

    for path in filter(None, files):
        if (outer := next((one for one in paths if _is_within(path, one)), "")) != "":
            raise errors.Invalid(
                f"{path} is inside the mount at {outer}; put it beside that", field="volumes"
            )


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
