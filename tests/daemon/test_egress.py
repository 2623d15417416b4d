"""Instances of a whole Skerry, one of them in a namespace that may reach the internet only."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import imagery
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

# Says again and again whether a page of the node can be had.
FETCH = (
    "while true; do printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 1 $PAGE 2>&1 | grep -q 200 "
    "&& echo open || echo closed; sleep 0.1; done"
)


class Empty(http.server.BaseHTTPRequestHandler):
    """A page without words."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def page() -> Iterator[int]:
    """A page at every address of this machine, by its port."""
    with http.server.ThreadingHTTPServer(("0.0.0.0", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def emptied(folder: Path) -> Iterator[None]:
    """Containers outlive a server: at the end, whatever became of the test, none is left."""
    try:
        yield
    finally:
        with running(folder) as skerry:
            for each in skerry.call("GET", "/instance/?namespace=*")[1]["instances"]:
                skerry.call("DELETE", f"/instance/{each['id']}")
            eventually_sync(
                lambda: skerry.call("GET", "/instance/?namespace=*")[1]["count"] == 0,
                what="an empty node",
            )


def says(skerry: Skerry, id: str, word: str) -> None:
    """Wait until that is what it says now, and has said more than once."""

    def is_said() -> bool:
        _, logs = skerry.call("GET", f"/instance/{id}/logs")
        return isinstance(logs, str) and logs.split()[-3:] == [word] * 3

    eventually_sync(is_said, what=f"{word} from {id}")


def test_the_node_is_closed_to_a_namespace_and_opened_again_without_a_restart_of_its_instances(
    tmp_path: Path,
) -> None:
    made = imagery.busybox(command=("sh", "-c", FETCH))
    image = f"oci-archive:{imagery.write_oci_archive(made, tmp_path / 'fetch.tar')}"
    instances: dict[str, str] = {}
    with page() as port, emptied(tmp_path):
        with running(tmp_path, "--set", "fleet.egress=shop=internet") as skerry:
            gateway = skerry.subnet.replace(".0/24", ".1")
            spec = {"name": "fetch", "uri": image, "env": [f"PAGE={gateway} {port}"]}
            for namespace in ("default", "shop"):
                status, said = skerry.call("PUT", f"/namespace/{namespace}/instance/", spec)
                assert status == 201, said
                instances[namespace] = said["id"]
            says(skerry, instances["default"], "open")
            says(skerry, instances["shop"], "closed")
        with running(tmp_path) as skerry:
            says(skerry, instances["shop"], "open")
            assert skerry.call("GET", f"/instance/{instances['shop']}")[1]["restarts"] == 0
            _, logs = skerry.call("GET", f"/instance/{instances['shop']}/logs")
            assert logs.split()[0] == "closed"  # it is the run of before
