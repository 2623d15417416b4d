"""The node's session: what is said first, what is told when, and what becomes of it when nobody is there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from skerry.kit.backoff import Backoff
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.callers import RevokedCertificate
from skerry.model.ids import InstanceId
from skerry.model.node_messages import (
    ClaimBatch,
    FunctionUpdate,
    MemberList,
    NodeHello,
    NodeMessage,
    OrderUpdate,
    ReportAck,
    ReportBatch,
    ServerList,
    ServerMessage,
    SessionClose,
    SessionConfig,
    SessionHeartbeat,
    TunnelRequest,
)
from skerry.model.nodes import NodeFacts
from skerry.model.statuses import DesiredStatus
from skerry.model.streams import LogStreamRequest
from skerry.node import host
from skerry.node.agent.agent import NodeAgent, describe_node, facts
from skerry.node.agent.instances.tunnel_handler import TunnelHandler
from skerry.node.agent.server_addresses import ServerAddressCache
from skerry.node.agent.session import AgentHooks, report_interval
from tests.node.agent.instances.far_ends import FakeTunnel
from tests.node.agent.instances.ground import Ground
from tests.node.agent.instances.worlds import ID, TERMS, order
from tests.support.waiting import eventually

HELLO = NodeHello("edge-1", subnet="10.64.7.0/24")
WELCOME = replace(TERMS, report_s=0.02, subnet="10.64.7.0/24")


class FakeConnection:
    """A control plane of which the test says what it says."""

    def __init__(self, welcome: SessionConfig = WELCOME) -> None:
        self._welcome = welcome
        self._down: asyncio.Queue[ServerMessage | errors.SkerryError | None] = asyncio.Queue()
        self.hellos: list[NodeHello] = []
        self.batches: list[ReportBatch] = []
        self.claims: list[ClaimBatch] = []
        self.heartbeats = 0
        self.tunnels: dict[str, FakeTunnel] = {}
        self.is_closed = False

    def say(self, *messages: ServerMessage | errors.SkerryError | None) -> None:
        for message in messages:
            self._down.put_nowait(message)

    def reported(self) -> list[tuple[str, str]]:
        return [(each.instance, str(each.status)) for batch in self.batches for each in batch.reports]

    async def hello(self, hello: NodeHello) -> SessionConfig:
        self.hellos.append(hello)
        return self._welcome

    async def messages(self) -> AsyncIterator[ServerMessage]:
        while (message := await self._down.get()) is not None:
            if isinstance(message, errors.SkerryError):
                raise message
            yield message

    async def send(self, message: NodeMessage) -> None:
        match message:
            case NodeHello():
                self.hellos.append(message)
            case ReportBatch():
                self.batches.append(message)
            case ClaimBatch():
                self.claims.append(message)
            case SessionHeartbeat():
                self.heartbeats += 1

    @contextlib.asynccontextmanager
    async def tunnel(self, id: str) -> AsyncIterator[FakeTunnel]:
        if id == "given up":
            raise errors.NotFound("nobody waits for this tunnel")
        tunnel = self.tunnels[id] = FakeTunnel()
        try:
            yield tunnel
        finally:
            tunnel.is_closed = True


class FakeDialler:
    """Leads to one connection after another, or to what is against it."""

    def __init__(self) -> None:
        self.config = WELCOME
        self.connections: list[FakeConnection] = []
        self.refusals: list[errors.SkerryError] = []
        self.dialled = 0

    @contextlib.asynccontextmanager
    async def dial(self) -> AsyncIterator[FakeConnection]:
        self.dialled += 1
        if self.refusals:
            raise self.refusals.pop(0)
        connection = FakeConnection(self.config)
        self.connections.append(connection)
        try:
            yield connection
        finally:
            connection.is_closed = True

    async def connection(self, number: int = 1) -> FakeConnection:
        await eventually(lambda: len(self.connections) >= number)
        return self.connections[number - 1]

    async def quiet_connection(self) -> FakeConnection:
        """One over which everything that there was has been said."""
        connection = await self.connection()
        await eventually(lambda: connection.heartbeats)
        return connection


class Talk:
    """A session that goes on in the background."""

    def __init__(self, ground: Ground, folder: Path) -> None:
        self.ground = ground
        self.dialler, self.other = FakeDialler(), FakeDialler()
        self._file = folder / "servers.json"
        self.hello = HELLO
        self.slept: list[float] = []
        self.assigned: list[str] = []
        self._tasks: list[asyncio.Future[None]] = []

    @property
    def servers(self) -> ServerAddressCache:
        """As a node that is started reads them."""
        return ServerAddressCache("joined:1", self._file)

    def begin(self, **more: Any) -> NodeAgent:
        session = NodeAgent(
            self.servers,
            {"joined:1": self.dialler, "other:2": self.other}.__getitem__,
            self.ground.instances,
            TunnelHandler(self.ground.instances, self.ground.containers),
            AgentHooks(lambda: self.hello, assign=self._assign, **more),
            SystemClock(),
            backoff=Backoff(first_s=1.0, cap_s=8.0, jitter=0.0),
            sleep=self._sleep,
        )
        self._tasks.append(asyncio.ensure_future(session.run()))
        return session

    async def _assign(self, subnet: str) -> None:
        self.assigned.append(subnet)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    async def end(self) -> None:
        await cancel_and_wait(self._tasks)


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    ground = Ground(tmp_path)
    await ground.open()
    talk = Talk(ground, tmp_path)
    yield talk
    await talk.end()
    await ground.leave()


def whole(*orders: Any, sequence: int = 1) -> OrderUpdate:
    return OrderUpdate(sequence, is_full=True, orders=orders)


class TestASession:
    async def test_begins_with_a_hello_and_keeps_to_what_it_is_welcomed_with(self, talk: Talk) -> None:
        session = talk.begin()
        connection = await talk.dialler.connection()
        await eventually(lambda: session.is_connected)
        assert connection.hellos == [HELLO]
        assert talk.ground.instances.config == WELCOME

    async def test_a_node_is_accepted_by_a_welcome_and_not_by_a_server_that_refuses_its_version(
        self, talk: Talk
    ) -> None:
        accepted: list[int] = []

        async def accept() -> None:
            accepted.append(talk.dialler.dialled)

        talk.dialler.refusals = [errors.FailedPrecondition("the node's Skerry is newer")] * 2
        session = talk.begin(accepted=accept)
        await eventually(lambda: session.is_connected)
        assert accepted == [3]

    async def test_carries_orders_down_and_reports_up(self, talk: Talk) -> None:
        talk.begin()
        connection = await talk.dialler.quiet_connection()
        connection.say(whole(order()))
        await eventually(lambda: connection.reported()[-1:] == [(ID, "RUNNING")])
        assert list(dict.fromkeys(status for _, status in connection.reported())) == ["STARTING", "RUNNING"]
        assert [batch.sequence for batch in connection.batches] == list(range(1, len(connection.batches) + 1))
        connection.say(OrderUpdate(2, is_full=False, removed=(InstanceId(ID),)))
        await talk.ground.until_gone()

    async def test_forgets_what_is_acknowledged_and_nothing_else(self, talk: Talk) -> None:
        talk.begin()
        connection = await talk.dialler.quiet_connection()
        talk.ground.node.images.gate = gate = asyncio.Event()
        connection.say(whole(order()))
        await eventually(lambda: connection.reported() and connection.batches[-1].reports[-1].reason)
        starting = connection.batches[-1]
        gate.set()
        await eventually(lambda: connection.reported()[-1:] == [(ID, "RUNNING")])
        connection.say(ReportAck(starting.sequence))
        await eventually(lambda: talk.ground.statuses() == ["RUNNING"])
        connection.say(ReportAck(connection.batches[-1].sequence))
        await eventually(lambda: talk.ground.statuses() == [])

    async def test_tells_again_what_was_not_acknowledged_when_it_is_back(self, talk: Talk) -> None:
        talk.begin()
        first = await talk.dialler.quiet_connection()
        first.say(whole(order()))
        await eventually(lambda: first.reported()[-1:] == [(ID, "RUNNING")])
        first.say(errors.Unavailable("the server is gone"))
        second = await talk.dialler.connection(2)
        await eventually(lambda: len(second.reported()) >= 3)
        # What it missed, in order; and then what everything is now.
        assert second.reported()[:3] == [(ID, "STARTING"), (ID, "RUNNING"), (ID, "RUNNING")]
        assert second.batches[0].sequence == 1
        assert first.is_closed

    async def test_tells_all_there_is_though_all_was_acknowledged_before(self, talk: Talk) -> None:
        await talk.ground.apply(order())
        await talk.ground.until("RUNNING")
        talk.ground.acknowledge()
        talk.begin()
        connection = await talk.dialler.connection()
        await eventually(lambda: connection.reported() == [(ID, "RUNNING")])

    async def test_says_now_and_then_that_it_is_there(self, talk: Talk) -> None:
        talk.begin()
        connection = await talk.dialler.connection()
        await eventually(lambda: connection.heartbeats > 3)
        assert connection.batches == []

    async def test_tells_what_is_used_together(self, talk: Talk) -> None:
        talk.begin()
        connection = await talk.dialler.connection()
        connection.say(whole(order(), order(id="other")))
        await eventually(lambda: len(connection.reported()) >= 4)
        for id in (ID, "other"):
            await talk.ground.until("RUNNING", id)
            layer = talk.ground.node.folder / f"i-{id}" / "layer"
            talk.ground.machine.used[layer] = 5 * 1024**3
        await talk.ground.instances.sample_usage()
        await eventually(lambda: any(report.usage.disk for report in connection.batches[-1].reports))
        assert {report.instance for report in connection.batches[-1].reports} == {ID, "other"}

    async def test_ends_with_a_server_that_acknowledges_nothing(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("skerry.node.agent.session._MAX_BATCHES", 3)
        talk.begin()
        connection = await talk.dialler.connection()
        for generation in range(1, 5):  # each is told of by itself
            connection.say(whole(order(generation=generation), sequence=generation))
            await eventually(
                lambda: (
                    connection.is_closed
                    or any(
                        report.generation == generation  # noqa: B023 - awaited
                        for batch in connection.batches
                        for report in batch.reports
                    )
                )
            )
        await talk.dialler.connection(2)
        assert len(connection.batches) == 3

    async def test_says_hello_again_when_the_machine_has_changed(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("skerry.node.agent.session._DESCRIBE_S", 0.0)
        talk.begin()
        connection = await talk.dialler.connection()
        await eventually(lambda: connection.heartbeats > 1)
        assert connection.hellos == [HELLO]
        talk.hello = replace(HELLO, labels={"zone": "edge"})
        await eventually(lambda: connection.hellos[1:] == [talk.hello])

    async def test_says_at_once_what_condition_the_machine_is_in(self, talk: Talk) -> None:
        condition = ""
        talk.begin(condition=lambda: condition)
        connection = await talk.dialler.connection()
        await eventually(lambda: connection.heartbeats > 1)
        condition = "the disk takes no writes"
        talk.hello = replace(HELLO, facts=NodeFacts(disk_pressure=condition))
        await eventually(lambda: connection.hellos == [HELLO, talk.hello])

    async def test_goes_on_without_a_disk_and_holds_to_what_it_is_told(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr("skerry.kit.files._write_atomically", refuse)
        talk.dialler.config = replace(WELCOME, restart_cap_s=77.0)
        session = talk.begin()
        connection = await talk.dialler.connection()
        connection.say(ServerList(("joined:1", "other:2")))
        await eventually(lambda: connection.heartbeats > 1)
        assert session.is_connected
        assert talk.ground.instances.config.restart_cap_s == 77.0
        assert len(talk.dialler.connections) == 1

    async def test_that_ends_leaves_the_instances_running(self, talk: Talk) -> None:
        talk.begin()
        connection = await talk.dialler.connection()
        connection.say(whole(order()))
        await talk.ground.until("RUNNING")
        await talk.end()
        talk.ground.process().exit(code=1)
        await eventually(lambda: talk.ground.copy().history.restarts == 1)


class TestDiallingAgain:
    async def test_comes_after_longer_and_longer_pauses(self, talk: Talk) -> None:
        talk.dialler.refusals = [errors.Unavailable("no server")] * 6
        talk.begin()
        await talk.dialler.connection()
        assert talk.slept == [1, 2, 4, 8, 8, 8]

    async def test_goes_from_one_server_to_the_next(self, talk: Talk) -> None:
        talk.dialler.refusals = [errors.Unavailable("no server")] * 2
        talk.other.refusals = [errors.Unavailable("no server")]
        await talk.servers.learn(["other:2"])
        talk.begin()
        connection = await talk.other.connection()
        assert talk.slept == [1, 1, 2]
        connection.say(SessionClose("this server stops"))
        await talk.dialler.connection()
        assert connection.is_closed

    async def test_hands_members_and_functions_to_whoever_takes_calls(self, talk: Talk) -> None:
        received: list[MemberList | FunctionUpdate] = []

        class Member:
            async def members_changed(self, reported: MemberList) -> None:
                received.append(reported)

            async def functions_changed(self, reported: FunctionUpdate) -> None:
                received.append(reported)

        talk.begin(member=Member())
        connection = await talk.dialler.connection()
        reported = [MemberList(()), FunctionUpdate(is_full=True), MemberList(())]
        connection.say(*reported)
        await eventually(lambda: received == reported)

    async def test_passes_over_members_and_functions_if_nobody_takes_calls(self, talk: Talk) -> None:
        talk.begin()
        connection = await talk.dialler.connection()
        connection.say(MemberList(()), FunctionUpdate(is_full=True), whole(order()))
        await talk.ground.until("RUNNING")
        assert talk.dialler.dialled == 1

    async def test_goes_on_with_the_servers_that_it_was_told_of(self, talk: Talk) -> None:
        talk.begin()
        first = await talk.dialler.connection()
        first.say(ServerList(("joined:1", "other:2")))
        await eventually(lambda: talk.servers.addresses == ("joined:1", "other:2"))
        talk.dialler.refusals = [errors.Unavailable("no server")] * 10
        first.say(errors.Unavailable("the server is gone"))
        second = await talk.other.connection()
        # One that is gone for good is not asked any more, but the one that was joined always is.
        second.say(ServerList(("other:2",)))
        await eventually(lambda: second.heartbeats)
        assert talk.servers.addresses == ("joined:1", "other:2")

    async def test_does_not_begin_with_the_one_that_was_lost(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("skerry.node.agent.agent._HEALTHY_S", 0.0)
        await talk.servers.learn(["other:2"])
        talk.begin()
        for number in (1, 2):
            for dialler in (talk.dialler, talk.other):
                (await dialler.connection(number)).say(SessionClose("this server stops"))
        await talk.dialler.connection(3)
        assert talk.slept == [1, 1, 1, 1], "after a good connection it is the first pause again"

    async def test_leaves_a_server_that_is_silent(self, talk: Talk) -> None:
        await talk.servers.learn(["other:2"])
        talk.dialler.config = replace(WELCOME, silence_s=0.05)
        with structlog.testing.capture_logs() as logs:
            talk.begin()
            frozen = await talk.dialler.connection()
            await talk.other.connection()
        assert frozen.is_closed
        assert [entry["reason"] for entry in logs if entry["event"] == "session.lost"] == [
            "the control plane was silent for 0.05 s"
        ]

    async def test_stays_with_a_server_that_says_that_it_is_there(self, talk: Talk) -> None:
        talk.dialler.config = replace(WELCOME, silence_s=3.0)
        talk.begin()
        connection = await talk.dialler.connection()
        connection.say(SessionHeartbeat(), SessionHeartbeat(), whole(order()))
        await talk.ground.until("RUNNING")
        assert not connection.is_closed

    async def test_tells_the_reason_once(self, talk: Talk) -> None:
        talk.dialler.refusals = [
            *[errors.Unavailable("no server")] * 5,
            *[errors.TimedOut("no answer")] * 3,
        ]
        with structlog.testing.capture_logs() as logs:
            talk.begin()
            connection = await talk.dialler.connection()
            await eventually(lambda: any(entry["event"] == "session.began" for entry in logs))
            connection.say(errors.Unavailable("no server"))
            await talk.dialler.connection(2)
        lost = [entry["reason"] for entry in logs if entry["event"] == "session.lost"]
        assert lost == ["no server", "no answer", "no server"]

    @pytest.mark.parametrize("error", [errors.Unauthenticated, errors.Forbidden])
    async def test_a_certificate_that_is_not_taken_says_what_to_do(
        self, talk: Talk, error: type[errors.SkerryError]
    ) -> None:
        talk.dialler.refusals = [error("the certificate was revoked")] * 3
        with structlog.testing.capture_logs() as logs:
            talk.begin()
            await talk.dialler.connection()  # it may be renewed meanwhile
        (entry,) = [entry for entry in logs if entry["event"] == "session.rejected"]
        assert entry["log_level"] == "error"
        assert entry["reason"] == "the certificate was revoked"
        assert "skerry token create --role node" in entry["hint"]

    async def test_follows_an_end_without_a_word(self, talk: Talk) -> None:
        session = talk.begin()
        (await talk.dialler.connection()).say(None)
        await talk.dialler.connection(2)
        await eventually(lambda: session.is_connected)

    async def test_another_subnet_than_the_present_one_is_told(self, talk: Talk) -> None:
        talk.hello = replace(HELLO, subnet="10.64.9.0/24")
        with structlog.testing.capture_logs() as logs:
            talk.begin()
            await eventually(lambda: any(entry["event"] == "session.other_subnet" for entry in logs))
        assert talk.assigned == ["10.64.7.0/24"]


class TestClaims:
    """Of what the control plane may have forgotten, since its store was restored."""

    WELCOME = replace(WELCOME, takes_claims=True)

    async def begin(self, talk: Talk, welcome: SessionConfig = WELCOME, **more: Any) -> FakeConnection:
        talk.dialler.config = welcome
        talk.begin(**more)
        return await talk.dialler.quiet_connection()

    async def run_one(self, talk: Talk, **more: Any) -> None:
        await talk.ground.instances.apply([replace(order(), **more)], is_full=True)
        await eventually(lambda: talk.ground.statuses()[-1:] == ["RUNNING"])

    async def test_what_is_not_ordered_is_claimed_and_goes_on_until_it_is_said_to_be_gone(
        self, talk: Talk
    ) -> None:
        await self.run_one(talk, receipt=b"given")
        before = talk.ground.instances.copy(ID).history
        connection = await self.begin(talk)
        assert connection.claims == []
        connection.say(whole())
        await eventually(lambda: connection.claims)
        (claim,) = connection.claims[0].claims
        assert (claim.receipt, claim.report.instance, claim.report.status) == (b"given", ID, "RUNNING")
        connection.say(OrderUpdate(2, is_full=False, orders=(replace(order(), receipt=b"other"),)))
        connection.say(whole(order(), sequence=3))
        await eventually(lambda: connection.heartbeats > 5)
        assert talk.ground.instances.copy(ID).history == before
        assert talk.ground.instances.copy(ID).order.receipt == b"given", "nothing is written for that"
        connection.say(OrderUpdate(4, is_full=False, removed=(InstanceId(ID),)))
        await talk.ground.until_gone()

    @pytest.mark.parametrize(
        ("receipt", "takes_claims"), [(b"", True), (b"given", False)], ids=["no receipt", "an older server"]
    )
    async def test_what_cannot_be_claimed_is_removed(
        self, talk: Talk, receipt: bytes, takes_claims: bool
    ) -> None:
        await self.run_one(talk, receipt=receipt)
        connection = await self.begin(talk, replace(WELCOME, takes_claims=takes_claims))
        connection.say(whole())
        await talk.ground.until_gone()
        assert connection.claims == []

    async def test_a_control_plane_whose_store_was_restored_is_told_everything_first(
        self, talk: Talk
    ) -> None:
        await self.run_one(talk, receipt=b"given")
        connection = await self.begin(talk, replace(self.WELCOME, wants_claims=True))
        assert [claim.receipt for claim in connection.claims[0].claims] == [b"given"]

    async def test_revoked_certificates_are_told_to_who_may_have_forgotten_them(self, talk: Talk) -> None:
        proven = RevokedCertificate("a" * 32, 9e9, b"proof")
        known = (proven, RevokedCertificate("b" * 32, 9e9))
        connection = await self.begin(talk, revoked=lambda: known)
        assert connection.claims == [ClaimBatch(revoked=(proven,))]


class TestTunnels:
    async def request(self, talk: Talk, id: str = "t1", instance: str = ID) -> FakeConnection:
        talk.begin()
        connection = await talk.dialler.connection()
        connection.say(whole(order(DesiredStatus.STOPPED)))
        await talk.ground.until("STOPPED")
        connection.say(TunnelRequest(id, InstanceId(instance), LogStreamRequest()))
        return connection

    async def test_are_dialled_when_they_are_asked_for(self, talk: Talk) -> None:
        connection = await self.request(talk)
        tunnel = await eventually(lambda: connection.tunnels.get("t1"))
        await eventually(lambda: tunnel.is_ended)
        assert (tunnel.sent, tunnel.failure, tunnel.is_closed) == ([], None, False)
        tunnel.hang_up()
        await eventually(lambda: tunnel.is_closed)

    async def test_to_what_is_not_there_say_so(self, talk: Talk) -> None:
        connection = await self.request(talk, instance="unknown")
        tunnel = await eventually(lambda: connection.tunnels.get("t1"))
        await eventually(lambda: tunnel.failure)
        assert isinstance(tunnel.failure, errors.NotFound)
        tunnel.hang_up()

    async def test_that_nobody_waits_for_disturb_nobody(self, talk: Talk) -> None:
        connection = await self.request(talk, "given up")
        beats = connection.heartbeats
        await eventually(lambda: connection.heartbeats > beats)
        assert not connection.is_closed

    async def test_end_with_the_connection(self, talk: Talk) -> None:
        connection = await self.request(talk)
        tunnel = await eventually(lambda: connection.tunnels.get("t1"))
        connection.say(None)
        await eventually(lambda: tunnel.is_closed)


async def test_a_machine_that_can_hold_nobody_to_a_disk_offers_none(tmp_path: Path, talk: Talk) -> None:
    hello = describe_node(NodeHello("edge-1"), tmp_path, talk.ground.instances.disk_bytes, offers_disk=False)
    assert hello.resources.disk == 0
    assert hello.resources.cpu >= 1000


async def test_a_machine_introduces_itself_with_what_it_has(tmp_path: Path, talk: Talk) -> None:
    itself = NodeHello("edge-1", facts(), labels={"zone": "edge"}, subnet="10.64.7.0/24")
    hello = describe_node(itself, tmp_path, talk.ground.instances.disk_bytes)
    assert (hello.name, hello.subnet, hello.labels) == ("edge-1", "10.64.7.0/24", {"zone": "edge"})
    assert hello.facts.architecture == host.architecture()
    assert hello.facts.version
    assert hello.resources.cpu >= 1000
    assert hello.resources.memory > 0


async def test_a_heartbeat_may_ask_for_fewer(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[float] = []

    def interval(requested_s: float, config: SessionConfig) -> float:
        requests.append(requested_s)
        return report_interval(requested_s, config)

    monkeypatch.setattr("skerry.node.agent.session.report_interval", interval)
    talk.begin()
    connection = await talk.dialler.quiet_connection()
    connection.say(SessionHeartbeat(), SessionHeartbeat(0.03))
    await eventually(lambda: requests == [0.03])
    beats = connection.heartbeats
    await eventually(lambda: connection.heartbeats > beats + 1)
