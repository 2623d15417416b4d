"""Images: what a container is made from, as a node keeps them.

An image is a stack of layers with the defaults of what to run in it. It is known by the digest of its
configuration, which pins every byte of it; names point to it and may move. How images are fetched, checked
and unpacked is the business of `skerry.node.images`.
"""

from __future__ import annotations

from typing import NewType

import msgspec

from skerry.model.ids import Digest

ImageId = NewType("ImageId", str)  # the digest of the configuration, or of what stands for one


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
