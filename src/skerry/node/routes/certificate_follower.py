"""Has the edge use the certificates of routes: requests chains and keys, and gives them to HAProxy.

`RouteCertificate` objects name the certificates of this node's routes; their values come as secrets do
(`skerry.node.secrets`). A certificate that cannot be had is tried again; the one that is served stays.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from skerry.kit.backoff import Backoff
from skerry.model import errors
from skerry.model.secrets import SecretRef
from skerry.model.tls_certificates import RouteCertificate
from skerry.node.agent.network_state import NetworkState

log = structlog.get_logger(__name__)

_MAX_FILE_NAME: Final = 120
_AGAIN: Final = Backoff(first_s=1.0, factor=2.0, cap_s=60.0)


class CertificateSlots(Protocol):
    """The part of `skerry.node.routes.edge.EdgeRoutes` that is needed here."""

    async def set_certificate(self, name: str, domains: tuple[str, ...], pem: bytes) -> None: ...

    async def remove_certificate(self, name: str) -> None: ...

    @property
    def certificate_names(self) -> Sequence[str]: ...


class CertificateFollower:
    """Keeps the certificates of the edge as the network objects say."""

    def __init__(
        self,
        state: NetworkState,
        edge: CertificateSlots,
        values: Callable[[Sequence[SecretRef]], Awaitable[Mapping[SecretRef, bytes]]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`values` requests secrets, as `NodeSecrets.values` does."""
        self._state = state
        self._edge = edge
        self._values = values
        self._sleep = sleep
        self._changed = asyncio.Event()
        state.subscribe(RouteCertificate, lambda _: self._changed.set())

    def refs(self) -> Iterable[SecretRef]:
        """The values that are in use."""
        return [each.ref for each in self._state.all(RouteCertificate).values()]

    async def run(self) -> None:
        """Follow changes, for ever."""
        failures = 0
        while True:
            await self._changed.wait()
            self._changed.clear()
            if await self.apply():
                failures = 0
                continue
            self._changed.set()
            await self._sleep(_AGAIN.delay(failures))
            failures += 1

    async def apply(self) -> bool:
        """Use what is known now; False if something is to be tried again."""
        wanted = {file_name(each): each for each in self._state.all(RouteCertificate).values()}
        is_done = True
        for name, certificate in wanted.items():
            try:
                pem = (await self._values([certificate.ref]))[certificate.ref]
                await self._edge.set_certificate(name, certificate.hosts, pem)
            except errors.SkerryError as error:
                log.warning("routes.certificate_not_used", name=certificate.name, reason=error.message)
                is_done = False
        for name in self._edge.certificate_names:
            if name not in wanted:
                await self._edge.remove_certificate(name)
        return is_done


def file_name(certificate: RouteCertificate) -> str:
    """The name of its file on this node."""
    name = f"{certificate.namespace}--{certificate.name}"
    if len(name) <= _MAX_FILE_NAME:
        return name
    return f"{certificate.namespace}--{hashlib.sha256(certificate.name.encode()).hexdigest()}"
