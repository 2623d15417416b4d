"""What the node tells of cells and containers alike, as plain values for JSON and as words for people.

Used by the verbs for both. Messages come in, nothing of gRPC goes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skerry.wire.proto import cells_pb2


def exit_shown(told: cells_pb2.Exit) -> dict[str, Any]:
    return {
        "at": told.at,
        "code": told.code if told.HasField("code") else None,
        "signal": told.signal if told.HasField("signal") else None,
        "oom": told.oom,
    }


def exit_line(shown: dict[str, Any]) -> str:
    if shown["oom"]:
        return "killed for using too much memory"
    return f"signal {shown['signal']}" if shown["signal"] is not None else f"exit code {shown['code']}"


def exit_code(told: cells_pb2.Exit) -> int:
    """As a shell tells it: 128 and the number of the signal if one ended it."""
    return 128 + told.signal if told.HasField("signal") else told.code


def usage_shown(told: cells_pb2.Usage) -> dict[str, int]:
    return {field.name: getattr(told, field.name) for field in told.DESCRIPTOR.fields}


def item_shown(told: cells_pb2.LogItem) -> dict[str, Any]:
    channel = {1: "stdout", 2: "stderr"}[told.channel]
    if told.lost:
        return {"channel": channel, "position": told.position, "lost": told.lost}
    return {
        "channel": channel,
        "position": told.position,
        "time_ns": told.time_ns,
        "line": told.data.decode("utf-8", "replace"),
    }
