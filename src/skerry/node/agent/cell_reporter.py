"""Lists the cells of this node for its control plane: on demand, over a tunnel, while somebody looks.

Processor time is a counter, so it is read twice, a moment apart. Commands, environments and output of
executables are not part of a report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.cell_reports import MAX_EXECUTABLES, CellReport
from skerry.model.cells import CellUsage
from skerry.model.ids import CellName, FunctionName, InstanceId
from skerry.model.resources import MAX_AMOUNT, Millicores
from skerry.model.streams import MAX_FRAME, TunnelStream
from skerry.node.cells.state import CellView

_MOMENT_S: Final = 0.25  # between two readings
_BATCH: Final = 64  # cells to read before other tasks run


class ReadableCells(Protocol):
    """`skerry.node.cells.cells.Cells`, as far as it is read here."""

    def list(self) -> Sequence[CellView]: ...

    def usage(self, name: CellName) -> CellUsage: ...

    def own_cell_name(self, path: str) -> CellName: ...


class CellReporter:
    """Reports of all cells; `containers` has the instances of this node by the names of their containers,
    `workers` the functions by the cells of their workers."""

    def __init__(
        self,
        cells: ReadableCells,
        containers: Callable[[], Mapping[str, InstanceId]],
        workers: Callable[[], Mapping[CellName, FunctionName]],
        clock: Clock,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cells = cells
        self._containers = containers
        self._workers = workers
        self._clock = clock
        self._sleep = sleep

    async def handle(self, tunnel: TunnelStream) -> None:
        """Send all reports, as lines in frames; the caller closes the tunnel."""
        frame = b""
        for report in await self.reports():
            line = _encoder.encode(report) + b"\n"
            if len(frame) + len(line) > MAX_FRAME:
                await tunnel.send(frame)
                frame = b""
            frame += line
        if frame:
            await tunnel.send(frame)

    async def reports(self) -> list[CellReport]:
        """All cells, parents before children."""
        before, began = await self._usages(), self._clock.monotonic()
        await self._sleep(_MOMENT_S)
        views, after = self._cells.list(), await self._usages()
        elapsed = max(self._clock.monotonic() - began, 1e-3)
        instances = {self._cells.own_cell_name(path): id for path, id in self._containers().items()}
        workers = self._workers()
        return [
            msgspec.structs.replace(
                _report(view, after[name], before.get(name), elapsed),
                instance=instances.get(name, InstanceId("")),
                function=workers.get(name, FunctionName("")),
            )
            for view in views
            if (name := view.cell.name) in after
        ]

    async def _usages(self) -> dict[CellName, CellUsage]:
        found = {}
        for number, view in enumerate(self._cells.list(), start=1):
            try:
                found[view.cell.name] = self._cells.usage(view.cell.name)
            except (errors.SkerryError, OSError):
                continue  # freed since the list was read
            if number % _BATCH == 0:
                await asyncio.sleep(0)
        return found


def _report(view: CellView, now: CellUsage, before: CellUsage | None, elapsed_s: float) -> CellReport:
    cpu = 0 if before is None else round((now.cpu_ns - before.cpu_ns) / elapsed_s / 1e6)
    running = [one.name for one in view.executables if one.exit is None]
    return CellReport(
        view.cell.name,
        view.cell.owner,
        limits=view.cell.limits,
        cpu=Millicores(min(max(cpu, 0), MAX_AMOUNT)),
        memory_bytes=now.memory_bytes,
        pids=now.pids,
        executables=tuple(running[:MAX_EXECUTABLES]),
        running=len(running),
        is_freeing=view.is_freeing,
    )


_encoder = msgspec.json.Encoder()
