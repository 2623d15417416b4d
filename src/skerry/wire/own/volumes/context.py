"""The context of the endpoints of volumes, which they get when the application is built."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.control.volumes.registry import VolumeRegistry


@dataclass(frozen=True, slots=True)
class VolumeContext:
    """The first argument of these endpoints."""

    volumes: VolumeRegistry
