"""Requests through a route against HAProxy that was configured by hand, and a request that starts a service
against the start of a container, each pair in one run.

Both HAProxys have the same backend, a third one that answers at once. The one by hand is what a good operator
writes for one site: it passes the client's address, protocol, host and a request id on, as a route does, and
nothing else. Each has one thread on a processor of its own while the load and the backend have another, so
that it is the proxy that is saturated; they take turns. Two ratios are promised: requests per second, and
requests per second of processor time, which other programs on the machine disturb less.

The cold request goes through a whole Skerry with one node: it is held while a copy of a service with none
starts, which is checked before and after. What it is compared with is an instance of the same image on the
same Skerry, from the request to its first answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import imagery
from tests.support.skerry import Skerry, running

from bench.figures import Figure
from skerry.model.ids import InstanceId, Namespace, NodeId, ServiceId
from skerry.model.network_objects import ServiceAddress, ServiceEndpoint, ServicePort
from skerry.model.node_messages import NetworkUpdate
from skerry.model.route_settings import RouteSettings
from skerry.model.routes import RouteObject, RouteSpec, RouteTarget
from skerry.node.agent.network_state import NetworkState
from skerry.node.routes.config import EdgeFiles
from skerry.node.routes.edge import EdgeRoutes

SECONDS, ROUNDS, CONNECTIONS = 1, 9, 32
COLD_STARTS = 5
_HOST = "shop.example.org"
_DEFAULT = Namespace("default")
_RATE = re.compile(r"Requests/sec:\s+([0-9.]+)")
_COUNT = re.compile(r"([0-9]+) requests in")
_BACKEND = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend copies
    bind 127.0.0.1:{port}
    http-request return status 200 content-type text/plain string hello
"""
_BY_HAND = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend edge
    bind 127.0.0.1:{port}
    http-request set-header X-Forwarded-For %[src]
    http-request set-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]
    http-request set-header X-Forwarded-Host %[req.hdr(host)]
    http-request set-header X-Request-Id %[uuid()] if !{{ req.hdr(x-request-id) -m found }}
    use_backend web if {{ req.hdr(host) -i {host} }}
backend web
    balance leastconn
    server c1 127.0.0.1:{backend}
"""


def measure() -> Iterator[Figure]:
    yield from asyncio.run(_throughput())
    yield from _cold_starts()


async def _throughput() -> list[Figure]:
    backend, by_hand, routed = free_ports(3)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as undo:
        folder = Path(name)
        load_cpu, proxy_cpu = _processors()
        undo.enter_context(_haproxy(load_cpu, folder / "copies.cfg", _BACKEND.format(port=backend)))
        text = _BY_HAND.format(port=by_hand, host=_HOST, backend=backend)
        hand_pid = undo.enter_context(_haproxy(proxy_cpu, folder / "hand.cfg", text))
        pinned = folder / "haproxy"
        pinned.write_text(f'#!/bin/sh\nexec taskset -c {proxy_cpu} haproxy "$@"\n')
        pinned.chmod(0o700)
        sockets = folder / "sockets"
        state = NetworkState(folder / "network.json")
        edge = EdgeRoutes(
            EdgeFiles(folder / "routes", sockets, sockets / "web.sock"),
            RouteSettings(http=f"127.0.0.1:{routed}", https="", program=str(pinned)),
            state,
        )
        endpoint = ServiceEndpoint(InstanceId("a"), NodeId("n"), "127.0.0.1")
        service = ServiceAddress(
            ServiceId("s"), "web", _DEFAULT, ports=(ServicePort(80, backend),), endpoints=(endpoint,)
        )
        route = RouteObject("r1", "r1", _DEFAULT, RouteSpec(_HOST, "/", RouteTarget.parse("service/web")))
        state.apply(NetworkUpdate(True, (service, route)))
        await edge.open()
        try:
            await edge.apply()
            pids = {by_hand: hand_pid, routed: _worker(edge.pid)}
            runs: dict[int, list[_Run]] = {by_hand: [], routed: []}
            for _ in range(ROUNDS):
                for port, seen in runs.items():
                    seen.append(await asyncio.to_thread(_load, load_cpu, port, pids[port]))
        finally:
            await edge.close()
    pairs = list(zip(runs[by_hand], runs[routed], strict=True))
    hand = statistics.median(one.per_s for one in runs[by_hand])
    return [
        Figure("HAProxy configured by hand", hand, "requests/s", note=f"{CONNECTIONS} connections"),
        Figure(
            "requests per second through a route",
            statistics.median(ours.per_s / hand.per_s for hand, ours in pairs),
            "x HAProxy by hand",
            at_least=0.9,
            note=f"{statistics.median(one.per_s for one in runs[routed]):,.0f}/s",
            peer=hand,
            peer_unit="requests/s",
            peer_name="HAProxy by hand",
        ),
        Figure(
            "requests per second of processor time",
            statistics.median(ours.per_cpu_s / hand.per_cpu_s for hand, ours in pairs),
            "x HAProxy by hand",
            at_least=0.9,
            note=f"{statistics.median(one.per_cpu_s for one in runs[routed]):,.0f}/s",
            peer=statistics.median(one.per_cpu_s for one in runs[by_hand]),
            peer_unit="requests/s",
            peer_name="HAProxy by hand",
        ),
    ]


def _processors() -> tuple[str, str]:
    """For the load, and for the proxy that is measured; the same if there is but one."""
    available = sorted(os.sched_getaffinity(0))
    return str(available[0]), str(available[-1])


class _Run(NamedTuple):
    per_s: float
    per_cpu_s: float


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _worker(master: int | None) -> int:
    assert master is not None
    return int(Path(f"/proc/{master}/task/{master}/children").read_text().split()[-1])


def _load(cpu: str, port: int, pid: int) -> _Run:
    before = _cpu_s(pid)
    output = subprocess.run(
        [
            "taskset",
            "-c",
            cpu,
            "wrk",
            "-t1",
            f"-c{CONNECTIONS}",
            f"-d{SECONDS}s",
            "-H",
            f"Host: {_HOST}",
            f"http://127.0.0.1:{port}/",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "Non-2xx" not in output, output
    found, count = _RATE.search(output), _COUNT.search(output)
    assert found, output
    assert count, output
    return _Run(float(found[1]), int(count[1]) / (_cpu_s(pid) - before))


@contextlib.contextmanager
def _haproxy(cpu: str, path: Path, text: str) -> Iterator[int]:
    path.write_text(text)
    command = ["taskset", "-c", cpu, "haproxy", "-db", "-q", "-f", str(path)]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as undo:
        sockets = [undo.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def _cold_starts() -> Iterator[Figure]:
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = imagery.busybox(
            command=("sh", "-c", "echo hello > /www/index.html; exec httpd -f -p 80 -h /www")
        )
        image = f"oci-archive:{imagery.write_oci_archive(made, folder / 'web.tar')}"
        flags = ("--set", f"routes.http=127.0.0.1:{port}", "--set", "routes.https=")
        with running(folder, *flags) as skerry:
            containers, requests = [], []
            _warm_up(skerry, image, port)
            for number in range(COLD_STARTS):
                containers.append(_container_start(skerry, image, number))
                requests.append(_cold_request(skerry, image, port, number))
            for service in _call(skerry, "GET", "/service/")["services"]:
                _call(skerry, "DELETE", f"/service/{service['name']}")
            _until(lambda: not _call(skerry, "GET", "/instance/")["instances"])
    container, request = statistics.median(containers), statistics.median(requests)
    yield Figure("start of a container, to its first answer", container * 1000, "ms")
    yield Figure(
        "a request through a route that starts a service",
        request / container,
        "x container start",
        at_most=2.0,
        note=f"{request * 1000:.0f} ms",
        peer=container * 1000,
        peer_unit="ms",
        peer_name="container start",
    )


def _warm_up(skerry: Skerry, image: str, port: int) -> None:
    """The image is unpacked, and HAProxy runs."""
    _container_start(skerry, image, 99)
    _cold_request(skerry, image, port, 99)


def _container_start(skerry: Skerry, image: str, number: int) -> float:
    body = {"name": f"i{number}", "uri": image, "resources": {"cpu": 50, "memory": 32}}
    began = time.perf_counter()
    made = _call(skerry, "PUT", "/instance/", body)
    address = _until(lambda: _call(skerry, "GET", f"/instance/{made['id']}")["ip"])
    _until(lambda: _answers(str(address), 80, "x"))
    took = time.perf_counter() - began
    _call(skerry, "DELETE", f"/instance/{made['id']}")
    return took


def _cold_request(skerry: Skerry, image: str, port: int, number: int) -> float:
    name = f"s{number}"
    scaling = {"min": 0, "max": 1, "metric": "requests", "idle_s": 600}
    _call(
        skerry,
        "PUT",
        "/service/",
        {"name": name, "image": image, "resources": {"cpu": 50, "memory": 32}, "autoscale": scaling},
    )
    # Known to the edge when a method that the route does not have gets 405: such a request starts nothing.
    place = {"host": f"{name}.test", "to": f"service/{name}:80", "methods": ["GET"]}
    _call(skerry, "PUT", "/route/", place)
    _until(lambda: _status(port, f"{name}.test", "PUT") == 405)
    before = _call(skerry, "GET", f"/service/{name}")
    assert (before["replicas"], before["copies"]) == (0, []), "there is no copy before the request"
    began = time.perf_counter()
    assert _answers("127.0.0.1", port, f"{name}.test"), "it is held until a copy answers"
    took = time.perf_counter() - began
    assert _call(skerry, "GET", f"/service/{name}")["copies"], "the request started one"
    return took


def _status(port: int, host: str, method: str) -> int:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        try:
            connection.request(method, "/", headers={"Host": host})
            return connection.getresponse().status
        except OSError:
            return 0


def _answers(address: str, port: int, host: str) -> bool:
    with contextlib.closing(http.client.HTTPConnection(address, port, timeout=60)) as connection:
        try:
            connection.request("GET", "/", headers={"Host": host})
            return connection.getresponse().status == 200
        except OSError:
            return False


def _call(skerry: Skerry, verb: str, path: str, body: object = None) -> dict[str, Any]:
    status, answer = skerry.call(verb, path, body)
    assert status < 300, (status, answer)
    return dict(answer)


def _until(condition: Callable[[], object]) -> object:
    while not (value := condition()):
        time.sleep(0.005)
    return value
