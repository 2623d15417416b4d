"""The cpu quota of a cell during a start: off for the work of starting, on before the program begins."""

from __future__ import annotations

import asyncio

import pytest

from skerry.model import errors
from skerry.model.cells import Cell, CellLimits, Executable, RuntimeCommand
from skerry.model.ids import CellName, ExecutableName
from tests.node.cells.conftest import Node
from tests.support.waiting import eventually

A, B = CellName("a"), CellName("a/b")
TINY = CellLimits(cpu_quota=10)


def program(cell: CellName = A, name: str = "main") -> Executable:
    return Executable(ExecutableName(name), cell, "sleep 60")


def runtime(_: str) -> RuntimeCommand:
    return RuntimeCommand(("runc",), "/nowhere/pid")


class Steps:
    """The quota of a cell at each step that an agent reached."""

    def __init__(self, node: Node, cell: CellName = A) -> None:
        self._node = node
        self._cell = cell
        self.seen: list[tuple[str, int | None]] = []

    def __call__(self, step: str) -> None:
        if self._cell in self._node.host.groups:
            self.seen.append((step, self._node.host.groups[self._cell].cpu_quota))

    def at(self, step: str) -> list[int | None]:
        return [quota for name, quota in self.seen if name == step]


def watch_programs(node: Node, steps: Steps) -> None:
    node.launcher.on_start = lambda *_: steps("program")


async def test_is_off_while_a_runtime_prepares_a_container_and_on_before_its_program(node: Node) -> None:
    steps = Steps(node)
    watch_programs(node, steps)
    cells = await node.agent(failpoint=steps)
    await cells.allocate(Cell(A, TINY, isolates_processes=False))

    async def release() -> None:
        steps("released")

    await cells.start_container(program(), runtime, release)
    assert [steps.at(step) for step in ("init.made", "program", "released")] == [[None], [None], [10]]
    assert node.host.groups[A] == TINY


async def test_is_on_while_a_runtime_starts_a_container_in_one_call(node: Node) -> None:
    steps = Steps(node)
    watch_programs(node, steps)
    cells = await node.agent(failpoint=steps)
    await cells.allocate(Cell(A, TINY, isolates_processes=False))
    await cells.start_container(program(), runtime)
    assert steps.at("program") == [10]


async def test_stays_on_for_a_start_beside_something_that_runs(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A, TINY, isolates_processes=False))
    await cells.start(program())
    node.groups.lift_cpu_quota = _never  # type: ignore[method-assign]
    await cells.start_container(program(name="second"), runtime, _go_on)


async def test_of_a_cell_is_on_before_something_starts_below_it(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A, TINY, isolates_processes=False))
    await cells.allocate(Cell(B))
    node.launcher.runtime_gate = asyncio.Event()
    starting = asyncio.create_task(cells.start_container(program(), runtime, _go_on))
    await eventually(lambda: node.host.groups[A].cpu_quota is None)
    await cells.start(program(B))
    assert node.host.groups[A] == TINY
    node.launcher.runtime_gate.set()
    await starting


@pytest.mark.parametrize("fail", ["start", "release"])
async def test_is_on_after_a_start_that_failed(node: Node, fail: str) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A, TINY, isolates_processes=False))
    release = _refuse
    if fail == "start":
        node.launcher.fail_next_start = errors.Internal("no")
        release = _go_on
    with pytest.raises(errors.SkerryError):
        await cells.start_container(program(), runtime, release)
    assert node.host.groups[A] == TINY
    assert cells.get(A).executables == ()


async def test_is_on_again_when_another_agent_takes_over(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A, TINY))
    await cells.start(program())
    node.groups.lift_cpu_quota(A)  # the agent died with it lifted
    await cells.close()
    await node.agent()
    assert node.host.groups[A] == TINY


async def test_is_off_while_a_program_is_prepared_and_on_before_it_begins(node: Node) -> None:
    steps = Steps(node)
    watch_programs(node, steps)
    cells = await node.agent(failpoint=steps)
    await cells.allocate(Cell(A, TINY))
    await cells.start(program())
    assert [steps.at(step) for step in ("init.made", "start.waits", "program")] == [[None], [None], [10]]
    assert node.host.groups[A] == TINY


@pytest.mark.parametrize("limits", [CellLimits(), CellLimits(cpu_quota=500)])
async def test_that_slows_no_start_is_not_lifted_and_the_program_does_not_wait(
    node: Node, limits: CellLimits
) -> None:
    node.groups.lift_cpu_quota = _never  # type: ignore[method-assign]
    steps = Steps(node)
    cells = await node.agent(failpoint=steps)
    await cells.allocate(Cell(A, limits))
    await cells.start(program())
    assert steps.at("start.waits") == []


async def test_is_not_lifted_where_an_init_can_work_outside_of_it(node: Node) -> None:
    node.groups.can_leave_cpu_quota = True
    node.groups.lift_cpu_quota = _never  # type: ignore[method-assign]
    cells = await node.agent()
    await cells.allocate(Cell(A, TINY))
    await cells.allocate(Cell(CellName("big"), CellLimits(cpu_quota=500)))
    await cells.start(program())
    await cells.start(program(CellName("big")))
    assert node.groups.quota_exits == ["a/_init", "a/_x1"]


async def test_is_lifted_beside_a_program_only_as_often_as_gives_that_a_tenth_more(node: Node) -> None:
    lifted = count_lifts(node)
    cells = await node.agent()
    await cells.allocate(Cell(A, TINY))
    for number in range(50):
        await cells.start(program(name=f"n{number}"))
    assert lifted == [A]
    node.host.clock.advance(1.1)  # a period of the quota for each ten
    await cells.start(program(name="later"))
    assert lifted == [A, A]
    node.host.cpu_ns[A] = 0

    def use() -> None:  # 20 ms, which are two seconds' worth of the quota
        node.host.cpu_ns[A] += 20_000_000

    node.launcher.on_prepare = use
    node.host.clock.advance(1.1)
    await cells.start(program(name="beside"))
    for _ in range(20):
        node.host.clock.advance(1.0)
        await cells.start(program(name=f"at {node.host.clock.monotonic()}"))
    assert lifted == [A, A, A]
    node.host.clock.advance(1.1)
    await cells.start(program(name="last"))
    assert lifted == [A, A, A, A]


async def test_is_shared_by_starts_at_once_until_the_first_program_begins(node: Node) -> None:
    lifted = count_lifts(node)
    steps = Steps(node)
    watch_programs(node, steps)
    cells = await node.agent()
    await cells.allocate(Cell(A, TINY))
    node.launcher.start_gate = asyncio.Event()
    starting = [asyncio.create_task(cells.start(program(name=name))) for name in ("one", "two")]
    await eventually(lambda: node.launcher.preparing == 2)
    assert node.host.groups[A].cpu_quota is None
    node.launcher.start_gate.set()
    await asyncio.gather(*starting)
    assert (steps.at("program"), lifted) == ([10, 10], [A])


async def test_is_on_soon_for_a_program_beside_which_a_start_takes_long(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A, TINY))
    await cells.start(program())
    node.host.clock.advance(1.1)
    node.launcher.start_gate = asyncio.Event()
    starting = asyncio.create_task(cells.start(program(name="slow")))
    await eventually(lambda: node.launcher.preparing == 1)
    await eventually(lambda: node.host.groups[A] == TINY)
    node.launcher.start_gate.set()
    await starting


async def test_that_cannot_be_put_on_lets_no_program_begin(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A, TINY))
    node.groups.fail_next_change = errors.Internal("no")
    with pytest.raises(errors.Internal):
        await cells.start(program())
    assert node.launcher.started == []
    assert node.host.groups[A] == TINY


async def test_is_on_before_a_cell_is_made_below(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A, TINY))
    node.launcher.start_gate = asyncio.Event()
    starting = asyncio.create_task(cells.start(program()))
    await eventually(lambda: node.launcher.preparing == 1)
    assert node.host.groups[A].cpu_quota is None
    await cells.allocate(Cell(B, CellLimits(cpu_quota=100)))
    assert node.host.groups[A] == TINY
    node.launcher.start_gate.set()
    await starting


def count_lifts(node: Node) -> list[CellName]:
    """The cells whose quotas are lifted, as they are."""
    lifted: list[CellName] = []
    lift = node.groups.lift_cpu_quota

    def count(cell: CellName) -> None:
        lifted.append(cell)
        lift(cell)

    node.groups.lift_cpu_quota = count  # type: ignore[method-assign]
    return lifted


async def _refuse() -> None:
    raise errors.FailedPrecondition("runc cannot start the container")


async def _go_on() -> None: ...


def _never(cell: CellName) -> None:
    raise AssertionError(f"the quota of {cell} was lifted while something ran in it")
