"""The context of the endpoints of secrets, which they get when the application is built."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from skerry.control.secrets.registry import SecretRegistry
from skerry.control.secrets.rotation import KeyRotation


class SecretContext(msgspec.Struct, frozen=True):
    """The first argument of these endpoints."""

    secrets: SecretRegistry
    rotation: KeyRotation
    other_servers: Callable[[], int]  # that are there now
