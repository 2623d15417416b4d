"""The certificates that this edge node serves: chain and key of each are requested, and given to what serves.

The server tells which (`RouteCertificate`); values are requested as secrets are. A new version takes the
place of the old one in what serves, so a host is never without. While no server can be reached, what is
served stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Protocol

import structlog

from skerry.kit.backoff import Backoff
from skerry.model import errors
from skerry.model.secrets import SecretRef
from skerry.model.tls_certificates import RouteCertificate
from skerry.node.agent.network_state import NetworkState
from skerry.node.secrets.node_secrets import NodeSecrets

log = structlog.get_logger(__name__)

_MAX_FILE_NAME = 120
_AGAIN = Backoff(first_s=1.0, cap_s=30.0)


class CertificateServer(Protocol):
    """What serves routes. Certificates have names of their own there, see `file_name`."""

    def certificate_names(self) -> Iterable[str]:
        """Those that it has, also from before a restart of the agent."""
        ...

    async def set_certificate(self, name: str, domains: tuple[str, ...], pem: bytes) -> None:
        """Use chain and key for these hosts, in place of those of this name; the same again changes
        nothing."""
        ...

    async def remove_certificate(self, name: str) -> None: ...


class RouteCertificates:
    """Keeps what serves routes in step with what the server says."""

    def __init__(self, state: NetworkState, secrets: NodeSecrets, server: CertificateServer) -> None:
        self._secrets = secrets
        self._server = server
        self._wanted: Mapping[str, RouteCertificate] = {}
        self._served: dict[str, RouteCertificate] = {}  # by this process
        self._changed = asyncio.Event()
        state.subscribe(RouteCertificate, self._set_wanted)
        secrets.add_user(self._refs)

    async def run(self) -> None:
        """For ever: follow."""
        failures = 0
        while True:
            self._changed.clear()
            try:
                await self._follow()
                failures = 0
                await self._changed.wait()
            except (errors.SkerryError, OSError) as error:
                log.warning("tls.not_served", error=str(error))
                try:
                    async with asyncio.timeout(_AGAIN.delay(failures)):
                        await self._changed.wait()
                except TimeoutError:
                    failures += 1

    async def _follow(self) -> None:
        """Serve what is to be served. One that cannot be does not keep others from it."""
        wanted = {file_name(each): each for each in self._wanted.values()}
        for name in set(self._server.certificate_names()) - wanted.keys():
            await self._server.remove_certificate(name)
            self._served.pop(name, None)
            log.info("tls.removed", certificate=name)
        new = {name: each for name, each in wanted.items() if self._served.get(name) != each}
        self._secrets.prefetch(each.ref for each in new.values())
        failed: list[errors.SkerryError] = []
        for name, each in new.items():
            try:
                values = await self._secrets.values([each.ref])
                await self._server.set_certificate(name, each.hosts, values[each.ref])
            except errors.SkerryError as error:
                failed.append(error)
                if isinstance(error, errors.Unavailable):
                    break  # the server is away, for all of them
                continue
            self._served[name] = each
            log.info("tls.served", certificate=name, version=each.version, hosts=each.hosts)
        if failed:
            raise failed[0]

    def _set_wanted(self, wanted: Mapping[str, RouteCertificate]) -> None:
        self._wanted = wanted
        self._changed.set()

    def _refs(self) -> Iterable[SecretRef]:
        return [each.ref for each in self._wanted.values()]


def file_name(certificate: RouteCertificate) -> str:
    """Its name among those of all namespaces, which can be the name of a file; a namespace has no dot, so no
    two are the same."""
    text = f"{certificate.namespace}.{certificate.name}"
    if len(text) <= _MAX_FILE_NAME:
        return text
    return f"{certificate.namespace}.{sha256(text.encode()).hexdigest()[:32]}"
