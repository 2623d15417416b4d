"""What scrapes of `/metrics` cost a server: of a core, at a hundred in a minute, with many instances.

A whole Skerry has the instances, of which none finds a node, and is scraped over HTTP as Prometheus does.
What one text costs with running instances on many nodes is measured on the real control plane in this
process, whose nodes pretend (`skerry.sim`), and printed beside it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from bench.cluster import run, running_instances
from bench.figures import Figure
from bench.serving import skerry
from skerry.control.telemetry.instance_metrics import InstanceMetrics
from skerry.control.telemetry.node_metrics import NodeMetrics
from skerry.control.telemetry.service_metrics import JobMetrics, ReadyCopies, ServiceMetrics
from skerry.kit.metrics import ExpositionCache, Registry

NODES, INSTANCES = 200, 1_000
SCRAPES_PER_MINUTE = 100
_WINDOW_S, _WINDOWS = 24.0, 3
_TEXTS = 40


def measure() -> Iterator[Figure]:
    alone, scraped, size, series = _scraping()
    yield Figure(
        f"{SCRAPES_PER_MINUTE} scrapes a minute with {INSTANCES:,} instances",
        (scraped - alone) * 100,
        "% of a core",
        at_most=1.0,
        note=f"{series} series, {size:,} bytes",
        peer=alone * 100,
        peer_unit="% of a core",
        peer_name="without any",
    )
    took, size = run(_text())
    yield Figure(
        f"one text of {INSTANCES:,} instances on {NODES} nodes",
        took * 1e3,
        "ms of processor time",
        note=f"{size:,} bytes; scrapes share one that takes long",
    )


def _scraping() -> tuple[float, float, int, int]:
    """The share of a core that a server takes without scrapes, and with them; and the size of a text."""
    with skerry(role="server") as ready:
        host, pid = urlsplit(str(ready["http"])).netloc, int(ready["pid"])
        _create(host)
        text = _scrape(host)
        time.sleep(5)
        alone, scraped = [], []
        for _ in range(_WINDOWS):
            alone.append(_share(pid, 0, host))
            scraped.append(_share(pid, SCRAPES_PER_MINUTE, host))
        lines = [line for line in text.splitlines() if line and not line.startswith(b"#")]
        return statistics.median(alone), statistics.median(scraped), len(text), len(lines)


def _share(pid: int, per_minute: int, host: str) -> float:
    began, cpu = time.monotonic(), _cpu_s(pid)
    for number in range(round(per_minute * _WINDOW_S / 60)):
        time.sleep(max(0.0, began + number * 60 / per_minute - time.monotonic()))
        _scrape(host)
    time.sleep(max(0.0, began + _WINDOW_S - time.monotonic()))
    return (_cpu_s(pid) - cpu) / (time.monotonic() - began)


def _create(host: str) -> None:
    with closing(http.client.HTTPConnection(host)) as connection:
        for number in range(INSTANCES):
            body = {"name": f"one-{number}", "uri": "example.org/none:1"}
            connection.request(
                "PUT",
                f"/instance/?namespace=team-{number % 20}",
                json.dumps(body),
                {"Content-Type": "application/json"},
            )
            reply = connection.getresponse()
            content = reply.read()
            if reply.status >= 300:
                raise RuntimeError(f"PUT /instance/ was answered with {reply.status}: {content.decode()}")


def _scrape(host: str) -> bytes:
    with closing(http.client.HTTPConnection(host, timeout=60)) as connection:
        connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"GET /metrics was answered with {reply.status}")
        return reply.read()


def _cpu_s(pid: int) -> float:
    """The processor time of all its threads; in ticks, as /proc/PID/stat has it, it would be too coarse."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def _text() -> tuple[float, int]:
    async with running_instances(NODES, INSTANCES) as server:
        registry = Registry()
        ready = ReadyCopies(server.instance_table, server.nodes)
        for collector in (
            NodeMetrics(
                server.nodes, server.reconciler, server.instance_table.index, server.instances.usages
            ),
            InstanceMetrics(server.instance_table),
            ServiceMetrics(server.services.tables, ready),
            JobMetrics(server.job_table),
        ):
            registry.register(collector)
        took, size = [], 0
        for _ in range(_TEXTS):
            began = time.process_time()
            size = len((await ExpositionCache(registry).render()).content)
            took.append(time.process_time() - began)
            await asyncio.sleep(0)
        return statistics.median(took), size
