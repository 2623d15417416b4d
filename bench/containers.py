"""Containers over the socket, as a client sees them, against `runc run` of the same root in the same run.

A start is all of it: the cell, the root, an address, a published port, a user namespace, and the runtime;
`runc run` has none of these but the last two, and ends with its program, where ours is measured until the
program runs. Each kind is compared with `runc run` of the same kind: in a user namespace, and as the
machine's root (`userns: host`); what the user namespace and a layer in a file system of its own cost is told
apart. All take turns, so that whatever else the machine does hits them alike, and each begins when the one
before has been cleaned up: kernels and nodes go on with that for a while after they have answered. Many at
once take turns with as many `runc run` one after the other, which is what a shell would do.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench.cells import client_tls, runc_run
from bench.figures import Figure
from bench.lean import LeanClient
from bench.serving import percentile, skerry
from skerry.model.callers import NODE_TLS_NAME
from skerry.transport.grpc.channels import dial
from skerry.transport.proto import containers_pb2 as pb
from skerry.transport.proto.containers_grpc import ContainerServiceStub

ROUNDS = 80
PAUSE_S = 0.15
EXECS = 50
AT_ONCE = 50
BURSTS = 3
RUNC_PER_BURST = 15  # before each burst, and after the last
FIRST_ID = 0x6FFF0000  # of the root of the user namespace of `runc run`; of no range of Skerry's
_SERVICE = "/skerry.containers.v1.ContainerService"


@dataclass
class Times:
    """Seconds of each call."""

    run: list[float] = field(default_factory=list)
    run_as_host: list[float] = field(default_factory=list)
    limited: list[float] = field(default_factory=list)  # run with a disk limit
    stop: list[float] = field(default_factory=list)
    remove: list[float] = field(default_factory=list)
    execs: list[float] = field(default_factory=list)
    runc: list[float] = field(default_factory=list)
    runc_as_host: list[float] = field(default_factory=list)
    runc_exec: list[float] = field(default_factory=list)
    # Of bursts: all starts, all removals, and one `runc run` between them.
    starts: list[float] = field(default_factory=list)
    removals: list[float] = field(default_factory=list)
    runc_beside: list[float] = field(default_factory=list)


def measure() -> Iterator[Figure]:
    times = Times()
    with tempfile.TemporaryDirectory(prefix="skerry-runc-") as name, skerry() as ready:
        Path(name).chmod(0o711)  # where the root of a user namespace has to pass
        bundle, in_userns = Path(name, "host"), Path(name, "userns")
        make_bundle(bundle)
        make_bundle(in_userns, first_id=FIRST_ID)
        cycles(ready, times, bundle, in_userns)
        uvloop.run(crowds(ready, times, bundle, in_userns))
    yield from one_figures(times)
    yield from burst_figures(times)


def one_figures(times: Times) -> Iterator[Figure]:
    runc, runc_as_host = percentile(times.runc, 0.5), percentile(times.runc_as_host, 0.5)
    run, run_as_host = percentile(times.run, 0.5), percentile(times.run_as_host, 0.5)
    yield Figure("runc run of busybox true in a user namespace, p50", runc * 1e3, "ms")
    yield Figure("user namespace of runc run, p50", (runc - runc_as_host) * 1e3, "ms more")
    yield Figure(
        "user namespace of a container, p50",
        (run - run_as_host) * 1e3,
        "ms more",
        note="against the same with userns host",
    )
    yield Figure(
        "create and start of a container, p50",
        run / runc,
        "x runc run",
        at_most=1.2,
        note="with cell, root, address and published port; both in a user namespace",
        peer=runc * 1e3,
        peer_unit="ms",
        peer_name="runc run",
    )
    yield Figure("create and start of a container, p99", percentile(times.run, 0.99) / runc, "x runc run")
    yield Figure(
        "the same with userns host, p50", run_as_host / runc_as_host, "x runc run", note="as the root of both"
    )
    limited = percentile(times.limited, 0.5)
    yield Figure(
        "the same with a disk limit, p50",
        limited / runc,
        "x runc run",
        at_most=1.5,
        note="a file system of its own, where there are no project quotas",
        peer=runc * 1e3,
        peer_unit="ms",
        peer_name="runc run",
    )
    yield Figure("file system of a disk limit, p50", (limited - run) * 1e3, "ms more")
    yield Figure("stop that kills, p50", percentile(times.stop, 0.5) / runc, "x runc run")
    yield Figure("remove, p50", percentile(times.remove, 0.5) / runc, "x runc run")
    yield Figure(
        "exec of true, p50", percentile(times.execs, 0.5) / percentile(times.runc_exec, 0.5), "x runc exec"
    )


def burst_figures(times: Times) -> Iterator[Figure]:
    runc = percentile(times.runc_beside, 0.5)
    yield Figure(
        "runc run right after another, p50",
        runc * 1e3,
        "ms",
        note="it does not wait for a lock of the kernel that the one before took",
    )
    yield Figure(
        f"{AT_ONCE} started at once, all of them",
        percentile(times.starts, 0.5) / runc / AT_ONCE,
        "x runc run each",
        note=f"median of {BURSTS} bursts; `runc run` one after the other, between them",
    )
    yield Figure(
        f"{AT_ONCE} removed at once, all of them",
        percentile(times.removals, 0.5) / runc / AT_ONCE,
        "x runc run each",
    )


def cycles(ready: dict[str, Any], times: Times, bundle: Path, in_userns: Path) -> None:
    """One after the other, by a client whose own work does not count."""
    with closing(LeanClient(ready["socket"], client_tls(ready), NODE_TLS_NAME)) as client:
        port = free_port()
        cycle(client, "warm-up", bundle, port, Times())
        cycle(client, "warm-up", bundle, port, Times(), disk_gb=1)
        for number in range(ROUNDS):
            time.sleep(PAUSE_S)
            times.runc.append(runc_run(in_userns, number))
            time.sleep(PAUSE_S)
            cycle(client, f"b{number}", bundle, port, times)
            if number % 4 == 0:
                time.sleep(PAUSE_S)
                times.runc_as_host.append(runc_run(bundle, number))
                time.sleep(PAUSE_S)
                as_host = Times()
                cycle(client, f"h{number}", bundle, port, as_host, userns=pb.USER_NAMESPACE_HOST)
                times.run_as_host += as_host.run
            time.sleep(PAUSE_S)
            limited = Times()
            cycle(client, f"l{number}", bundle, port, limited, disk_gb=1)
            times.limited += limited.run
        client.check()


def cycle(client: LeanClient, name: str, bundle: Path, port: int, times: Times, **more: Any) -> None:
    requests = (
        ("Run", pb.CreateRequest(spec=spec(name, bundle, port, **more))),
        ("Stop", pb.StopRequest(container=name, grace_s=0)),
        ("Remove", pb.RemoveRequest(container=name)),
    )
    prepared = [(f"{_SERVICE}/{verb}", request.SerializeToString()) for verb, request in requests]
    marks = [time.perf_counter()]
    for path, message in prepared:
        client.call(path, message)
        marks.append(time.perf_counter())
    for kept, begin, end in zip((times.run, times.stop, times.remove), marks, marks[1:], strict=False):
        kept.append(end - begin)


async def crowds(ready: dict[str, Any], times: Times, bundle: Path, in_userns: Path) -> None:
    channel = dial(ready["socket"], client_tls(ready), server_name=NODE_TLS_NAME)
    try:
        containers = ContainerServiceStub(channel)
        await execs(containers, times, bundle, in_userns)
        for _ in range(BURSTS):
            await runc_runs(times, in_userns)
            await many_at_once(containers, times, bundle)
        await runc_runs(times, in_userns)
    finally:
        channel.close()


async def execs(containers: ContainerServiceStub, times: Times, bundle: Path, in_userns: Path) -> None:
    await containers.Run(pb.CreateRequest(spec=spec("home", bundle)))
    with tempfile.TemporaryDirectory(prefix="skerry-runc-state-") as state:
        runc = ["runc", "--root", state]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        config = in_userns / "config.json"
        usual = config.read_text()
        document = json.loads(usual)
        document["process"]["args"] = ["/bin/sleep", "600"]
        config.write_text(json.dumps(document))
        subprocess.run([*runc, "run", "--detach", "bench"], cwd=in_userns, check=True, **quiet)  # type: ignore[call-overload]
        try:
            for _ in range(EXECS):
                begin = time.perf_counter()
                subprocess.run([*runc, "exec", "bench", "/bin/true"], check=True, stdin=subprocess.DEVNULL)
                times.runc_exec.append(time.perf_counter() - begin)
                begin = time.perf_counter()
                async with containers.Exec.open() as stream:
                    start = pb.ExecStart(container="home", arguments=["/bin/true"])
                    await stream.send_message(pb.ExecRequest(start=start), end=True)
                    replies = [reply async for reply in stream]
                times.execs.append(time.perf_counter() - begin)
                assert replies[-1].exit_code == 0
        finally:
            subprocess.run([*runc, "delete", "--force", "bench"], check=True)
            config.write_text(usual)
    await containers.Stop(pb.StopRequest(container="home", grace_s=0))
    await containers.Remove(pb.RemoveRequest(container="home"))


async def runc_runs(times: Times, in_userns: Path) -> None:
    await asyncio.sleep(1.0)  # until what was removed is cleaned up, and the pools are filled
    for number in range(RUNC_PER_BURST):
        times.runc_beside.append(await asyncio.to_thread(runc_run, in_userns, number))


async def many_at_once(containers: ContainerServiceStub, times: Times, bundle: Path) -> None:
    names = [f"m{number}" for number in range(AT_ONCE)]
    begin = time.perf_counter()
    await asyncio.gather(*(containers.Run(pb.CreateRequest(spec=spec(name, bundle))) for name in names))
    middle = time.perf_counter()

    async def remove(name: str) -> None:
        await containers.Stop(pb.StopRequest(container=name, grace_s=0))
        await containers.Remove(pb.RemoveRequest(container=name))

    await asyncio.gather(*map(remove, names))
    times.starts.append(middle - begin)
    times.removals.append(time.perf_counter() - middle)


def spec(name: str, bundle: Path, port: int | None = None, **more: Any) -> pb.ContainerSpec:
    return pb.ContainerSpec(
        name=name,
        image=f"rootfs:{bundle / 'rootfs'}",
        arguments=["/bin/sleep", "600"],
        ports=[] if port is None else [f"{port}:80"],
        **more,
    )


def make_bundle(folder: Path, first_id: int = 0) -> None:
    """An OCI bundle of busybox; its root is `first_id` on the machine."""
    busybox = shutil.which("busybox")
    assert busybox, "busybox is missing: install the packages of system-packages.txt"
    (folder / "rootfs" / "bin").mkdir(parents=True)
    shutil.copy(busybox, folder / "rootfs" / "bin" / "busybox")
    for name in ("true", "sleep"):
        (folder / "rootfs" / "bin" / name).symlink_to("busybox")
    subprocess.run(["runc", "spec"], cwd=folder, check=True)
    document = json.loads((folder / "config.json").read_text())
    document["process"] |= {"args": ["/bin/true"], "terminal": False}
    if first_id:
        for path in (folder / "rootfs", *(folder / "rootfs").rglob("*")):
            os.chown(path, first_id, first_id, follow_symlinks=False)
        mapping = [{"containerID": 0, "hostID": first_id, "size": 65_536}]
        document["linux"] |= {"uidMappings": mapping, "gidMappings": mapping}
        document["linux"]["namespaces"].append({"type": "user"})
    (folder / "config.json").write_text(json.dumps(document))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
