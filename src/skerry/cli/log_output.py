"""Copies output of an executable to our stdout and stderr, byte for byte and across restarts of the agent.

Used by `logs` and `run` of cells and containers. A broken connection is resumed where it ended: executables
keep running while the agent of the node is away. Writing never blocks the loop, so that signals are handled
while a pager blocks our output.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import click

from skerry.cli import message_format
from skerry.cli import output as printing
from skerry.cli.options import option_group, raw
from skerry.client import node_socket
from skerry.client.errors import NodeError, ServerUnreachable
from skerry.kit import terminal_text
from skerry.kit.fd_readiness import wait_writable

if TYPE_CHECKING:
    from grpclib.client import UnaryStreamMethod

    from skerry.client.api import ApiClient
    from skerry.transport.proto import cells_pb2, containers_pb2

R = TypeVar("R", bound="cells_pb2.LogsRequest | containers_pb2.LogsRequest")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE_S: Final = 30.0  # with an agent that is away
_TRY_EVERY_S: Final = 0.25
_AT_ONCE: Final = 4096  # what a pipe that is ready takes without blocking


def _options(*tail: str) -> Callable[[F], F]:
    return option_group(
        click.option("-f", "--follow", is_flag=True, help="Follow the output until it ends."),
        click.option(
            *tail,
            metavar="N",
            type=click.IntRange(min=0),
            help="Show only the last N lines.",
        ),
        click.option(
            "--only", type=click.Choice(["stdout", "stderr"]), help="Show only this stream.  [default: both]"
        ),
        raw,
    )


previous = click.option(
    "-p", "--previous", is_flag=True, help="Show the run before the last one, such as the one that crashed."
)
options = _options("-n", "--tail")
options_in_namespace = _options("--tail")  # where -n is the namespace


def print_logs(
    server: ApiClient,
    instance: str,
    *,
    follow: bool,
    tail: int | None,
    only: str | None,
    previous: bool = False,
) -> None:
    """Print the output of an instance, which its node sends through the server."""
    chunks = server.output(
        "instance",
        instance,
        "logs",
        follow=str(follow).lower(),
        tail=None if tail is None else str(tail),
        stream=only,
        previous="true" if previous else None,  # servers of earlier versions do not know it
    )
    for data in chunks:
        click.echo(data, nl=False)


def check_previous(*, previous: bool, follow: bool) -> None:
    if previous and follow:
        raise click.UsageError("--previous cannot be followed: that run is over; leave out one of the two.")


class OutputClosed(Exception):
    """The reader of our output is gone. Not an OSError, because those are connection errors."""


class DescriptorWriter:
    """Writes to one of our descriptors without blocking. Output of a program that has our terminal is raw, so
    that it can control the terminal."""

    def __init__(self, descriptor: int, *, is_raw: bool = False) -> None:
        self._descriptor = descriptor
        self._filter = bytes if is_raw else terminal_text.filter_for(descriptor)

    async def write(self, data: bytes) -> None:
        view = memoryview(self._filter(data))
        try:
            while view:
                await wait_writable(self._descriptor)
                view = view[os.write(self._descriptor, view[:_AT_ONCE]) :]
        except BrokenPipeError:
            raise OutputClosed from None
        except OSError as error:
            raise click.ClickException(f"The output cannot be written: {error.strerror}") from None


class LogCopy(Generic[R]):
    """Copies the output that `logs` returns for `request`; `request` is advanced past what was copied."""

    def __init__(self, logs: UnaryStreamMethod[R, cells_pb2.LogItem], request: R) -> None:
        self._logs = logs
        self.request = request
        self.lost = 0  # records that were overwritten before they were read
        self._out, self._err = DescriptorWriter(1), DescriptorWriter(2)

    async def run(self) -> None:
        """Copy to the end; call again after a broken connection to resume."""
        from skerry.transport.proto.cells_pb2 import CHANNEL_STDERR

        async with self._logs.open() as stream:
            await stream.send_message(self.request, end=True)
            async for item in stream:
                self.request.ClearField("tail")  # after a broken connection, all that is missing is wanted
                if item.lost:
                    self.lost += item.lost
                    await self._err.write(f"[{item.lost} records of output are lost here]\n".encode())
                if item.channel == CHANNEL_STDERR:
                    await self._err.write(item.data)
                    self.request.stderr_after = item.position
                else:
                    await self._out.write(item.data)
                    self.request.stdout_after = item.position


def channel(only: str | None) -> str:
    """The channel of `--only` in a request."""
    return f"CHANNEL_{only.upper()}" if only else "CHANNEL_UNSPECIFIED"


async def show(
    node: node_socket.NodeSocket, logs: UnaryStreamMethod[R, cells_pb2.LogItem], request: R, output: str
) -> None:
    """Print the output that `request` asks for: unchanged, or as one JSON object per line."""
    if output == "json":
        from skerry.transport.proto.cells_pb2 import FORM_LINES

        request.form = FORM_LINES
        async with logs.open() as stream:
            await stream.send_message(request, end=True)
            async for item in stream:
                printing.as_json_line(message_format.log_item_to_dict(item))
        return
    copying = LogCopy(logs, request)
    if request.follow:
        await retry_while_unreachable(node, copying.run)
    else:
        await copying.run()


def code_after(code: int, lost: int) -> int:
    """Our exit code for a program that ended with `code`: 1 instead of 0 if output was lost."""
    if not lost or code != 0:
        return code
    click.echo(
        "The program succeeded, but it wrote faster than its output was read, and some output is lost. "
        "Raise node.log_bytes, or let the program write more slowly.",
        err=True,
    )
    return 1


@contextmanager
def exit_on_closed_output() -> Iterator[None]:
    """Exit quietly if the reader of our output is gone, or on Ctrl-C."""
    try:
        yield
    except OutputClosed:
        raise BrokenPipeError from None
    except asyncio.CancelledError:
        raise click.Abort from None


async def retry_while_unreachable(node: node_socket.NodeSocket, work: Callable[[], Awaitable[T]]) -> T:
    """Run `work`, and retry it while the node is unreachable, for a limited time."""
    loop = asyncio.get_running_loop()
    away_since = None
    while True:
        began = loop.time()
        try:
            with node_socket.explain_node_errors(node):
                return await work()
        except (ServerUnreachable, NodeError) as error:
            if isinstance(error, NodeError) and error.status != "UNAVAILABLE":
                raise
            ended = loop.time()
            if away_since is None or ended - began > _PATIENCE_S:
                away_since = ended  # it was there until now
            if ended - away_since > _PATIENCE_S:
                raise
        await asyncio.sleep(_TRY_EVERY_S)
