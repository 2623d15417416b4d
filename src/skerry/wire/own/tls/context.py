"""The context of the endpoints of certificates, which they get when the application is built."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.control.tls.registry import TlsRegistry


@dataclass(frozen=True, slots=True)
class TlsContext:
    """The first argument of these endpoints."""

    certificates: TlsRegistry
