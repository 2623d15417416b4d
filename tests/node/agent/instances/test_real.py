"""Instances as they run: real containers, their ports, their ends, their output and programs in them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.cells import OutputChannel, own_name
from skerry.model.containers import ContainerState
from skerry.model.ids import InstanceId
from skerry.model.node_messages import TunnelRequest
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.ports import PortMapping
from skerry.model.resources import Megabytes, Resources
from skerry.model.statuses import DesiredStatus
from skerry.model.streams import ExecStreamRequest, LogStreamRequest, StreamRequest, TunnelChannel
from skerry.node.agent.instances.instances import NodeInstances
from skerry.node.agent.instances.tunnel_handler import TunnelHandler
from skerry.node.cgroups.protocol import INIT_LEAF
from tests.node.agent.instances.driver import instances_of, reach, shorten_waits
from tests.node.agent.instances.far_ends import FakeTunnel
from tests.node.agent.instances.worlds import ID, spec
from tests.node.cells.real import is_alive
from tests.node.containers.conftest import busybox, ground
from tests.node.containers.real import Agent, Ground, needs_runc
from tests.support.groups import remove_groups
from tests.support.waiting import PATIENCE_S, eventually

__all__ = ["busybox", "ground"]
pytestmark = [needs_runc, pytest.mark.root]


class Here:
    """A node with an agent that is up."""

    def __init__(self, agent: Agent, instances: NodeInstances) -> None:
        self.cells = agent.cells
        self.containers = agent.containers
        self.instances = instances
        self._tunnels = TunnelHandler(instances, agent.containers)
        self._serving: list[asyncio.Future[None]] = []

    async def order(
        self, *arguments: str, desired: DesiredStatus = DesiredStatus.RUNNING, **more: Any
    ) -> None:
        wanted = spec(uri=Ground.reference, arguments=arguments or ("sleep", "1000"), **more)
        await self.instances.apply([InstanceOrder(InstanceId(ID), 1, wanted, desired)], is_full=True)

    def reports(self) -> list[InstanceReport]:
        return [reported.report for reported in self.instances.reports(0, 1000)]

    def has_restarted(self) -> bool:
        history = self.instances.copy(InstanceId(ID)).history
        return (str(history.status), history.restarts) == ("RUNNING", 1)

    def request(self, request: StreamRequest, instance: str = ID) -> FakeTunnel:
        tunnel = FakeTunnel()
        wanted = TunnelRequest("t1", InstanceId(instance), request)
        self._serving.append(asyncio.ensure_future(self._tunnels.serve(wanted, tunnel)))
        return tunnel

    async def leave(self) -> None:
        await cancel_and_wait(self._serving)
        await self.instances.apply([], is_full=True)
        await eventually(lambda: not self.instances._controllers)


@pytest.fixture
async def here(ground: Ground) -> AsyncIterator[Here]:
    shorten_waits(ground)
    async with ground.agent() as agent, instances_of(ground, agent) as instances:
        here = Here(agent, instances)
        yield here
        await here.leave()


async def test_an_instance_runs_is_reached_by_its_port_and_told_with_its_address(here: Here) -> None:
    serve = "while :; do echo hello from $HOSTNAME | nc -l -p 80; done"
    await here.order("sh", "-c", serve, name="web.1", ports=(PortMapping(8088, 80),))
    await reach(here.instances, "RUNNING", 1)
    assert here.reports()[-1].ip.startswith("10.98.0.")

    async def requested() -> bytes:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", 8088)
        except OSError:
            return b""
        output = await reader.read(100)
        writer.close()
        return output

    assert await eventually(requested) == b"hello from web-1\n"


async def test_what_crashes_is_started_again_until_its_budget_is_spent(here: Here) -> None:
    await here.order("sh", "-c", "exit 3", budget=2)
    await reach(here.instances, "FAILED", 1)
    assert [str(report.status) for report in here.reports()] == [
        "STARTING",
        *["RUNNING", "CRASHED", "STARTING"] * 2,
        *["RUNNING", "CRASHED", "FAILED"],
    ]
    assert here.reports()[-1].reason == "ended with code 3; all 2 restarts are used up"
    assert here.reports()[-1].exit_code == 3


async def test_work_that_is_done_stays_done_and_its_output_can_be_read(here: Here) -> None:
    await here.order("echo", "done", restart="on-failure")
    await reach(here.instances, "TERMINATED", 1)
    tunnel = here.request(LogStreamRequest())
    await eventually(lambda: tunnel.is_ended)
    assert tunnel.received() == b"done\n"


async def test_too_much_memory_is_told_as_that(here: Here) -> None:
    greedy = "x=aaaaaaaaaaaaaaaa; while true; do x=$x$x; done"
    await here.order("sh", "-c", greedy, restart="never", resources=Resources(memory=Megabytes(16)))
    await reach(here.instances, "FAILED", 1)
    assert "memory" in here.reports()[-1].reason


async def test_what_cannot_be_run_was_never_started(here: Here) -> None:
    await here.order("/unrunnable", restart="never")
    await reach(here.instances, "FAILED", 1)
    assert [str(report.status) for report in here.reports()] == ["STARTING", "FAILED"]
    assert here.reports()[-1].reason.startswith("not started: ")


async def test_what_is_used_is_measured(here: Here) -> None:
    await here.order("sh", "-c", "while true; do :; done")
    await reach(here.instances, "RUNNING", 1)

    async def busy() -> list[InstanceReport]:
        await here.instances.sample_usage()
        return [report for report in here.instances.take_usage() if report.usage.cpu > 50]

    await eventually(busy)


class TestLogs:
    async def test_are_of_both_streams_or_of_one_and_of_the_last_lines_alone_if_asked(
        self, here: Here
    ) -> None:
        await here.order("sh", "-c", "echo 1; echo 2 >&2; echo 3; echo 4", restart="never")
        await reach(here.instances, "TERMINATED", 1)
        both, tail = (
            here.request(LogStreamRequest()),
            here.request(LogStreamRequest(tail=2, stream=OutputChannel.STDOUT)),
        )
        errors_only = here.request(LogStreamRequest(stream=OutputChannel.STDERR))
        await eventually(lambda: both.is_ended and tail.is_ended and errors_only.is_ended)
        assert (both.received(), both.received(TunnelChannel.ERRORS)) == (b"1\n3\n4\n", b"2\n")
        assert tail.received() == b"3\n4\n"
        assert (errors_only.received(), errors_only.received(TunnelChannel.ERRORS)) == (b"", b"2\n")

    async def test_are_followed_over_restarts_to_the_end(self, here: Here) -> None:
        await here.order("sh", "-c", "echo again; sleep 0.2; exit 1", budget=2)
        tunnel = here.request(LogStreamRequest(follow=True))  # also before it runs
        await eventually(lambda: tunnel.is_ended)
        assert tunnel.received() == b"again\n" * 3
        await reach(here.instances, "FAILED", 1)

    async def test_are_followed_no_more_when_nobody_listens(self, here: Here) -> None:
        await here.order("sh", "-c", "echo here; sleep 1000")
        await reach(here.instances, "RUNNING", 1)
        tunnel = here.request(LogStreamRequest(follow=True))
        await eventually(lambda: tunnel.received() == b"here\n")
        tunnel.hang_up()
        await eventually(lambda: isinstance(tunnel.failure, errors.Unavailable))
        tunnel.hang_up()
        await asyncio.wait_for(here._serving[-1], PATIENCE_S)

    async def test_that_were_overtaken_say_how_much_is_missing(self, here: Here) -> None:
        flood = "i=0; while [ $i -lt 9000 ]; do echo $i; i=$((i+1)); done; echo end"
        await here.order("sh", "-c", f"{flood}; dd if=/dev/zero bs=1000000 count=9", restart="never")
        await reach(here.instances, "TERMINATED", 1)
        tunnel = here.request(LogStreamRequest())
        await eventually(lambda: tunnel.is_ended)
        stream, count = tunnel.received(TunnelChannel.LOST).split()
        assert (stream, int(count) > 0) == (b"stdout", True)


class TestExec:
    async def test_passes_streams_both_ways_and_the_code(self, here: Here) -> None:
        await here.order()
        await reach(here.instances, "RUNNING", 1)
        tunnel = here.request(
            ExecStreamRequest(("sh", "-c", "cat; echo $A >&2; exit 4"), ("A=1",), takes_input=True)
        )
        tunnel.say(TunnelChannel.INPUT, b"so it ")
        tunnel.say(TunnelChannel.INPUT, b"is")
        tunnel.say(TunnelChannel.END_OF_INPUT)
        await eventually(lambda: tunnel.is_ended)
        assert tunnel.received() == b"so it is"
        assert tunnel.received(TunnelChannel.ERRORS) == b"1\n"
        assert tunnel.received(TunnelChannel.EXIT) == b"4"

    async def test_has_a_terminal_of_the_size_that_is_told(self, here: Here) -> None:
        await here.order()
        await reach(here.instances, "RUNNING", 1)
        tunnel = here.request(ExecStreamRequest(("sh",), terminal=True, rows=20, columns=70))

        def has(size: bytes) -> bool:
            tunnel.say(TunnelChannel.INPUT, b"stty size\n")  # a runtime sets it a moment after the start
            return size in tunnel.received()

        await eventually(lambda: has(b"20 70"))
        tunnel.say(TunnelChannel.SIZE, b"33 99")
        await eventually(lambda: has(b"33 99"))
        tunnel.say(TunnelChannel.INPUT, b"exit\n")
        await eventually(lambda: tunnel.is_ended)

    async def test_passes_signals_on(self, here: Here) -> None:
        await here.order()
        await reach(here.instances, "RUNNING", 1)
        tunnel = here.request(
            ExecStreamRequest(("sh", "-c", "trap 'exit 9' TERM; echo up; while true; do sleep 0.05; done"))
        )
        await eventually(lambda: tunnel.received() == b"up\n")
        tunnel.say(TunnelChannel.SIGNAL, str(signal.SIGTERM.value).encode())
        await eventually(lambda: tunnel.received(TunnelChannel.EXIT) == b"9")

    async def test_ends_when_nobody_is_there_any_more(self, here: Here) -> None:
        await here.order()
        await reach(here.instances, "RUNNING", 1)
        tunnel = here.request(ExecStreamRequest(("sh", "-c", "echo up; sleep 1000")))
        await eventually(lambda: tunnel.received() == b"up\n")
        before = here.containers.usage(f"i-{ID}").pids
        tunnel.hang_up()
        await eventually(lambda: here.containers.usage(f"i-{ID}").pids < before)

    @pytest.mark.parametrize(
        ("exec_request", "error"),
        [
            (ExecStreamRequest(()), errors.Invalid),
            (ExecStreamRequest(("a\0b",)), errors.Invalid),
            (ExecStreamRequest(("true",), ("no variable",)), errors.Invalid),
            (ExecStreamRequest(("true",), folder="relative"), errors.Invalid),
            (ExecStreamRequest(("true",), terminal=True, rows=70_000), errors.Invalid),
            (ExecStreamRequest(("true",), user="nobody-knows"), errors.Invalid),
        ],
    )
    async def test_of_what_cannot_be_says_why(
        self, here: Here, exec_request: ExecStreamRequest, error: type[errors.SkerryError]
    ) -> None:
        await here.order()
        await reach(here.instances, "RUNNING", 1)
        tunnel = here.request(exec_request)
        await eventually(lambda: tunnel.is_ended)
        assert isinstance(tunnel.failure, error)

    @pytest.mark.parametrize(
        ("channel", "data"),
        [
            (TunnelChannel.SIZE, b"wide"),
            (TunnelChannel.SIZE, b"1 70000"),
            (TunnelChannel.SIGNAL, b"0"),
            (TunnelChannel.SIGNAL, b"HUP"),
            (TunnelChannel.OUTPUT, b"x"),
        ],
    )
    async def test_ends_what_is_spoken_to_in_a_wrong_way(
        self, here: Here, channel: TunnelChannel, data: bytes
    ) -> None:
        await here.order()
        await reach(here.instances, "RUNNING", 1)
        tunnel = here.request(ExecStreamRequest(("sleep", "1000")))
        tunnel.say(channel, data)
        await eventually(lambda: isinstance(tunnel.failure, errors.Invalid))

    async def test_in_what_does_not_run_is_refused(self, here: Here) -> None:
        await here.order("true", restart="never")
        await reach(here.instances, "TERMINATED", 1)
        tunnel = here.request(ExecStreamRequest(("true",)))
        await eventually(lambda: isinstance(tunnel.failure, errors.FailedPrecondition))


@pytest.mark.parametrize("kills", [True, False], ids=["killed", "moved out"])
async def test_one_whose_cell_somebody_removed_is_started_again(
    here: Here,
    ground: Ground,
    kills: bool,
) -> None:
    await here.order()
    await reach(here.instances, "RUNNING", 1)
    pid = here.containers.get(f"i-{ID}").pid
    assert pid is not None
    await remove_groups(ground.root, f"@i-{ID}", kills=kills)
    await here.cells.end_ungrouped()
    await eventually(here.has_restarted)
    assert [str(report.status) for report in here.reports()] == [
        "STARTING",
        *["RUNNING", "CRASHED", "STARTING"],
        "RUNNING",
    ]
    await eventually(lambda: not is_alive(pid))
    again = here.containers.get(f"i-{ID}").pid
    assert again is not None
    assert f"/{ground.root}/@i-{ID}/" in Path(f"/proc/{again}/cgroup").read_text()


async def test_one_whose_init_somebody_killed_is_started_again(here: Here, ground: Ground) -> None:
    await here.order()
    await reach(here.instances, "RUNNING", 1)
    for pid in ground.groups.pids(own_name(f"i-{ID}"), INIT_LEAF):
        os.kill(pid, signal.SIGKILL)
    await eventually(here.has_restarted)


@pytest.mark.parametrize("kills", [True, False], ids=["killed", "moved out"])
@pytest.mark.parametrize("ending", ["stop", "delete"])
async def test_one_whose_cell_somebody_removed_is_stopped_and_deleted(
    here: Here,
    ground: Ground,
    ending: str,
    kills: bool,
) -> None:
    await here.order(restart="never")
    await reach(here.instances, "RUNNING", 1)
    pid = here.containers.get(f"i-{ID}").pid
    assert pid is not None
    await remove_groups(ground.root, f"@i-{ID}", kills=kills)
    if ending == "stop":
        await here.order(restart="never", desired=DesiredStatus.STOPPED)
        await eventually(lambda: here.containers.get(f"i-{ID}").state is ContainerState.EXITED)
    await here.leave()  # which returns when it is gone
    assert here.containers.list() == []
    await eventually(lambda: not is_alive(pid))
