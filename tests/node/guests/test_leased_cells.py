"""Cells that are lent by a node in memory: made, found again, made anew, and gone with all that was there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.cells import Cell, CellLimits, CellOwner
from skerry.model.containers import ContainerState
from skerry.model.ids import CellName, InstanceId
from skerry.model.resources import Megabytes
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.streams import ExecStreamRequest, GuestSessionRequest, GuestStreamRequest, LogStreamRequest
from skerry.node.containers.writable_layers import SharedDisk
from skerry.node.guests.policy import guest_name
from tests.node.agent.instances.worlds import ID, order
from tests.node.guests.ground import BOUGHT, CELL, CONTRACT, OWN, Ground, contract
from tests.support.waiting import eventually


async def with_a_guest(ground: Ground, *instances: str) -> None:
    """A cell that is lent, with instances that run in it."""
    await ground.lend()
    buyer = ground.buyer()
    await buyer.order(*(order(id=id) for id in instances or (ID,)))
    for id in instances or (ID,):
        await buyer.until("RUNNING", id)
    await buyer.leave()


class TestALentCell:
    async def test_has_exactly_what_was_bought_and_runs_without_an_image(self, ground: Ground) -> None:
        await ground.lend()
        limits = CellLimits(cpu_weight=50, cpu_quota=500, memory=64, pids=ground.node.settings.container_pids)
        cell = Cell(OWN, limits, isolates_processes=False, owner=CellOwner.CONTRACT)
        assert ground.machine.cells == {OWN: cell}
        assert ground.machine.claims == {}
        assert ground.leased.get(CELL).state is ContainerState.RUNNING

    async def test_is_accounted_for_by_what_its_cell_uses(self, ground: Ground) -> None:
        await with_a_guest(ground)
        view = ground.view()
        assert view is not None
        ground.machine.used[ground.node.folder / view.spec.name / "layer"] = 5 * 1024**3
        await ground.instances.sample_usage()
        (report,) = ground.instances.take_usage()
        assert (report.instance, report.usage.disk) == (CONTRACT, 5)
        assert ground.leased.usage(CELL).cpu_ns == 7

    async def test_without_cpu_or_memory_is_refused_and_tried_again(self, ground: Ground) -> None:
        await ground.instances.apply([contract(resources=replace(BOUGHT, memory=Megabytes(0)))], is_full=True)
        await eventually(lambda: ground.instances.copy(CONTRACT).history.retry_at is not None)
        history = ground.instances.copy(CONTRACT).history
        assert history.status is InstanceStatus.STARTING
        assert history.reason.startswith("not started yet: a leased cell must have cpu")
        assert ground.folders() == []

    async def test_leaves_a_cell_of_that_name_alone(self, ground: Ground) -> None:
        theirs = ground.machine.cells[OWN] = Cell(OWN, owner=CellOwner.CONTAINER)
        wanted = contract()
        once = replace(wanted, spec=replace(wanted.spec, restart=replace(wanted.spec.restart, budget=0)))
        await ground.instances.apply([once], is_full=True)
        await ground.until("FAILED")
        assert "exists already" in ground.instances.copy(CONTRACT).history.reason
        await ground.instances.apply([], is_full=True)
        await ground.instances.emptied()
        assert (ground.machine.cells, ground.folders()) == ({OWN: theirs}, [])

    async def test_takes_the_place_of_a_container_of_the_same_instance(self, ground: Ground) -> None:
        await ground.instances.apply([order(id=CONTRACT)], is_full=True)
        await ground.until("RUNNING")
        await ground.lend(contract(generation=2))
        await eventually(lambda: ground.instances.copy(CONTRACT).history.status == "RUNNING")
        assert list(ground.machine.cells) == [OWN]
        assert ground.containers.list() == []


class TestAnotherAgent:
    async def test_goes_on_with_the_cell_and_all_that_runs_in_it(self, ground: Ground) -> None:
        await with_a_guest(ground)
        ground.instances.acknowledge(2**62)
        pid = ground.process().state.pid
        await ground.leave()
        await ground.open()
        buyer = ground.buyer()
        await buyer.until("RUNNING")
        assert ground.process().state.pid == pid
        assert (ground.status(), ground.instances.reports(0, 9)) == ("RUNNING", [])

    async def test_after_a_restart_of_the_machine_makes_the_cell_anew(self, ground: Ground) -> None:
        await with_a_guest(ground)
        await ground.leave()
        ground.node.reboot()
        await ground.open()
        await ground.later(lambda: OWN in ground.machine.cells and ground.runs())
        assert ground.instances.copy(CONTRACT).history.restarts == 1

    @pytest.mark.parametrize("has_owners", [True, False])
    async def test_goes_on_with_what_a_version_before_marked_names_lent(
        self, ground: Ground, has_owners: bool
    ) -> None:
        await with_a_guest(ground)
        process = ground.process()
        name = guest_name(CELL, InstanceId(ID))
        await ground.leave()
        ground.downgrade(has_owners=has_owners)
        await ground.open()
        buyer = ground.buyer()
        await buyer.until("RUNNING")
        assert (ground.status(), ground.containers.cell(name)) == ("RUNNING", f"{CELL}/{name}")
        assert process.state.exit is None
        assert ground.machine.cells[CellName(CELL)].owner is CellOwner.CONTRACT
        await buyer.order(order(id=ID), order(id="new"))  # what is new goes into the cell as it is called
        await buyer.until("RUNNING", "new")
        assert set(ground.machine.cells) == {
            CELL,
            f"{CELL}/{name}",
            f"{CELL}/{guest_name(CELL, InstanceId('new'))}",
        }
        await ground.instances.apply([contract(DesiredStatus.STOPPED)], is_full=True)
        await ground.until("STOPPED")
        await ground.lend()
        await ground.later(ground.runs)
        await eventually(lambda: f"{OWN}/{name}" in ground.machine.cells)
        assert all(each.startswith(OWN) for each in ground.machine.cells)

    async def test_finishes_a_removal(self, ground: Ground) -> None:
        await with_a_guest(ground)
        ground.machine.failing["free"] = errors.Unavailable("it does not die")
        (ground.folder / "lent" / CELL / "removing").touch()
        await ground.leave()
        await ground.open()
        assert ground.leased.get(CELL).state is ContainerState.REMOVING
        await ground.instances.apply([], is_full=True)
        await eventually(lambda: is_gone(ground))

    async def test_starts_also_if_it_cannot_read_what_is_there(self, ground: Ground) -> None:
        await ground.lend()
        await ground.leave()
        (ground.folder / "lent" / CELL / "cell.json").write_text("{")
        (ground.folder / "lent" / ".gone-i-old").mkdir()
        await ground.open()
        await ground.later(lambda: ground.status() == "RUNNING" and ground.folders() == [CELL])


def is_gone(ground: Ground) -> bool:
    if ground.instances._controllers or ground.folders():
        return False  # files still go away, and cannot be counted
    assert ground.node.leftovers() == []
    return True


class TestRemoving:
    async def test_leaves_nothing(self, ground: Ground) -> None:
        await with_a_guest(ground, "one", "two")
        await ground.instances.apply([contract(DesiredStatus.DESTROYED)], is_full=True)
        await ground.until("TERMINATED")
        ground.instances.acknowledge(2**62)
        await eventually(lambda: is_gone(ground))

    async def test_ends_the_conversation_first(self, ground: Ground) -> None:
        await ground.lend()
        buyer = ground.buyer()
        await buyer.order(order())
        await buyer.until("RUNNING")
        await ground.instances.apply([], is_full=True)
        await eventually(lambda: is_gone(ground))
        await eventually(lambda: buyer.failure)
        assert isinstance(buyer.failure, errors.FailedPrecondition)

    async def test_waits_for_what_is_just_being_made(self, ground: Ground) -> None:
        await ground.lend()
        buyer = ground.buyer()
        ground.node.images.gate = gate = asyncio.Event()
        await buyer.order(order(id="one"), order(id="two"))
        await buyer.until("STARTING", "two")
        await ground.instances.apply([], is_full=True)
        gate.set()
        await eventually(lambda: is_gone(ground))

    async def test_that_fails_is_tried_again(self, ground: Ground) -> None:
        await with_a_guest(ground)
        ground.machine.failing["free"] = errors.Unavailable("it does not die")
        ground.machine.failing["detach"] = errors.Unavailable("not now")
        await ground.instances.apply([], is_full=True)
        await eventually(lambda: is_gone(ground))

    async def test_takes_only_its_own(self, ground: Ground) -> None:
        other = InstanceId("contract-2")
        await with_a_guest(ground)
        await ground.lend(contract(id=other))
        buyer = ground.buyer(other)
        await buyer.order(order())
        await buyer.until("RUNNING")
        await ground.instances.apply([contract(id=other)], is_full=True)
        await eventually(lambda: ground.folders() == ["i-contract-2"])
        assert OWN not in ground.machine.cells
        assert ground.process(cell="i-contract-2").state.exit is None


class TestStopping:
    async def test_is_the_guest_s_machine_going_down_and_starting_it_coming_up(self, ground: Ground) -> None:
        await with_a_guest(ground)
        await ground.instances.apply([contract(DesiredStatus.STOPPED)], is_full=True)
        await ground.until("STOPPED")
        assert ground.machine.cells == {}
        assert ground.leased.get(CELL).reason == ""
        view = ground.view()
        assert view is not None
        assert view.state is ContainerState.EXITED
        await ground.lend()
        await ground.later(ground.runs)


class TestLooking:
    async def test_finds_a_cell_whose_groups_somebody_removed_and_makes_it_again(
        self, ground: Ground
    ) -> None:
        await with_a_guest(ground)
        for process in ground.machine.processes.values():
            process.exit(signal=9)
        ground.machine.ungrouped.add(OWN)
        await ground.leased.check()
        await ground.later(lambda: ground.machine.ungrouped == set() and ground.status() == "RUNNING")
        await ground.later(ground.runs)

    async def test_finds_a_cell_that_somebody_freed_and_makes_another(self, ground: Ground) -> None:
        await with_a_guest(ground)
        for process in ground.machine.processes.values():
            process.exit(signal=9)
        ground.machine.processes.clear()
        ground.machine.cells.clear()
        await ground.leased.check()
        await ground.later(lambda: OWN in ground.machine.cells and ground.status() == "RUNNING")
        assert ground.instances.copy(CONTRACT).history.restarts == 1

    async def test_holds_all_of_them_together_to_the_disk_that_was_bought(self, ground: Ground) -> None:
        await with_a_guest(ground, "one", "two")
        views = [view for id in ("one", "two") if (view := ground.view(id)) is not None]
        bought = SharedDisk(CELL, BOUGHT.disk * 1024**3)
        assert ground.node.disks.shared == {bought: {view.spec.name for view in views}}
        for view in views:
            ground.machine.used[ground.node.folder / view.spec.name / "layer"] = 1024**3
        assert (await ground.leased.stats(CELL)).disk_bytes == 2 * 1024**3


class TestWhatIsAskedOfOne:
    async def test_is_refused_unless_it_is_for_its_guest(self, ground: Ground) -> None:
        await ground.lend()
        for request in (LogStreamRequest(), ExecStreamRequest(("true",))):
            tunnel = ground.request(request)
            await eventually(lambda: tunnel.failure)  # noqa: B023 - awaited
            assert isinstance(tunnel.failure, errors.FailedPrecondition)
            assert "is a leased cell" in tunnel.failure.message

    async def test_of_what_is_no_lent_cell_is_refused(self, ground: Ground) -> None:
        await ground.instances.apply([order()], is_full=True)
        await ground.until("RUNNING", ID)
        for request in (GuestSessionRequest(), GuestStreamRequest(ID, LogStreamRequest())):
            tunnel = ground.request(request, ID)
            await eventually(lambda: tunnel.failure)  # noqa: B023 - awaited
            assert isinstance(tunnel.failure, errors.FailedPrecondition)

    async def test_while_it_does_not_run_is_for_later(self, ground: Ground) -> None:
        await ground.instances.apply([contract(DesiredStatus.STOPPED)], is_full=True)
        await ground.until("STOPPED")
        for request in (GuestSessionRequest(), GuestStreamRequest(ID, LogStreamRequest())):
            tunnel = ground.request(request)
            await eventually(lambda: tunnel.failure)  # noqa: B023 - awaited
            assert tunnel.failure is not None


async def test_the_records_of_guests_are_for_us_alone(ground: Ground, tmp_path: Path) -> None:
    await with_a_guest(ground)
    secret = tmp_path / "lent" / CELL / "instances" / "copies" / f"{ID}.json"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (secret, *secret.parents[:4]))
