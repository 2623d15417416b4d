"""The node's end of a tunnel: streams the logs of an instance, runs a program in it (exec), lists cells, or
sends the metrics of the node.

`skerry.node.agent.session` opens the tunnel that the server requested. Frames are those of
`skerry.model.streams`. Errors are sent to the other end as frames; a tunnel that breaks ends the work for it.
`skerry.node.guests` handles tunnels into leased cells.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any, Final, Protocol

from skerry.kit import metrics
from skerry.kit.sequence_gap import SequenceGap
from skerry.kit.tasks import failure_of, race
from skerry.model import errors, workloads
from skerry.model.cells import OutputChannel
from skerry.model.containers import MAX_ARGUMENTS, ContainerView
from skerry.model.ids import InstanceId
from skerry.model.node_messages import TunnelRequest
from skerry.model.statuses import TERMINAL, InstanceStatus
from skerry.model.streams import (
    MAX_FRAME,
    CellListRequest,
    ExecStreamRequest,
    GuestSessionRequest,
    GuestStreamRequest,
    LogStreamRequest,
    MetricsRequest,
    TunnelChannel,
    TunnelFrame,
    TunnelStream,
)
from skerry.model.volume_tasks import VolumeTask
from skerry.model.workloads import WorkloadKind
from skerry.node.agent.cell_reporter import CellReporter
from skerry.node.agent.instances.instances import NodeInstances
from skerry.node.containers.containers import Containers
from skerry.node.containers.exec_relay import relay_stdio
from skerry.node.containers.execs import ExecSession
from skerry.node.containers.stdio import StdioStreams
from skerry.node.logs import merge
from skerry.node.logs.merge import LogSource
from skerry.node.logs.readers import RingItem

_CHANNEL: Final = {OutputChannel.STDOUT: TunnelChannel.OUTPUT, OutputChannel.STDERR: TunnelChannel.ERRORS}
_MAX_CELLS: Final = 65535  # rows or columns of a terminal, a 16-bit number in the kernel


class GuestTunnels(Protocol):
    """Leased cells of this node, by the names of their containers."""

    async def run_session(self, name: str, instance: InstanceId, tunnel: TunnelStream) -> None:
        """Serve as a node of the buyer until either end closes the session. Raises the reason."""
        ...

    async def handle(self, name: str, request: TunnelRequest, tunnel: TunnelStream) -> None:
        """As `TunnelHandler.handle`, for an instance in the cell."""
        ...


class VolumeTunnels(Protocol):
    """Tasks about the volumes of this node: `skerry.node.volumes.task_handler.VolumeTaskHandler`."""

    async def handle(self, task: VolumeTask, tunnel: TunnelStream) -> None:
        """As `TunnelHandler.handle`."""
        ...


class TunnelHandler:
    """Handles tunnels to the instances and volumes of this node."""

    def __init__(
        self,
        instances: NodeInstances,
        containers: Containers,
        guests: GuestTunnels | None = None,
        volumes: VolumeTunnels | None = None,
        cells: CellReporter | None = None,
    ) -> None:
        self._instances = instances
        self._containers = containers
        self._guests = guests
        self._volumes = volumes
        self._cells = cells

    async def serve(self, request: TunnelRequest, tunnel: TunnelStream) -> None:
        """Handle `request`, and wait until the other end has received everything. Raises if the tunnel
        breaks."""
        try:
            await self.handle(request, tunnel)
        except errors.SkerryError as error:
            await tunnel.fail(error)
        else:
            await tunnel.end()
        with contextlib.suppress(errors.Unavailable):  # the other end closes it so
            await _drain(tunnel)

    async def handle(self, request: TunnelRequest, tunnel: TunnelStream) -> None:
        """Handle `request`; the caller closes the tunnel. Raises the error to send."""
        if isinstance(request.stream, VolumeTask):
            if self._volumes is None:
                raise errors.FailedPrecondition("this node has no volumes")
            await self._volumes.handle(request.stream, tunnel)
            return
        if isinstance(request.stream, CellListRequest):
            if self._cells is None:
                raise errors.FailedPrecondition("this node does not list its cells")
            await _while_open(tunnel, self._cells.handle(tunnel))
            return
        if isinstance(request.stream, MetricsRequest):
            await _send_metrics(request.stream, tunnel)
            return
        instance, remote = request.instance, _RemoteEnd(tunnel)
        is_cell = self._instances.copy(instance).order.spec.kind is WorkloadKind.CELL
        match request.stream:
            case LogStreamRequest() as options if not is_cell:
                await _while_open(tunnel, self._send_logs(instance, options, remote))
            case ExecStreamRequest() as options if not is_cell:
                await self._exec(instance, options, remote)
            case GuestSessionRequest() if is_cell and self._guests is not None:
                await self._guests.run_session(self._instances.container(instance), instance, tunnel)
            case GuestStreamRequest(guest, options) if is_cell and self._guests is not None:
                inner = TunnelRequest(request.id, guest, options)
                await self._guests.handle(self._instances.container(instance), inner, tunnel)
            case LogStreamRequest() | ExecStreamRequest():
                raise errors.FailedPrecondition(
                    f"{instance!r} is a leased cell, which has neither logs nor programs of its own; "
                    "its buyer can request those of the instances in it"
                )
            case _:
                raise errors.FailedPrecondition(
                    f"{instance!r} is not a leased cell; request its logs or an exec"
                )

    async def _send_logs(self, instance: InstanceId, options: LogStreamRequest, remote: _RemoteEnd) -> None:
        """Send the output of the last run; with `follow` that of every run, until the instance is terminal;
        with `previous` that of the run before the last one."""
        sent, tail = None, options.tail
        if options.previous:
            await self._send_run_logs(self._instances.container(instance), options, tail, remote)
            return
        while True:
            name = self._instances.container(instance)
            view = self._find(name)
            if view is not None and view.started_at not in (None, sent):
                sent = view.started_at
                await self._send_run_logs(name, options, tail, remote)
                tail = None  # `tail` applies to the first run only
            elif not options.follow or self._is_over(instance):
                return
            else:
                await self._instances.wait_for_change()

    def _find(self, name: str) -> ContainerView | None:
        try:
            return self._containers.get(name)
        except errors.NotFound:
            return None

    def _is_over(self, instance: InstanceId) -> bool:
        status = self._instances.copy(instance).history.status
        return status is InstanceStatus.STOPPED or status in TERMINAL

    async def _send_run_logs(
        self, name: str, options: LogStreamRequest, tail: int | None, remote: _RemoteEnd
    ) -> None:
        channels = OutputChannel if options.stream is None else (options.stream,)
        sources = [
            LogSource(stream, self._containers.logs(name, stream, previous=options.previous))
            for stream in channels
        ]
        passed_over = None if tail is None else await merge.skip_to_tail(sources, tail)
        async with aclosing(merge.pieces(sources, follow=options.follow)) as found:
            async for stream, item in found:
                selected = item if passed_over is None else passed_over.take(stream, item)
                if selected is not None:
                    await remote.send_log(stream, selected)

    async def _exec(self, instance: InstanceId, options: ExecStreamRequest, remote: _RemoteEnd) -> None:
        _check(options)
        name = self._instances.container(instance)
        with _streams_for(options) as streams:
            session = await self._containers.exec(
                name,
                options.arguments,
                environment=options.environment,
                user=options.user,
                folder=options.folder,
                tty=options.terminal,
                stdio=streams.program_fds,
            )
            streams.close_program_fds()
            code = await relay_stdio(
                session, streams, send=remote.send, listen=lambda: remote.listen(session, streams)
            )
        await remote.exit(code)


class _RemoteEnd:
    """The client at the other end of the tunnel."""

    def __init__(self, tunnel: TunnelStream) -> None:
        self._tunnel = tunnel

    async def send_log(self, stream: OutputChannel, item: RingItem) -> None:
        if isinstance(item, SequenceGap):
            gap = f"{stream.value} {item.last - item.first + 1}"
            await self._tunnel.send(TunnelFrame(TunnelChannel.LOST, gap.encode()).pack())
        else:
            await self.send(stream, item.data)

    async def send(self, stream: OutputChannel, data: bytes) -> None:
        most = MAX_FRAME - 1
        for at in range(0, len(data), most):
            await self._tunnel.send(TunnelFrame(_CHANNEL[stream], data[at : at + most]).pack())

    async def exit(self, code: int) -> None:
        await self._tunnel.send(TunnelFrame(TunnelChannel.EXIT, str(code).encode()).pack())

    async def listen(self, session: ExecSession, streams: StdioStreams) -> None:
        """Pass on stdin, signals and terminal sizes until the client closes stdin."""
        while (packed := await self._tunnel.receive()) is not None:
            frame = TunnelFrame.unpack(packed)
            match frame.channel:
                case TunnelChannel.INPUT:
                    await streams.write(frame.data)
                case TunnelChannel.END_OF_INPUT:
                    await streams.end_input()
                case TunnelChannel.SIZE:
                    session.resize(*_size(frame.data))
                case TunnelChannel.SIGNAL:
                    session.signal(_signal(frame.data))
                case _:
                    raise errors.Invalid(f"an exec does not accept {frame.channel.name} frames")
        await streams.end_input()


async def _while_open(tunnel: TunnelStream, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, and cancel it if the tunnel breaks. No frames are expected from the other end."""
    await race(work, failure_of(_drain(tunnel)))  # the end of input is no failure


async def _drain(tunnel: TunnelStream) -> None:
    while await tunnel.receive() is not None:
        pass


async def _send_metrics(request: MetricsRequest, tunnel: TunnelStream) -> None:
    text = (await metrics.EXPOSITIONS.render(is_open=request.is_open_metrics)).content
    most = MAX_FRAME - 1
    for at in range(0, len(text), most):
        await tunnel.send(TunnelFrame(TunnelChannel.OUTPUT, text[at : at + most]).pack())


def _streams_for(options: ExecStreamRequest) -> StdioStreams:
    if options.terminal:
        return StdioStreams.terminal(options.rows, options.columns)
    return StdioStreams.pipes(takes_input=options.takes_input)


def _check(options: ExecStreamRequest) -> None:
    if not 0 < len(options.arguments) <= MAX_ARGUMENTS or not options.arguments[0]:
        raise errors.Invalid(
            f"arguments must be a program and its arguments, at most {MAX_ARGUMENTS}",
            field="arguments",
        )
    if any("\0" in argument for argument in options.arguments):
        raise errors.Invalid("arguments cannot hold a NUL byte", field="arguments")
    workloads.check_environment(options.environment)
    if options.folder and (not options.folder.startswith("/") or "\0" in options.folder):
        raise errors.Invalid("folder must be an absolute path", field="folder")
    _check_size(options.rows, options.columns)


def _check_size(*cells: int) -> None:
    if not all(0 <= count <= _MAX_CELLS for count in cells):
        raise errors.Invalid(f"a terminal has at most {_MAX_CELLS} rows and columns", field="size")


def _size(data: bytes) -> tuple[int, int]:
    try:
        rows, columns = map(int, data.split(b" "))
    except ValueError:
        raise errors.Invalid("a size is rows and columns, such as `24 80`", field="size") from None
    _check_size(rows, columns)
    return rows, columns


def _signal(data: bytes) -> int:
    if not data.isdigit() or not 0 < int(data[:9]) < signal.NSIG:
        raise errors.Invalid(f"a signal is a number from 1 to {signal.NSIG - 1}", field="signal")
    return int(data)
