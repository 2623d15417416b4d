"""The life of a container, on a machine in memory."""

from __future__ import annotations

import asyncio
import errno
import json
import os

import msgspec
import pytest

from skerry.kit import disk_reserve
from skerry.kit.disk_reserve import DiskReserve
from skerry.model import errors
from skerry.model.cells import Cell, CellOwner, ExitStatus, OutputChannel, own_name
from skerry.model.containers import ContainerState, NetworkMode
from skerry.model.ids import CellName
from skerry.model.ports import PortMapping
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from tests.node.containers.nodes import Node, running, spec
from tests.support.waiting import eventually

SIGTERM, SIGKILL, SIGQUIT = 15, 9, 3


def config(node: Node, name: str = "web") -> dict[str, object]:
    document: dict[str, object] = json.loads((node.folder / name / "config.json").read_text())
    return document


async def test_a_container_is_created_with_its_cell_and_its_image_is_claimed(node: Node) -> None:
    containers = await node.agent()
    resources = Resources(Millicores(500), Megabytes(64), Gigabytes(2))
    view = await containers.create(spec(resources=resources, pids=50))
    assert (view.state, view.pid, view.address, view.exit) == (ContainerState.CREATED, None, "", None)
    assert view.image == node.machine.images["web:1"].id
    assert containers.list() == [containers.get("web")] == [view]
    (cell,) = node.machine.cells.values()
    assert (cell.name, cell.isolates_processes) == ("@web", False)
    assert (cell.limits.cpu_quota, cell.limits.memory, cell.limits.pids) == (500, 64, 50)
    assert node.machine.claims == {"web": view.image}


async def test_a_container_may_be_inside_another_cell_and_is_found_there_by_the_next_agent(
    node: Node,
) -> None:
    containers = await running(node, inside="functions")
    assert list(node.machine.cells) == ["@functions/web"]
    assert containers.get("web").state is ContainerState.RUNNING
    await node.leave()
    containers = await node.agent()
    assert containers.get("web").state is ContainerState.RUNNING
    await containers.remove("web", force=True)
    assert node.leftovers() == []
    with pytest.raises(errors.Invalid):
        spec(inside="../functions")


async def test_a_stranger_s_container_is_attached_apart_and_its_image_asked_for_as_by_a_stranger(
    node: Node,
) -> None:
    containers = await running(node, is_isolated=True)
    assert node.machine.attached["web"].is_isolated
    assert node.images.guests.requested == ["web:1"]
    image = containers.get("web").image
    await node.leave()
    containers = await node.agent()  # what it is outlives the agent
    await containers.remove("web", force=True)
    assert node.images.guests.tidied == [image]
    assert node.leftovers() == []
    # One whose image was chosen before is made of that.
    await containers.create(spec(is_isolated=True), image=image)
    assert node.images.guests.requested == ["web:1"]


async def test_what_is_not_asked_for_has_no_limit_but_processes_do(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec())
    limits = node.machine.cells[own_name("web")].limits
    assert (limits.cpu_quota, limits.memory, limits.pids) == (None, None, node.settings.container_pids)


async def test_a_started_container_has_a_root_an_address_and_ports(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec(ports=(PortMapping(8080, 80),)))
    view = await containers.start("web")
    assert (view.state, view.address) == (ContainerState.RUNNING, "10.0.0.2")
    assert view.pid == node.machine.main("web").state.pid
    assert view.started_at == node.machine.main("web").state.started_at
    assert node.machine.published == {"web"}
    assert node.machine.mounts == {node.folder / "web" / "rootfs"}
    linux = config(node)["linux"]
    assert isinstance(linux, dict)
    assert linux["cgroupsPath"] == "/groups/@web"
    assert {"type": "network", "path": "/ns/2"} in linux["namespaces"]
    assert "10.0.0.2" in (node.folder / "web/hosts").read_text()


async def test_a_container_without_a_network_is_attached_to_none(node: Node) -> None:
    await running(node, network=NetworkMode.NONE)
    assert node.machine.attached == {}
    linux = config(node)["linux"]
    assert isinstance(linux, dict)
    assert {"type": "network"} in linux["namespaces"]


async def test_what_ends_by_itself_gives_back_its_root_address_and_ports_and_stays_listed(node: Node) -> None:
    containers = await running(node, ports=(PortMapping(8080, 80),))
    node.machine.main("web").exit(code=3)
    ended = await containers.wait("web")
    assert (ended.code, ended.signal, ended.oom) == (3, None, False)
    view = containers.get("web")
    assert (view.state, view.pid, view.address, view.exit) == (ContainerState.EXITED, None, "", ended)
    machine = node.machine
    assert (machine.attached, machine.published, machine.mounts) == ({}, set(), set())
    assert list(machine.runtime_folder.iterdir()) == []
    assert containers.logs("web", OutputChannel.STDOUT) is not None


async def test_a_stop_asks_with_the_containers_signal_first(node: Node) -> None:
    containers = await running(node)
    view = await containers.stop("web")
    assert node.machine.main("web").signals == [SIGTERM]
    assert view.state is ContainerState.EXITED
    assert view.exit is not None
    assert view.exit.signal == SIGTERM
    assert await containers.stop("web") == view


@pytest.mark.parametrize(
    ("image", "own", "number"), [("SIGQUIT", "", 3), ("SIGQUIT", "SIGINT", 2), ("", "12", 12)]
)
async def test_the_stop_signal_is_the_specs_or_else_the_images(
    node: Node, image: str, own: str, number: int
) -> None:
    node.machine.add_image("other", stop_signal=image)
    containers = await running(node, image="other", stop_signal=own)
    await containers.stop("web")
    assert node.machine.main("web").signals == [number]


async def test_what_does_not_end_in_its_grace_is_killed(node: Node) -> None:
    node.machine.stubborn = True
    containers = await running(node)
    view = await containers.stop("web", grace_s=0.01)
    assert node.machine.main("web").signals == [SIGTERM]
    assert view.exit is not None
    assert view.exit.signal == SIGKILL


async def test_a_grace_of_nothing_asks_nobody(node: Node) -> None:
    containers = await running(node)
    await containers.stop("web", grace_s=0)
    assert node.machine.main("web").signals == []


async def test_a_long_stop_is_cut_short_by_a_later_one(node: Node) -> None:
    node.machine.stubborn = True
    containers = await running(node, stop_grace_s=3600.0)
    patient = asyncio.create_task(containers.stop("web"))
    await eventually(lambda: node.machine.main("web").signals)
    view = await containers.stop("web", grace_s=0)
    assert await patient == view
    assert view.exit is not None
    assert view.exit.signal == SIGKILL


async def test_a_stopped_container_starts_again_with_what_it_wrote(node: Node) -> None:
    containers = await running(node)
    first = containers.get("web").pid
    (node.folder / "web/layer/upper").mkdir()
    await containers.stop("web")
    view = await containers.start("web")
    assert view.state is ContainerState.RUNNING
    assert view.pid not in (None, first)
    assert view.exit is None
    assert (node.folder / "web/layer/upper").exists()


async def test_a_container_that_runs_cannot_be_started_or_removed(node: Node) -> None:
    containers = await running(node)
    with pytest.raises(errors.FailedPrecondition, match="is already running"):
        await containers.start("web")
    with pytest.raises(errors.FailedPrecondition, match="stop it first"):
        await containers.remove("web")
    assert containers.get("web").state is ContainerState.RUNNING


async def test_removal_leaves_nothing(node: Node) -> None:
    containers = await running(node)
    await containers.stop("web")
    await containers.remove("web")
    assert containers.list() == []
    assert node.leftovers() == []
    await containers.create(spec())  # the name is free


async def test_a_forced_removal_stops_first(node: Node) -> None:
    containers = await running(node)
    main = node.machine.main("web")
    await containers.remove("web", force=True)
    assert main.signals == [SIGTERM]
    assert node.leftovers() == []


async def test_a_name_is_taken_by_a_container_and_not_by_a_cell_of_a_client(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec())
    with pytest.raises(errors.AlreadyExists, match="container 'web'"):
        await containers.create(spec())
    theirs = node.machine.cells[CellName("mine")] = Cell(CellName("mine"))
    await containers.create(spec("mine"))
    assert (await containers.start("mine")).state is ContainerState.RUNNING
    await containers.remove("mine", force=True)
    assert node.machine.cells[CellName("mine")] is theirs
    assert node.machine.claims.keys() == {"web"}


async def test_of_two_that_create_the_same_name_one_succeeds(node: Node) -> None:
    containers = await node.agent()
    outcomes = await asyncio.gather(
        containers.create(spec()), containers.create(spec()), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["AlreadyExists", "ContainerView"]
    assert node.machine.claims.keys() == {"web"}


async def test_nothing_is_known_of_what_was_never_created(node: Node) -> None:
    containers = await node.agent()
    for call in (containers.start, containers.stop, containers.remove, containers.wait, containers.stats):
        with pytest.raises(errors.NotFound, match="no container 'web'"):
            await call("web")
    with pytest.raises(errors.NotFound):
        containers.logs("web", OutputChannel.STDOUT)


async def test_what_was_never_started_has_no_end(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec())
    with pytest.raises(errors.FailedPrecondition, match="never started"):
        await containers.wait("web")
    assert list(containers.logs("web", OutputChannel.STDOUT).read()) == []


@pytest.mark.parametrize(
    ("more", "match"), [({"image": "nope"}, "pull it"), ({"image": "empty"}, "has no command")]
)
async def test_a_container_that_cannot_be_made_leaves_nothing(
    node: Node, more: dict[str, str], match: str
) -> None:
    node.machine.add_image("empty", command=())
    containers = await node.agent()
    with pytest.raises(errors.SkerryError, match=match):
        await containers.create(spec(**more))
    assert node.leftovers() == []


async def test_a_cell_that_cannot_be_had_leaves_nothing(node: Node) -> None:
    containers = await node.agent()
    node.machine.failing["allocate"] = errors.ResourcesExhausted("this node has its 64 cells")
    with pytest.raises(errors.ResourcesExhausted):
        await containers.create(spec())
    assert node.leftovers() == []


async def test_a_caller_that_goes_while_the_image_is_pulled_leaves_nothing(node: Node) -> None:
    containers = await node.agent()
    node.images.gate = asyncio.Event()
    reported: list[object] = []
    creating = asyncio.create_task(containers.create(spec(), on_progress=reported.append))
    await eventually(lambda: reported)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert node.leftovers() == []
    node.images.gate = None
    await containers.create(spec())


async def test_a_caller_that_goes_later_does_not_leave_it_half_done(node: Node) -> None:
    def go(step: str) -> None:
        if step == "start.attached":
            starting.cancel()

    containers = await node.agent(failpoint=go)
    await containers.create(spec())
    starting = asyncio.create_task(containers.start("web"))
    with pytest.raises(asyncio.CancelledError):
        await starting
    await eventually(lambda: containers.get("web").state is ContainerState.RUNNING)


@pytest.mark.parametrize("call", ["attach", "mount", "start", "publish"])
async def test_a_start_that_fails_is_undone_and_may_be_repeated(node: Node, call: str) -> None:
    containers = await node.agent()
    await containers.create(spec(ports=(PortMapping(8080, 80),)))
    node.machine.failing[call] = errors.Unavailable("not now")
    with pytest.raises(errors.Unavailable, match="not now"):
        await containers.start("web")
    view = containers.get("web")
    assert (view.state, view.address, view.pid) == (ContainerState.CREATED, "", None)
    assert sorted(node.machine.held()) == ["cell @web", "claim of web"]
    assert list(node.machine.runtime_folder.glob("*")) == []
    assert (await containers.start("web")).state is ContainerState.RUNNING


async def test_a_port_that_another_has_is_named_before_anything_starts(node: Node) -> None:
    containers = await running(node, "first", ports=(PortMapping(8080, 80),))
    await containers.create(spec("second", ports=(PortMapping(8080, 80),)))
    with pytest.raises(errors.FailedPrecondition, match="8080 is taken by 'first'"):
        await containers.start("second")
    assert containers.get("second").state is ContainerState.CREATED
    await containers.stop("first")
    await containers.start("second")


async def test_an_image_that_is_gone_is_said_to_be(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec())
    node.machine.images.clear()
    with pytest.raises(errors.FailedPrecondition, match="image of container 'web' is no longer on this node"):
        await containers.start("web")


@pytest.mark.parametrize("call", ["unmount", "detach", "delete"])
async def test_what_cannot_be_given_back_at_once_is_given_back_later(node: Node, call: str) -> None:
    containers = await running(node)
    node.machine.failing[call] = OSError(16, "Device or resource busy")
    await containers.stop("web")
    assert containers.get("web").state is ContainerState.EXITED
    assert len(node.machine.held()) + len(list(node.machine.runtime_folder.iterdir())) > 3
    await containers._maintenance.check()
    assert sorted(node.machine.held())[:2] == ["cell @web", "claim of web"]
    assert (node.machine.attached, node.machine.mounts) == ({}, set())
    assert list(node.machine.runtime_folder.iterdir()) == []


async def test_a_removal_that_cannot_be_finished_can_be_repeated(node: Node) -> None:
    containers = await running(node)
    await containers.stop("web")
    node.machine.failing["unmount"] = OSError(16, "Device or resource busy")
    with pytest.raises(errors.Unavailable, match="remove it again later"):
        await containers.remove("web")
    assert containers.get("web").state is ContainerState.REMOVING
    with pytest.raises(errors.FailedPrecondition, match="remove it again"):
        await containers.start("web")
    await containers.remove("web")
    assert node.leftovers() == []


async def test_nothing_is_removed_through_a_mount(node: Node) -> None:
    containers = await running(node)
    await containers.stop("web")
    inside = node.folder / "web" / "rootfs" / "deeper"
    node.machine.mounts.add(inside)
    with pytest.raises(errors.Unavailable):
        await containers.remove("web")
    assert inside.parent.is_dir()
    node.machine.mounts.clear()
    await containers.remove("web")


async def test_what_does_not_die_keeps_what_it_has(node: Node) -> None:
    containers = await running(node)
    node.machine.main("web").is_unkillable = True
    with pytest.raises(errors.Unavailable, match="do not exit"):
        await containers.stop("web", grace_s=0)
    assert containers.get("web").state is ContainerState.RUNNING
    assert node.machine.attached.keys() == {"web"}
    node.machine.main("web").is_unkillable = False
    await containers.stop("web", grace_s=0)
    assert containers.get("web").state is ContainerState.EXITED


async def test_a_cell_that_somebody_freed_ends_the_container(node: Node) -> None:
    containers = await running(node)
    node.machine.processes.pop((own_name("web"), node.machine.main("web").state.name)).exit(signal=SIGKILL)
    node.machine.cells.clear()
    ended = await containers.wait("web")
    assert ended.signal == SIGKILL
    assert node.machine.attached == {}
    assert (await containers.start("web")).state is ContainerState.RUNNING  # in a new cell
    assert node.machine.cells.keys() == {"@web"}


async def test_somebody_elses_cell_is_neither_used_nor_freed(node: Node) -> None:
    containers = await running(node)
    await containers.stop("web")
    theirs = node.machine.cells[own_name("web")] = Cell(own_name("web"), owner=CellOwner.CONTRACT)
    node.machine.processes.clear()
    with pytest.raises(errors.AlreadyExists, match="another cell is called '@web'"):
        await containers.start("web")
    await containers.remove("web")
    assert node.machine.cells == {"@web": theirs}


async def test_an_end_that_the_disk_refuses_to_record_is_told_and_recorded_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    containers = await running(node)
    with monkeypatch.context() as refusing:
        refusing.setattr("skerry.node.record_files.write", refused)
        node.machine.main("web").exit(code=7)
        assert (await containers.wait("web")).code == 7
    record = node.folder / "web" / "run.json"
    assert not json.loads(record.read_text())["has_ended"]
    await containers._maintenance.check()
    assert json.loads(record.read_text())["exit"]["code"] == 7


async def test_an_end_of_which_nobody_knows_how_is_told_as_that_until_its_record_comes(node: Node) -> None:
    containers = await running(node)
    node.machine.main("web").exit()
    with pytest.raises(errors.FailedPrecondition, match="exit status is unknown"):
        await containers.wait("web")
    view = containers.get("web")
    assert (view.state, view.exit) == (ContainerState.EXITED, None)
    assert "disk" in view.reason
    await containers._maintenance.check()
    assert containers.get("web") == view
    process = node.machine.main("web")
    process.state = msgspec.structs.replace(process.state, exit=ExitStatus(at=5.0, code=3))
    await containers._maintenance.check()
    view = containers.get("web")
    assert (view.exit, view.reason) == (ExitStatus(at=5.0, code=3), "")


async def test_a_container_is_stopped_and_removed_on_a_disk_that_takes_nothing_and_none_is_made_or_started(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    containers = await running(node)
    await containers.create(spec("idle"))
    with disk_reserve.installed(DiskReserve(node.folder, 1 << 20)):  # of which nothing is there
        with pytest.raises(errors.ResourcesExhausted, match="is full"):
            await containers.create(spec("more"))
        with pytest.raises(errors.ResourcesExhausted, match="is full"):
            await containers.start("idle")
        monkeypatch.setattr("skerry.node.record_files.write", refused)
        assert (await containers.stop("web")).state is ContainerState.EXITED
        await containers.remove("web")
        await containers.remove("idle")
    assert node.machine.held() == []


def refused(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_what_has_ended_gives_its_init_back_after_a_while(node: Node) -> None:
    containers = await running(node)
    node.machine.clock.advance(100)
    await containers._maintenance.check()
    assert node.machine.inits == {"@web"}, "it runs"
    node.machine.clock.advance(-100)
    await containers.stop("web")
    ended = containers.get("web")
    await containers._maintenance.check()
    assert node.machine.inits == {"@web"}, "it may be started again at once"
    node.machine.clock.advance(100)
    node.machine.failing["rest"] = errors.Unavailable("it does not die")
    for _ in range(3):
        await containers._maintenance.check()
    assert node.machine.inits == set()
    assert containers.get("web") == ended
    await containers.start("web")
    assert node.machine.inits == {"@web"}


async def test_the_init_of_a_cell_that_is_somebody_elses_is_left_alone(node: Node) -> None:
    containers = await running(node)
    await containers.stop("web")
    node.machine.cells[own_name("web")] = Cell(
        own_name("web"), isolates_network=True, owner=CellOwner.CONTRACT
    )
    node.machine.clock.advance(100)
    await containers._maintenance.check()
    assert node.machine.inits == {"@web"}


async def test_that_what_was_written_is_lost_is_told(node: Node) -> None:
    node.overlays.loses = True
    containers = await running(node)
    assert "was lost" in containers.get("web").reason


async def test_a_command_runs_in_a_container_that_is_up(node: Node) -> None:
    containers = await running(node)
    with open(os.devnull, "rb") as null:
        stdio = (null.fileno(),) * 3
        session = await containers.exec("web", ("date", "-u"), stdio=stdio)
        ((_, helper),) = [item for item in node.machine.processes.items() if item[0][1] != "main"]
        assert helper.arguments == ("exec", "web")
        assert helper.state.command == "date -u"
        session.signal(SIGQUIT)
        assert helper.signals == [SIGQUIT]
        assert await session.exit_code() == 128 + SIGQUIT
        assert list((node.folder / "web/execs").glob("*")) == []
        assert len(node.machine.processes) == 1
        await session.kill()
        await containers.stop("web")
        with pytest.raises(errors.FailedPrecondition, match="start it first"):
            await containers.exec("web", ("date",), stdio=stdio)


@pytest.mark.parametrize("arguments", [(), ("a\0b",)])
async def test_a_command_that_is_none_is_refused(node: Node, arguments: tuple[str, ...]) -> None:
    containers = await running(node)
    with pytest.raises(errors.Invalid, match="must name a program"):
        await containers.exec("web", arguments, stdio=(0, 0, 0))


async def test_a_long_command_line_is_run_whole(node: Node) -> None:
    await running(node, arguments=("x" * 100,) * 900)
    process = config(node)["process"]
    assert isinstance(process, dict)
    assert len(process["args"]) == 900


async def test_a_start_that_cannot_be_written_down_is_undone(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec())
    (node.folder / "web" / ".run.json.new").mkdir()  # in the way of the record
    with pytest.raises(errors.Unavailable, match="cannot store the state"):
        await containers.start("web")
    assert containers.get("web").state is ContainerState.CREATED
    assert sorted(node.machine.held()) == ["cell @web", "claim of web"]
    (node.folder / "web" / ".run.json.new").rmdir()
    await containers.start("web")
    (node.folder / "web" / ".run.json.new").mkdir()
    view = await containers.stop("web")
    assert view.exit is not None
    assert node.machine.attached == {}


async def test_a_start_of_which_two_things_fail_tells_of_the_runtime(node: Node) -> None:
    containers = await node.agent()
    await containers.create(spec(ports=(PortMapping(8080, 80),)))
    node.machine.failing |= {
        "start": errors.FailedPrecondition("no such program"),
        "publish": errors.Unavailable("nft"),
    }
    with pytest.raises(errors.FailedPrecondition, match="no such program"):
        await containers.start("web")
    assert sorted(node.machine.held()) == ["cell @web", "claim of web"]


async def test_commands_end_with_the_agent(node: Node) -> None:
    containers = await running(node)
    with open(os.devnull, "rb") as null:
        session = await containers.exec("web", ("date",), stdio=(null.fileno(),) * 3)
        node.agents.clear()
        await containers.close()
        assert await session.exit_code() == 128 + SIGKILL
    assert node.machine.main("web").state.exit is None
