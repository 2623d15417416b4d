"""The event loop of the launcher and of an init: one thread, one poll, which also reports ended children."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from typing import Final

from skerry.node.kernel import syscalls

READABLE: Final = select.POLLIN
WRITABLE: Final = select.POLLOUT

# Blocked and not ignored: one call unblocks them all for a program.
_BLOCKED: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)


class PollLoop:
    """Calls a handler when its descriptor is ready; sleeps otherwise."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def watch(self, descriptor: int, handler: Callable[[], None], events: int = READABLE) -> None:
        """Call `handler` whenever `descriptor` is ready; replaces an earlier handler."""
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Stop watching it; before it is closed."""
        del self._handlers[descriptor]
        self._poll.unregister(descriptor)

    def watch_children(self, handler: Callable[[], None]) -> None:
        """Call `handler` after children have ended, once for all of them; after `enable_child_events`."""
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

        def woken() -> None:
            os.read(reading, 4096)
            handler()

        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self.watch(reading, woken)

    def run_once(self, within_ms: int | None = None) -> None:
        """Wait for events, at most `within_ms` if that is given, and handle all of them."""
        for descriptor, _ in self._poll.poll(within_ms):
            handler = self._handlers.get(descriptor)
            if handler is None:
                continue  # removed by an earlier handler of this iteration
            try:
                handler()
            except Exception:  # noqa: BLE001, S110 - one source gone wrong must not take the others down
                pass


def enable_child_events() -> None:
    """Once, in the launcher; its forks inherit it."""
    signal.signal(signal.SIGCHLD, _nothing)


def _nothing(number: int, frame: object) -> None:
    """The wakeup descriptor does the work; the interpreter needs a handler for it."""


def reset_signals() -> None:
    """Reset inherited signal handling and that of the interpreter; for a new process."""
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        try:
            if signal.getsignal(number) != signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # SIGKILL, SIGSTOP and those that the C library reserves
    syscalls.take_default_reserved_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def block_signals() -> None:
    """Block the signals that terminals and service managers send to all processes."""
    signal.pthread_sigmask(signal.SIG_SETMASK, _BLOCKED)
