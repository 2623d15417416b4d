"""Input in shares: nothing is lost or out of order, nobody waits for another's flood, noise is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from skerry.transport import pacing
from skerry.transport.pacing import FrameBudget, PacedInput
from tests.support.waiting import eventually


class Reading(asyncio.Transport):
    """A transport, as far as reading goes."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reading = True
        self.is_aborted = False

    def pause_reading(self) -> None:
        assert self.is_reading, "paused twice"
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading, "resumed twice"
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


class Work:
    """What takes a share for every eight bytes, by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.journal: list[tuple[str, int]] = []
        monkeypatch.setattr(pacing, "thread_time", lambda: self.now)

    def of(self, name: str, taken: bytearray) -> Callable[[bytes], None]:
        def handle(data: bytes) -> None:
            self.now += pacing.SHARE_S * len(data) / 8
            self.journal.append((name, len(data)))
            taken.extend(data)

        return handle


FLOOD = bytes(range(256)) * 64


async def test_of_a_flood_one_piece_is_handled_at_once_and_the_rest_in_order_in_later_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, transport, taken = Work(monkeypatch), Reading(), bytearray()
    paced = PacedInput(transport, work.of("flood", taken), asyncio.get_running_loop())
    paced.feed(FLOOD)
    assert len(work.journal) == 1, "the share is used up by the first piece"
    assert not transport.is_reading
    turns = 0
    while len(taken) < len(FLOOD):
        before = len(work.journal)
        await asyncio.sleep(0)
        assert len(work.journal) <= before + 1, "each turn of the loop handles one share"
        turns += 1
    assert turns > 100
    assert bytes(taken) == FLOOD
    assert transport.is_reading
    assert min(size for _, size in work.journal) < max(size for _, size in work.journal), "pieces shrink"


async def test_who_has_little_to_say_is_heard_at_once_while_others_flood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Work(monkeypatch)
    loop = asyncio.get_running_loop()
    floods = [PacedInput(Reading(), work.of(f"flood {n}", bytearray()), loop) for n in range(8)]
    for flood in floods:
        flood.feed(FLOOD)
    heard = bytearray()
    PacedInput(Reading(), work.of("quiet", heard), loop).feed(b"GET /healthz")
    assert heard == b"GET /healthz"
    for flood in floods:
        flood.stop()
    await asyncio.sleep(0)


async def test_those_who_flood_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    loop = asyncio.get_running_loop()
    floods = [PacedInput(Reading(), work.of(name, bytearray()), loop) for name in ("one", "other")]
    for flood in floods:
        flood.feed(FLOOD)
    for _ in range(20):
        await asyncio.sleep(0)
    later = [name for name, _ in work.journal[2:]]
    assert all(before != after for before, after in pairwise(later))
    for flood in floods:
        flood.stop()
    await asyncio.sleep(0)


async def test_large_input_that_costs_little_is_handled_at_once_in_growing_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pacing, "thread_time", lambda: 0.0)
    transport, sizes = Reading(), list[int]()
    paced = PacedInput(transport, lambda data: sizes.append(len(data)), asyncio.get_running_loop())
    paced.feed(bytes(50_000))
    assert sum(sizes) == 50_000
    assert max(sizes) == 4096
    assert transport.is_reading


async def test_what_it_takes_to_cut_pieces_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pieces = 0.0, list[bytes]()

    def cut(data: memoryview) -> bytes:
        nonlocal now
        now += pacing.SHARE_S / 4
        return bytes(data)

    monkeypatch.setattr(pacing, "thread_time", lambda: now)
    monkeypatch.setattr(pacing, "bytes", cut, raising=False)
    paced = PacedInput(Reading(), pieces.append, asyncio.get_running_loop())
    paced.feed(FLOOD)
    assert len(pieces) == 4, "a body that is thrown away takes no time but this"
    paced.stop()
    await asyncio.sleep(0)


async def test_a_long_read_ends_the_turn_of_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "thread_time", lambda: 0.0)
    transport = Reading()
    paced = PacedInput(transport, lambda data: None, asyncio.get_running_loop())
    paced.feed(bytes(256_000))
    assert not transport.is_reading, "an event loop would read on and on"
    await asyncio.sleep(0)
    assert transport.is_reading


async def test_a_reader_that_pauses_gets_nothing_until_it_resumes() -> None:
    transport, taken = Reading(), bytearray()

    def handle(data: bytes) -> None:
        taken.extend(data)
        paced.pause_reading()

    paced = PacedInput(transport, handle, asyncio.get_running_loop())
    paced.feed(FLOOD[:1000])
    first = len(taken)
    assert 0 < first < 1000
    assert not transport.is_reading
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(taken) == first
    while len(taken) < 1000:
        before = len(taken)
        paced.resume_reading()
        await asyncio.sleep(0)
        assert len(taken) > before
    paced.resume_reading()
    assert bytes(taken) == FLOOD[:1000]
    assert transport.is_reading


async def test_what_is_put_back_comes_first() -> None:
    taken = bytearray()
    paced = PacedInput(Reading(), taken.extend, asyncio.get_running_loop())
    paced.pause_reading()
    paced.feed(b"later")
    paced.put_back(b"early ")
    paced.resume_reading()
    await asyncio.sleep(0)
    assert taken == b"early later"


async def test_long_reads_of_many_connections_are_handled_in_more_than_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, loop = Work(monkeypatch), asyncio.get_running_loop()
    floods = [PacedInput(Reading(), work.of(f"flood {n}", bytearray()), loop) for n in range(8)]
    for flood in floods:
        flood.feed(FLOOD)
    assert len(work.journal) == 1, "each would be within its own share"
    for _ in range(20):
        await asyncio.sleep(0)
    assert {name for name, _ in work.journal} == {f"flood {n}" for n in range(8)}
    for flood in floods:
        flood.stop()
    await asyncio.sleep(0)


async def test_of_many_calls_in_one_piece_one_begins_at_once_and_the_others_in_their_turns() -> None:
    begun: list[int] = []

    def handle(data: bytes) -> None:
        for number in range(10):
            paced.begin_call(lambda number=number: not begun.append(number))  # type: ignore[misc]

    transport = Reading()
    paced = PacedInput(transport, handle, asyncio.get_running_loop())
    paced.feed(b"ten calls")
    assert begun == [0]
    assert paced.is_behind
    for number in range(1, 10):
        assert not transport.is_reading
        await asyncio.sleep(0)
        assert begun == list(range(number + 1))
    await asyncio.sleep(0)
    assert transport.is_reading
    assert not paced.is_behind


async def test_calls_that_were_taken_back_take_no_turns() -> None:
    wanted, begun = {0, 9}, list[int]()

    def begin(number: int) -> bool:
        if number in wanted:
            begun.append(number)
        return number in wanted

    def handle(data: bytes) -> None:
        for number in range(10):
            paced.begin_call(partial(begin, number))

    paced = PacedInput(Reading(), handle, asyncio.get_running_loop())
    paced.feed(b"ten calls")
    assert begun == [0]
    await asyncio.sleep(0)
    assert begun == [0, 9]


async def test_a_fault_ends_its_own_connection_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    work, taken = Work(monkeypatch), bytearray()
    calls = iter(range(100))

    def fail_later(data: bytes) -> None:
        work.now += pacing.SHARE_S
        if next(calls):
            raise RuntimeError("a bug")

    broken, whole = Reading(), Reading()
    loop = asyncio.get_running_loop()
    PacedInput(broken, fail_later, loop).feed(FLOOD)
    PacedInput(whole, work.of("whole", taken), loop).feed(FLOOD[:2000])
    await eventually(lambda: len(taken) == 2000)
    assert broken.is_aborted
    assert not whole.is_aborted


def test_a_budget_of_frames_fills_with_time_and_with_what_the_peer_is_sent() -> None:
    budget = FrameBudget(3, 2, now=10.0)
    assert [budget.spend(10.0) for _ in range(4)] == [True, True, True, False]
    budget = FrameBudget(3, 2, now=10.0)
    for _ in range(3):
        budget.spend(10.0)
    assert budget.spend(10.5), "one more after half a second"
    budget.earn(2)
    assert [budget.spend(10.5) for _ in range(3)] == [True, True, False]
    budget = FrameBudget(3, 2, now=10.0)
    budget.earn(100)
    assert [budget.spend(100.0) for _ in range(4)] == [True, True, True, False], "never above its size"
