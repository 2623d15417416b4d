"""Containers over the socket, as a client sees them, against `runc run` of the same root in the same run.

A start is all of it: the cell, the root, an address, a published port, and the runtime; `runc run` has none
of these but the last, and ends with its program, where ours is measured until the program runs. The two take
turns, so that whatever else the machine does hits both alike, and each begins when the one before has been
cleaned up: kernels and nodes go on with that for a while after they have answered.
"""

from __future__ import annotations

import asyncio
import json
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
from skerry.model.identity import AURAE_NAME
from skerry.wire.grpc.channel import dial
from skerry.wire.proto import containers_pb2 as pb
from skerry.wire.proto.containers_grpc import ContainerServiceStub

ROUNDS = 80
PAUSE_S = 0.15
EXECS = 50
AT_ONCE = 50
_SERVICE = "/skerry.containers.v1.ContainerService"


@dataclass
class Times:
    """Seconds of each call."""

    run: list[float] = field(default_factory=list)
    stop: list[float] = field(default_factory=list)
    remove: list[float] = field(default_factory=list)
    execs: list[float] = field(default_factory=list)
    runc: list[float] = field(default_factory=list)
    runc_exec: list[float] = field(default_factory=list)


def measure() -> Iterator[Figure]:
    times = Times()
    with tempfile.TemporaryDirectory(prefix="skerry-runc-") as name, skerry() as ready:
        bundle = Path(name)
        make_bundle(bundle)
        cycles(ready, times, bundle)
        told = uvloop.run(crowds(ready, times, bundle))
    runc = percentile(times.runc, 0.5)
    yield Figure("runc run of busybox true, p50", runc * 1e3, "ms")
    yield Figure(
        "create and start of a container, p50",
        percentile(times.run, 0.5) / runc,
        "x runc run",
        at_most=1.5,
        note="with cell, root, address and published port",
    )
    yield Figure("create and start of a container, p99", percentile(times.run, 0.99) / runc, "x runc run")
    yield Figure("stop that kills, p50", percentile(times.stop, 0.5) / runc, "x runc run")
    yield Figure("remove, p50", percentile(times.remove, 0.5) / runc, "x runc run")
    yield Figure(
        "exec of true, p50", percentile(times.execs, 0.5) / percentile(times.runc_exec, 0.5), "x runc exec"
    )
    yield Figure(
        f"{AT_ONCE} started at once, all of them", told["start_s"] / runc / AT_ONCE, "x runc run each"
    )
    yield Figure(
        f"{AT_ONCE} removed at once, all of them", told["remove_s"] / runc / AT_ONCE, "x runc run each"
    )


def cycles(ready: dict[str, Any], times: Times, bundle: Path) -> None:
    """One after the other, by a client whose own work does not count."""
    with closing(LeanClient(ready["socket"], client_tls(ready), AURAE_NAME)) as client:
        port = free_port()
        cycle(client, "warm-up", bundle, port, Times())
        for number in range(ROUNDS):
            time.sleep(PAUSE_S)
            times.runc.append(runc_run(bundle, number))
            time.sleep(PAUSE_S)
            cycle(client, f"b{number}", bundle, port, times)
        client.check()


def cycle(client: LeanClient, name: str, bundle: Path, port: int, times: Times) -> None:
    requests = (
        ("Run", pb.CreateRequest(spec=spec(name, bundle, port))),
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


async def crowds(ready: dict[str, Any], times: Times, bundle: Path) -> dict[str, float]:
    channel = dial(ready["socket"], client_tls(ready), server_name=AURAE_NAME)
    try:
        containers = ContainerServiceStub(channel)
        await execs(containers, times, bundle)
        return await many_at_once(containers, bundle)
    finally:
        channel.close()


async def execs(containers: ContainerServiceStub, times: Times, bundle: Path) -> None:
    await containers.Run(pb.CreateRequest(spec=spec("home", bundle)))
    with tempfile.TemporaryDirectory(prefix="skerry-runc-state-") as state:
        runc = ["runc", "--root", state]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        config = bundle / "config.json"
        usual = config.read_text()
        document = json.loads(usual)
        document["process"]["args"] = ["/bin/sleep", "600"]
        config.write_text(json.dumps(document))
        subprocess.run([*runc, "run", "--detach", "bench"], cwd=bundle, check=True, **quiet)  # type: ignore[call-overload]
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


async def many_at_once(containers: ContainerServiceStub, bundle: Path) -> dict[str, float]:
    names = [f"m{number}" for number in range(AT_ONCE)]
    begin = time.perf_counter()
    await asyncio.gather(*(containers.Run(pb.CreateRequest(spec=spec(name, bundle))) for name in names))
    middle = time.perf_counter()

    async def remove(name: str) -> None:
        await containers.Stop(pb.StopRequest(container=name, grace_s=0))
        await containers.Remove(pb.RemoveRequest(container=name))

    await asyncio.gather(*map(remove, names))
    return {"start_s": middle - begin, "remove_s": time.perf_counter() - middle}


def spec(name: str, bundle: Path, port: int | None = None) -> pb.ContainerSpec:
    return pb.ContainerSpec(
        name=name,
        image=f"rootfs:{bundle / 'rootfs'}",
        arguments=["/bin/sleep", "600"],
        ports=[] if port is None else [f"{port}:80"],
    )


def make_bundle(folder: Path) -> None:
    """An OCI bundle of busybox."""
    busybox = shutil.which("busybox")
    assert busybox, "busybox is missing: install the packages of system-packages.txt"
    (folder / "rootfs" / "bin").mkdir(parents=True)
    shutil.copy(busybox, folder / "rootfs" / "bin" / "busybox")
    for name in ("true", "sleep"):
        (folder / "rootfs" / "bin" / name).symlink_to("busybox")
    subprocess.run(["runc", "spec"], cwd=folder, check=True)
    document = json.loads((folder / "config.json").read_text())
    document["process"] |= {"args": ["/bin/true"], "terminal": False}
    (folder / "config.json").write_text(json.dumps(document))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
