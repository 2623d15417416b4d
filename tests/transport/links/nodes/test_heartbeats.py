"""When a server sends heartbeats to its nodes."""

from __future__ import annotations

import asyncio

from skerry.control.sessions.node_session import NodeSessions
from skerry.model.node_messages import NodeHello, OrderUpdate, ReportBatch, SessionHeartbeat
from skerry.model.settings import FleetSettings
from skerry.transport.links.nodes.heartbeats import HeartbeatPace, OverdueTimer
from skerry.transport.links.nodes.session_handler import _SessionHandler
from tests.support.fleets import FACTS, ROOM
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.links.nodes.conftest import Listening

HELLO = NodeHello("edge", FACTS, ROOM)
SELDOM = FleetSettings(report_s=1000.0, suspect_after_s=3000.0)  # no heartbeat but in answer


def test_a_heartbeat_is_answered_unless_the_node_was_sent_something_a_moment_ago() -> None:
    pace = HeartbeatPace(2.0, 6.0, now=100.0)
    assert not pace.is_due_in_answer(100.9)
    assert pace.is_due_in_answer(101.0)
    pace.sent(101.0)
    assert not pace.is_due_in_answer(101.9)


def test_a_node_of_which_nothing_comes_is_sent_one_well_before_it_gives_up() -> None:
    for interval_s, silence_s in ((2.0, 6.0), (3.0, 6.0), (0.5, 1.0), (1.0, 60.0)):
        pace = HeartbeatPace(interval_s, silence_s, now=100.0)
        assert not pace.is_overdue(100.0 + interval_s)
        latest_s = interval_s * 1.125  # when the timer looks again
        assert pace.is_overdue(100.0 + latest_s + (silence_s - latest_s) / 2)


def test_a_node_that_gives_up_after_its_interval_is_not_made_to_wait_longer() -> None:
    assert HeartbeatPace(6.0, 6.0, now=0.0).is_overdue(6.0)
    assert HeartbeatPace(8.0, 6.0, now=0.0).is_overdue(8.0)


def test_a_node_without_a_limit_is_sent_one_a_quarter_late() -> None:
    pace = HeartbeatPace(2.0, 0.0, now=0.0)
    assert not pace.is_overdue(2.4)
    assert pace.is_overdue(2.5)


def test_only_a_notably_longer_interval_is_told_and_only_once() -> None:
    pace = HeartbeatPace(2.0, 6.0, now=0.0)
    assert pace.take_new_interval(2.1) == 0.0
    assert pace.take_new_interval(1.0) == 0.0
    assert pace.take_new_interval(2.5) == 2.5
    assert pace.take_new_interval(2.5) == 0.0
    assert not pace.is_overdue(2.9)


async def test_one_timer_serves_all_sessions_of_a_loop_and_ends_with_the_last() -> None:
    timer = OverdueTimer.of(asyncio.get_running_loop())
    assert timer is OverdueTimer.of(asyncio.get_running_loop())
    acted: list[str] = []
    now = asyncio.get_running_loop().time()
    late, punctual = HeartbeatPace(0.05, 0.0, now - 10.0), HeartbeatPace(1000.0, 0.0, now)
    timer.add(punctual, lambda: acted.append("punctual"))
    timer.add(late, lambda: acted.append("late"))
    await eventually(lambda: acted)
    assert set(acted) == {"late"}
    timer.remove(late)
    timer.remove(punctual)
    assert timer._handle is None


async def connected(served, authority, settings):
    sessions = NodeSessions(served.fleet.nodes, served.instances, settings)
    listening = Listening(sessions, authority)
    await listening.start()
    node = await listening.connect("n1")
    await node.hello(HELLO)
    messages = node.messages()
    async with asyncio.timeout(PATIENCE_S):
        assert isinstance(await anext(messages), OrderUpdate)
    return listening, sessions, node, messages


async def answered(node, messages) -> SessionHeartbeat:
    """Send heartbeats until one is answered: none is as long as the last message is recent."""
    async with asyncio.timeout(PATIENCE_S):
        reading = asyncio.ensure_future(anext(messages))
        while not reading.done():
            await node.send(SessionHeartbeat())
            await asyncio.wait({reading}, timeout=0.02)
    heartbeat = reading.result()
    assert isinstance(heartbeat, SessionHeartbeat)
    return heartbeat


async def test_a_node_is_told_of_a_longer_interval_with_an_answer(served, authority, monkeypatch):
    monkeypatch.setattr(HeartbeatPace, "is_due_in_answer", lambda self, now: True)
    listening, sessions, node, messages = await connected(served, authority, SELDOM)
    assert (await answered(node, messages)).report_s == 0.0
    sessions.report_s = 1500.0
    while not (heartbeat := await answered(node, messages)).report_s:
        pass  # answers to those that were sent before
    assert heartbeat.report_s == 1500.0
    await listening.stop()


async def test_heartbeats_are_answered_where_they_are_read_and_wake_no_task(served, authority, monkeypatch):
    answers: list[bytes | None] = []
    answer = _SessionHandler.answer_heartbeat

    def noted(self: _SessionHandler) -> bytes | None:
        answers.append(answer(self))
        return answers[-1]

    monkeypatch.setattr(_SessionHandler, "answer_heartbeat", noted)
    monkeypatch.setattr(HeartbeatPace, "is_due_in_answer", lambda self, now: True)
    listening, _, node, messages = await connected(served, authority, SELDOM)
    await answered(node, messages)
    assert answers[0] is not None
    await listening.stop()


async def test_heartbeats_are_answered_while_the_server_processes_a_report(served, authority, monkeypatch):
    never, is_stuck = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def stuck(*_: object) -> None:
        is_stuck.set()
        await never

    monkeypatch.setattr(HeartbeatPace, "is_due_in_answer", lambda self, now: True)
    listening, sessions, node, messages = await connected(served, authority, SELDOM)
    monkeypatch.setattr(sessions, "reported", stuck)
    await node.send(ReportBatch(1, ()))
    await is_stuck.wait()  # one that came with the report is read after it
    await answered(node, messages)
    await listening.stop()
