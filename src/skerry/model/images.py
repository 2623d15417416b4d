"""Images: what a container is made from, as a node keeps them.

An image is a stack of layers with the defaults of what to run in it. It is known by the digest of its
configuration, which pins every byte of it; names point to it and may move. How images are fetched, checked
and unpacked is the business of `skerry.node.images`.
"""

from __future__ import annotations

import enum
import re
from typing import NewType

import msgspec

from skerry.model import errors
from skerry.model.ids import Digest

ImageId = NewType("ImageId", str)  # the digest of the configuration, or of what stands for one

_PATH = re.compile(r"(?:oci|oci-archive|docker-archive|rootfs):")
_ID = re.compile(r"(?:sha256:)?[0-9a-f]{6,64}")


class ImageAccess(enum.StrEnum):
    """Which images a reference may lead to, by the authority of who gave it.

    It is recorded with the reference when that is given (`grant_access`) and enforced where the reference is
    resolved (`skerry.node.images.images`), however long after and on whichever node.
    """

    REGISTRIES = "registries"  # by name in a registry, or by id if the image came from one
    ALL = "all"  # also from a path on the node, and by every id: an admin's


def is_path(reference: str) -> bool:
    """True if `reference` names a file or folder of the node, such as `rootfs:/srv/tree`."""
    return _PATH.match(reference) is not None


def check_path_access(reference: str, access: ImageAccess) -> None:
    """Raise `Forbidden` for a path without the authority, in the same words whatever is there."""
    if is_path(reference) and access is not ImageAccess.ALL:
        raise errors.Forbidden(
            "only an admin may use an image from a path on the node; push it to a registry, or let an admin "
            "give the reference"
        )


def grant_access(
    reference: str,
    giver: ImageAccess,
    *,
    before: str = "",
    access_before: ImageAccess = ImageAccess.REGISTRIES,
) -> ImageAccess:
    """The access to record with `reference`, which a caller with the access `giver` gives.

    In the place of an equal reference it keeps the access of that one. `ALL` is recorded only where it makes
    a difference, so that a name in a registry is the same whoever gave it. Raises `Forbidden`.
    """
    if giver is ImageAccess.ALL:
        return giver if is_path(reference) or _ID.fullmatch(reference) else ImageAccess.REGISTRIES
    access = access_before if reference == before else giver
    check_path_access(reference, access)
    return access


class Platform(msgspec.Struct, frozen=True):
    """What a machine must be to run an image, in the words of registries: `linux`, `arm64`, `v8`."""

    system: str = "linux"
    architecture: str = "amd64"
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.system, self.architecture, self.variant) if part)


class ImageConfig(msgspec.Struct, frozen=True):
    """What to run in the image, unless the container's spec says otherwise."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()  # KEY=VALUE
    user: str = ""  # `name`, `uid`, `name:group` or `uid:gid`
    folder: str = ""
    stop_signal: str = ""
    ports: tuple[str, ...] = ()  # what it says it listens on, such as `80/tcp`
    volumes: tuple[str, ...] = ()
    labels: dict[str, str] = {}


class Image(msgspec.Struct, frozen=True):
    """An image that is here, whole and unpacked."""

    id: ImageId
    names: tuple[str, ...]  # every reference that leads to it now, as it was asked for
    platform: Platform
    config: ImageConfig
    layers: tuple[Digest, ...]  # digests of the unpacked tars, the lowest first; empty for a folder
    bytes: int  # of its compressed layers, or of the folder
    pulled_at: float
    manifest: Digest | None = None  # None: it came with none
    folder: str = ""  # for `rootfs:` of a folder: the folder itself is the one layer
    from_registry: bool = False  # it came from a registry under a name, though it may have lost that since


class LayerProgress(msgspec.Struct, frozen=True):
    """How far one layer has come."""

    digest: Digest
    state: str  # `waiting`, `pulling`, `unpacking`, `done` or `present`
    bytes: int = 0
    total: int = 0


class PullProgress(msgspec.Struct, frozen=True):
    """How far a pull has come; `message` is a line for people."""

    reference: str
    message: str
    layers: tuple[LayerProgress, ...] = ()
