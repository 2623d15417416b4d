"""Ports of the machine: who of us has which, and a hold on each so that no other process takes it.

A port is held by a socket that is bound and does nothing: packets for it never get that far, since the
rules send them on. The socket ends with the agent; the next one holds the port again. Who else has a port
that cannot be held is found out for the error, once it has failed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterable

import psutil

from skerry.model import errors
from skerry.model.ports import PortMapping, Protocol
from skerry.node.network.port_rules import HostPort

_KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}
_EVERYWHERE = "0.0.0.0"  # noqa: S104 - a hold lets nobody in: nothing listens


class PortReservations:
    """The ports that are published, or about to be."""

    def __init__(self) -> None:
        self._owners: dict[HostPort, str] = {}
        self._sockets: dict[HostPort, socket.socket] = {}

    async def take(self, owner: str, mappings: Iterable[PortMapping]) -> None:
        """Hold the source ports of all, or raise FailedPrecondition, saying who has one of them, and hold
        none."""
        wanted = list(mappings)
        for host_port in _host_ports(wanted):
            if (other := self._owners.get(host_port)) is not None:
                raise errors.FailedPrecondition(
                    f"port {_name(host_port)} is published by {other!r}; choose another, or remove that"
                )
        self._owners |= dict.fromkeys(_host_ports(wanted), owner)
        try:
            for host_port in _host_ports(wanted):
                self._sockets[host_port] = await _hold(host_port)
        except BaseException:
            self.release(wanted)
            raise

    async def retake(self, owner: str, mappings: Iterable[PortMapping]) -> list[str]:
        """For ports that are published already: they are the owner's, held or not; what could not be held."""
        failures = []
        for host_port in _host_ports(mappings):
            self._owners[host_port] = owner
            try:
                self._sockets[host_port] = await _hold(host_port)
            except errors.FailedPrecondition as error:
                failures.append(error.message)
        return failures

    def release(self, mappings: Iterable[PortMapping]) -> None:
        """Let go of them, held or not."""
        for host_port in _host_ports(mappings):
            self._owners.pop(host_port, None)
            if (holding := self._sockets.pop(host_port, None)) is not None:
                holding.close()

    def close(self) -> None:
        """Let go of every port, published or not: the agent ends."""
        for holding in self._sockets.values():
            holding.close()
        self._sockets.clear()


def _host_ports(mappings: Iterable[PortMapping]) -> list[HostPort]:
    return [(each.source, each.protocol) for each in mappings]


async def _hold(host_port: HostPort) -> socket.socket:
    try:
        return _bind(host_port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise errors.FailedPrecondition(
                f"port {_name(host_port)} cannot be published: {error.strerror}"
            ) from error
    holder = await asyncio.to_thread(_find_holder, host_port)
    if holder is None:
        # Connections that have ended linger on the port. They keep nobody off it who says that they may be
        # there; such a hold keeps off only those who do not say so themselves, and is better than none.
        try:
            return _bind(host_port, over_lingering=True)
        except OSError:
            holder = "another process, which does not listen on it"
    raise errors.FailedPrecondition(
        f"port {_name(host_port)} of this machine is used by {holder}; choose another, or end that"
    )


def _bind(host_port: HostPort, *, over_lingering: bool = False) -> socket.socket:
    port, protocol = host_port
    holding = socket.socket(socket.AF_INET, _KINDS[protocol] | socket.SOCK_CLOEXEC)
    try:
        # As little as can be is kept of datagrams that come before the rules do: nobody reads them.
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, over_lingering)
        holding.bind((_EVERYWHERE, port))
    except BaseException:
        holding.close()
        raise
    return holding


def _find_holder(host_port: HostPort) -> str | None:
    """Who has the port, in words; None if only ended connections are seen on it."""
    port, protocol = host_port
    seen = [
        each
        for each in psutil.net_connections(protocol.value)
        if each.laddr and each.laddr.port == port and each.status != psutil.CONN_TIME_WAIT
    ]
    if not seen:
        return None
    # Who listens is more to the point than who was accepted there.
    seen.sort(key=lambda each: (each.status not in (psutil.CONN_LISTEN, psutil.CONN_NONE), each.pid is None))
    pid = seen[0].pid
    if pid is None:
        return "a process that cannot be found, perhaps in another container"
    if pid == os.getpid():
        return "Skerry itself"
    try:
        return f"process {pid} ({psutil.Process(pid).name()})"
    except psutil.NoSuchProcess:
        return f"process {pid}"


def _name(host_port: HostPort) -> str:
    return f"{host_port[0]}/{host_port[1]}"
