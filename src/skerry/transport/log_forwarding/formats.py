"""Lines as targets take them: JSON, RFC 5424, the local format of /dev/log, Loki's push request. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from skerry.kit import json_codec
from skerry.model.log_origins import LogOriginKind
from skerry.transport.log_forwarding.batches import ForwardedLine, NodeLabels

_NANOSECONDS: Final = 1_000_000_000
_USER, _DAEMON = 1, 3  # facilities
_INFO, _ERROR = 6, 3  # severities
_SEVERITIES: Final = {"debug": 7, "info": _INFO, "warning": 4, "error": _ERROR, "critical": 2}
_NOT_ASCII: Final = re.compile(r"[^!-~]")
_ESCAPED: Final = re.compile(r'["\\\]]')
# Of documentation (RFC 5612): there is no number of Skerry's own.
_STRUCTURE: Final = "skerry@32473"
_MAX_HOST, _MAX_APP = 255, 48
_SKERRY: Final = "skerry"


def json_line(line: ForwardedLine, labels: NodeLabels) -> bytes:
    """One object, with a newline."""
    document: dict[str, Any] = {"time": _timestamp(line.time_ns), **_labels(line, labels)}
    if line.level:
        document["level"] = line.level
    document["text"] = line.text
    return json_codec.encode(document) + b"\n"


def syslog_message(line: ForwardedLine, labels: NodeLabels) -> bytes:
    """A message of RFC 5424, without framing."""
    parameters = " ".join(f'{name}="{_escaped(value)}"' for name, value in _labels(line, labels).items())
    head = (
        f"<{_priority(line)}>1 {_timestamp(line.time_ns)} {_printable(labels.node, _MAX_HOST)} "
        f"{_printable(_program(line), _MAX_APP)} - {line.origin.kind} [{_STRUCTURE} {parameters}] "
    )
    return head.encode() + line.text.encode("utf-8", "replace")


def octet_counted(message: bytes) -> bytes:
    """A message in a stream (RFC 6587), which may contain newlines."""
    return b"%d %s" % (len(message), message)


def local_message(line: ForwardedLine) -> bytes:
    """A message as syslog(3) sends it to /dev/log, which every local syslog and journald understands."""
    moment = datetime.fromtimestamp(line.time_ns // _NANOSECONDS)
    when = f"{moment:%b} {moment.day:2d} {moment:%H:%M:%S}"
    program = _printable(_program(line), _MAX_APP).replace(":", "_")
    return f"<{_priority(line)}>{when} {program}: {line.text}".encode("utf-8", "replace")


def loki_push(lines: Sequence[ForwardedLine], labels: NodeLabels) -> bytes:
    """The body of a push, with `lines` grouped by their labels and in their order."""
    streams: dict[tuple[object, str], list[tuple[str, str]]] = {}
    named: dict[tuple[object, str], dict[str, str]] = {}
    for line in lines:
        key = (line.origin, line.stream)
        if key not in streams:
            streams[key] = []
            named[key] = _labels(line, labels)
        text = f"level={line.level} {line.text}" if line.level else line.text
        streams[key].append((str(line.time_ns), text))
    return json_codec.encode(
        {"streams": [{"stream": named[key], "values": values} for key, values in streams.items()]}
    )


def _labels(line: ForwardedLine, labels: NodeLabels) -> dict[str, str]:
    return {"cloud": labels.cloud, "node": labels.node, **line.origin.labels(), "stream": line.stream}


def _priority(line: ForwardedLine) -> int:
    if line.level:
        return _DAEMON * 8 + _SEVERITIES.get(line.level, _INFO)
    return _USER * 8 + (_ERROR if line.stream == "stderr" else _INFO)


def _program(line: ForwardedLine) -> str:
    origin = line.origin
    if origin.kind is LogOriginKind.PROCESS:
        return _SKERRY
    return origin.service or origin.job or origin.function or origin.name or origin.instance or origin.kind


def _timestamp(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, _NANOSECONDS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"


def _printable(text: str, most: int) -> str:
    return _NOT_ASCII.sub("_", text)[:most] or "-"


def _escaped(value: str) -> str:
    return _ESCAPED.sub(lambda found: f"\\{found[0]}", value)
