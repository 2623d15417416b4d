"""Health checks of real containers: each method in the container's own network, restarts, other agents."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from grpclib.health.service import Health
from grpclib.server import Server

from skerry.model import health_checks
from skerry.model.health_checks import CheckMethod, CheckRole, HealthCheck
from skerry.model.ids import InstanceId
from skerry.model.orders import InstanceOrder
from skerry.model.statuses import DesiredStatus
from skerry.model.workloads import MetricSource
from skerry.node.agent.instances.container_specs import container_name
from skerry.node.agent.instances.instances import NodeInstances
from skerry.node.agent.instances.state import LocalStatus
from skerry.node.kernel import namespaces
from tests.node.agent.instances.driver import instances_of, shorten_waits
from tests.node.agent.instances.worlds import ID, spec
from tests.node.containers.conftest import busybox, ground
from tests.node.containers.real import Agent, Ground, needs_runc
from tests.support.waiting import eventually

__all__ = ["busybox", "ground"]
pytestmark = [needs_runc, pytest.mark.root]

NAME = container_name(InstanceId(ID))


class Here:
    """A node with an agent that is up, and one instance."""

    def __init__(self, agent: Agent, instances: NodeInstances) -> None:
        self.agent = agent
        self.instances = instances

    async def order(
        self, script: str, *checks: HealthCheck, desired: DesiredStatus = DesiredStatus.RUNNING, **more: Any
    ) -> None:
        wanted = spec(uri=Ground.reference, arguments=("sh", "-c", script), checks=checks, **more)
        await self.instances.apply([InstanceOrder(InstanceId(ID), 1, wanted, desired)], is_full=True)

    @property
    def history(self) -> LocalStatus:
        return self.instances.copy(InstanceId(ID)).history

    async def until_ready(self, *, is_ready: bool = True) -> None:
        await eventually(
            lambda: self.history.status == "RUNNING" and self.history.has_passed is is_ready,
            what=f"ready: {is_ready}, but: {self.history}",
        )

    async def run(self, command: str) -> None:
        """In the instance."""
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            session = await self.agent.containers.exec(NAME, ("sh", "-c", command), stdio=(nothing,) * 3)
            assert await session.exit_code() == 0
        finally:
            os.close(nothing)

    async def clear(self) -> None:
        await self.instances.apply([], is_full=True)
        await eventually(lambda: not self.instances._controllers)


@contextlib.asynccontextmanager
async def agent_on(ground: Ground, *, clears: bool = True) -> AsyncIterator[Here]:
    shorten_waits(ground)
    async with ground.agent() as agent, instances_of(ground, agent) as instances:
        here = Here(agent, instances)
        yield here
        if clears:
            await here.clear()


@pytest.fixture
async def here(ground: Ground) -> AsyncIterator[Here]:
    async with agent_on(ground) as here:
        yield here


def check(text: str, role: str = "readiness", **more: Any) -> HealthCheck:
    parsed = health_checks.parse(text, CheckRole(role))
    fields = {name: getattr(parsed, name) for name in parsed.__struct_fields__}
    return HealthCheck(**(fields | {"interval_s": 0.1, "timeout_s": 5.0, "unhealthy_after": 2} | more))


@pytest.mark.parametrize("listens", ["80", "127.0.0.1:80"])
async def test_http_in_the_instances_own_network_also_if_it_listens_on_loopback_alone(
    here: Here, listens: str
) -> None:
    await here.order(
        f"mkdir /w; echo ok >/w/health; exec httpd -f -p {listens} -h /w", check("http:80/health")
    )
    await here.until_ready()
    await here.run("rm /w/health")
    await here.until_ready(is_ready=False)
    assert here.history.check_message == "readiness check http:80/health failed: HTTP 404 (2 times)"
    await here.run("echo ok >/w/health")
    await here.until_ready()
    assert here.history.restarts == 0


async def test_tcp_in_the_instances_own_network(here: Here) -> None:
    await here.order("while ! [ -e /go ]; do sleep 0.05; done; exec httpd -f -p 80", check("tcp:80"))
    await eventually(lambda: "connection refused" in here.history.check_message)
    await here.run("echo >/go")
    await here.until_ready()


@contextlib.contextmanager
def listener_in(namespace: str) -> Iterator[socket.socket]:
    """A socket that listens on port 50051 of the loopback address in a network namespace."""

    def make() -> socket.socket:
        descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            namespaces.enter_namespace(descriptor)
        finally:
            os.close(descriptor)
        return socket.create_server(("127.0.0.1", 50051))

    made = namespaces.in_own_thread(make)
    try:
        yield made
    finally:
        made.close()


async def test_grpc_in_the_instances_own_network(here: Here) -> None:
    await here.order("sleep 1000", check("grpc:50051"))
    await eventually(lambda: "connection refused" in here.history.check_message)
    namespace = here.agent.network.attachments()[NAME].namespace
    with listener_in(namespace) as listener:
        server = Server([Health()])
        await server.start(sock=listener)
        try:
            await here.until_ready()
        finally:
            server.close()
            await server.wait_closed()
    await here.until_ready(is_ready=False)


async def test_a_command_passes_with_code_0_and_says_why_not_else(here: Here) -> None:
    command = HealthCheck(
        CheckRole.READINESS,
        CheckMethod.EXEC,
        command=("sh", "-c", "[ -e /ready ] || { echo not now >&2; exit 3; }"),
        interval_s=0.1,
        timeout_s=10.0,
        unhealthy_after=1,
    )
    await here.order("sleep 1000", command)
    await eventually(lambda: here.history.check_message.endswith("exit code 3: not now (1 time)"))
    await here.run("echo >/ready")
    await here.until_ready()


async def test_a_command_that_hangs_is_killed_with_all_that_it_began(here: Here) -> None:
    command = HealthCheck(
        CheckRole.LIVENESS,
        CheckMethod.EXEC,
        command=("sh", "-c", "sleep 4321 & sleep 4321"),
        interval_s=0.1,
        timeout_s=0.5,
        unhealthy_after=1000,
    )
    await here.order("sleep 1000", command)
    state = lambda: next(iter(here.instances._health._watches)).state  # noqa: E731
    await eventually(lambda: here.history.status == "RUNNING" and here.instances._health._watches)
    await eventually(lambda: state().states[0].failures >= 2)
    assert state().states[0].message == "no answer within 0.5 s"
    await here.order("sleep 1000", desired=DesiredStatus.RUNNING)  # without the check
    await eventually(lambda: not here.instances._health._watches)
    await eventually(lambda: not running_programs(b"4321"))
    execs = here.agent.containers._container(NAME).paths.execs
    await eventually(lambda: not execs.exists() or not list(execs.iterdir()))


def running_programs(argument: bytes) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if argument in (folder / "cmdline").read_bytes().split(b"\0"):
                    found.append(folder.name)
    return found


async def test_a_failed_liveness_check_restarts_the_instance_and_counts(here: Here) -> None:
    # It ends well when it is asked to, and has failed nevertheless.
    await here.order(
        "trap 'exit 0' TERM; httpd -p 80 -h /tmp; echo >/tmp/health; while :; do sleep 0.02; done",
        check("http:80/health", "liveness"),
        check("http:80/health"),
        restart="on-failure",
    )
    await here.until_ready()
    await here.run("rm /tmp/health")
    await eventually(lambda: here.history.restarts == 1)
    await here.until_ready()
    reasons = [each.report.reason for each in here.instances.reports(0, 1000)]
    assert "liveness check http:80/health failed: HTTP 404 (2 times)" in reasons


async def test_an_instance_that_starts_slowly_is_left_alone_in_its_grace_and_restarted_after_it(
    here: Here,
) -> None:
    startup = check("tcp:80", "startup", grace_s=3.0, unhealthy_after=1)
    await here.order("sleep 1; exec httpd -f -p 80", startup, check("tcp:80", "liveness"))
    await here.until_ready()
    assert here.history.restarts == 0
    await here.clear()
    hopeless = check("tcp:81", "startup", grace_s=0.2, unhealthy_after=2)
    await here.order("sleep 1000", hopeless)
    await eventually(lambda: here.history.restarts >= 2)


async def test_a_metric_is_read_in_the_instances_own_network(here: Here) -> None:
    page = "echo 'in_flight{a=\"1\"} 4' >/tmp/metrics; echo 'in_flight{a=\"2\"} 3' >>/tmp/metrics"
    await here.order(
        f"{page}; exec httpd -f -p 127.0.0.1:80 -h /tmp",
        check("tcp:80"),
        metric=MetricSource("in_flight", 80),
    )
    await here.until_ready()
    await here.instances.sample_usage()
    driver = here.instances._controllers[InstanceId(ID)]
    await eventually(lambda: driver.metric == 7.0)


async def test_another_agent_goes_on_without_a_flap_and_with_nothing_left_of_the_one_before(
    ground: Ground,
) -> None:
    both = (check("tcp:80"), check("http:80/health", "liveness"))
    async with agent_on(ground, clears=False) as here:
        await here.order("echo >/tmp/health; exec httpd -f -p 80 -h /tmp", *both)
        await here.until_ready()
        here.instances.acknowledge(2**62)
        began = here.history.last_run_at
    async with agent_on(ground) as here:
        await eventually(lambda: here.instances._health._watches)
        [watch] = here.instances._health._watches
        await eventually(lambda: watch.state.states[1].passes)  # liveness was asked again
        assert here.instances.reports(0, 100) == []
        assert (here.history.has_passed, here.history.last_run_at, here.history.restarts) == (True, began, 0)


async def test_a_namespace_of_an_instance_that_was_checked_goes_with_it(here: Here) -> None:
    before = network_namespaces()
    await here.order("exec httpd -f -p 80", check("tcp:80"))
    await here.until_ready()
    namespace = Path(here.agent.network.attachments()[NAME].namespace)
    number = namespace.stat().st_ino
    assert number in network_namespaces() | {number}
    await here.clear()
    await eventually(lambda: not namespace.exists())
    # Neither a thread of ours nor an open file keeps it.
    await eventually(lambda: number not in network_namespaces())
    assert before - network_namespaces() == set()


def network_namespaces() -> set[int]:
    """Those that a thread of this process is in, or has open."""
    found = set()
    for link in (*Path("/proc/self/task").glob("*/ns/net"), *Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            target = os.readlink(link)
            if target.startswith("net:["):
                found.add(int(target[5:-1]))
    return found


async def test_checks_go_on_beside_many_others_and_stay_cheap_in_files(here: Here) -> None:
    await here.order("exec httpd -f -p 80", *(check("tcp:80", interval_s=0.1) for _ in range(16)))
    await here.until_ready()
    opened = len(os.listdir("/proc/self/fd"))
    [watch] = here.instances._health._watches
    seen: list[int] = []

    def count() -> bool:
        seen.append(len(os.listdir("/proc/self/fd")))
        return len(seen) > 50

    await eventually(count)
    assert max(seen) <= opened + 20
    assert watch.state.has_passed
