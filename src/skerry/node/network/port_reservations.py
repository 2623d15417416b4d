"""Reserves published ports of the machine, so that no other process takes them.

A port is reserved by a bound socket that does nothing: packets for it never reach it, since the rules forward
them; where containers have IPv6, by two. The sockets end with the agent; the next one reserves the port
again. If a port cannot be reserved, its user is looked up for the error.

On a node of an ordinary user the rules are in another network namespace, and a process of this node forwards
connections to there (`skerry.node.network.forwarding`). It gets the sockets when the port is published, and
keeps them without the agent.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Collection, Iterable

import psutil
import structlog

from skerry.model import errors
from skerry.model.ports import PortMapping, Protocol
from skerry.node.network.forwarding.port_forwarder import PortForwarder
from skerry.node.network.port_rules import HostPort

log = structlog.get_logger(__name__)

_KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}
_AGAIN_S = 5.0
_PRIVILEGED = (
    "; choose one that ordinary users may have, from 1024 on, or have root lower the sysctl "
    "net.ipv4.ip_unprivileged_port_start"
)
_EVERYWHERE = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104 - nothing listens


class PortReservations:
    """The ports that are published, or about to be."""

    def __init__(
        self,
        has_ipv6: Callable[[], bool],
        shared: Collection[int] = (),
        forwarder: PortForwarder | None = None,
    ) -> None:
        """`has_ipv6`: ports are published at IPv6 addresses, too. `shared`: ports that this process listens
        on itself, at addresses that no published port is for. They are checked, and not held."""
        self._has_ipv6 = has_ipv6
        self._shared = frozenset(shared)
        self._forwarder = forwarder
        self._owners: dict[HostPort, str] = {}
        self._sockets: dict[HostPort, list[socket.socket]] = {}
        self._published: set[HostPort] = set()  # that the forwarder has, or should have

    async def reserve(self, owner: str, mappings: Iterable[PortMapping]) -> None:
        """Reserve the source ports of all, or raise FailedPrecondition, with the user of one of them, and
        reserve none."""
        requested = list(mappings)
        for host_port in _host_ports(requested):
            if (owned_by := self._owners.get(host_port)) is not None:
                raise errors.FailedPrecondition(
                    f"port {_name(host_port)} is published by {owned_by!r}; choose another, or remove that"
                )
        self._owners |= dict.fromkeys(_host_ports(requested), owner)
        try:
            for host_port in _host_ports(requested):
                await self._hold(host_port)
        except BaseException:
            self.release(requested)
            raise

    async def reserve_again(self, owner: str, mappings: Iterable[PortMapping]) -> list[str]:
        """For ports that are already published: they belong to the owner, reserved or not; returns those that
        could not be."""
        failures = []
        forwarded = set() if self._forwarder is None else await asyncio.to_thread(self._forwarder.ports)
        for host_port in _host_ports(mappings):
            self._owners[host_port] = owner
            if host_port in forwarded:
                self._published.add(host_port)
                continue
            try:
                await self._hold(host_port)
            except errors.FailedPrecondition as error:
                failures.append(error.message)
        await self.publish(mappings)
        return failures

    async def publish(self, mappings: Iterable[PortMapping]) -> None:
        """The rules forward reserved ports from now on. Raises Unavailable."""
        if self._forwarder is None:
            return
        reserved = {port: sockets for port in _host_ports(mappings) if (sockets := self._sockets.get(port))}
        if reserved:
            await asyncio.to_thread(self._forwarder.add, reserved)
        self._published |= reserved.keys()
        for port in reserved:
            _close_all(self._sockets.pop(port, ()))

    async def withdraw(self, mappings: Iterable[PortMapping]) -> None:
        """The rules will not forward them any more: who connects is refused. Raises Unavailable."""
        if self._forwarder is not None and (host_ports := _host_ports(mappings)):
            self._published.difference_update(host_ports)
            await asyncio.to_thread(self._forwarder.remove, host_ports)

    async def run(self) -> None:
        """Start the forwarder again if it ends, for ever."""
        if self._forwarder is None:
            return
        failures: list[str] = []
        while True:
            try:
                forwarded = await asyncio.to_thread(self._forwarder.ports)
                await asyncio.to_thread(self._forwarder.remove, forwarded - self._owners.keys())
                before, failures = failures, []
                for number, protocol in self._owners.keys() & (self._published - forwarded):
                    mapping = PortMapping(number, number, protocol)
                    failures += await self.reserve_again(self._owners[number, protocol], [mapping])
                if failures:
                    if failures != before:
                        log.warning("network.ports_not_held", reasons=failures)
                    await asyncio.sleep(_AGAIN_S)
                    continue
                await self._forwarder.ended()
                log.warning("network.forwarder_ended", ports=len(self._published))
            except (errors.Unavailable, OSError) as error:
                log.warning("network.forwarder_failed", reason=str(error))
                await asyncio.sleep(_AGAIN_S)

    async def _hold(self, host_port: HostPort) -> None:
        is_shared = host_port[0] in self._shared
        if is_shared and await asyncio.to_thread(_is_used_by_us_alone, host_port):
            return
        keeps_buffer = self._forwarder is not None
        sockets = [await _reserve(host_port, socket.AF_INET, keeps_buffer=keeps_buffer)]
        if self._has_ipv6():
            try:
                sockets.append(await _reserve(host_port, socket.AF_INET6, keeps_buffer=keeps_buffer))
            except BaseException:
                _close_all(sockets)
                raise
        if is_shared:
            _close_all(sockets)
        else:
            self._sockets[host_port] = sockets

    def release(self, mappings: Iterable[PortMapping]) -> None:
        """Release them, reserved or not."""
        for host_port in _host_ports(mappings):
            self._owners.pop(host_port, None)
            _close_all(self._sockets.pop(host_port, ()))

    def close(self) -> None:
        """Release every reservation: the agent ends."""
        for sockets in self._sockets.values():
            _close_all(sockets)
        self._sockets.clear()
        if self._forwarder is not None:
            self._forwarder.close()


def _host_ports(mappings: Iterable[PortMapping]) -> list[HostPort]:
    return [(each.source, each.protocol) for each in mappings]


def _close_all(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()


async def _reserve(host_port: HostPort, family: socket.AddressFamily, *, keeps_buffer: bool) -> socket.socket:
    try:
        return _bind(host_port, family, keeps_buffer=keeps_buffer)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            remedy = _PRIVILEGED if error.errno == errno.EACCES else ""
            raise errors.FailedPrecondition(
                f"port {_name(host_port)} cannot be published: {error.strerror}{remedy}"
            ) from error
    holder = await asyncio.to_thread(find_holder, host_port)
    if holder is None:
        # Closed connections linger on the port, which blocks only sockets without SO_REUSEADDR. A reservation
        # with it blocks only those without it, and is better than none.
        try:
            return _bind(host_port, family, keeps_buffer=keeps_buffer, reuse_address=True)
        except OSError:
            holder = "another process, which does not listen on it"
    raise errors.FailedPrecondition(
        f"port {_name(host_port)} of this machine is used by {holder}; choose another, or end that"
    )


def _bind(
    host_port: HostPort, family: socket.AddressFamily, *, keeps_buffer: bool, reuse_address: bool = False
) -> socket.socket:
    port, protocol = host_port
    holding = socket.socket(family, _KINDS[protocol] | socket.SOCK_CLOEXEC)
    try:
        if family is socket.AF_INET6:
            holding.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if not keeps_buffer:
            # The smallest buffer for datagrams that arrive before the rules are set: nobody reads them.
            holding.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse_address)
        holding.bind((_EVERYWHERE[family], port))
    except BaseException:
        holding.close()
        raise
    return holding


def find_holder(host_port: HostPort) -> str | None:
    """The user of the port, in words; None if only closed connections are found on it."""
    port, protocol = host_port
    connections = [
        each
        for each in psutil.net_connections(protocol.value)
        if each.laddr and each.laddr.port == port and each.status != psutil.CONN_TIME_WAIT
    ]
    if not connections:
        return None
    # A listener is more relevant than an accepted connection.
    connections.sort(
        key=lambda each: (each.status not in (psutil.CONN_LISTEN, psutil.CONN_NONE), each.pid is None)
    )
    pid = connections[0].pid
    if pid is None:
        return "a process that cannot be found, perhaps in another container"
    if pid == os.getpid():
        return "Skerry itself"
    try:
        return f"process {pid} ({psutil.Process(pid).name()})"
    except psutil.NoSuchProcess:
        return f"process {pid}"


def _is_used_by_us_alone(host_port: HostPort) -> bool:
    port, protocol = host_port
    owners = {
        each.pid for each in psutil.net_connections(protocol.value) if each.laddr and each.laddr.port == port
    }
    return owners == {os.getpid()}


def _name(host_port: HostPort) -> str:
    return f"{host_port[0]}/{host_port[1]}"
