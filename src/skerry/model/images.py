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

ImageId = NewType("ImageId", str)  # the digest of the configuration, or of its substitute

_PATH = re.compile(r"(?:oci|oci-archive|docker-archive|rootfs):")
_ID = re.compile(r"(?:sha256:)?[0-9a-f]{6,64}")


class ImageAccess(enum.StrEnum):
    """Which images a reference may resolve to, by the role of the caller that gave it.

    It is recorded with the reference (`grant_access`) and enforced where the reference is resolved
    (`skerry.node.images.images`), however long after and on whichever node.
    """

    REGISTRIES = "registries"  # by name in a registry, or by id if the image came from one
    ALL = "all"  # also from a path on the node, and by every id: an admin's


def is_path(reference: str) -> bool:
    """True if `reference` names a file or folder of the node, such as `rootfs:/srv/tree`."""
    return _PATH.match(reference) is not None


def check_path_access(reference: str, access: ImageAccess) -> None:
    """Raise `Forbidden` for a path without the access, with the same message whether or not it exists."""
    if is_path(reference) and access is not ImageAccess.ALL:
        raise errors.Forbidden(
            "only an admin may use an image from a path on the node; push it to a registry, or let an admin "
            "give the reference"
        )


def grant_access(
    reference: str,
    caller_access: ImageAccess,
    *,
    before: str = "",
    access_before: ImageAccess = ImageAccess.REGISTRIES,
) -> ImageAccess:
    """The access to record with `reference`, which a caller with the access `caller_access` gives.

    In the place of an equal reference it keeps the access of that one. `ALL` is recorded only where it makes
    a difference, so that a name in a registry is the same whoever gave it. Raises `Forbidden`.
    """
    if caller_access is ImageAccess.ALL:
        return caller_access if is_path(reference) or _ID.fullmatch(reference) else ImageAccess.REGISTRIES
    access = access_before if reference == before else caller_access
    check_path_access(reference, access)
    return access


class Platform(msgspec.Struct, frozen=True):
    """The platform of an image, as in registries: `linux`, `arm64`, `v8`."""

    system: str = "linux"
    architecture: str = "amd64"
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.system, self.architecture, self.variant) if part)


class ImageConfig(msgspec.Struct, frozen=True):
    """The defaults of what to run, which the container's spec may override."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()  # KEY=VALUE
    user: str = ""  # `name`, `uid`, `name:group` or `uid:gid`
    folder: str = ""
    stop_signal: str = ""
    ports: tuple[str, ...] = ()  # its declared ports, such as `80/tcp`
    volumes: tuple[str, ...] = ()
    labels: dict[str, str] = {}


class Image(msgspec.Struct, frozen=True):
    """An image that is here, whole and unpacked."""

    id: ImageId
    names: tuple[str, ...]  # every reference that resolves to it now, as it was given
    platform: Platform
    config: ImageConfig
    layers: tuple[Digest, ...]  # digests of the unpacked tars, the lowest first; empty for a folder
    bytes: int  # of its compressed layers, or of the folder
    pulled_at: float
    manifest: Digest | None = None  # None: it came with none
    folder: str = ""  # for `rootfs:` of a folder: the folder itself is the one layer
    from_registry: bool = False  # it came from a registry under a name, though it may have lost that since
    # A registry has returned it only for the logins of these; empty: it is for all.
    namespaces: tuple[str, ...] = ()


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
