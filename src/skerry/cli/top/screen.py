"""The terminal of `skerry top`: keys in, frames out, and a thread that reads the server.

The terminal is in its alternate screen, without echo, and is restored however the command ends. Frames are
drawn when a key was pressed, the size has changed, or there is a new snapshot, and at no other time.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live

from skerry.cli.top import drawing, snapshots
from skerry.cli.top import state as top_state
from skerry.cli.top.drawing import TopFrame
from skerry.cli.top.keys import KeyDecoder
from skerry.cli.top.snapshots import CloudSnapshot
from skerry.cli.top.state import TopMode, TopState
from skerry.client.api import ApiClient
from skerry.client.errors import ClientError
from skerry.kit import terminal_text

_ESCAPE_S: Final = 0.05  # after Escape, so long the rest of a sequence may take
_SOON_S: Final = 0.5
_SHARE: Final = 4  # reading takes at most one part in so many of the time


class _Reader:
    """Reads snapshots and details in a thread of its own; `wake` is called after each."""

    def __init__(
        self, server: ApiClient, namespace: str, interval_s: float, wake: Callable[[], None]
    ) -> None:
        self._server = server
        self.url = server.target.url
        self._namespace = namespace
        self._interval_s = interval_s
        self._wake = wake
        self._requests: queue.SimpleQueue[tuple[str, str, str | None] | None] = queue.SimpleQueue()
        self.snapshot: CloudSnapshot | None = None
        self.failure = ""
        self.details: tuple[tuple[str, str, str | None], Any] | None = None
        self.is_paused = False
        self._thread = threading.Thread(target=self._run, name="skerry-top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Without waiting for a request that is under way."""
        self._requests.put(None)

    def request_details(self, kind: str, id: str, namespace: str | None) -> None:
        self.details = None
        self._requests.put((kind, id, namespace))

    def _run(self) -> None:
        next_at = 0.0
        while True:
            try:
                wanted = self._requests.get(timeout=max(0.0, next_at - time.monotonic()))
            except queue.Empty:
                is_first = self.snapshot is None
                took = self._read_snapshot()
                pause_s = min(_SOON_S, self._interval_s) if is_first else self._interval_s  # for rates
                next_at = time.monotonic() + max(pause_s, took * (_SHARE - 1))
            else:
                if wanted is None:
                    return
                self._read_details(wanted)
            self._wake()

    def _read_snapshot(self) -> float:
        began = time.monotonic()
        if not self.is_paused:
            try:
                self.snapshot = snapshots.read(self._server, self._namespace, self.snapshot)
                self.failure = ""
            except ClientError as error:
                self.failure = error.message
        return time.monotonic() - began

    def _read_details(self, wanted: tuple[str, str, str | None]) -> None:
        try:
            self.details = (wanted, snapshots.details(self._server, *wanted))
        except ClientError as error:
            self.details = (wanted, {"object": {"reason": error.message}, "events": []})


@contextmanager
def _without_echo(descriptor: int) -> Iterator[None]:
    """Keys are passed on one by one, Ctrl-C too; output stays as it is, and the mode is restored."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)
        mode = termios.tcgetattr(descriptor)
        mode[3] &= ~termios.ISIG
        termios.tcsetattr(descriptor, termios.TCSANOW, mode)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


class _Wakeups:
    """A pipe that ends a wait: for a new snapshot, another size, and signals that end the command."""

    def __init__(self) -> None:
        self.descriptor, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self.is_ended = False

    def wake(self) -> None:
        try:
            os.write(self._writer, b".")
        except OSError:
            pass  # full: a wait will end anyway; or closed: nobody waits

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        def end(*_: Any) -> None:
            self.is_ended = True
            self.wake()

        handlers = {signal.SIGWINCH: lambda *_: self.wake(), signal.SIGTERM: end, signal.SIGHUP: end}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._writer)


def run(server: ApiClient, namespace: str, interval_s: float) -> None:
    """Show `server` until a key ends it."""
    wakeups = _Wakeups()
    reader = _Reader(server, namespace, interval_s, wakeups.wake)
    console = Console(file=terminal_text.unfiltered(sys.stdout), highlight=False)
    keyboard = sys.stdin.fileno()
    with ExitStack() as undo:
        undo.callback(wakeups.close)
        undo.callback(reader.stop)
        undo.enter_context(wakeups.on_signals())
        undo.enter_context(_without_echo(keyboard))
        live = undo.enter_context(Live(console=console, screen=True, auto_refresh=False))
        reader.start()
        _loop(reader, wakeups, live, keyboard)


def _loop(reader: _Reader, wakeups: _Wakeups, live: Live, keyboard: int) -> None:
    state, decoder = TopState(), KeyDecoder()
    while not wakeups.is_ended:
        # Not by rich, for which the variables COLUMNS and LINES are before the terminal.
        size = os.get_terminal_size(live.console.file.fileno())
        live.console.size = ConsoleDimensions(size.columns, size.lines)
        frame = _frame(state, reader)
        lines = drawing.draw(frame, size.columns, size.lines)
        live.update(Group(*lines), refresh=True)
        waits_s = _ESCAPE_S if decoder.is_waiting else None
        ready, _, _ = select.select([keyboard, wakeups.descriptor], [], [], waits_s)
        if wakeups.descriptor in ready:
            os.read(wakeups.descriptor, 1024)
        keys = [] if ready else decoder.flush()
        if keyboard in ready:
            data = os.read(keyboard, 1024)
            if not data:
                return  # the terminal is gone
            keys = decoder.feed(data)
        page = drawing.table_space(frame, size.columns, size.lines)
        for key in keys:
            state = _press(state, key, reader, page)
            if state.mode is TopMode.QUIT:
                return


def _frame(state: TopState, reader: _Reader) -> TopFrame:
    details = None
    if state.mode is TopMode.DETAILS and state.selected is not None and reader.details is not None:
        wanted, found = reader.details
        details = found if wanted == (state.table.kind, *state.selected) else None
    return TopFrame(state, reader.snapshot, reader.url, reader.failure, details)


def _press(state: TopState, key: str, reader: _Reader, page: int) -> TopState:
    after = top_state.press(state, key, top_state.rows(state, reader.snapshot), page)
    reader.is_paused = after.is_paused
    if after.mode is TopMode.DETAILS and state.mode is not TopMode.DETAILS and after.selected is not None:
        reader.request_details(after.table.kind, *after.selected)
    return after
