"""What a new agent makes of what it finds: the decision alone, and the doing on a machine in memory."""

from __future__ import annotations

import asyncio
import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.cells import Cell, CellOwner, ExecutableState, ExitStatus, own_name
from skerry.model.containers import ContainerState, NetworkMode
from skerry.model.ids import CellName, ExecutableName
from skerry.model.images import ImageConfig, ImageId
from skerry.model.ports import PortMapping
from skerry.model.resources import Gigabytes, Resources
from skerry.node.cells.state import CellView
from skerry.node.containers.adoption import (
    NETWORK_LOST,
    REBOOTED,
    UNCONFINED_GUEST,
    ContainerAdoptionPlan,
    plan,
)
from skerry.node.containers.records import ContainerRecord, RunRecord, StoredContainer
from skerry.node.containers.run_teardown import CELL_FREED
from tests.node.containers.nodes import Node, running, spec
from tests.support.waiting import eventually

ENDED = ExitStatus(at=5.0, code=3)
RUN = RunRecord("this", 2.0)
WEB: frozenset[str] = frozenset({"web"})


def record(name: str = "web", network: NetworkMode = NetworkMode.BRIDGE) -> ContainerRecord:
    cell = Cell(own_name(name), isolates_processes=False, owner=CellOwner.CONTAINER)
    return ContainerRecord(spec(name, network=network), ImageId("image"), ImageConfig(), cell, 1.0)


def found(name: str = "web", run: RunRecord | None = None, **other: object) -> StoredContainer:
    parts: dict[str, object] = {"record": record(name), "is_removing": False}
    return StoredContainer(name=name, run=run, **(parts | other))  # type: ignore[arg-type]


def cell(
    how: ExitStatus | None = None, name: str = "web", *, main: bool = True, own: bool = True
) -> CellView:
    state = ExecutableState(ExecutableName("main"), own_name(name), "serve", "", 7, 2.0, how)
    created = Cell(own_name(name), isolates_processes=not own, owner=CellOwner.CONTAINER)
    return CellView(created, 61184, 1.0, False, (state,) if main else ())


def decide(
    one: StoredContainer, view: CellView | None, held: frozenset[str] = WEB, boot: str = "this"
) -> ContainerAdoptionPlan:
    return plan([one], {} if view is None else {view.cell.name: view}, held, held, boot)


def test_nothing_found_is_nothing_to_do() -> None:
    assert plan([], {}, set(), set(), "this") == ContainerAdoptionPlan((), (), ())


def test_what_runs_goes_on() -> None:
    (stored,) = decide(found(run=RUN), cell()).adopted
    assert stored.is_running
    assert (stored.run, stored.has_leftovers, stored.must_end) == (RUN, False, "")


def test_a_start_that_only_the_cell_knows_of_goes_on() -> None:
    (stored,) = decide(found(), cell()).adopted
    assert stored.is_running
    assert stored.run == RUN


def test_a_start_that_only_the_cell_knows_of_is_not_the_one_that_ended_before() -> None:
    before = RunRecord("this", 1.5, ENDED, True, "disk")
    (stored,) = decide(found(run=before), cell()).adopted
    assert (stored.is_running, stored.run) == (True, RUN)


def test_what_runs_without_the_address_it_should_have_must_end() -> None:
    (stored,) = decide(found(run=RUN), cell(), frozenset()).adopted
    assert (stored.is_running, stored.must_end) == (True, NETWORK_LOST)
    alone = found(run=RUN, record=record(network=NetworkMode.NONE))
    (stored,) = decide(alone, cell(), frozenset()).adopted
    assert stored.must_end == ""


def test_an_end_that_nobody_saw_is_the_cells_word() -> None:
    (stored,) = decide(found(run=RUN), cell(ENDED)).adopted
    assert not stored.is_running
    assert stored.has_leftovers
    assert stored.run == RunRecord("this", 2.0, ENDED, has_ended=True)


def test_an_end_that_was_written_down_keeps_its_reason() -> None:
    run = RunRecord("this", 2.0, ENDED, True, "it wrote too much")
    (stored,) = decide(found(run=run), cell(ENDED), frozenset()).adopted
    assert (stored.run, stored.has_leftovers) == (run, False)


def test_what_ran_in_another_boot_was_ended_by_that() -> None:
    (stored,) = decide(found(run=RUN), None, frozenset(), "another").adopted
    assert stored.run == RunRecord("this", 2.0, None, True, REBOOTED)


def test_what_had_ended_in_another_boot_ended_as_it_did() -> None:
    run = RunRecord("this", 2.0, ENDED, True)
    (stored,) = decide(found(run=run), None, frozenset(), "another").adopted
    assert stored.run == run


def test_what_ran_in_a_cell_that_is_gone_has_ended_and_nobody_knows_how() -> None:
    (stored,) = decide(found(run=RUN), None).adopted
    assert stored.run == RunRecord("this", 2.0, None, True, CELL_FREED)
    assert stored.has_leftovers


def test_what_was_never_started_is_only_listed() -> None:
    (stored,) = decide(found(), cell(main=False), frozenset()).adopted
    assert (stored.run, stored.is_running, stored.has_leftovers) == (None, False, False)


def test_a_start_that_did_not_come_to_a_process_is_undone() -> None:
    (stored,) = decide(found(), cell(main=False)).adopted
    assert (stored.run, stored.has_leftovers) == (None, True)


def test_somebody_elses_cell_says_nothing() -> None:
    (stored,) = decide(found(run=RUN), cell(own=False)).adopted
    assert not stored.is_running


def test_a_removal_that_was_begun_is_finished() -> None:
    decision = decide(found(is_removing=True), cell())
    assert (decision.adopted, [each.name for each in decision.removed]) == ((), ["web"])


def test_what_belongs_to_no_container_goes() -> None:
    decision = plan([found("half", record=None), found("web")], {}, {"ghost", "web"}, set(), "this")
    assert decision.orphans == ("ghost", "half")


runs = st.one_of(
    st.none(),
    st.builds(RunRecord, st.sampled_from(["this", "that"]), st.sampled_from([1.0, 2.0])),
    st.builds(RunRecord, st.sampled_from(["this", "that"]), st.just(2.0), st.just(ENDED), st.just(True)),
)
names = st.sampled_from(["a", "b", "c"])


@given(
    st.dictionaries(names, st.tuples(runs, st.booleans(), st.booleans())),
    st.dictionaries(names, st.sampled_from([cell, None])),
    st.sets(names),
    st.sets(names),
)
def test_every_name_has_exactly_one_fate_and_what_does_not_run_holds_nothing(
    records: dict[str, tuple[RunRecord | None, bool, bool]],
    cells: dict[str, object],
    held: set[str],
    attached: set[str],
) -> None:
    every = [
        found(name, run, is_removing=removal, record=record(name) if whole else None)
        for name, (run, removal, whole) in records.items()
    ]
    views = {name: cell(ENDED if kind is None else None, name) for name, kind in cells.items()}
    decision = plan(every, views, held | attached, attached, "this")
    fates = [stored.name for stored in decision.adopted]
    fates += [each.name for each in decision.removed]
    fates += decision.orphans
    assert sorted(fates) == sorted(records.keys() | held | attached)
    for stored in decision.adopted:
        assert stored.is_running or stored.has_leftovers == (stored.name in held | attached)
        assert stored.is_running or stored.run is None or stored.run.has_ended
        assert not stored.is_running or (stored.run is not None and not stored.run.has_ended)


async def test_containers_go_on_without_the_agent(node: Node) -> None:
    containers = await node.agent()
    for name in ("made", "runs", "ends", "over"):
        await containers.create(spec(name, resources=Resources(disk=Gigabytes(1))))
    for name in ("runs", "ends", "over"):
        await containers.start(name)
    await containers.stop("over")
    before = {view.spec.name: view for view in containers.list()}
    await node.leave()
    node.machine.main("ends").exit(code=4)
    node.machine.claims.clear()
    containers = await node.agent()
    now = {view.spec.name: view for view in containers.list()}
    assert now["made"] == before["made"]
    assert now["runs"] == before["runs"]
    assert now["over"] == before["over"]
    ended = now["ends"].exit
    assert ended is not None
    assert (now["ends"].state, ended.code) == (ContainerState.EXITED, 4)
    assert node.machine.attached.keys() == {"runs"}
    assert node.machine.mounts == {node.folder / "runs/rootfs"}
    assert node.machine.claims.keys() == set(now)
    assert (await containers.stats("runs")).disk_limit_kind == "filesystem"
    waiting = asyncio.create_task(containers.wait("runs"))
    node.machine.main("runs").exit(code=9)
    assert (await waiting).code == 9
    for name in now:
        await containers.remove(name)
    assert node.leftovers() == []


async def test_after_a_reboot_containers_are_listed_and_can_be_started_again(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec("ran", ports=(PortMapping(8080, 80),)))
    await containers.create(spec("made"))
    await containers.start("ran")
    await node.leave()
    node.reboot()
    containers = await node.agent()
    created, ran = containers.list()
    assert (created.state, created.reason) == (ContainerState.CREATED, "")
    assert (ran.state, ran.exit, ran.reason) == (ContainerState.EXITED, None, REBOOTED)
    with pytest.raises(errors.FailedPrecondition, match="restarted"):
        await containers.wait("ran")
    assert (await containers.stats("ran")).usage.pids == 0
    assert list(node.machine.runtime_folder.iterdir()) == []
    assert (await containers.start("ran")).state is ContainerState.RUNNING
    await containers.remove("ran", force=True)
    await containers.remove("made")
    assert node.leftovers() == []


async def test_what_lost_its_network_is_killed_and_says_so(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec())
    await containers.start("web")
    await node.leave()
    node.machine.attached.clear()
    containers = await node.agent()
    view = containers.get("web")
    assert (view.state, view.reason) == (ContainerState.EXITED, NETWORK_LOST)
    assert node.machine.main("web").state.exit is not None


async def test_commands_that_an_earlier_agent_began_are_ended(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec())
    await containers.start("web")
    with open(os.devnull, "rb") as null:
        session = await containers.exec("web", ("date",), stdio=(null.fileno(),) * 3)
        session.teardown.cancel()  # as if this agent were gone
        await asyncio.wait({session.teardown})
    node.agents.clear()
    assert len(node.machine.processes) == 2
    containers = await node.agent()
    assert [name for _, name in node.machine.processes] == ["main"]
    assert list((node.folder / "web/execs").glob("*")) == []


async def test_a_removal_that_cannot_be_finished_stays_listed(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec())
    await node.leave()
    (node.folder / "web" / "removing").touch()
    node.machine.claims.clear()
    node.machine.failing["free"] = errors.Unavailable("processes do not die; free it again")
    containers = await node.agent()
    assert containers.get("web").state is ContainerState.REMOVING
    assert node.machine.claims.keys() == {"web"}
    await containers.remove("web")
    assert node.leftovers() == []


async def test_what_a_crash_left_half_made_or_half_removed_goes(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec())
    await containers.start("web")
    await node.leave()
    (node.folder / "web" / "container.json").write_text("{")
    (node.folder / ".new-other").mkdir()
    (node.folder / ".gone-4" / "layer").mkdir(parents=True)
    node.machine.claims.clear()
    containers = await node.agent()
    assert containers.list() == []
    assert node.leftovers() == []


async def test_a_mark_of_a_cell_that_is_somebody_elses_harms_nobody(node: Node) -> None:
    await node.agent()
    await node.leave()
    theirs = node.machine.cells[CellName("web")] = Cell(CellName("web"))
    (node.folder / "web").mkdir()
    await node.agent()
    assert node.machine.cells == {"web": theirs}
    assert not (node.folder / "web").exists()


async def test_an_image_that_is_gone_does_not_keep_the_agent_from_starting(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec())
    await node.leave()
    node.machine.images.clear()
    containers = await node.agent()
    assert containers.get("web").state is ContainerState.CREATED
    await containers.remove("web")


STEPS = [
    *("create.recorded", "create.allocated", "create.synced"),
    *("start.attached", "start.layer_opened", "start.mounted", "start.bundled"),
    *("start.running", "start.published", "start.recorded"),
    *("stop.asked", "stop.ended", "stop.recorded"),
    *("tidy.unmounted", "tidy.layer_unmounted", "tidy.detached", "tidy.forgotten"),
    *("remove.marked", "remove.freed", "remove.left", "remove.discarded", "remove.removed"),
]


async def test_the_steps_are_all_there_are(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec(ports=(PortMapping(8080, 80),)))
    await containers.create(spec("strange", is_isolated=True, inside="lent"))
    await containers.start("web")
    for name in ("web", "strange"):
        await containers.remove(name, force=True)
    assert set(node.steps) == set(STEPS)


async def test_ends_are_seen_also_if_they_cannot_be_finished_at_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.node.containers.containers._AGAIN_S", 0.0)
    containers = await node.agent()
    await containers.create(spec())
    await containers.start("web")
    main = node.machine.main("web")
    main.is_unkillable = True
    main.exit(code=1)
    await asyncio.sleep(0)
    assert containers.get("web").state is ContainerState.RUNNING
    main.is_unkillable = False
    await eventually(lambda: containers.get("web").state is ContainerState.EXITED)


def test_a_record_reads_back_as_it_was_written() -> None:
    one = msgspec.structs.replace(record(), config=ImageConfig(command=("a",), labels={"x": "y"}))
    assert msgspec.json.decode(msgspec.json.encode(one), type=ContainerRecord) == one


@pytest.mark.parametrize("call", ["detach", "unmount", "delete"])
async def test_what_cannot_be_put_right_keeps_no_agent_from_starting(node: Node, call: str) -> None:
    containers = await node.agent()
    await containers.create(spec())
    await containers.start("web")
    await node.leave()
    node.machine.main("web").exit(code=0)
    node.machine.failing[call] = errors.Unavailable("not now")
    containers = await node.agent()
    assert containers.get("web").state is ContainerState.EXITED
    await containers.remove("web")
    assert node.leftovers() == []


async def test_a_stranger_s_container_of_a_version_without_user_namespaces_is_killed(node: Node) -> None:
    containers = await node.agent()
    for name in ("old", "new"):
        await containers.create(spec(name, is_isolated=True, inside="lent"))
        await containers.start(name)
    await node.leave()
    node.machine.attached["old"] = msgspec.structs.replace(node.machine.attached["old"], users=None)
    containers = await node.agent()
    assert containers.get("new").state is ContainerState.RUNNING
    view = containers.get("old")
    assert (view.state, view.reason) == (ContainerState.EXITED, UNCONFINED_GUEST)


async def test_what_must_end_and_cannot_yet_is_listed_as_running(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec())
    await containers.start("web")
    await node.leave()
    node.machine.attached.clear()
    node.machine.main("web").is_unkillable = True
    containers = await node.agent()
    assert containers.get("web").state is ContainerState.RUNNING
    node.machine.main("web").is_unkillable = False
    await containers.stop("web", grace_s=0)
    assert containers.get("web").reason == NETWORK_LOST


@pytest.mark.parametrize("has_owners", [True, False])
async def test_what_a_version_before_marked_names_started_goes_on_and_is_renamed_when_it_starts_again(
    node: Node, has_owners: bool
) -> None:
    before = await running(node)
    pid = before.get("web").pid
    await node.leave()
    node.downgrade(has_owners=has_owners)
    containers = await node.agent()
    view = containers.get("web")
    assert (view.state, view.pid, containers.cell("web")) == (ContainerState.RUNNING, pid, "web")
    assert node.machine.cells[CellName("web")].owner is CellOwner.CONTAINER  # so no client's any more
    await containers.stop("web")
    await containers.start("web")
    assert (list(node.machine.cells), containers.cell("web")) == (["@web"], "@web")
    await node.leave()
    containers = await node.agent()
    assert containers.get("web").state is ContainerState.RUNNING
    await containers.remove("web", force=True)
    assert node.leftovers() == []


@pytest.mark.parametrize("has_owners", [True, False])
async def test_what_a_version_before_marked_names_made_can_be_removed(node: Node, has_owners: bool) -> None:
    await running(node)
    await node.leave()
    node.downgrade(has_owners=has_owners)
    containers = await node.agent()
    await containers.remove("web", force=True)
    assert node.leftovers() == []


async def test_after_a_reboot_into_marked_names_a_cell_of_a_client_is_in_no_way(node: Node) -> None:
    await running(node)
    await node.leave()
    node.downgrade(has_owners=True)
    node.reboot()
    theirs = node.machine.cells[CellName("web")] = Cell(CellName("web"))
    containers = await node.agent()
    await containers.start("web")
    await containers.remove("web", force=True)
    assert node.machine.cells == {"web": theirs}


async def test_a_cell_whose_groups_somebody_removed_is_made_again_by_a_start(node: Node) -> None:
    containers = await running(node)
    node.machine.main("web").exit(signal=9)
    node.machine.ungrouped.add(containers.cell("web"))
    await containers.wait("web")
    await containers.start("web")
    assert containers.get("web").state is ContainerState.RUNNING
    assert node.machine.ungrouped == set()
