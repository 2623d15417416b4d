"""The context of the endpoints of volumes, which they get when the application is built."""

from __future__ import annotations

import msgspec

from skerry.control.volumes.registry import VolumeRegistry


class VolumeContext(msgspec.Struct, frozen=True):
    """The first argument of these endpoints."""

    volumes: VolumeRegistry
