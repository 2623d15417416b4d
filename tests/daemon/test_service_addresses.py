"""A service of a whole Skerry by its virtual address: from containers and the node, through updates, kills
and a clean stop."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.support import imagery
from tests.support.remains import left_of
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

# Finishes what is under way before it ends: a graceful stop.
SERVES = "echo $VERSION > /www/index.html; exec httpd -f -p 8080 -h /www"
CHECK = {"role": "readiness", "method": "http", "port": 8080, "interval_s": 0.3, "timeout_s": 2}


class Client:
    """Requests to one address, one after the other, each on a connection of its own."""

    def __init__(self, address: str) -> None:
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._address = address
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _send(self) -> None:
        while not self._is_over.wait(0.01):
            try:
                self.answers[page(self._address)] += 1
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))


def page(address: str, port: int = 80) -> str:
    connection = http.client.HTTPConnection(address, port, timeout=10.0)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode().strip()
    finally:
        connection.close()


def seen(skerry: Skerry) -> dict[str, Any]:
    status, document = skerry.call("GET", "/service/web")
    assert status == 200, document
    return dict(document)


def until_healthy(skerry: Skerry, revision: int) -> dict[str, Any]:
    def is_so() -> bool:
        document = seen(skerry)
        copies = document["copies"]
        return (
            document["status"] == "HEALTHY"
            and len(copies) == document["replicas"]
            and all(each["ready"] and each["revision"] == revision for each in copies)
        )

    eventually_sync(is_so, what=f"a healthy service at revision {revision}")
    return seen(skerry)


def answers_at(address: str, expected: str) -> None:
    def is_so() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return page(address) == expected
        return False

    eventually_sync(is_so, what=f"{expected!r} from {address}")


def is_refused(address: str, port: int = 80) -> bool:
    try:
        page(address, port)
    except ConnectionRefusedError:
        return True
    return False


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = imagery.busybox(command=("sh", "-c", SERVES))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'web.tar')}"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Containers outlive a server: at the end, whatever became of the test, none is left."""
    yield tmp_path
    if (tmp_path / "clean").exists():
        return
    with running(tmp_path) as skerry:
        skerry.call("DELETE", "/service/web")
        eventually_sync(lambda: skerry.call("GET", "/instance/")[1]["count"] == 0, what="an empty node")


def test_a_service_is_reached_by_its_address_through_updates_kills_and_restarts(
    folder: Path, image: str
) -> None:
    with contextlib.ExitStack() as stack:
        skerry = Skerry(folder)
        stack.callback(lambda: skerry.process.poll() is None and skerry.kill())
        skerry.wait_ready()
        spec = {
            "name": "web",
            "image": image,
            "replicas": 3,
            "environment": ["VERSION=1"],
            "service_ports": ["80:8080=http"],
            "resources": {"cpu": 50, "memory": 32},
            "checks": [CHECK],
            "update": {"min_ready_s": 0, "drain_s": 1, "max_surge": 3},
        }
        status, made = skerry.call("PUT", "/service/", spec)
        assert status == 201, made
        revision = made["revision"]
        address = until_healthy(skerry, revision)["address"]
        answers_at(address, "1")
        assert is_refused(address, 8080)  # of the copies, not of the address
        assert address in skerry.cli("service", "list").stdout
        assert f"{address} (80:8080=http)" in skerry.cli("service", "describe", "web").stdout

        fetched = skerry.cli("container", "run", "--rm", image, "wget", "-qO-", f"http://{address}/")
        assert (fetched.stdout, fetched.returncode) == ("1\n", 0), fetched.stderr

        # An update, and a copy that is taken away: no request fails.
        with Client(address) as first, Client(address) as second:
            skerry.call("PATCH", "/service/web", {"environment": ["VERSION=2"]})
            until_healthy(skerry, revision + 1)
            skerry.call("POST", "/service/web/scale", {"replicas": 2})
            until_healthy(skerry, revision + 1)
            answers_at(address, "2")
        assert first.failures + second.failures == []
        assert (first.answers + second.answers).keys() == {"1", "2"}

        # The agent dies, and the rules stay; its successor takes them over.
        with Client(address) as client:
            skerry.kill()
            before = client.answers.total()
            eventually_sync(lambda: client.answers.total() > before + 10, what="answers without an agent")
            skerry = Skerry(folder)
            skerry.wait_ready()
            until_healthy(skerry, revision + 1)
        assert client.failures == []
        assert seen(skerry)["address"] == address

        # It follows changes again: without copies, connections are refused.
        skerry.call("POST", "/service/web/scale", {"replicas": 0})
        eventually_sync(lambda: is_refused(address), what="refused connections")
        skerry.call("POST", "/service/web/scale", {"replicas": 1})
        answers_at(address, "2")

        skerry.call("DELETE", "/service/web")
        eventually_sync(lambda: skerry.call("GET", "/instance/")[1]["count"] == 0, what="an empty node")
        assert skerry.stop() == 0
        (folder / "clean").touch()
        assert left_of(skerry) == []
