"""Cells that are prepared for a worker: whose init they have, what is shown there, and limits that change."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import Cell, CellLimits, Executable
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.executables import WorkerOptions
from tests.node.cells.conftest import Node
from tests.node.cells.fakes import SIGKILL, FakeLauncher

A, X = CellName("a"), ExecutableName("x")


async def test_limits_that_are_changed_are_held_shown_and_known_to_the_next_agent(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A, CellLimits(memory=64, pids=10)))
    await cells.change_limits(A, CellLimits(memory=32, cpu_quota=500))
    changed = CellLimits(memory=32, pids=10, cpu_quota=500)
    assert node.host.groups[A] == changed
    assert cells.get(A).cell.limits == changed
    await cells.close()
    assert (await node.agent()).get(A).cell.limits == changed


async def test_limits_that_the_kernel_does_not_take_are_not_shown(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A, CellLimits(memory=64)))
    node.groups.fail_next_change = errors.Invalid("it uses more", field="memory")
    with pytest.raises(errors.Invalid):
        await cells.change_limits(A, CellLimits(memory=1))
    assert cells.get(A).cell.limits == CellLimits(memory=64)
    with pytest.raises(errors.NotFound):
        await cells.change_limits(CellName("b"), CellLimits(memory=1))


async def test_a_prepared_cell_has_an_init_of_another_launcher_in_the_network_that_is_given(
    node: Node,
) -> None:
    cells = await node.agent()
    other = FakeLauncher(node.host)
    await cells.allocate(Cell(A))
    await cells.prepare(A, other, network=7)  # type: ignore[arg-type]
    (handle,) = other.handles
    assert handle.init.spec.network == 7
    with pytest.raises(errors.FailedPrecondition, match="has its init"):
        await cells.prepare(A, other)  # type: ignore[arg-type]
    worker = WorkerOptions(socket=9, logs=Path("/logs"), log_bytes=1000, is_fork=True)
    await cells.start_worker(Executable(X, A, "python"), worker)
    (started,) = other.started
    assert (started.socket, started.logs, started.log_bytes, started.is_fork) == (
        9,
        Path("/logs"),
        1000,
        True,
    )
    assert node.launcher.handles == []


async def test_an_init_that_cannot_be_made_leaves_a_cell_that_can_be_prepared_again(node: Node) -> None:
    cells = await node.agent()
    other = FakeLauncher(node.host)
    await cells.allocate(Cell(A))
    other.fail_next_init = errors.Internal("no")
    with pytest.raises(errors.Internal):
        await cells.prepare(A, other)  # type: ignore[arg-type]
    assert node.host.leaves == set()
    await cells.prepare(A, other)  # type: ignore[arg-type]
    assert len(other.handles) == 1


async def test_something_is_mounted_in_a_cell_only_once_it_has_an_init(node: Node) -> None:
    cells = await node.agent()
    other = FakeLauncher(node.host)
    await cells.allocate(Cell(A))
    with pytest.raises(errors.FailedPrecondition, match="no init"):
        await cells.mount(A, 5, "/home/function")
    await cells.prepare(A, other)  # type: ignore[arg-type]
    await cells.mount(A, 5, "/home/function")
    assert other.handles[0].mounted == [(5, "/home/function")]


async def test_a_cell_can_be_freed_without_asking_what_is_in_it(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    state = await cells.start(Executable(X, A, "sleep 60"))
    process = node.host.processes[state.pid]
    process.stubborn = True
    before = node.host.clock.monotonic()
    await cells.free(A, grace_s=0.0)
    assert process.signals in ([], [SIGKILL]), "it dies by that, or with its init"
    assert state.pid not in node.host.processes
    assert node.host.clock.monotonic() == before
    assert node.leftovers() == []
