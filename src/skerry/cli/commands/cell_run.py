"""`skerry cell run`: a program in a temporary cell, which is removed however the program ends.

The cell is freed when the program ends, when it cannot be started, and on SIGINT, SIGTERM and SIGHUP. Only a
`kill -9` of this command leaves the cell behind; `skerry cell list` shows it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import log_output, message_format, signal_handler
from skerry.client import node_socket
from skerry.client.errors import ClientError, NodeError

if TYPE_CHECKING:
    from skerry.transport.proto.cells_grpc import CellServiceStub
    from skerry.transport.proto.cells_pb2 import AllocateRequest, Exit, StartRequest


async def run(node: node_socket.NodeSocket, cell: AllocateRequest, start: StartRequest) -> int:
    """The exit code of the program; 128 and the signal number if a signal ended it or this command."""
    async with node_socket.connected(node, node_socket.cells) as stub:
        with signal_handler.SignalHandler() as signals:
            try:
                with node_socket.explain_node_errors(node):
                    await stub.Allocate(cell, timeout=node_socket.CALL_S)
                    await stub.Start(start, timeout=node_socket.CALL_S)
                return await _run_to_end(node, stub, start, signals)
            finally:
                await _free(node, stub, cell.cell)


async def _run_to_end(
    node: node_socket.NodeSocket,
    stub: CellServiceStub,
    start: StartRequest,
    signals: signal_handler.SignalHandler,
) -> int:
    program = asyncio.ensure_future(_to_the_end(node, stub, start))
    try:
        either: tuple[asyncio.Future[Any], ...] = (program, signals.first)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if program.done():
            return program.result()
        # Output while it is being stopped is still shown.
        await _free(node, stub, start.cell)
        return 128 + signals.first.result()
    finally:
        program.cancel()
        await asyncio.gather(program, return_exceptions=True)


async def _to_the_end(node: node_socket.NodeSocket, stub: CellServiceStub, start: StartRequest) -> int:
    """Show the output, which ends when the program does; returns the exit code."""
    from skerry.transport.proto.cells_pb2 import LogsRequest, WaitRequest

    logs = LogsRequest(cell=start.cell, executable=start.executable, follow=True)
    copying = log_output.LogCopy(stub.Logs, logs)
    await log_output.retry_while_unreachable(node, copying.run)
    ended = WaitRequest(cell=start.cell, executable=start.executable)
    [reply] = await log_output.retry_while_unreachable(node, lambda: stub.Wait(ended))
    return _code(reply.exit, copying.lost)


async def _free(node: node_socket.NodeSocket, stub: CellServiceStub, cell: str) -> None:
    """Free the cell if it exists; a failure is printed and hides no other error."""
    from skerry.transport.proto.cells_pb2 import FreeRequest

    try:
        with node_socket.explain_node_errors(node):
            await stub.Free(FreeRequest(cell=cell), timeout=node_socket.CALL_S)
    except ClientError as error:
        if not (isinstance(error, NodeError) and error.status == "NOT_FOUND"):
            click.echo(
                f"The cell {cell} may still exist: {error.message} 'skerry cell free {cell}' removes it.",
                err=True,
            )


def _code(how: Exit, lost: int) -> int:
    if how.oom:
        click.echo("Killed: it exceeded the memory limit of the cell.", err=True)
    return log_output.code_after(message_format.exit_code(how), lost)
