"""Cells over the socket, as a client sees them, against `runc run` of a static `true` in the same run.

Rounds of both are interleaved, so that whatever else the machine does hits both alike.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench.figures import Figure
from bench.lean import LeanClient
from bench.serving import percentile, skerry
from skerry.model.callers import NODE_TLS_NAME
from skerry.transport.grpc.channels import dial
from skerry.transport.proto import runtime_pb2 as pb
from skerry.transport.proto.runtime_grpc import CellServiceStub

ROUNDS = 20
CYCLES_PER_ROUND = 10
RUNC_PER_ROUND = 3
IDLE_CELLS = 200
AT_ONCE = 100
TRUE = "/bin/busybox true"


@dataclass
class Times:
    """Seconds of each call."""

    allocate: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    both: list[float] = field(default_factory=list)
    stop: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)
    runc: list[float] = field(default_factory=list)


def measure() -> Iterator[Figure]:
    times = Times()
    with skerry() as ready, tempfile.TemporaryDirectory(prefix="skerry-runc-") as bundle:
        make_bundle(Path(bundle))
        cycles(ready, times, Path(bundle))
        told = uvloop.run(crowds(ready))
    runc = percentile(times.runc, 0.5)
    yield Figure("runc run of a static true, p50", runc * 1e3, "ms")
    yield Figure(
        "Allocate + Start over the socket, p50",
        percentile(times.both, 0.5) / runc,
        "x runc run",
        at_most=0.2,
        peer=runc * 1e3,
        peer_unit="ms",
        peer_name="runc run",
    )
    yield Figure("Allocate + Start over the socket, p99", percentile(times.both, 0.99) / runc, "x runc run")
    for name, seconds in (
        ("Allocate", times.allocate),
        ("Start", times.start),
        ("Stop", times.stop),
        ("Free", times.free),
    ):
        yield Figure(f"{name} alone, p50", percentile(seconds, 0.5) / runc, "x runc run")
    yield Figure(f"{AT_ONCE} Starts at once, all of them", told["at_once_s"] / runc, "x one runc run")
    yield Figure(
        "memory of an allocated cell", told["allocated_kb"], "kB of PSS", note=f"mean of {IDLE_CELLS}"
    )
    yield Figure(
        "memory of a cell that runs something",
        told["running_kb"],
        "kB of PSS",
        note="its init, without the program",
    )


def cycles(ready: dict[str, Any], times: Times, bundle: Path) -> None:
    """One after the other, by a client whose own work does not count."""
    with closing(LeanClient(ready["socket"], client_tls(ready), NODE_TLS_NAME)) as client:
        cycle(client, "warm-up", Times())
        for number in range(ROUNDS):
            for _ in range(RUNC_PER_ROUND):
                times.runc.append(runc_run(bundle, number))
            for turn in range(CYCLES_PER_ROUND):
                cycle(client, f"b{number}-{turn}", times)
        client.check()


async def crowds(ready: dict[str, Any]) -> dict[str, float]:
    channel = dial(ready["socket"], client_tls(ready), server_name=NODE_TLS_NAME)
    try:
        cells = CellServiceStub(channel)
        return {**await many_at_once(cells), **await memory(cells, ready["pid"])}
    finally:
        channel.close()


def client_tls(ready: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ready["ca"])
    context.load_cert_chain(ready["client_cert"], ready["client_key"])
    context.set_alpn_protocols(["h2"])
    return context


def cycle(client: LeanClient, name: str, times: Times) -> None:
    requests = (
        ("Allocate", allocation(name)),
        ("Start", starting(name, "true", TRUE)),
        ("Stop", pb.StopCellRequest(cell_name=name, executable_name="true")),
        ("Free", pb.FreeCellRequest(cell_name=name)),
    )
    prepared = [(f"/runtime.CellService/{verb}", request.SerializeToString()) for verb, request in requests]
    marks = [time.perf_counter()]
    for path, message in prepared:
        client.call(path, message)
        marks.append(time.perf_counter())
    for kept, begin, end in zip(
        (times.allocate, times.start, times.stop, times.free), marks, marks[1:], strict=False
    ):
        kept.append(end - begin)
    times.both.append(marks[2] - marks[0])


async def many_at_once(cells: CellServiceStub) -> dict[str, float]:
    names = [f"m{number}" for number in range(AT_ONCE)]
    for name in names:
        await cells.Allocate(allocation(name))
    begin = time.perf_counter()
    await asyncio.gather(*(cells.Start(starting(name, "nap", "sleep 60")) for name in names))
    took = time.perf_counter() - begin
    await asyncio.gather(*(cells.Free(pb.FreeCellRequest(cell_name=name)) for name in names))
    return {"at_once_s": took}


async def memory(cells: CellServiceStub, pid: int) -> dict[str, float]:
    """What cells cost the machine, from the proportional set size of every process of this Skerry."""
    before = family_pss_kb(pid)
    names = [f"i{number}" for number in range(IDLE_CELLS)]
    for name in names:
        await cells.Allocate(allocation(name))
    allocated = (family_pss_kb(pid) - before) / IDLE_CELLS
    some = names[:20]
    before = family_pss_kb(pid)
    for name in some:
        await cells.Start(starting(name, "nap", "exec sleep 60"))
    inits = family_pss_kb(pid, without="sleep") - before
    await asyncio.gather(*(cells.Free(pb.FreeCellRequest(cell_name=name)) for name in names))
    return {"allocated_kb": allocated, "running_kb": inits / len(some)}


def allocation(name: str) -> pb.AllocateCellRequest:
    return pb.AllocateCellRequest(cell=pb.Cell(name=name, cpu_shares=512))


def starting(cell: str, name: str, command: str) -> pb.StartCellRequest:
    return pb.StartCellRequest(executable=pb.Executable(name=name, command=command, cell_name=cell))


def family_pss_kb(pid: int, without: str = "") -> float:
    """PSS of a process and all below it, in kB."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            name, rest = stat.rpartition(")")[0].partition("(")[2], stat.rpartition(")")[2].split()
            names[int(entry.name)] = name
            children.setdefault(int(rest[1]), []).append(int(entry.name))
    total, todo = 0.0, [pid]
    while todo:
        current = todo.pop()
        todo += children.get(current, [])
        if without and names.get(current) == without:
            continue
        try:
            rollup = Path(f"/proc/{current}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(float(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def make_bundle(folder: Path) -> None:
    """An OCI bundle whose only program is a static `true`."""
    busybox = shutil.which("busybox")
    assert busybox, "busybox is missing: install the packages of system-packages.txt"
    (folder / "rootfs" / "bin").mkdir(parents=True)
    shutil.copy(busybox, folder / "rootfs" / "bin" / "true")
    subprocess.run(["runc", "spec"], cwd=folder, check=True)
    spec = json.loads((folder / "config.json").read_text())
    spec["process"]["args"] = ["/bin/true"]
    spec["process"]["terminal"] = False
    (folder / "config.json").write_text(json.dumps(spec))


def runc_run(bundle: Path, number: int) -> float:
    begin = time.perf_counter()
    subprocess.run(
        ["runc", "run", f"skerry-bench-{number}-{time.monotonic_ns()}"],
        cwd=bundle,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return time.perf_counter() - begin
