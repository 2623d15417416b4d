"""What a service manager such as systemd tells a process that it starts, and what that reports back.

Used by `skerry.daemon.process`; `skerry.cli.settings` takes the variables from the environment. The protocol
is that of `sd_notify` and `sd_listen_fds`: datagrams to the socket of `NOTIFY_SOCKET`, and listening sockets
from descriptor 3 on, by name. Without a service manager all of this does nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, MutableMapping
from typing import Final, NoReturn, Self

import msgspec
import structlog

log = structlog.get_logger(__name__)

_FIRST_DESCRIPTOR: Final = 3
_MAX_SOCKETS: Final = 64
_MAX_STATUS: Final = 500  # characters of a status; a datagram has a limit, and `systemctl status` one line
_NOTIFY: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = ("WATCHDOG_USEC", "WATCHDOG_PID")
_LISTEN: Final = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
_SIGNS_PER_TIMEOUT: Final = 3  # so that one that comes late is no stall


class InvalidSockets(Exception):
    """The passed sockets cannot be used; the message says why."""


class InheritedSocket(socket.socket):
    """A listening socket that the service manager has open, too: its queue goes on taking connections when
    this process closes it. So it must only be closed, never shut down."""


class ServiceManager(msgspec.Struct, frozen=True):
    """The service manager of this process, if it has one."""

    address: str = ""  # of the notification socket; `@` begins an abstract one
    watchdog_s: float = 0.0  # a process without a sign of life for so long is restarted; 0: never
    sockets: Mapping[str, InheritedSocket] = msgspec.field(default_factory=dict)

    @classmethod
    def take(cls, environment: MutableMapping[str, str], pid: int | None = None) -> Self:
        """Read the variables and remove them, so that no child process takes them for its own."""
        pid = os.getpid() if pid is None else pid
        address = environment.pop(_NOTIFY, "")
        period, watched = (environment.pop(name, "") for name in _WATCHDOG)
        count, listener, names = (environment.pop(name, "") for name in _LISTEN)
        watchdog_s = int(period) / 1e6 if period.isdigit() and watched in ("", str(pid)) else 0.0
        sockets = _take_sockets(count, names) if count and listener == str(pid) else {}
        return cls(address if address[:1] in ("/", "@") else "", watchdog_s, sockets)

    @property
    def is_present(self) -> bool:
        return bool(self.address)

    def starting(self, step: str, within_s: float) -> None:
        """The next step of a start, and how long it may take."""
        self._send(f"STATUS={_line(step)}", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}")

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={_line(status)}")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=stopping")

    async def signal_alive(self) -> NoReturn:
        """Send signs of life from the event loop, for ever: a loop that is blocked sends none."""
        while True:
            if not self.watchdog_s:
                await asyncio.Event().wait()
            self._send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / _SIGNS_PER_TIMEOUT)

    def _send(self, *fields: str) -> None:
        if not self.address:
            return
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto("\n".join(fields).encode(), address)
        except OSError as error:
            log.warning(
                "service_manager.unreachable", address=self.address, error=error.strerror or str(error)
            )


def _take_sockets(count: str, names: str) -> dict[str, InheritedSocket]:
    if not count.isdigit() or int(count) > _MAX_SOCKETS:
        raise InvalidSockets(f"LISTEN_FDS is {count!r}; it must be a number up to {_MAX_SOCKETS}")
    named = names.split(":") if names else []
    if len(named) != int(count) or len(set(named)) != len(named):
        raise InvalidSockets(
            f"the service manager passed {count} sockets with the names {named}; each needs one of its "
            "own (FileDescriptorName= of its socket unit)"
        )
    return {name: _inherited(_FIRST_DESCRIPTOR + index, name) for index, name in enumerate(named)}


def _inherited(descriptor: int, name: str) -> InheritedSocket:
    try:
        os.set_inheritable(descriptor, False)
        taken = InheritedSocket(fileno=descriptor)
        is_listening = taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise InvalidSockets(f"descriptor {descriptor} ({name}) is no socket: {error.strerror}") from None
    if taken.type != socket.SOCK_STREAM or not is_listening:
        taken.detach()
        raise InvalidSockets(f"descriptor {descriptor} ({name}) is no listening stream socket")
    taken.setblocking(False)
    return taken


def _line(text: str) -> str:
    return " ".join(text.split())[:_MAX_STATUS]
