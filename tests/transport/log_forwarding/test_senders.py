"""Senders, with real files, sockets and HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from skerry.model.log_origins import LogOrigin, LogOriginKind
from skerry.transport.log_forwarding.batches import (
    ForwardedLine,
    LinesRefused,
    NodeLabels,
    TargetUnavailable,
    TooManyLines,
)
from skerry.transport.log_forwarding.file_sender import FileSender
from skerry.transport.log_forwarding.loki_sender import LokiSender
from skerry.transport.log_forwarding.syslog_sender import DatagramSender, StreamSender
from skerry.transport.log_forwarding.targets import (
    FileTarget,
    LokiTarget,
    SyslogTarget,
    SyslogTransport,
    parse_target,
)
from tests.support.certificates import TestAuthority
from tests.support.log_receivers import loki_receiver, syslog_receiver
from tests.support.waiting import PATIENCE_S, eventually

HERE = NodeLabels("home", "shed")
WEB = LogOrigin(LogOriginKind.INSTANCE, instance="i1", name="web")
NOW = 1_700_000_000_000_000_000


def lines(*texts: str) -> list[ForwardedLine]:
    return [ForwardedLine(WEB, "stdout", NOW + number, text) for number, text in enumerate(texts)]


def texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


async def test_a_file_is_rotated_by_size_and_few_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "all.log"
    sender = FileSender(FileTarget("", str(path), 400, 2), HERE)
    for number in range(12):
        await sender.send(lines(f"{number:02d}" + "x" * 50))
    await sender.close()
    assert sorted(each.name for each in path.parent.iterdir()) == ["all.log", "all.log.1", "all.log.2"]
    kept = [*texts(path.with_name("all.log.2")), *texts(path.with_name("all.log.1")), *texts(path)]
    assert [text[:2] for text in kept] == [f"{number:02d}" for number in range(12 - len(kept), 12)]
    assert len(kept) > 3
    assert stat.S_IMODE(path.stat().st_mode) & ~0o640 == 0


async def test_a_file_that_was_moved_away_is_made_again_and_a_torn_line_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "all.log"
    path.write_text('{"text": "torn')
    sender = FileSender(parse_target(f"file:{path}"), HERE)  # type: ignore[arg-type]
    await sender.send(lines("a"))
    assert path.read_text().splitlines()[0] == '{"text": "torn'
    path.rename(tmp_path / "moved")
    await sender.send(lines("b"))
    await sender.close()
    assert texts(path) == ["b"]


async def test_a_file_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "all.log").mkdir()
    sender = FileSender(FileTarget("", str(tmp_path / "all.log")), HERE)
    with pytest.raises(TargetUnavailable, match=r"all\.log"):
        await sender.send(lines("a"))


async def test_a_file_is_not_closed_under_a_thread_that_still_writes_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, goes_on = threading.Event(), threading.Event()
    write = os.write

    def slow(file: int, data: bytes) -> int:
        writes.set()
        assert goes_on.wait(PATIENCE_S)
        return write(file, data)

    monkeypatch.setattr("skerry.transport.log_forwarding.file_sender.os.write", slow)
    path = tmp_path / "all.log"
    sender = FileSender(FileTarget("", str(path), 1 << 20, 1), HERE)
    sending = asyncio.ensure_future(sender.send(lines("one")))
    await eventually(writes.is_set)
    sending.cancel()
    await asyncio.wait([sending], timeout=0.05)
    was_done = sending.done()
    goes_on.set()
    assert not was_done, "its thread writes"
    with pytest.raises(asyncio.CancelledError):
        await sending
    await sender.close()
    assert texts(path) == ["one"]


async def test_syslog_by_udp() -> None:
    with syslog_receiver("udp") as receiver:
        target = SyslogTarget("", SyslogTransport.UDP, "127.0.0.1", receiver.port)
        sender = DatagramSender(target, HERE)
        await sender.send(lines("one", "two\nlines"))
        await eventually(lambda: receiver.texts() == ["one", "two\nlines"])
        await sender.close()
        assert receiver.problems == []


async def test_the_local_syslog_by_its_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as local:
        local.bind(path)
        sender = DatagramSender(SyslogTarget("", SyslogTransport.UNIX, path=path), HERE)
        await sender.send(lines("hello"))
        await sender.close()
        assert local.recv(1000).endswith(b" web: hello")
    os.unlink(path)
    with pytest.raises(TargetUnavailable, match="log"):
        await sender.send(lines("nobody"))


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_syslog_over_a_connection_that_is_made_again(tmp_path: Path, is_encrypted: bool) -> None:
    tls, ca = None, ""
    if is_encrypted:
        authority = TestAuthority(tmp_path)
        pair, ca = authority.issue("server", server=True), str(authority.ca)
        tls = (pair.certificate, pair.key)
    kind = SyslogTransport.TLS if is_encrypted else SyslogTransport.TCP
    with syslog_receiver("tcp", tls) as receiver:
        port = receiver.port
        sender = StreamSender(SyslogTarget("", kind, "localhost", port, ca=ca), HERE)
        await sender.send(lines("one", "two\nlines"))
        await eventually(lambda: receiver.texts() == ["one", "two\nlines"])
        assert receiver.problems == []

    async def is_refused() -> bool:
        try:
            await sender.send(lines("lost?"))
        except TargetUnavailable:
            return True
        return False

    await eventually(is_refused)
    with syslog_receiver("tcp", tls, port) as receiver:
        await sender.send(lines("back"))
        await eventually(lambda: receiver.texts() == ["back"])
        await sender.close()


async def test_lines_that_a_connection_has_not_acknowledged_are_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skerry.transport.log_forwarding.syslog_sender._STALLED_S", 0.3)
    with syslog_receiver("tcp") as receiver:
        receiver.is_reading.clear()
        sender = StreamSender(SyslogTarget("", SyslogTransport.TCP, "127.0.0.1", receiver.port), HERE)
        with pytest.raises(TargetUnavailable):
            await sender.send(lines(*["x" * 16_000] * 1000))


async def test_pushes_to_loki_with_tenant_and_credentials_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.touch(mode=0o600)
    with loki_receiver() as receiver:
        url = f"http://127.0.0.1:{receiver.port}/loki/api/v1/push"
        sender = LokiSender(LokiTarget("", url, str(path), "team"), HERE)
        with pytest.raises(TargetUnavailable, match="token="):
            await sender.send(lines("a"))
        path.write_text("token=abc\n")
        await sender.send(lines("a"))
        path.write_text("username=me\npassword=pass:word\n")
        await sender.send(lines("b", "c"))
        path.chmod(0o644)
        with pytest.raises(TargetUnavailable, match="chmod 600"):
            await sender.send(lines("d"))
        await sender.close()
        assert receiver.problems == []
        assert receiver.texts(instance="i1", stream="stdout") == ["a", "b", "c"]
        assert [headers["Authorization"] for headers in receiver.headers] == [
            "Bearer abc",
            f"Basic {base64.b64encode(b'me:pass:word').decode()}",
        ]
        assert {headers["X-Scope-OrgID"] for headers in receiver.headers} == {"team"}


@pytest.mark.parametrize(
    ("status", "raised"),
    [
        (301, TargetUnavailable),
        (302, TargetUnavailable),
        (307, TargetUnavailable),
        (400, LinesRefused),
        (413, TooManyLines),
        (429, TargetUnavailable),
        (401, TargetUnavailable),
        (503, TargetUnavailable),
    ],
)
async def test_the_answer_of_loki_decides_what_happens_to_lines(status: int, raised: type[Exception]) -> None:
    with loki_receiver() as receiver:
        receiver.statuses = [status]
        sender = LokiSender(LokiTarget("", f"http://127.0.0.1:{receiver.port}/loki/api/v1/push"), HERE)
        with pytest.raises(raised, match=str(status)):
            await sender.send(lines("a"))
        await sender.send(lines("b"))
        assert receiver.texts() == ["b"]
        assert receiver.problems == []
        await sender.close()


async def test_a_loki_that_is_not_there_is_unavailable() -> None:
    sender = LokiSender(LokiTarget("", "http://127.0.0.1:1/loki/api/v1/push"), HERE)
    with pytest.raises(TargetUnavailable, match="127"):
        await sender.send(lines("a"))
