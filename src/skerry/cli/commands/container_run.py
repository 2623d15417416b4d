"""`skerry container run` in the foreground: shows the output of the container, and ends with it.

The first SIGINT, SIGTERM or SIGHUP stops the container with its stop signal, the next kills it. Errors on the
way stop the container too: only a `kill -9` of this command leaves it running.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import log_output, message_format, pull_progress, signal_handler
from skerry.client import node_socket
from skerry.client.errors import ClientError, NodeError

if TYPE_CHECKING:
    from skerry.transport.proto.containers_grpc import ContainerServiceStub
    from skerry.transport.proto.containers_pb2 import CreateRequest


async def run(node: node_socket.NodeSocket, request: CreateRequest, *, removes: bool) -> int:
    """The exit code of the container, as a shell gives it; with `removes` it is removed afterwards."""
    name = request.spec.name
    async with node_socket.connected(node, node_socket.containers) as stub:
        with signal_handler.SignalHandler() as signals:
            if not await _make(node, stub, request, signals):
                return 128 + signals.first.result()
            code = None
            try:
                code = await _run_to_end(node, stub, name, signals)
                return code
            finally:
                if removes:
                    await _remove(node, stub, name)
                elif code is None:
                    await _stop(node, stub, name, grace_s=None)


async def _make(
    node: node_socket.NodeSocket,
    stub: ContainerServiceStub,
    request: CreateRequest,
    signals: signal_handler.SignalHandler,
) -> bool:
    """True if it runs; False if a signal came first: then the node removes it."""

    async def make() -> None:
        with pull_progress.show_progress() as show, node_socket.explain_node_errors(node):
            await pull_progress.run_with_progress(stub.Run, request, show)

    making = asyncio.ensure_future(make())
    try:
        await _either(making, signals.first)
        if not making.done():
            return False
        making.result()
        return True
    finally:
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)


async def _run_to_end(
    node: node_socket.NodeSocket, stub: ContainerServiceStub, name: str, signals: signal_handler.SignalHandler
) -> int:
    showing = asyncio.ensure_future(_to_the_end(node, stub, name))
    try:
        await _either(showing, signals.first)
        if not showing.done():
            # Output while it is being stopped is still shown.
            await _stop_at_last(node, stub, name)
        return await showing
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _to_the_end(node: node_socket.NodeSocket, stub: ContainerServiceStub, name: str) -> int:
    """Show the output, which ends when the container does; returns the exit code."""
    from skerry.transport.proto.containers_pb2 import LogsRequest, WaitRequest

    copying = log_output.LogCopy(stub.Logs, LogsRequest(container=name, follow=True))
    await log_output.retry_while_unreachable(node, copying.run)
    [reply] = await log_output.retry_while_unreachable(node, lambda: stub.Wait(WaitRequest(container=name)))
    if reply.exit.oom:
        click.echo("Killed: it exceeded the memory limit of the container.", err=True)
    return log_output.code_after(message_format.exit_code(reply.exit), copying.lost)


async def _stop_at_last(node: node_socket.NodeSocket, stub: ContainerServiceStub, name: str) -> None:
    """Stop it, or kill it if another signal comes meanwhile."""
    try:
        await _stop(node, stub, name, grace_s=None)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.uncancel() > 0:
            raise
        await _stop(node, stub, name, grace_s=0.0)


async def _stop(
    node: node_socket.NodeSocket, stub: ContainerServiceStub, name: str, *, grace_s: float | None
) -> None:
    from skerry.transport.proto.containers_pb2 import StopRequest

    try:
        with node_socket.explain_node_errors(node):
            await stub.Stop(StopRequest(container=name, grace_s=grace_s))
    except ClientError as error:
        _print_left(name, error, "may still be running")


async def _remove(node: node_socket.NodeSocket, stub: ContainerServiceStub, name: str) -> None:
    from skerry.transport.proto.containers_pb2 import RemoveRequest

    try:
        with node_socket.explain_node_errors(node):
            await stub.Remove(RemoveRequest(container=name, force=True))
    except ClientError as error:
        _print_left(name, error, "may still exist")


def _print_left(name: str, error: ClientError, how: str) -> None:
    """A failure of the cleanup is printed and hides no other error."""
    if not (isinstance(error, NodeError) and error.status == "NOT_FOUND"):
        click.echo(
            f"The container {name} {how}: {error.message} "
            f"'skerry container remove --force {name}' removes it.",
            err=True,
        )


async def _either(first: asyncio.Future[Any], second: asyncio.Future[Any]) -> None:
    await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
