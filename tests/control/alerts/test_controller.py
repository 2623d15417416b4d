"""Alerts as a whole: rules in the store, evaluated by whoever leads, and a receiver that is a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from skerry.control.alerts.controller import AlertController, AlertDeps
from skerry.control.alerts.registry import AlertRegistry, AlertRequest, AlertView
from skerry.control.alerts.tables import AlertTables
from skerry.control.events.log import EventLog
from skerry.control.leadership.election import LeaderElection
from skerry.control.secrets.vault import SecretVault
from skerry.kit.backoff import Backoff
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.alerts import AlertCondition, ReceiverKind
from skerry.model.settings import EventSettings
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Store
from tests.support.alerts import Observed, Webhook, sender, webhook
from tests.support.secrets import MemoryKeyFile
from tests.support.waiting import eventually

QUICK = Backoff(first_s=0.02, cap_s=0.05)


@dataclass
class Server:
    """One server: its registry, and the loops of a candidate."""

    registry: AlertRegistry
    events: EventLog
    leader: LeaderElection
    loops: list[asyncio.Future[Any]]

    async def stop(self) -> None:
        await cancel_and_wait(self.loops)

    def status(self) -> AlertView:
        return self.registry.get("nodes")


@asynccontextmanager
async def server(
    store: Store, observed: Observed, keys: MemoryKeyFile, name: str = "one"
) -> AsyncIterator[Server]:
    clock = SystemClock()
    events = EventLog(store, clock, EventSettings())
    vault = SecretVault(store, keys, clock)
    await vault.open()
    tables = AlertTables.of(store)
    leader = LeaderElection(store, events, clock, name=name, lease_s=30)
    deps = AlertDeps(tables, vault, events, clock, sender(), observed.sources())
    controller = AlertController(deps, url="https://hub", interval_s=0.02, retry=QUICK)
    loops = [
        asyncio.ensure_future(work)
        for work in (tables.rules.run(), tables.states.run(), leader.run(), controller.run(leader))
    ]
    registry = AlertRegistry(tables, vault, events, clock, sender(), observed.sources(), url="https://hub")
    try:
        await tables.rules.ready()
        await tables.states.ready()
        yield Server(registry, events, leader, loops)
    finally:
        await cancel_and_wait(loops)


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    made = MemoryStore(SystemClock())
    yield made
    await made.close()


def request_for(hook: Webhook, **fields: Any) -> AlertRequest:
    return AlertRequest(
        name="nodes",
        condition=AlertCondition.NODE_LOST,
        receiver=ReceiverKind.WEBHOOK,
        destination=hook.url,
        **{"resolve_after_s": 0.0, **fields},
    )


async def kinds(events: EventLog) -> list[str]:
    return [stored.event.kind for stored in await events.of("alert/nodes")]


async def test_a_receiver_gets_what_fires_and_what_is_resolved(store: MemoryStore) -> None:
    observed = Observed()
    async with webhook() as hook, server(store, observed, MemoryKeyFile()) as one:
        await one.registry.set(request_for(hook), actor="me")
        observed.lost.append("edge-1")
        await eventually(lambda: hook.states == ["firing"])
        observed.lost.clear()
        await eventually(lambda: hook.states == ["firing", "resolved"])
        await eventually(lambda: one.status().status.alerts == ())
        assert await kinds(one.events) == ["alert.created", "alert.firing", "alert.resolved"]
        assert one.status().status.state == "ok"


async def test_nothing_is_lost_while_the_receiver_is_away(store: MemoryStore) -> None:
    observed = Observed(lost=["edge-1"])
    async with webhook() as hook, server(store, observed, MemoryKeyFile()) as one:
        hook.status = 503
        await one.registry.set(request_for(hook), actor="me")
        await eventually(lambda: hook.refused >= 2)
        status = one.status().status
        assert (status.error, status.state) == ("127.0.0.1 answered with HTTP status 503", "firing")
        observed.lost.clear()
        await eventually(lambda: one.status().status.state == "ok")
        hook.status = 200
        await eventually(lambda: hook.states == ["resolved"])
        await eventually(lambda: not one.status().status.error)


async def test_another_leader_goes_on_without_a_loss_and_without_a_double(store: MemoryStore) -> None:
    observed, keys = Observed(lost=["edge-1"]), MemoryKeyFile()
    async with (
        webhook() as hook,
        server(store, observed, keys) as first,
        server(store, observed, keys, "two") as second,
    ):
        await eventually(lambda: first.leader.is_leading or second.leader.is_leading)
        old, new = (first, second) if first.leader.is_leading else (second, first)
        await old.registry.set(request_for(hook), actor="me")
        await eventually(lambda: hook.states == ["firing"])
        await eventually(lambda: new.status().status.notified_at is not None)
        await old.stop()
        await eventually(lambda: new.leader.is_leading)
        observed.lost.append("edge-2")
        await eventually(lambda: len(hook.bodies) == 2)
        assert [alert["labels"]["node"] for alert in hook.bodies[1]["alerts"]] == ["edge-1", "edge-2"]
        observed.lost.clear()
        await eventually(lambda: hook.states[-1] == "resolved")
        assert len(hook.bodies) <= 4  # both may end in one evaluation or in two
        assert hook.bodies[0]["alerts"][0]["startsAt"] == hook.bodies[1]["alerts"][0]["startsAt"]


async def test_a_leader_that_dies_before_it_wrote_that_it_sent_is_followed_by_one_that_sends_the_same(
    store: MemoryStore,
) -> None:
    observed, keys = Observed(lost=["edge-1"]), MemoryKeyFile()
    async with webhook() as hook:
        hook.hold = asyncio.Event()
        async with server(store, observed, keys) as first:
            await first.registry.set(request_for(hook), actor="me")
            await eventually(lambda: hook.states == ["firing"])
            await first.stop()  # while it waits for the answer
        hook.hold.set()
        async with server(store, observed, keys, "two") as second:
            await eventually(lambda: second.status().status.notified_at is not None)
        assert hook.states == ["firing", "firing"]
        assert hook.keys[0] == hook.keys[1]
        assert hook.bodies[0] == hook.bodies[1]


async def test_a_repetition_has_a_key_of_its_own_and_is_not_dropped_as_a_copy(store: MemoryStore) -> None:
    observed = Observed(lost=["edge-1"])
    async with webhook() as hook, server(store, observed, MemoryKeyFile()) as one:
        await one.registry.set(request_for(hook), actor="me")
        await eventually(lambda: one.status().status.notified_at is not None)
        tables = AlertTables.of(store)
        record = await tables.states.read("nodes")
        assert record is not None
        before = replace(record.value, notified_at=1.0)  # long ago
        await store.commit([tables.states.put("nodes", before)])
        await eventually(lambda: len(hook.keys) == 2)
        assert hook.states == ["firing", "firing"]
        assert hook.keys[0] != hook.keys[1]


async def test_the_destination_is_in_no_record_event_or_text(store: MemoryStore) -> None:
    async with webhook() as hook, server(store, Observed(lost=["a"]), MemoryKeyFile()) as one:
        await one.registry.set(request_for(hook), actor="me")
        await eventually(lambda: hook.states == ["firing"])
        page = await store.range("")
        assert [entry.key for entry in page.entries if b"TOKEN" in entry.value] == []
        assert "TOKEN" not in repr(one.registry.list())
        assert "TOKEN" not in repr(request_for(hook))


async def test_setting_a_rule_again_changes_nothing_and_another_destination_is_sealed_anew(
    store: MemoryStore,
) -> None:
    async with webhook() as hook, server(store, Observed(), MemoryKeyFile()) as one:
        view, is_new = await one.registry.set(request_for(hook), actor="me")
        assert is_new
        before = await store.revision()
        assert await one.registry.set(request_for(hook), actor="me") == (view, False)
        assert await store.revision() == before
        moved = request_for(hook, for_s=5.0)
        changed, is_new = await one.registry.set(moved, actor="me")
        assert (changed.rule.id, changed.rule.version, is_new) == (view.rule.id, 1, False)
        other = Webhook(url=hook.url.replace("TOKEN", "OTHER"))
        changed, _ = await one.registry.set(request_for(other), actor="me")
        assert changed.rule.version == 2
        assert len((await store.range("sealed/alert/")).entries) == 1
        await one.registry.delete("nodes", actor="me")
        assert (await store.range("sealed/alert/")).entries == ()
        assert (await store.range("alert")).entries == ()
        with pytest.raises(errors.NotFound):
            one.registry.get("nodes")


async def test_a_test_says_whether_the_receiver_took_it(store: MemoryStore) -> None:
    async with webhook() as hook, server(store, Observed(), MemoryKeyFile()) as one:
        await one.registry.set(request_for(hook), actor="me")
        await one.registry.test("nodes")
        [body] = hook.bodies
        assert body["alerts"][0]["labels"]["test"] == "true"
        assert body["alerts"][0]["annotations"]["summary"].startswith("[test] ")
        hook.status = 500
        with pytest.raises(errors.Unavailable, match="500"):
            await one.registry.test("nodes")
