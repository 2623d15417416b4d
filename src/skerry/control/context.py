"""The parts of a control plane: one record, made at start, passed down, never changed.

The daemon makes it; `skerry.wire` serves from it. It owns nothing and starts nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from skerry.control.events.log import EventLog
from skerry.kit.clock import Clock
from skerry.model.settings import Settings
from skerry.store.protocol import Store

if TYPE_CHECKING:
    from skerry.control.identity.authenticator import Authenticator
    from skerry.control.identity.authority_rotation import AuthorityRotation
    from skerry.kit.pki import CertificateAuthority


class ControlPlane(msgspec.Struct, frozen=True):
    """The parts of a running control plane."""

    settings: Settings
    clock: Clock
    store: Store
    identity: Authenticator
    events: EventLog
    authority: CertificateAuthority
    started_at: float
    checks: dict[str, Callable[[], Awaitable[None]]]  # by name; each raises while its part is not ready
    lacking: tuple[str, ...]  # what this process cannot do, in plain sentences
    warnings: tuple[str, ...] = ()  # security warnings, likewise
    unreachable: Callable[[], Sequence[str]] = tuple  # nodes that cannot be dialled now, likewise
    rotation: AuthorityRotation | None = None  # of the CA
