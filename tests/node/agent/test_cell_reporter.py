"""The list of a node's cells: usage of a moment, instances by their containers, and frames of whole lines."""

from __future__ import annotations

from collections.abc import Mapping

from skerry.kit.clock import ManualClock
from skerry.model import cell_reports, errors
from skerry.model.cell_reports import CellReport
from skerry.model.cells import (
    Cell,
    CellLimits,
    CellOwner,
    CellUsage,
    ExecutableState,
    ExitStatus,
    own_name,
)
from skerry.model.ids import CellName, ExecutableName, FunctionName, InstanceId
from skerry.model.resources import Megabytes, Millicores
from skerry.model.streams import MAX_FRAME
from skerry.node.agent.cell_reporter import CellReporter
from skerry.node.cells.state import CellView

WORKERS = {CellName("@functions/w1"): FunctionName("shop:resize")}
LIMITS = CellLimits(cpu_quota=Millicores(500), memory=Megabytes(64))


def view(cell: Cell, *executables: ExecutableState) -> CellView:
    return CellView(cell, 1000, 1.0, False, executables)


def executable(name: str, *, exit: ExitStatus | None = None) -> ExecutableState:
    return ExecutableState(ExecutableName(name), CellName("a"), "sleep 1", "secret words", 7, 1.0, exit)


class FakeCells:
    """Cells whose counters go on whenever the reporter waits."""

    def __init__(self, *views: CellView) -> None:
        self.views = {one.cell.name: one for one in views}
        self.clock = ManualClock()
        self.cpu_ns = 0

    def list(self) -> list[CellView]:
        return list(self.views.values())

    def usage(self, name: CellName) -> CellUsage:
        if name not in self.views:
            raise errors.NotFound("gone")
        return CellUsage(cpu_ns=self.cpu_ns, memory_bytes=3 * 2**20, pids=2)

    def own_cell_name(self, path: str) -> CellName:
        return own_name(path)

    async def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.cpu_ns += round(0.4 * seconds * 1e9)

    def reporter(self, containers: Mapping[str, InstanceId] | None = None) -> CellReporter:
        return CellReporter(self, lambda: containers or {}, lambda: WORKERS, self.clock, sleep=self.wait)


class FakeTunnel:
    def __init__(self) -> None:
        self.frames: list[bytes] = []

    async def send(self, frame: bytes) -> None:
        assert 0 < len(frame) <= MAX_FRAME
        self.frames.append(frame)

    async def receive(self) -> bytes | None: ...

    async def end(self) -> None: ...

    async def fail(self, error: errors.SkerryError) -> None: ...


async def test_a_cell_is_reported_with_what_it_uses_in_a_moment_and_its_instance() -> None:
    container = Cell(own_name("i-web"), LIMITS, owner=CellOwner.CONTAINER)
    cells = FakeCells(view(container, executable("main"), executable("old", exit=ExitStatus(2.0, 0))))
    assert await cells.reporter({"i-web": InstanceId("web")}).reports() == [
        CellReport(
            own_name("i-web"),
            CellOwner.CONTAINER,
            InstanceId("web"),
            LIMITS,
            Millicores(400),
            3 * 2**20,
            2,
            ("main",),
            1,
        )
    ]


async def test_a_worker_is_reported_with_its_function_and_one_that_waits_without() -> None:
    cells = FakeCells(
        view(Cell(CellName("@functions"), owner=CellOwner.FUNCTIONS)),
        view(Cell(CellName("@functions/w1"), owner=CellOwner.FUNCTIONS)),
        view(Cell(CellName("@functions/w2"), owner=CellOwner.FUNCTIONS)),
    )
    assert [one.function for one in await cells.reporter().reports()] == ["", "shop:resize", ""]


async def test_a_cell_that_is_freed_meanwhile_is_left_out() -> None:
    cells = FakeCells(view(Cell(CellName("a"))), view(Cell(CellName("b"))))

    async def free(seconds: float) -> None:
        del cells.views[CellName("a")]

    reporter = CellReporter(cells, dict, dict, cells.clock, sleep=free)
    assert [one.name for one in await reporter.reports()] == ["b"]


async def test_thousands_come_in_frames_of_whole_lines_without_commands() -> None:
    names = [f"cell-{number:05}" for number in range(3000)]
    cells = FakeCells(*(view(Cell(CellName(name)), executable("main")) for name in names))
    tunnel = FakeTunnel()
    await cells.reporter().handle(tunnel)
    assert len(tunnel.frames) > 1
    assert [one.name for frame in tunnel.frames for one in cell_reports.decode_lines(frame)] == names
    assert b"secret words" not in b"".join(tunnel.frames)
