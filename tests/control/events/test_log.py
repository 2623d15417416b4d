"""The event log: written with the change, resumed without a gap, trimmed in the open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from skerry.control.events.log import EventLog, StoredEvent
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.settings import EventSettings
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Expect, Put
from tests.support.waiting import eventually


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    made = MemoryStore(ManualClock())
    yield made
    await made.close()


@pytest.fixture
def log(store: MemoryStore) -> EventLog:
    return EventLog(store, ManualClock(), EventSettings(keep=100))


async def record(log: EventLog, *kinds: str) -> None:
    for kind in kinds:
        await log.record(kind, "token/1", actor="test")


async def take(
    log: EventLog, count: int, after: str | None = "0", kinds: frozenset[str] = frozenset()
) -> list[StoredEvent]:
    async with log.stream(after, kinds) as told:
        return [await anext(told) for _ in range(count)]


def kinds_of(told: list[StoredEvent]) -> list[str]:
    return [one.event.kind for one in told]


@asynccontextmanager
async def trimming(log: EventLog) -> AsyncIterator[None]:
    task = asyncio.create_task(log.run())
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_event_is_written_with_the_change_it_tells_of_or_not_at_all(
    store: MemoryStore, log: EventLog
) -> None:
    change = Put("thing", b"1")
    event = log.put("thing.made", "thing", actor="me", reason="why not", colour="blue")
    revision = await store.commit([change, event], expect=[Expect("thing")])
    with pytest.raises(errors.Conflict):
        await store.commit([change, log.put("thing.made", "thing", actor="me")], expect=[Expect("thing")])
    await record(log, "end.reached")
    told = await take(log, 2)
    assert kinds_of(told) == ["thing.made", "end.reached"]
    assert told[0].id == str(revision)
    assert (told[0].event.actor, told[0].event.reason, told[0].event.data) == (
        "me",
        "why not",
        {"colour": "blue"},
    )


async def test_without_an_id_the_stream_begins_now(log: EventLog) -> None:
    await record(log, "a.old")
    async with log.stream(None) as told:
        await record(log, "a.new")
        assert (await anext(told)).event.kind == "a.new"


async def test_a_stream_goes_from_kept_to_live_without_gap_or_repeat(log: EventLog) -> None:
    await record(log, "a.0", "a.1")
    async with log.stream("0") as told:
        await record(log, "a.2")
        assert kinds_of([await anext(told) for _ in range(3)]) == ["a.0", "a.1", "a.2"]
        await record(log, "a.3")
        assert (await anext(told)).event.kind == "a.3"


async def test_a_stream_resumed_after_any_event_brings_exactly_the_later_ones(
    store: MemoryStore, log: EventLog
) -> None:
    await record(log, "a.first")
    await store.commit([log.put(f"a.{n}", "s", actor="me") for n in range(5)])
    await store.commit([Put("unrelated", b"")])
    await store.commit([log.put(f"b.{n}", "s", actor="me") for n in range(2)])
    await record(log, "a.last")
    everything = await take(log, 9)
    assert len({one.id for one in everything}) == 9
    for position, one in enumerate(everything[:-1]):
        assert await take(log, 8 - position, after=one.id) == everything[position + 1 :]


async def test_live_and_kept_events_have_the_same_ids(store: MemoryStore, log: EventLog) -> None:
    async with log.stream(None) as told:
        await record(log, "a.alone")
        await store.commit([log.put(f"a.{n}", "s", actor="me") for n in range(3)])
        live = [await anext(told) for _ in range(4)]
    assert live == await take(log, 4)
    assert [one.id.partition(".")[2] for one in live] == ["", "0", "1", "2"]


async def test_a_plain_revision_resumes_after_all_events_of_it(store: MemoryStore, log: EventLog) -> None:
    revision = await store.commit([log.put(f"a.{n}", "s", actor="me") for n in range(3)])
    await record(log, "b.next")
    assert kinds_of(await take(log, 1, after=str(revision))) == ["b.next"]


async def test_a_filter_takes_nouns_and_whole_kinds(log: EventLog) -> None:
    await record(log, "token.created", "token.revoked", "tokens.counted", "node.joined", "node.left")
    wanted = frozenset({"token", "node.left"})
    assert kinds_of(await take(log, 3, kinds=wanted)) == ["token.created", "token.revoked", "node.left"]
    async with log.stream(None, wanted) as told:
        await record(log, "node.joined", "node.left")
        assert (await anext(told)).event.kind == "node.left"


async def test_what_is_kept_can_be_read_without_following(log: EventLog) -> None:
    await record(log, "token.created", "node.joined", "token.revoked")
    everything = await log.list_after("0")
    assert everything == await take(log, 3)
    assert kinds_of(await log.list_after(everything[0].id, frozenset({"token"}))) == ["token.revoked"]
    assert await log.list_after(everything[-1].id) == []


async def test_the_stream_survives_compaction_of_the_stores_history(
    store: MemoryStore, log: EventLog
) -> None:
    await record(log, "a.0", "a.1", "a.2")
    first = (await take(log, 1))[0]
    await store.compact(await store.revision())
    assert kinds_of(await take(log, 2, after=first.id)) == ["a.1", "a.2"]


@pytest.mark.parametrize("after", ["", "x", "-1", "1.", ".1", "1.2.3", "1e3", "9" * 16, "٣", " 1"])
async def test_what_is_no_id_is_refused(log: EventLog, after: str) -> None:
    with pytest.raises(errors.Invalid, match="no event id"):
        async with log.stream(after):
            pass


async def test_an_id_from_another_log_is_refused_and_not_waited_for(
    store: MemoryStore, log: EventLog
) -> None:
    await record(log, "a.0")
    with pytest.raises(errors.Compacted, match="not of this log"):
        async with log.stream(str(await store.revision() + 1)):
            pass


async def count(store: MemoryStore) -> int:
    return len((await store.range("event/")).entries)


async def trimmed(store: MemoryStore, most: int = 100) -> None:
    async def is_trimmed() -> bool:
        return await count(store) <= most

    await eventually(is_trimmed)


async def test_the_oldest_are_trimmed_at_start_and_the_newest_kept(store: MemoryStore, log: EventLog) -> None:
    for start in range(0, 400, 100):
        await store.commit([log.put(f"a.{start + n}", "s", actor="me") for n in range(100)])
    newest = kinds_of(await take(log, 400))[-100:]
    async with trimming(log):
        await trimmed(store)
    assert kinds_of(await take(log, 100)) == newest


async def test_the_log_stays_near_its_length_while_it_is_written(store: MemoryStore, log: EventLog) -> None:
    async with trimming(log):
        for n in range(500):
            await record(log, f"a.{n}")
        await trimmed(store, most=100 + 63)
    kept = await count(store)
    assert kept >= 100
    assert kinds_of(await take(log, kept)) == [f"a.{n}" for n in range(500 - kept, 500)]


async def test_a_reader_from_before_the_trim_is_told_and_one_from_after_it_goes_on(
    store: MemoryStore, log: EventLog
) -> None:
    for n in range(110):
        await record(log, f"a.{n}")
    everything = await take(log, 110)
    async with trimming(log):
        await trimmed(store)
    for one in everything[:9]:
        with pytest.raises(errors.Compacted, match="no longer stored"):
            await take(log, 1, after=one.id)
    # Who had the newest trimmed event has missed nothing.
    assert await take(log, 100, after=everything[9].id) == everything[10:]


async def test_a_reader_in_the_middle_of_a_trimmed_revision_is_told(
    store: MemoryStore, log: EventLog
) -> None:
    revision = await store.commit([log.put(f"a.{n}", "s", actor="me") for n in range(5)])
    for n in range(100):
        await record(log, f"b.{n}")
    async with trimming(log):
        await trimmed(store)
    with pytest.raises(errors.Compacted):
        await take(log, 1, after=f"{revision}.2")
    assert kinds_of(await take(log, 1, after=str(revision))) == ["b.0"]


async def test_two_servers_trim_the_same_log_without_harm(store: MemoryStore, log: EventLog) -> None:
    other = EventLog(store, ManualClock(), EventSettings(keep=100))
    for start in range(0, 1000, 100):
        await store.commit([log.put(f"a.{start + n}", "s", actor="me") for n in range(100)])
    newest = kinds_of(await take(log, 1000))[-100:]
    async with trimming(log), trimming(other):
        await trimmed(store)
    assert kinds_of(await take(log, 100)) == newest


async def test_events_of_one_subject_are_found_in_the_order_they_were_made(
    store: MemoryStore, log: EventLog
) -> None:
    kinds = [f"instance.{name}" for name in ("scheduling", "scheduled", "starting", "running")]
    await store.commit([log.put(kind, "instance/1", actor="test") for kind in kinds])
    await log.record("instance.scheduling", "instance/10", actor="test", reason="not instance/1")
    assert kinds_of(await log.of("instance/1")) == kinds
    assert [told.id for told in await log.of("instance/10")] == ["2"]
    assert await log.of("instance/2") == []


async def test_events_of_one_subject_are_found_on_every_page_with_the_ids_of_the_stream(
    store: MemoryStore, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.control.events.log._PAGE", 3)
    for number in range(5):
        subjects = ("instance/2", "instance/1")
        await store.commit([log.put(f"instance.s{number}", one, actor="test") for one in subjects])
    streamed = await log.list_after("0")
    of_one = [(each.id, each.event.kind) for each in streamed if each.event.subject == "instance/1"]
    assert len(of_one) == 5
    assert [(each.id, each.event.kind) for each in await log.of("instance/1")] == of_one
