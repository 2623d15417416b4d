"""Usage of a group, from the text of its files. Pure.

A file that a kernel does not have counts as zero.
"""

from __future__ import annotations

from skerry.model.cells import CellUsage
from skerry.node.cgroups.limits import ReadFile


def from_v2(read: ReadFile) -> CellUsage:
    cpu = _fields(read("cpu.stat"))
    return CellUsage(
        cpu_ns=cpu.get("usage_usec", 0) * 1000,
        throttled_ns=cpu.get("throttled_usec", 0) * 1000,
        memory_bytes=_number(read("memory.current")),
        memory_peak_bytes=_number(read("memory.peak")),
        pids=_number(read("pids.current")),
        read_bytes=_io(read("io.stat"), "rbytes"),
        written_bytes=_io(read("io.stat"), "wbytes"),
        oom_kills=oom_kills(read("memory.events")),
    )


def from_v1(read: ReadFile) -> CellUsage:
    """`oom_kills` are those of the group alone: v1 does not add those below it."""
    io = read("blkio.throttle.io_service_bytes_recursive")
    return CellUsage(
        cpu_ns=_number(read("cpuacct.usage")),
        throttled_ns=_fields(read("cpu.stat")).get("throttled_time", 0),
        memory_bytes=_number(read("memory.usage_in_bytes")),
        memory_peak_bytes=_number(read("memory.max_usage_in_bytes")),
        pids=_number(read("pids.current")),
        read_bytes=_blkio(io, "Read"),
        written_bytes=_blkio(io, "Write"),
        oom_kills=oom_kills(read("memory.oom_control")),
    )


def oom_kills(text: str) -> int:
    """From `memory.events` of v2 or `memory.oom_control` of v1, which have the same format."""
    return _fields(text).get("oom_kill", 0)


def _fields(text: str) -> dict[str, int]:
    """Parse lines of a name and a number."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: _number(pair[1]) for pair in pairs if len(pair) == 2}


def _io(text: str, name: str) -> int:
    """Sum of lines such as `8:0 rbytes=1 wbytes=2` over the devices."""
    return sum(
        _number(field.removeprefix(f"{name}="))
        for line in text.splitlines()
        for field in line.split()
        if field.startswith(f"{name}=")
    )


def _blkio(text: str, name: str) -> int:
    """Sum of lines such as `8:0 Read 1` over the devices."""
    rows = (line.split() for line in text.splitlines())
    return sum(_number(parts[2]) for parts in rows if len(parts) == 3 and parts[1] == name)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
