"""The process that forwards published ports into the network namespace of the bridge.

Started by `skerry.node.network.forwarding.port_forwarder`; it outlives the agent, as rules of the kernel do
on a node that runs as root. The agent binds the ports on the machine and passes the sockets; this process is
in the namespace of the bridge as a whole, and connects to the same port of its loopback, from where the rules
of the firewall forward to the container. It ends when it has no port and no agent is connected.

A request is a line of JSON with the sockets as descriptors, over a packet socket:

    {"add": [[8080, "tcp", 2]]}     two sockets of port 8080: of IPv4 and IPv6
    {"remove": [[8080, "tcp"]]}
    {}

and each answer is `{"pid": N, "ports": [[8080, "tcp"]]}`. Imports nothing but the standard library: it is
small, and is started with nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import selectors
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NoReturn

_REQUEST_BYTES: Final = 64 * 1024
_MOST_SOCKETS: Final = 200
_PIECE: Final = 256 * 1024
_BACKLOG: Final = 1024
_DATAGRAM: Final = 65_536
_PER_TURN: Final = 64  # connections or datagrams of one socket
_FLOW_IDLE_S: Final = 60.0
_MOST_FLOWS: Final = 4096
_PAUSE_S: Final = 0.1
_TARGET: Final = "127.0.0.1"

_Port = tuple[int, str]
_Handler = Callable[[int], None]  # takes the events that are ready


class _Loop:
    """Calls handlers of sockets that are ready."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, sock: socket.socket, events: int, handler: _Handler) -> None:
        """Replaces the handler of `sock`; without `events` it has none."""
        known = sock.fileno() >= 0 and sock in self._selector.get_map()
        if not events:
            if known:
                self._selector.unregister(sock)
        elif known:
            self._selector.modify(sock, events, handler)
        else:
            self._selector.register(sock, events, handler)

    def close(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self.watch(sock, 0, lambda _: None)
            sock.close()

    def step(self, timeout_s: float | None) -> None:
        for key, events in self._selector.select(timeout_s):
            # A handler before this one may have closed it, and another socket may have its number.
            current = self._selector.get_map().get(key.fd)
            if current is not None and current.fileobj is key.fileobj:
                current.data(events & current.events)


class _Half:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.rest = memoryview(b"")  # read, and not yet written
        self.is_read = False  # to its end
        self.is_done = False

    def move(self, buffer: bytearray) -> None:
        """Read and write until one side is not ready. Raises OSError."""
        while not self.is_done:
            if not self.rest and not self.is_read:
                try:
                    count = self.source.recv_into(buffer)
                except BlockingIOError:
                    return
                self.rest, self.is_read = memoryview(buffer)[:count], count == 0
            if self.rest:
                try:
                    sent = self.target.send(self.rest)
                except BlockingIOError:
                    sent = 0
                # What is left is copied: the buffer is that of all connections.
                self.rest = memoryview(bytes(self.rest[sent:]))
                return  # the next turn goes on, after other connections
            if self.is_read:
                with contextlib.suppress(OSError):
                    self.target.shutdown(socket.SHUT_WR)
                self.is_done = True


class _Connection:
    """A connection from outside, and the one to the container."""

    def __init__(self, loop: _Loop, client: socket.socket, port: int, buffer: bytearray) -> None:
        self._loop = loop
        self._buffer = buffer
        self._client = client
        self._inside = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._is_connected = False
        for each in (client, self._inside):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self._inside.connect_ex((_TARGET, port))
        if code not in (0, errno.EINPROGRESS):
            self.close()
            return
        self._halves = (_Half(client, self._inside), _Half(self._inside, client))
        loop.watch(self._inside, selectors.EVENT_WRITE, self._connected)

    def close(self) -> None:
        for each in (self._client, self._inside):
            self._loop.close(each)

    def _connected(self, events: int) -> None:
        if self._inside.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._reset()
            return
        self._is_connected = True
        self._move(0)

    def _reset(self) -> None:
        """As a machine without a listener on the port would."""
        with contextlib.suppress(OSError):
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.close()

    def _move(self, events: int) -> None:
        try:
            for half in self._halves:
                half.move(self._buffer)
        except OSError:
            self._reset()
            return
        if all(half.is_done for half in self._halves):
            self.close()
            return
        for sock in (self._client, self._inside):
            reads = any(half.source is sock and not half.rest and not half.is_read for half in self._halves)
            writes = any(half.target is sock and half.rest for half in self._halves)
            interests = selectors.EVENT_READ * reads | selectors.EVENT_WRITE * writes
            self._loop.watch(sock, interests, self._move)


class _TcpPort:
    """A listening socket."""

    def __init__(self, loop: _Loop, sock: socket.socket, port: int, buffer: bytearray) -> None:
        self._loop, self._sock, self._port, self._buffer = loop, sock, port, buffer
        self.paused_until = 0.0
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        self.resume()

    def resume(self) -> None:
        self.paused_until = 0.0
        self._loop.watch(self._sock, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        self._loop.close(self._sock)

    def expire(self, now: float) -> float | None:
        """Go on after a pause; when to call this again."""
        if self.paused_until and now >= self.paused_until:
            self.resume()
        return self.paused_until or None

    def _accept(self, events: int) -> None:
        for _ in range(_PER_TURN):
            try:
                client, _ = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._loop.watch(self._sock, 0, self._accept)
                    self.paused_until = time.monotonic() + _PAUSE_S
                    return
                continue  # this connection is gone
            client.setblocking(False)
            try:
                _Connection(self._loop, client, self._port, self._buffer)
            except OSError:
                client.close()


class _UdpPort:
    """A socket for datagrams, with one to the container for each client."""

    def __init__(self, loop: _Loop, sock: socket.socket, port: int) -> None:
        self._loop, self._sock, self._port = loop, sock, port
        self._flows: OrderedDict[Any, tuple[socket.socket, float]] = OrderedDict()  # the oldest use first
        sock.setblocking(False)
        # The agent has reserved the port with the smallest buffer.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * _PIECE)
        loop.watch(sock, selectors.EVENT_READ, self._receive)

    def close(self) -> None:
        self._loop.close(self._sock)
        while self._flows:
            self._drop_oldest()

    def expire(self, now: float) -> float | None:
        """Forget clients that were silent for long; when to call this again."""
        while self._flows:
            used = next(iter(self._flows.values()))[1]
            if used + _FLOW_IDLE_S > now:
                return used + _FLOW_IDLE_S
            self._drop_oldest()
        return None

    def _drop_oldest(self) -> None:
        _, (inside, _) = self._flows.popitem(last=False)
        self._loop.close(inside)

    def _receive(self, events: int) -> None:
        for _ in range(_PER_TURN):
            try:
                data, client = self._sock.recvfrom(_DATAGRAM)
            except OSError:  # none is left, or an error of an earlier answer
                return
            with contextlib.suppress(OSError):  # as lost on the way
                self._flow(client).send(data)

    def _flow(self, client: Any) -> socket.socket:
        inside = self._flows[client][0] if client in self._flows else self._open_flow(client)
        self._flows[client] = inside, time.monotonic()
        self._flows.move_to_end(client)
        return inside

    def _open_flow(self, client: Any) -> socket.socket:
        if len(self._flows) >= _MOST_FLOWS:
            self._drop_oldest()
        inside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            inside.connect((_TARGET, self._port))
        except OSError:
            inside.close()
            raise
        self._loop.watch(inside, selectors.EVENT_READ, lambda _: self._answer(client, inside))
        return inside

    def _answer(self, client: Any, inside: socket.socket) -> None:
        for _ in range(_PER_TURN):
            try:
                data = inside.recv(_DATAGRAM)
            except OSError:  # none is left, or nobody listens in the container
                return
            self._flows[client] = inside, time.monotonic()
            self._flows.move_to_end(client)
            with contextlib.suppress(OSError):
                self._sock.sendto(data, client)


class _Forwarder:
    def __init__(self, control: socket.socket) -> None:
        self._loop = _Loop()
        self._control = control
        self._agents: set[socket.socket] = set()
        self._ports: dict[_Port, list[_TcpPort | _UdpPort]] = {}
        self._buffer = bytearray(_PIECE)
        self._had_agent = False
        control.setblocking(False)
        self._loop.watch(control, selectors.EVENT_READ, self._meet)

    def run(self) -> None:
        while self._ports or self._agents or not self._had_agent:
            now = time.monotonic()
            times = [
                when
                for sockets in self._ports.values()
                for each in sockets
                if (when := each.expire(now)) is not None
            ]
            self._loop.step(max(0.0, min(times) - now) if times else None)

    def _meet(self, events: int) -> None:
        with contextlib.suppress(OSError):
            agent, _ = self._control.accept()
            agent.setblocking(False)
            self._agents.add(agent)
            self._had_agent = True
            self._loop.watch(agent, selectors.EVENT_READ, lambda _: self._serve(agent))

    def _serve(self, agent: socket.socket) -> None:
        try:
            packet, descriptors, _, _ = socket.recv_fds(agent, _REQUEST_BYTES, _MOST_SOCKETS)
        except BlockingIOError:
            return
        except OSError:
            packet, descriptors = b"", []
        sockets = [socket.socket(fileno=each) for each in descriptors]
        if not packet:
            self._agents.discard(agent)
            self._loop.close(agent)
            return
        request = json.loads(packet)
        for port, protocol in request.get("remove", ()):
            for each in self._ports.pop((port, protocol), ()):
                each.close()
        for port, protocol, count in request.get("add", ()):
            opened, sockets = sockets[:count], sockets[count:]
            for each in self._ports.pop((port, protocol), ()):
                each.close()
            self._ports[port, protocol] = [self._open(each, port, protocol) for each in opened]
        answer = {"pid": os.getpid(), "ports": sorted(self._ports)}
        with contextlib.suppress(OSError):
            agent.send(json.dumps(answer).encode())

    def _open(self, sock: socket.socket, port: int, protocol: str) -> _TcpPort | _UdpPort:
        if protocol == "tcp":
            return _TcpPort(self._loop, sock, port, self._buffer)
        return _UdpPort(self._loop, sock, port)


def main(control: int, namespace: int) -> NoReturn:
    """`control` is the listening socket for agents, `namespace` the network namespace of the bridge."""
    from skerry.node.kernel import syscalls

    for ignored in (signal.SIGHUP, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    syscalls.set_name(b"skerry-ports")
    syscalls.enter_namespace(namespace, syscalls.CLONE_NEWNET)
    os.close(namespace)
    syscalls.set_capabilities(0)
    syscalls.set_no_new_privileges()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _Forwarder(socket.socket(fileno=control)).run()
    os._exit(0)
