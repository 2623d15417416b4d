"""Functions over HTTP, against a bare ASGI echo, the floor of a call (`bench.floor`), `runc run` and
`node -e 0` in the same run.

Rounds of what is compared are interleaved, so that whatever else the machine does hits both alike. Load is
made by wrk, over loopback, for a few seconds.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bench.cells import family_pss_kb, make_bundle, runc_run
from bench.figures import Figure
from bench.floor import floor
from bench.serving import percentile, skerry

ROUNDS = 9
LOAD_S = 1
SEQUENTIAL_S = 1
CONNECTIONS = 32
COLD_ROUNDS = 10
COLD_PER_ROUND = 4
NODE_PER_ROUND = 1
AT_ONCE = 100
IDLE_WORKERS = 10
WORKERS = 2
PYTHON = {"noop.py": "def handler(params, context):\n    return {}\n"}
NODE = {"noop.js": "module.exports = () => ({});\n"}
BODY = '{"Params": {}}'
FLAGS = ("--set", "functions.memory_mb=4096")
ECHO = """
async def app(scope, receive, send):
    body = (await receive())["body"]
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""


def measure() -> Iterator[Figure]:
    with skerry(*FLAGS) as ready, tempfile.TemporaryDirectory(prefix="skerry-fn-") as name:
        folder = Path(name)
        client = Client(ready["http"])
        yield from warm(client, folder)
        yield from cold(client, folder)
        yield from crowd(client)
        yield from memory(client, ready["pid"])


def warm(client: Client, folder: Path) -> Iterator[Figure]:
    client.create("noop", "python310", "noop.handler", PYTHON)
    client.post("/prewarm", {"Function": "noop", "Instances": WORKERS})
    script = write_script(folder)
    loads: dict[str, list[Load]] = {}
    alone: dict[str, list[Load]] = {}
    with echo(folder) as echoing, floor(WORKERS) as least:
        targets = {"echo": echoing, "floor": least, "ours": f"{client.url}/invoke/noop"}
        for url in targets.values():
            wrk(url, script, CONNECTIONS, 1)
        for _ in range(ROUNDS):
            for who, url in targets.items():
                loads.setdefault(who, []).append(wrk(url, script, CONNECTIONS, LOAD_S))
                alone.setdefault(who, []).append(wrk(url, script, 1, SEQUENTIAL_S))
    note = f"{CONNECTIONS} connections"
    yield Figure(
        "bare ASGI echo", percentile([load.rate for load in loads["echo"]], 0.5), "calls/s", note=note
    )
    yield Figure(
        "floor: HTTP, a worker over a socketpair, nothing else",
        percentile([load.rate for load in loads["floor"]], 0.5),
        "calls/s",
        note=note,
    )
    rate = percentile([load.rate for load in loads["ours"]], 0.5)
    yield Figure("warm calls", rate, "calls/s", note=f"no-op Python function, {note}")
    # Of each round, what was measured in the same few seconds: the machine's own pace changes over the run.
    for other, least_share in (("echo", 0.40), ("floor", 0.30)):
        yield Figure(
            "warm calls",
            _median_ratio(loads, other, "rate"),
            f"x {other}",
            at_least=least_share,
            peer=percentile([load.rate for load in loads[other]], 0.5),
            peer_unit="calls/s",
            peer_name=other,
        )
    yield Figure(
        "warm calls, p99",
        _median_tail(loads["ours"]),
        "x p50",
        at_most=4.0,
        note=note,
        peer=_median_tail(loads["floor"]),
        peer_unit="x its own p50",
        peer_name="floor",
    )
    one = "warm call, one after the other, p50"
    yield Figure(
        one,
        _median_ratio(alone, "echo", "p50_s"),
        "x echo",
        at_most=2.2,
        peer=percentile([load.p50_s for load in alone["echo"]], 0.5) * 1e6,
        peer_unit="us",
        peer_name="echo",
    )
    yield Figure(one, _median_ratio(alone, "floor", "p50_s"), "x floor")


def _median_tail(loads: list[Load]) -> float:
    return percentile([load.p99_s / load.p50_s for load in loads], 0.5)


def _median_ratio(loads: dict[str, list[Load]], other: str, field: str) -> float:
    pairs = zip(loads["ours"], loads[other], strict=True)
    return percentile([getattr(ours, field) / getattr(theirs, field) for ours, theirs in pairs], 0.5)


def cold(client: Client, folder: Path) -> Iterator[Figure]:
    bundle = folder / "bundle"
    bundle.mkdir()
    make_bundle(bundle)
    python, node, runc, bare_node = [], [], [], []
    for turn in range(COLD_ROUNDS):
        names = [f"cold-{turn}-{number}" for number in range(COLD_PER_ROUND)]
        for name in names:
            client.create(name, "python310", "noop.handler", PYTHON)
        client.create(f"node-{turn}", "nodejs17", "noop", NODE)
        runc += [runc_run(bundle, turn * COLD_PER_ROUND + number) for number in range(COLD_PER_ROUND)]
        python += [client.first_call(name) for name in names]
        for _ in range(NODE_PER_ROUND):
            begin = time.perf_counter()
            subprocess.run(["node", "-e", "0"], check=True)
            bare_node.append(time.perf_counter() - begin)
        node.append(client.first_call(f"node-{turn}"))
        for name in (*names, f"node-{turn}"):
            client.post("/delete", {"Name": name})
    yield Figure("runc run of a static true, p50", percentile(runc, 0.5) * 1e3, "ms")
    yield Figure(
        "cold call of a Python function, p50",
        percentile(python, 0.5) / percentile(runc, 0.5),
        "x runc run",
        at_most=0.5,
        peer=percentile(runc, 0.5) * 1e3,
        peer_unit="ms",
        peer_name="runc run",
    )
    yield Figure(
        "cold call of a Python function, p99", percentile(python, 0.99) / percentile(runc, 0.5), "x runc run"
    )
    yield Figure(
        "cold call of a Node.js function, p50",
        percentile(node, 0.5) / percentile(bare_node, 0.5),
        "x node -e 0",
        at_most=2.0,
        peer=percentile(bare_node, 0.5) * 1e3,
        peer_unit="ms",
        peer_name="node -e 0",
    )


def crowd(client: Client) -> Iterator[Figure]:
    """Many functions that nobody has called before, called at the same moment."""
    names = [f"crowd-{number}" for number in range(AT_ONCE)]
    for name in names:
        client.create(name, "python310", "noop.handler", PYTHON)
    begin = threading.Barrier(AT_ONCE)
    times: list[float] = []
    failed: list[str] = []

    def call(name: str) -> None:
        with Client(client.url) as own:
            begin.wait()
            try:
                times.append(own.first_call(name))
            except RuntimeError as error:
                failed.append(str(error))

    threads = [threading.Thread(target=call, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        client.post("/delete", {"Name": name})
    yield Figure(f"{AT_ONCE} cold functions at once that fail", len(failed), "calls", at_most=0)
    if times:
        yield Figure(f"{AT_ONCE} cold functions at once, p99", percentile(times, 0.99) * 1e3, "ms")


def memory(client: Client, pid: int) -> Iterator[Figure]:
    client.create("idle", "python310", "noop.handler", PYTHON)
    before = family_pss_kb(pid)
    made = client.post("/prewarm", {"Function": "idle", "Instances": IDLE_WORKERS})["Prewarmed"]
    used = family_pss_kb(pid) - before
    yield Figure(
        "memory of an idle Python worker",
        used / made / 1024,
        "MB of PSS",
        at_most=12,
        note=f"mean of {made}, with the inits of their cells",
    )


class Client:
    """One connection that is kept."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._connection.connect()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = self._ask("POST", path, json.dumps(body))
        return told

    def _ask(self, verb: str, path: str, body: str | None) -> Any:
        self._connection.request(verb, path, body, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status not in (200, 201):
            raise RuntimeError(f"{path}: {answer.status} {text.decode(errors='replace')[:500]}")
        return json.loads(text)

    def create(self, name: str, runtime: str, handler: str, files: dict[str, str], **more: str) -> None:
        body = {
            "Name": name,
            "Runtime": runtime,
            "MemoryMB": 32 if runtime.startswith("python") else 128,
            "Handler": handler,
            "TarFunctionCode": archive(files),
            **more,
        }
        self.post("/create", body)

    def first_call(self, name: str) -> float:
        begin = time.perf_counter()
        report = self.post(f"/invoke/{name}", {"Params": {}})
        took = time.perf_counter() - begin
        if not report["Success"] or report["IsWarmStart"]:
            raise RuntimeError(f"not a cold call that worked: {report}")
        return took


def archive(files: dict[str, str]) -> str:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return base64.b64encode(packed.getvalue()).decode()


@contextlib.contextmanager
def echo(folder: Path) -> Iterator[str]:
    """A bare uvicorn that answers with what it was sent."""
    (folder / "echoing.py").write_text(ECHO)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "uvicorn", "echoing:app", "--app-dir", str(folder)),
            *("--host", "127.0.0.1", "--port", "0", "--loop", "uvloop", "--http", "httptools"),
            "--no-access-log",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        found = None
        while found is None:
            line = process.stderr.readline()
            if not line:
                raise RuntimeError("uvicorn ended before it listened")
            found = re.search(r"http://[0-9.:]+", line)
        yield found[0]
    finally:
        process.terminate()
        process.wait(10)
        process.stderr.close()


def write_script(folder: Path, token: str = "", name: str = "post.lua") -> Path:
    """What wrk is to send."""
    script = folder / name
    text = f'wrk.method = "POST"\nwrk.body = \'{BODY}\'\nwrk.headers["Content-Type"] = "application/json"\n'
    if token:
        text += f'wrk.headers["Authorization"] = "Bearer {token}"\n'
    script.write_text(text)
    return script


class Load(NamedTuple):
    """What wrk has measured."""

    rate: float  # calls per second
    p50_s: float
    p99_s: float


def wrk(url: str, script: Path, connections: int, seconds: int, *, prefix: tuple[str, ...] = ()) -> Load:
    program = shutil.which("wrk")
    assert program, "wrk is missing: install the packages of system-packages.txt"
    told = subprocess.run(
        [*prefix, program, "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script), url],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)|Socket errors: (.*)", told)
    if bad:
        raise RuntimeError(f"calls failed under load: {bad[0]}")
    rate = re.search(r"Requests/sec:\s+([0-9.]+)", told)
    assert rate, told
    return Load(float(rate[1]), _latency_s(told, 50), _latency_s(told, 99))


def _latency_s(told: str, percent: int) -> float:
    found = re.search(rf"{percent}%\s+([0-9.]+)(us|ms|s)", told)
    assert found, told
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[found[2]]
