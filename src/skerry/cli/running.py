"""`skerry cell run`: a program in a cell of its own that is gone afterwards, however it ends.

The cell is freed when the program ends, when it cannot be started, and on SIGINT, SIGTERM and SIGHUP. Only a
`kill -9` of this command leaves it behind; then `skerry cell list` shows it.
"""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import click

from skerry.cli import dialling, following

if TYPE_CHECKING:
    from skerry.wire.proto.cells_grpc import CellServiceStub
    from skerry.wire.proto.cells_pb2 import AllocateRequest, Exit, StartRequest

_CALL_S: Final = 60.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run(door: dialling.Door, cell: AllocateRequest, start: StartRequest) -> int:
    """The exit code of the program, as a shell tells it: 128 and the signal if one ended it or us."""
    async with dialling.cells_of(door) as stub:
        with _Signals() as signals:
            try:
                with dialling.plain_words(door):
                    await stub.Allocate(cell, timeout=_CALL_S)
                    await stub.Start(start, timeout=_CALL_S)
                return await _attend(door, stub, start, signals)
            finally:
                await _free(door, stub, cell.cell)


async def _attend(door: dialling.Door, stub: CellServiceStub, start: StartRequest, signals: _Signals) -> int:
    program = asyncio.ensure_future(_to_the_end(door, stub, start))
    try:
        either: tuple[asyncio.Future[Any], ...] = (program, signals.first)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if program.done():
            return program.result()
        # What the program says while it is asked to end is still shown.
        await _free(door, stub, start.cell)
        return 128 + signals.first.result()
    finally:
        program.cancel()
        await asyncio.gather(program, return_exceptions=True)


async def _to_the_end(door: dialling.Door, stub: CellServiceStub, start: StartRequest) -> int:
    """Show the output, which ends when the program does, and say how that was."""
    from skerry.wire.proto.cells_pb2 import LogsRequest, WaitRequest

    logs = LogsRequest(cell=start.cell, executable=start.executable, follow=True)
    copying = following.Copy(logs)
    await following.patiently(door, lambda: copying.run(stub))
    ended = WaitRequest(cell=start.cell, executable=start.executable)
    [reply] = await following.patiently(door, lambda: stub.Wait(ended))
    return _code(reply.exit, copying.lost)


async def _free(door: dialling.Door, stub: CellServiceStub, cell: str) -> None:
    """Free the cell if it is there; a failure is told and hides nothing else."""
    from skerry.wire.proto.cells_pb2 import FreeRequest

    try:
        with dialling.plain_words(door):
            await stub.Free(FreeRequest(cell=cell), timeout=_CALL_S)
    except click.ClickException as error:
        if not (isinstance(error, dialling.NodeSaidNo) and error.status == "NOT_FOUND"):
            click.echo(
                f"The cell {cell} may still be there: {error.message} 'skerry cell free {cell}' removes it.",
                err=True,
            )


def _code(how: Exit, lost: int) -> int:
    if how.oom:
        click.echo("Killed for using more memory than the cell may have.", err=True)
    code = 128 + how.signal if how.HasField("signal") else how.code
    if lost and code == 0:
        click.echo(
            "The program went well, but it wrote faster than could be read, and some of its output is lost. "
            "Let it write to a pipe that holds it up, or keep more: node.log_bytes.",
            err=True,
        )
        return 1
    return code


class _Signals:
    """The first signal is the result of `first`; each further one breaks off what is being waited for."""

    def __enter__(self) -> _Signals:
        loop = asyncio.get_running_loop()
        self.first: asyncio.Future[int] = loop.create_future()
        self._task = asyncio.current_task()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._take, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _take(self, number: int) -> None:
        if not self.first.done():
            self.first.set_result(number)
        elif self._task is not None:
            self._task.cancel()
