"""What the kernel traces: its records decoded, and a real trace of real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import struct

import pytest

from skerry.model import errors
from skerry.node.signals import tracing
from skerry.node.signals.tracing import (
    ForkRecord,
    LostRecords,
    SignalFormat,
    SignalRecord,
    Trace,
    TraceRecord,
    decode,
    parse_format,
)
from tests.support.signals import needs_signals
from tests.support.waiting import eventually

FORMAT = """name: signal_generate
ID: 261
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:int sig;\toffset:8;\tsize:4;\tsigned:1;
\tfield:char comm[16];\toffset:20;\tsize:16;\tsigned:0;
\tfield:pid_t pid;\toffset:36;\tsize:4;\tsigned:1;

print fmt: "sig=%d pid=%d", REC->sig, REC->pid
"""
LAYOUT = SignalFormat(number=261, signal_at=8, thread_at=36)


def record(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHH", kind, 0, 8 + len(body)) + body


def sample(time: int, number: int, thread: int) -> bytes:
    raw = struct.pack("=8xi8x16si12x", number, b"pid=1 sig=9\n", thread)
    return record(9, struct.pack("=QI", time, len(raw)) + raw)


def test_the_format_of_the_tracepoint_is_read_as_the_kernel_gives_it():
    assert parse_format("261\n", FORMAT) == LAYOUT


@pytest.mark.parametrize(
    ("number", "text"), [("no number", FORMAT), ("1", ""), ("1", "field:int sig; offset:8;")]
)
def test_a_format_that_is_unknown_is_said(number, text):
    with pytest.raises(errors.Unavailable, match="an unknown format"):
        parse_format(number, text)


def test_records_are_decoded_and_kinds_that_are_not_needed_passed_over():
    data = b"".join(
        (
            sample(10, 15, 4242),
            record(4, bytes(32)),  # an exit
            record(7, struct.pack("=IIIIQQ", 50, 40, 51, 40, 11, 11)),
            record(2, struct.pack("=QQQ", 1, 3, 12)),
            sample(12, 9, 51),
        )
    )
    assert list(decode(data, LAYOUT)) == [
        SignalRecord(10, 15, 4242),
        ForkRecord(11, thread=51, pid=50, parent=40),
        LostRecords(0, 3),
        SignalRecord(12, 9, 51),
    ]


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\0" * 100])
def test_what_holds_no_records_gives_none(data):
    assert list(decode(data, LAYOUT)) == []


@needs_signals
@pytest.mark.root
async def test_a_real_trace_has_signals_and_forks_in_order_and_leaves_nothing_open():
    received: list[TraceRecord] = []
    trace = Trace.open(received.extend)
    try:
        process = await asyncio.create_subprocess_exec("sleep", "1000")
        process.send_signal(signal.SIGUSR1)
        await process.wait()

        def is_reported() -> bool:
            about = [each for each in received if getattr(each, "thread", 0) == process.pid]
            kinds = [(type(each), getattr(each, "number", None)) for each in about]
            return kinds == [(ForkRecord, None), (SignalRecord, signal.SIGUSR1)]

        await eventually(is_reported)
    finally:
        trace.close()


@needs_signals
@pytest.mark.root
async def test_a_flood_that_is_not_read_in_time_is_told_as_lost(monkeypatch):
    monkeypatch.setattr(tracing, "_PAGES", 1)  # so that no flood is needed that others on this machine notice
    received: list[TraceRecord] = []
    trace = Trace.open(received.extend)
    try:
        before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        try:
            for _ in range(300):  # in one turn of the loop, so that nothing is read meanwhile
                os.kill(os.getpid(), signal.SIGUSR2)
        finally:
            signal.signal(signal.SIGUSR2, before)
        await eventually(lambda: bool(received))

        def is_lost() -> bool:
            os.kill(os.getpid(), signal.SIGCONT)  # the kernel tells of the loss before the next that fits
            return any(isinstance(each, LostRecords) and each.missing > 0 for each in received)

        await eventually(is_lost)
    finally:
        trace.close()


async def test_in_a_pid_namespace_of_its_own_signals_cannot_be_observed(monkeypatch):
    monkeypatch.setattr(tracing, "_HOST_PIDS", 1)
    with pytest.raises(errors.Unavailable, match="in a pid namespace"):
        Trace.open(lambda records: None)


@pytest.mark.root
async def test_a_kernel_without_the_tracepoint_is_said(monkeypatch):
    monkeypatch.setattr(tracing, "_TRACEPOINT", "events/signal/no_such")
    with pytest.raises(errors.Unavailable, match="no tracepoint"):
        Trace.open(lambda records: None)


async def test_a_machine_that_is_not_known_is_said(monkeypatch):
    monkeypatch.setattr(tracing.platform, "machine", lambda: "riscv64")
    with pytest.raises(errors.Unavailable, match="riscv64"):
        tracing._open_event(261, 0)
