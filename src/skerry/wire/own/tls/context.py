"""The context of the endpoints of certificates, which they get when the application is built."""

from __future__ import annotations

import msgspec

from skerry.control.tls.registry import TlsRegistry


class TlsContext(msgspec.Struct, frozen=True):
    """The first argument of these endpoints."""

    certificates: TlsRegistry
