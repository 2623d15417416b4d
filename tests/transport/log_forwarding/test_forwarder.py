"""Forwarding from rings on disk to a target that comes and goes, in processes that do too."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from skerry.kit.clock import SystemClock
from skerry.model.log_origins import LogOrigin, LogOriginKind
from skerry.node.logs.process_log import ProcessLog
from skerry.node.logs.removed_logs import RemovedLogs
from skerry.node.logs.ring_sources import LogRing
from skerry.node.logs.rings import RingWriter
from skerry.transport.log_forwarding.batches import (
    ForwardedLine,
    LinesRefused,
    TargetUnavailable,
    TooManyLines,
)
from skerry.transport.log_forwarding.forwarder import FAILING, LOST, LogForwarder

WEB = LogOrigin(LogOriginKind.INSTANCE, instance="i1", name="web")


class FakeTarget:
    """Takes lines, unless it has a reason not to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.trouble: list[Exception] = []
        self.most: int | None = None

    async def send(self, lines: Sequence[ForwardedLine]) -> None:
        if self.most is not None and len(lines) > self.most:
            raise TooManyLines("too many")
        if self.trouble:
            raise self.trouble.pop(0)
        self.lines += [line.text for line in lines]

    async def close(self) -> None:
        pass


class Machine:
    """Rings on disk, and forwarders that come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rings: list[LogRing] = []
        self.writers: dict[str, RingWriter] = {}
        self.descriptors: list[int] = []
        self.target = FakeTarget()
        self.time = 0.0

    def run(self, key: str, *, max_bytes: int = 1 << 20) -> RingWriter:
        path = self.folder / key
        path.mkdir()
        self.descriptors.append(os.open(path, os.O_RDONLY))
        self.writers[key] = writer = RingWriter(self.descriptors[-1], "stdout", max_bytes=max_bytes)
        self.rings.append(LogRing(key, path, WEB, ("stdout",)))
        return writer

    def forwarder(self) -> LogForwarder:
        return LogForwarder(
            "fake", self.target, lambda: self.rings, self.folder / "positions.json", now=lambda: self.time
        )

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()
        for each in self.descriptors:
            os.close(each)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


async def test_lines_arrive_once_and_in_order_across_a_kill(machine: Machine) -> None:
    ring = machine.run("a")
    ring.write(b"one\ntwo\nthr", 1 << 62)
    await machine.forwarder().forward_once()
    assert machine.target.lines == ["one", "two"]
    ring.write(b"ee\n", 1 << 62)
    again = machine.forwarder()  # the one before was killed
    await again.forward_once()
    await again.forward_once()
    assert machine.target.lines == ["one", "two", "three"]


async def test_a_target_that_was_away_gets_everything_when_it_is_back(machine: Machine) -> None:
    ring = machine.run("a")
    forwarder = machine.forwarder()
    machine.target.trouble = [TargetUnavailable("away")] * 3
    pauses = []
    for number in range(3):
        ring.write(b"%d\n" % number, number + 1)
        pauses.append(await forwarder.forward_once())
    assert pauses[0] < pauses[1] < pauses[2]
    assert FAILING.labels("fake")._value.get() == 1
    await forwarder.forward_once()
    assert machine.target.lines == ["0", "1", "2"]
    assert FAILING.labels("fake")._value.get() == 0


async def test_what_was_overwritten_meanwhile_is_counted_and_marked(machine: Machine) -> None:
    ring = machine.run("a", max_bytes=4096)
    forwarder, before = machine.forwarder(), LOST.labels("fake", "overwritten")._value.get()
    ring.write(b"first\n", 1)
    await forwarder.forward_once()
    for number in range(300):
        ring.write(b"%d\n" % number, number + 2)
    await forwarder.forward_once()
    lost = LOST.labels("fake", "overwritten")._value.get() - before
    assert lost > 0
    assert machine.target.lines[:2] == ["first", f"[{int(lost)} records of output are lost here]"]
    assert machine.target.lines[2:] == [str(number) for number in range(int(lost), 300)]


async def test_refused_lines_do_not_hold_up_others(machine: Machine) -> None:
    ring = machine.run("a")
    forwarder, before = machine.forwarder(), LOST.labels("fake", "refused")._value.get()
    ring.write(b"bad\n", 1)
    machine.target.trouble = [LinesRefused("too old")]
    await forwarder.forward_once()
    ring.write(b"good\n", 2)
    await forwarder.forward_once()
    assert machine.target.lines == ["good"]
    assert LOST.labels("fake", "refused")._value.get() == before + 1


async def test_a_target_that_takes_little_at_once_gets_smaller_batches(machine: Machine) -> None:
    ring = machine.run("a")
    expected = [f"{number:01000d}" for number in range(200)]
    for number, text in enumerate(expected):
        ring.write(f"{text}\n".encode(), number + 1)
    machine.target.most = 60
    forwarder = machine.forwarder()
    for _ in range(30):
        await forwarder.forward_once()
    assert machine.target.lines == expected


async def test_the_runs_of_a_log_arrive_one_after_the_other(machine: Machine) -> None:
    """The first one is larger than what is read of a ring at once."""
    first, second = machine.run("a"), machine.run("b")
    expected = [f"{number:010000d}" for number in range(40)]
    for number, text in enumerate(expected):
        first.write(f"{text}\n".encode(), number + 1)
    first.end(50)
    second.write(b"newer\n", 60)
    forwarder = machine.forwarder()
    for _ in range(5):
        await forwarder.forward_once()
    assert machine.target.lines == [*expected, "newer"]


async def test_an_incomplete_line_waits_for_its_end_or_that_of_the_run(machine: Machine) -> None:
    ring = machine.run("a")
    ring.write(b"no newline", 1 << 62)  # just now, as it were
    forwarder = machine.forwarder()
    await forwarder.forward_once()
    assert machine.target.lines == []
    ring.end(1 << 62)
    await forwarder.forward_once()
    assert machine.target.lines == ["no newline"]


async def test_logs_of_what_was_removed_are_sent_and_then_deleted(machine: Machine, tmp_path: Path) -> None:
    ring = machine.run("a")
    ring.write(b"sent\n", 1)
    forwarder = machine.forwarder()
    await forwarder.forward_once()
    ring.write(b"the last words\n", 2)
    removed = RemovedLogs(tmp_path / "removed", 1 << 20, SystemClock())
    removed.keep(machine.folder / "a", "a", WEB)
    machine.rings[:] = RemovedLogs(tmp_path / "removed", 1 << 20, SystemClock()).list_rings()
    (kept,) = machine.rings
    assert not forwarder.has_sent(kept)
    await forwarder.forward_once()
    await forwarder.forward_once()
    assert machine.target.lines == ["sent", "the last words"]
    removed.remove_sent(forwarder.has_sent)
    assert list((tmp_path / "removed").iterdir()) == []


def test_removed_logs_are_bounded_and_empty_ones_are_not_kept(machine: Machine, tmp_path: Path) -> None:
    removed = RemovedLogs(tmp_path / "removed", 3000, SystemClock())
    machine.run("empty")
    removed.keep(machine.folder / "empty", "empty", WEB)
    for key in ("a", "b", "c"):
        machine.run(key).write(b"x" * 1400, 1)
        removed.keep(machine.folder / key, key, WEB)
    assert [ring.key for ring in removed.list_rings()] == ["b", "c"]


async def test_lines_of_the_process_itself_survive_it_with_their_levels(machine: Machine) -> None:
    log = ProcessLog(machine.folder / "process", "boot1")
    log.add("warning", "node.lost node=a\nTraceback: ...")
    log.close()
    after = ProcessLog(machine.folder / "process", "boot2")
    after.add("info", "process.ready")
    machine.rings[:] = after.list_rings()
    forwarder = machine.forwarder()
    await forwarder.forward_once()
    assert machine.target.lines == ["node.lost node=a\nTraceback: ...", "process.ready"]
    after.close()


def test_unreadable_positions_begin_anew(machine: Machine) -> None:
    (machine.folder / "positions.json").write_text('{"positions": 3}')
    machine.forwarder()
