"""Lines as targets take them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from skerry.model.log_origins import LogOrigin, LogOriginKind
from skerry.transport.log_forwarding import batches, formats
from skerry.transport.log_forwarding.batches import ForwardedLine, NodeLabels
from tests.support.log_receivers import check_loki_push, parse_rfc5424

HERE = NodeLabels("home", "shed")
WEB = LogOrigin(LogOriginKind.INSTANCE, namespace="default", instance="i1", name="web-1", service="web")
OWN = LogOrigin(LogOriginKind.PROCESS)
AT = 1_700_000_000_123_456_789


def test_a_line_is_a_message_of_rfc_5424() -> None:
    message = parse_rfc5424(formats.syslog_message(ForwardedLine(WEB, "stderr", AT, "so\nwhat"), HERE))
    assert (message.facility, message.severity) == (1, 3)
    assert message.time == "2023-11-14T22:13:20.123456Z"
    assert (message.host, message.app, message.id) == ("shed", "web", "instance")
    assert message.data["cloud"] == "home"
    assert message.data["instance"] == "i1"
    assert message.data["stream"] == "stderr"
    assert message.text == "so\nwhat"
    own = parse_rfc5424(formats.syslog_message(ForwardedLine(OWN, "log", AT, "it", "warning"), HERE))
    assert (own.facility, own.severity, own.app) == (3, 4, "skerry")


@given(st.text(), st.text(min_size=1, max_size=80), st.text(max_size=300))
def test_any_name_and_text_gives_a_valid_message(text: str, name: str, node: str) -> None:
    origin = LogOrigin(LogOriginKind.CELL, name=name, cell='a]"b\\')
    message = parse_rfc5424(
        formats.syslog_message(ForwardedLine(origin, "stdout", AT, text), NodeLabels("c", node))
    )
    assert message.data["cell"] == 'a]"b\\'
    assert message.data["name"] == name.encode("utf-8", "replace").decode()
    assert message.text == text.encode("utf-8", "replace").decode()


def test_a_frame_says_how_many_bytes_follow() -> None:
    assert formats.octet_counted("é\n".encode()) == b"3 \xc3\xa9\n"


def test_the_local_syslog_gets_what_syslog_3_sends() -> None:
    message = formats.local_message(ForwardedLine(WEB, "stdout", AT, "hi"))
    head, _, text = message.partition(b": ")
    assert head.startswith((b"<14>Nov 14 ", b"<14>Nov 15 "))
    assert (head.split()[-1], text) == (b"web", b"hi")


def test_a_push_has_a_stream_per_set_of_labels_with_times_as_text() -> None:
    lines = [
        ForwardedLine(WEB, "stdout", AT, "a"),
        ForwardedLine(WEB, "stderr", AT + 1, "b"),
        ForwardedLine(WEB, "stdout", AT + 2, "c"),
        ForwardedLine(OWN, "log", AT, "node.lost", "error"),
    ]
    streams = check_loki_push(formats.loki_push(lines, HERE))
    assert [values for _, values in streams] == [
        [(AT, "a"), (AT + 2, "c")],
        [(AT + 1, "b")],
        [(AT, "level=error node.lost")],
    ]
    assert streams[0][0] == {
        "cloud": "home",
        "node": "shed",
        "kind": "instance",
        "namespace": "default",
        "instance": "i1",
        "name": "web-1",
        "service": "web",
        "stream": "stdout",
    }


def test_a_line_of_a_file_is_an_object() -> None:
    line = formats.json_line(ForwardedLine(OWN, "log", AT, "a\nb", "info"), HERE)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.123456Z",
        "cloud": "home",
        "node": "shed",
        "kind": "process",
        "stream": "log",
        "level": "info",
        "text": "a\nb",
    }


def test_lines_of_one_log_never_go_back_in_time_also_across_batches() -> None:
    latest: dict[tuple[LogOrigin, str], int] = {}
    first = batches.in_order([ForwardedLine(WEB, "stdout", time, "") for time in (5, 3, 9)], latest)
    assert [line.time_ns for line in first] == [3, 5, 9]
    second = batches.in_order(
        [ForwardedLine(WEB, "stdout", 4, "late"), ForwardedLine(WEB, "stderr", 4, "other")], latest
    )
    assert [(line.text, line.time_ns) for line in second] == [("late", 9), ("other", 4)]
