"""`skerry container run` in the foreground: shows what the container writes, and ends with it.

The first SIGINT, SIGTERM or SIGHUP stops the container as it likes to be stopped, the next kills it. What
goes wrong on the way ends the container, too: only a `kill -9` of this command leaves it running.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import dialling, following, interrupts, progress, shapes

if TYPE_CHECKING:
    from skerry.wire.proto.containers_grpc import ContainerServiceStub
    from skerry.wire.proto.containers_pb2 import CreateRequest


async def run(door: dialling.Door, request: CreateRequest, *, removes: bool) -> int:
    """The exit code of the container, as a shell tells it; with `removes` it is gone afterwards."""
    name = request.spec.name
    async with dialling.reached(door, dialling.containers) as stub:
        with interrupts.Signals() as signals:
            if not await _make(door, stub, request, signals):
                return 128 + signals.first.result()
            code = None
            try:
                code = await _attend(door, stub, name, signals)
                return code
            finally:
                if removes:
                    await _remove(door, stub, name)
                elif code is None:
                    await _stop(door, stub, name, grace_s=None)


async def _make(
    door: dialling.Door, stub: ContainerServiceStub, request: CreateRequest, signals: interrupts.Signals
) -> bool:
    """True if it runs; False if a signal came first, when the node undoes what there was of it."""

    async def make() -> None:
        with progress.shown() as show, dialling.plain_words(door):
            await progress.to_the_end(stub.Run, request, show)

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


async def _attend(
    door: dialling.Door, stub: ContainerServiceStub, name: str, signals: interrupts.Signals
) -> int:
    showing = asyncio.ensure_future(_to_the_end(door, stub, name))
    try:
        await _either(showing, signals.first)
        if not showing.done():
            # What it says while it is being stopped is still shown.
            await _stop_at_last(door, stub, name)
        return await showing
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _to_the_end(door: dialling.Door, stub: ContainerServiceStub, name: str) -> int:
    """Show the output, which ends when the container does, and say how that was."""
    from skerry.wire.proto.containers_pb2 import LogsRequest, WaitRequest

    copying = following.Copy(stub.Logs, LogsRequest(container=name, follow=True))
    await following.patiently(door, copying.run)
    [reply] = await following.patiently(door, lambda: stub.Wait(WaitRequest(container=name)))
    if reply.exit.oom:
        click.echo("Killed for using more memory than the container may have.", err=True)
    return following.code_after(shapes.exit_code(reply.exit), copying.lost)


async def _stop_at_last(door: dialling.Door, stub: ContainerServiceStub, name: str) -> None:
    """Stop it, or kill it if another signal comes meanwhile."""
    try:
        await _stop(door, stub, name, grace_s=None)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.uncancel() > 0:
            raise
        await _stop(door, stub, name, grace_s=0.0)


async def _stop(door: dialling.Door, stub: ContainerServiceStub, name: str, *, grace_s: float | None) -> None:
    from skerry.wire.proto.containers_pb2 import StopRequest

    try:
        with dialling.plain_words(door):
            await stub.Stop(StopRequest(container=name, grace_s=grace_s))
    except click.ClickException as error:
        _tell_left(name, error, "may still run")


async def _remove(door: dialling.Door, stub: ContainerServiceStub, name: str) -> None:
    from skerry.wire.proto.containers_pb2 import RemoveRequest

    try:
        with dialling.plain_words(door):
            await stub.Remove(RemoveRequest(container=name, force=True))
    except click.ClickException as error:
        _tell_left(name, error, "may still be there")


def _tell_left(name: str, error: click.ClickException, how: str) -> None:
    """A failure to tidy up is told and hides nothing else."""
    if not (isinstance(error, dialling.NodeSaidNo) and error.status == "NOT_FOUND"):
        click.echo(
            f"The container {name} {how}: {error.message} "
            f"'skerry container remove --force {name}' removes it.",
            err=True,
        )


async def _either(first: asyncio.Future[Any], second: asyncio.Future[Any]) -> None:
    await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
