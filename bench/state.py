"""What state costs at a start: an instance with two secrets and a volume against the same without.

From the request to the server until the instance is RUNNING, as a client sees it: placement, the order, the
request of the node for the values, the container. Both take turns, so that whatever else the machine does
hits them alike, and each begins when the one before is removed. The volume exists before.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.containers import make_bundle
from bench.figures import Figure
from bench.serving import percentile, skerry

ROUNDS = 60
LOOK_S = 0.001
PAUSE_S = 0.1
SECRETS = ["first", {"name": "second", "target": "/etc/second"}]
VOLUMES = ["data:/data"]


def measure() -> Iterator[Figure]:
    without: list[float] = []
    with_secrets: list[float] = []
    with_both: list[float] = []
    with tempfile.TemporaryDirectory(prefix="skerry-state-") as name, skerry() as ready:
        make_bundle(Path(name))
        image = f"rootfs:{name}/rootfs"
        split = urlsplit(ready["http"])
        with closing(http.client.HTTPConnection(split.hostname or "", split.port)) as client:
            for secret in ("first", "second"):
                ask(client, "PUT", f"/secret/{secret}", {"text": secret * 100})
            start(client, image)
            start(client, image, secrets=SECRETS)
            ask(client, "PUT", "/volume/", {"name": "data", "size": 1})
            start(client, image, secrets=SECRETS, volumes=VOLUMES)
            for _ in range(ROUNDS):
                without.append(start(client, image))
                with_secrets.append(start(client, image, secrets=SECRETS))
                with_both.append(start(client, image, secrets=SECRETS, volumes=VOLUMES))
            ask(client, "DELETE", "/volume/data")
            while ask(client, "GET", "/volume/")["count"]:
                time.sleep(LOOK_S)
    plain = percentile(without, 0.5)
    yield Figure("start of an instance, p50", plain * 1e3, "ms")
    yield Figure(
        "the same with two secrets, p50",
        percentile(with_secrets, 0.5) / plain,
        "x without",
        at_most=1.15,
        note="one in /run/secrets and one at a path; the node asks the server for each",
        peer=plain * 1e3,
        peer_unit="ms",
        peer_name="without",
    )
    yield Figure(
        "the same with two secrets and a volume, p50",
        percentile(with_both, 0.5) / plain,
        "x without",
        at_most=1.15,
        note="a volume of 1 GB that exists",
        peer=plain * 1e3,
        peer_unit="ms",
        peer_name="without",
    )
    yield Figure("the same, p99", percentile(with_both, 0.99) / percentile(without, 0.99), "x without")


def start(client: http.client.HTTPConnection, image: str, **more: Any) -> float:
    """Seconds until an instance runs; it is removed after that."""
    body = {"name": "bench", "uri": image, "arguments": ["sleep", "1000"], "stop_grace_s": 0, **more}
    began = time.perf_counter()
    id = ask(client, "PUT", "/instance/", body)["id"]
    while ask(client, "GET", f"/instance/{id}")["status"] != "RUNNING":
        time.sleep(LOOK_S)
    seconds = time.perf_counter() - began
    ask(client, "DELETE", f"/instance/{id}")
    while ask(client, "GET", "/instance/")["count"]:
        time.sleep(LOOK_S)
    time.sleep(PAUSE_S)
    return seconds


def ask(client: http.client.HTTPConnection, verb: str, path: str, body: Any = None) -> Any:
    client.request(verb, path, body=None if body is None else json.dumps(body))
    with client.getresponse() as response:
        data = response.read()
        if response.status >= 400:
            raise RuntimeError(f"{verb} {path}: {response.status} {data.decode()}")
        return json.loads(data) if data else {}
