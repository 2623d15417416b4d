"""Protobuf messages of the node as plain values for JSON and as text.

Used by the commands for cells, images and containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skerry.cli.output import size

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from skerry.transport.proto import cells_pb2


def message_to_dict(message: Message) -> dict[str, Any]:
    """Every field by its name: what is not set and has no default is None, an enum is its word."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [_single(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(value, field)


def _single(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return message_to_dict(value)
    if field.enum_type is not None:
        # STATE_RUNNING is `running`; a number of a newer node has no word yet.
        known = field.enum_type.values_by_number.get(value)
        return known.name.partition("_")[2].lower() if known is not None else value
    return value


def exit_line(shown: dict[str, Any]) -> str:
    if shown["oom"]:
        return "killed: out of memory"
    if shown["signal"] is None and shown["code"] is None:
        return "exit code unknown: its record is missing"
    return f"signal {shown['signal']}" if shown["signal"] is not None else f"exit code {shown['code']}"


def exit_code(message: cells_pb2.Exit) -> int:
    """As a shell gives it: 128 and the signal number if a signal ended it; 255 if unknown."""
    if not message.HasField("signal") and not message.HasField("code"):
        return 255
    return 128 + message.signal if message.HasField("signal") else message.code


def usage_cells(shown: dict[str, Any]) -> tuple[str, ...]:
    """Usage in a table: cpu, throttled, memory, peak, pids, read, written."""
    return (
        f"{shown['cpu_ns'] / 1e9:.2f}s",
        f"{shown['throttled_ns'] / 1e9:.2f}s",
        *(size(shown[field]) for field in ("memory_bytes", "memory_peak_bytes")),
        str(shown["pids"]),
        *(size(shown[field]) for field in ("read_bytes", "written_bytes")),
    )


def log_item_to_dict(message: cells_pb2.LogItem) -> dict[str, Any]:
    channel = {1: "stdout", 2: "stderr"}[message.channel]
    if message.lost:
        return {"channel": channel, "position": message.position, "lost": message.lost}
    return {
        "channel": channel,
        "position": message.position,
        "time_ns": message.time_ns,
        "line": message.data.decode("utf-8", "replace"),
    }
