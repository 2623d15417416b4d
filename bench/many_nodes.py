"""What 1,000 connected nodes with 10,000 instances cost a server, and how soon all are back after a restart.

The server is a whole `skerry server` in a process of its own. Nodes are stand-ins in other processes
(`bench.node_stand_ins`): the agent, session and gRPC client of real nodes, TLS and certificates of the
server's CA included; only containers are missing. The first page of 100,000 instances is asked of another
server, whose store was filled before it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import uvloop

from bench.figures import Figure
from bench.node_stand_ins import INSTANCES_PER_NODE, StandInNode, StandInPlan
from bench.serving import percentile
from skerry.control.instance_index import InstanceTable
from skerry.kit import pki
from skerry.kit.clock import SystemClock
from skerry.model.callers import Role
from skerry.model.ids import InstanceId
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec, ObservedState
from skerry.store.protocol import MAX_OPS
from skerry.store.sqlite.store import SqliteStore

NODES: Final = int(os.environ.get("BENCH_NODES", "1000"))
PROCESSES: Final = 4
INSTANCES: Final = NODES * INSTANCES_PER_NODE
FOLLOWED: Final = min(200, NODES)
LISTED: Final = 100_000
REST_S: Final = 15.0
SETTLE_S: Final = 5.0
FOLLOW_S: Final = 8.0
REQUESTS: Final = 300
_PATIENCE_S: Final = 300.0
_CREATORS: Final = 16


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="skerry-bench-") as name:
        folder = Path(name)
        with _Server(folder) as server:
            empty = server.pss_mb()
            with _stand_ins(folder, server) as stand_ins:
                yield from _sessions(server, stand_ins, empty)
    yield from _first_page()


def _sessions(server: _Server, stand_ins: _StandIns, empty_mb: float) -> Iterator[Figure]:
    stand_ins.until(lambda: stand_ins.total("connected") == NODES)
    connected = server.pss_mb()
    server.create_instances(INSTANCES)
    stand_ins.until(lambda: stand_ins.total("instances") == INSTANCES)
    stand_ins.until(lambda: stand_ins.total("unacknowledged") == 0)
    time.sleep(SETTLE_S)
    yield Figure(
        f"at rest, {NODES:,} connected nodes with {INSTANCES:,} instances",
        server.cpu_share(REST_S) * 100,
        "% of a core",
        at_most=10.0,
        note="processor time of the server's process",
    )
    yield Figure(
        "memory of a server, for each connected node",
        (connected - empty_mb) * 1024 / NODES,
        "KB of PSS",
        note=f"{empty_mb:.0f} MB without nodes, {connected:.0f} MB with them, "
        f"{server.pss_mb():.0f} MB with their instances",
    )
    yield from _followed(server)
    for restarts, (how, number) in enumerate((("stopped", signal.SIGTERM), ("killed", signal.SIGKILL)), 1):
        ended = server.end(number)
        stand_ins.restart_instances()  # while there is no server to report it to
        before = stand_ins.total("cpu_s")
        server.start()
        stand_ins.until(lambda: stand_ins.total("connected") == NODES)
        back = stand_ins.latest("connected_at")
        used = stand_ins.total("cpu_s") - before
        yield Figure(
            f"all {NODES:,} nodes are back after the server was {how}, from its end",
            back - ended,
            "s",
            at_most=10.0,
            note=f"of that {server.ready_at - ended:.1f} s until it was ready again; processor time "
            f"{server.cpu_s():.1f} s of the server, {used:.1f} s of the stand-ins",
        )
        stand_ins.until(lambda: stand_ins.total("unacknowledged") == 0)
        yield Figure(
            "of them, reports that were lost",
            server.count_lost(restarts),
            "instances",
            at_most=0.0,
            note=f"{INSTANCES:,} restarts were reported while there was no server",
        )


def _followed(server: _Server) -> Iterator[Figure]:
    """The logs of one instance on each of so many nodes are followed at once, twice a second a line."""
    chosen = list({each["node_id"]: each["id"] for each in server.instances()}.values())[:FOLLOWED]
    result = uvloop.run(_follow(server, chosen))
    yield Figure(
        f"gaps in {len(chosen)} followed logs on as many nodes",
        result["gaps"],
        "lines",
        at_most=0.0,
        note=f"{result['lines']:,} came in {FOLLOW_S:g} s",
    )
    yield Figure(
        "of them, processor time of the server for a line",
        result["cpu_s"] / max(1, result["lines"]) * 1e6,
        "us",
        note="what it takes at rest included",
    )


async def _follow(server: _Server, instances: list[str]) -> dict[str, float]:
    parts = urlsplit(server.url)
    begun = asyncio.Event()
    waiting = set(instances)

    async def follow(id: str) -> tuple[int, int]:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            head = f"GET /instance/{id}/logs?follow=true HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in answer.split(b"\r\n")[0]:
                raise RuntimeError(f"the logs of {id} are not to be had: {answer!r}")
            lines, gaps = 0, 0
            first = await _line(reader, id)
            waiting.discard(id)
            if not waiting:
                begun.set()
            await begun.wait()
            expected = first + 1
            ends = time.monotonic() + FOLLOW_S
            while time.monotonic() < ends:
                number = await _line(reader, id)
                gaps += number != expected
                expected = number + 1
                lines += 1
            return lines, gaps
        finally:
            writer.close()

    tasks = [asyncio.ensure_future(follow(id)) for id in instances]
    await begun.wait()
    cpu = server.cpu_s()
    done = await asyncio.gather(*tasks)
    return {
        "lines": sum(lines for lines, _ in done),
        "gaps": sum(gaps for _, gaps in done),
        "cpu_s": server.cpu_s() - cpu,
    }


async def _line(reader: asyncio.StreamReader, id: str) -> int:
    """The number of the next line; chunks of the transfer encoding are passed over."""
    while True:
        line = await asyncio.wait_for(reader.readuntil(b"\n"), 60)
        if line.endswith(f" of {id}\n".encode()):
            return int(line.split()[0])


class _Server:
    """A `skerry server` that can be ended and started again, at the same addresses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.data = folder / "data"
        self._listen = {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}
        self.ready_at = 0.0
        self.url = ""

    def __enter__(self) -> _Server:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end(signal.SIGTERM)

    def start(self) -> None:
        ready_file = self._folder / "ready.json"
        ready_file.unlink(missing_ok=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SKERRY_")}
        command = [sys.executable, "-m", "skerry", "server", "--data", str(self.data), "--log-level", "error"]
        command += [f"--{kind}={address}" for kind, address in self._listen.items()]
        command += ["--socket", str(self._folder / "s.sock"), "--ready-file", str(ready_file)]
        command += ["--set", "fleet.reserve_percent=0", "--set", "grpc.max_connections=4096"]
        # On a slow machine the restart takes longer, and then instances would be replaced.
        command += ["--set", "fleet.lost_after_s=300"]
        self._process = subprocess.Popen(command, env=environment)
        while not ready_file.exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode} before it was ready")
            time.sleep(0.01)
        self.ready_at = time.time()
        ready = json.loads(ready_file.read_text())
        self.url = ready["http"]
        self.grpc = ready["grpc"]
        self._listen = {"http": urlsplit(self.url).netloc, "grpc": self.grpc}

    def end(self, number: signal.Signals) -> float:
        """Send it this signal; when it had ended."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60)
        return time.time()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def cpu_share(self, seconds: float) -> float:
        began, cpu = time.monotonic(), self.cpu_s()
        time.sleep(seconds)
        return (self.cpu_s() - cpu) / (time.monotonic() - began)

    def pss_mb(self) -> float:
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024

    def create_instances(self, count: int) -> None:
        spec = {"name": "bench", "uri": "bench.invalid/stand-in:1", "resources": {"cpu": 100, "memory": 16}}
        uvloop.run(_create(self.url, json.dumps(spec).encode(), count))

    def instances(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        cursor = ""
        while True:
            connection.request("GET", f"/instance/?limit=1000&cursor={cursor}")
            reply = connection.getresponse()
            page = json.loads(reply.read())
            if reply.status != 200:
                raise RuntimeError(f"instances are not to be had: {page}")
            found += page["instances"]
            cursor = page["cursor"]
            if not cursor:
                connection.close()
                return found

    def count_lost(self, restarts: int) -> int:
        """Instances of which the server does not know that they have restarted so often."""
        found = self.instances()
        late = [each for each in found if each["restarts"] != restarts]
        return abs(INSTANCES - len(found)) + len(late)


class _StandIns:
    """The processes of the stand-ins."""

    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        self._processes = processes

    def total(self, key: str) -> float:
        return sum(answer[key] for answer in self._ask("status"))

    def latest(self, key: str) -> float:
        return max(answer[key] for answer in self._ask("status"))

    def restart_instances(self) -> None:
        self._ask("restart")

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the stand-ins are not there yet: {self._ask('status')}")
            time.sleep(0.2)

    def _ask(self, command: str) -> list[dict[str, float]]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{command}\n".encode())
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in self._processes if process.stdout]


@contextlib.contextmanager
def _stand_ins(folder: Path, server: _Server) -> Iterator[_StandIns]:
    nodes = _certificates(folder, server.data)
    share = -(-len(nodes) // PROCESSES)
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(PROCESSES):
            plan = folder / f"stand-ins-{number}.json"
            some = nodes[number * share : (number + 1) * share]
            plan.write_bytes(msgspec.json.encode(StandInPlan(str(folder / "ca.pem"), server.grpc, some)))
            process = subprocess.Popen(
                [sys.executable, "-m", "bench.node_stand_ins", str(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        yield _StandIns(processes)


def _certificates(folder: Path, data: Path) -> list[StandInNode]:
    """Certificates of the server's own CA, as nodes get them when they join."""
    authority = pki.CertificateAuthority.load_or_create(data / "pki", SystemClock())
    (folder / "ca.pem").write_bytes(authority.certificate_pem)
    nodes = []
    for number in range(NODES):
        name = f"stand-in-{number:04}"
        key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
        request = pki.SigningRequest.parse(pki.make_request(pki.load_or_create_key(key)))
        issued = authority.issue(request, name=name, role=Role.NODE, lifetime_s=86400, client=True)
        certificate.write_bytes(issued.pem)
        nodes.append(StandInNode(name, str(certificate), str(key)))
    return nodes


async def _create(url: str, body: bytes, count: int) -> None:
    """So many instances of one spec, over a few connections."""
    parts = urlsplit(url)
    head = f"PUT /instance/ HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    turns = iter(range(count))

    async def create() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        for _ in turns:
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in answer.split(b"\r\n")[1:] if line)
            content = await reader.readexactly(int(fields[b"content-length"]))
            if not answer.startswith(b"HTTP/1.1 20"):
                raise RuntimeError(f"an instance was refused: {content.decode()}")
        writer.close()

    await asyncio.gather(*(create() for _ in range(_CREATORS)))


def _first_page() -> Iterator[Figure]:
    """The first page of very many instances, in turns with `/healthz`."""
    with tempfile.TemporaryDirectory(prefix="skerry-bench-") as name:
        folder = Path(name)
        with _Server(folder) as server:
            server.end(signal.SIGTERM)
            uvloop.run(_fill(server.data / "store.db"))
            server.start()
            connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
            took: dict[str, list[float]] = {"/healthz": [], "/instance/": []}
            content = b""
            for _ in range(REQUESTS):
                for path, times in took.items():
                    began = time.perf_counter()
                    connection.request("GET", path)
                    reply = connection.getresponse()
                    content = reply.read()
                    times.append(time.perf_counter() - began)
                    if reply.status != 200:
                        raise RuntimeError(f"GET {path} was answered with {reply.status}")
            page = json.loads(content)
            connection.close()
    health = statistics.median(took["/healthz"])
    yield Figure(
        f"first page of {page['count']:,} instances, p50 against /healthz",
        statistics.median(took["/instance/"]) / health,
        "x",
        at_most=5.0,
        peer=health * 1e3,
        peer_unit="ms",
        peer_name="/healthz",
        note=f"{statistics.median(took['/instance/']) * 1e3:.2f} ms for {len(page['instances'])} instances; "
        f"p99 {percentile(took['/instance/'], 0.99) / health:.1f} x",
    )


async def _fill(path: Path) -> None:
    """Write instances into a store that no server has open."""
    store = await SqliteStore.open(path, SystemClock())
    table = InstanceTable(store)
    now = SystemClock().now()
    spec = InstanceSpec(name="bench", uri="bench.invalid/stand-in:1")
    for first in range(0, LISTED, MAX_OPS):
        ids = [InstanceId(f"{number:026}") for number in range(first, min(first + MAX_OPS, LISTED))]
        await store.commit(
            [
                table.put(
                    id,
                    Instance(id, spec, created_at=now, observed=ObservedState(InstanceStatus.STOPPED, now)),
                )
                for id in ids
            ]
        )
    await store.close()
