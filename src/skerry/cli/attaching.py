"""`skerry container exec`: a program in a container with our own standard streams, or with our terminal.

What we cannot write holds the program up, and what it does not read holds us up: nothing is kept in between.
The program is killed when this command goes away, whichever way.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from skerry.cli import dialling, following, interrupts, terminals
from skerry.kit.readiness import until_readable

if TYPE_CHECKING:
    from grpclib.client import Stream

    from skerry.wire.proto.containers_pb2 import ExecReply, ExecRequest, ExecStart

_INPUT: Final = 0
_CHUNK: Final = 32 * 1024


async def execute(door: dialling.Door, start: ExecStart) -> int:
    """The exit code of the program that `start` describes."""
    from skerry.wire.proto.containers_pb2 import ExecRequest

    if start.terminal:
        start.size.rows, start.size.columns = terminals.size(_INPUT)
    has_our_terminal = start.terminal and start.takes_input
    code = None
    async with dialling.reached(door, dialling.containers) as stub:
        with interrupts.Signals() as signals, dialling.plain_words(door):
            try:
                async with stub.Exec.open() as stream:
                    attached = _Attached(stream)
                    await attached.send(ExecRequest(start=start))
                    with terminals.raw(_INPUT) if has_our_terminal else nullcontext():
                        code = await attached.attend(start, signals)
                    await stream.cancel()  # nobody listens to us any more
            except Exception:
                if code is None:
                    raise
    assert code is not None
    return code


class _Attached:
    """The program, as long as it runs."""

    def __init__(self, stream: Stream[ExecRequest, ExecReply]) -> None:
        self._stream = stream
        self._sending = asyncio.Lock()  # a message goes out whole
        self._out, self._err = following.Sink(1), following.Sink(2)

    async def send(self, request: ExecRequest) -> None:
        async with self._sending:
            await self._stream.send_message(request)

    async def attend(self, start: ExecStart, signals: interrupts.Signals) -> int:
        """Carry everything both ways until the program has ended."""
        beside = [asyncio.ensure_future(self._pass_signal(signals))]
        if start.takes_input:
            beside.append(asyncio.ensure_future(self._pass_input()))
        if start.terminal:
            beside.append(asyncio.ensure_future(self._pass_sizes()))
        shown = asyncio.ensure_future(self._show())
        pending: set[asyncio.Future[Any]] = {shown, *beside}
        try:
            while not shown.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if shown not in done:
                    for task in done:
                        task.result()
            return shown.result()
        finally:
            for task in (shown, *beside):
                task.cancel()
            await asyncio.gather(shown, *beside, return_exceptions=True)

    async def _show(self) -> int:
        """Write out what comes, and return the exit code, which comes last."""
        while (reply := await self._stream.recv_message()) is not None:
            match reply.WhichOneof("message"):
                case "output":
                    await self._out.write(reply.output)
                case "errors":
                    await self._err.write(reply.errors)
                case _:
                    return reply.exit_code
        raise dialling.NodeSaidNo("The node ended the call without an exit code; try again.", "UNKNOWN")

    async def _pass_input(self) -> None:
        from skerry.wire.proto.containers_pb2 import EndOfInput, ExecRequest

        while True:
            await until_readable(_INPUT)
            if not (data := _read()):
                break
            await self.send(ExecRequest(input=data))
        await self.send(ExecRequest(end_of_input=EndOfInput()))

    async def _pass_sizes(self) -> None:
        from skerry.wire.proto.containers_pb2 import ExecRequest, TerminalSize

        with _told_of_sizes() as changed:
            while True:
                await changed.wait()
                changed.clear()
                rows, columns = terminals.size(_INPUT)
                await self.send(ExecRequest(resize=TerminalSize(rows=rows, columns=columns)))

    async def _pass_signal(self, signals: interrupts.Signals) -> None:
        """The first is the program's to take; with the next this command ends."""
        from skerry.wire.proto.containers_pb2 import ExecRequest

        await self.send(ExecRequest(signal=await signals.first))


def _read() -> bytes:
    try:
        return os.read(_INPUT, _CHUNK)
    except OSError:
        return b""  # our terminal is gone, or there never was an input


@contextmanager
def _told_of_sizes() -> Iterator[asyncio.Event]:
    """Set whenever our terminal has got another size."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        yield changed
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
