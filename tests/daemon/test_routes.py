"""Routes of a whole Skerry with real containers: updates and scaling under load, a start from zero, kills,
and a clean stop."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import imagery
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="containers need root"),
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
]

SERVES = "echo $VERSION > /www/index.html; exec httpd -f -p 80 -h /www"
CHECK = {"role": "readiness", "method": "http", "port": 80, "interval_s": 0.3, "timeout_s": 2}
QUICK = {"min_ready_s": 0.2, "drain_s": 1, "deadline_s": 60}


class Site:
    """A Skerry with its routes."""

    def __init__(self, skerry: Skerry, port: int, image: str) -> None:
        self.skerry = skerry
        self.port = port
        self.image = image

    def call(self, verb: str, path: str, body: Any = None) -> Any:
        status, answer = self.skerry.call(verb, path, body)
        assert status < 300, (status, answer)
        return answer

    def service(self, name: str, **fields: Any) -> None:
        self.call(
            "PUT",
            "/service/",
            {
                "name": name,
                "image": self.image,
                "environment": ["VERSION=1"],
                "resources": {"cpu": 50, "memory": 32},
                "checks": [CHECK],
                "update": QUICK,
                **fields,
            },
        )

    def get(self, host: str) -> tuple[int, str]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("GET", "/", headers={"Host": host})
            answer = connection.getresponse()
            return answer.status, answer.read().decode().strip()

    def until(self, host: str, wanted: tuple[int, str]) -> None:
        def look() -> bool:
            with contextlib.suppress(OSError):
                return self.get(host) == wanted
            return False

        eventually_sync(look, what=f"{host} answers {wanted}")

    def haproxy(self) -> list[int]:
        """The processes of its HAProxy."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if f"{self.skerry.data}/routes/haproxy.cfg".encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
        return sorted(found)


class Load:
    """Requests through a route by several clients, each on one connection for as long as it is open."""

    def __init__(self, site: Site, host: str) -> None:
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._site = site
        self._host = host
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._site.port, timeout=60)
        while not self._is_over.is_set():
            try:
                connection.request("GET", "/", headers={"Host": self._host})
                answer = connection.getresponse()
                text = answer.read().decode().strip()
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
                continue
            if answer.status == 200:
                self.answers[text] += 1
            else:
                self.failures.append(f"{answer.status} {text}")
        connection.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("routes")
    made = imagery.busybox(command=("sh", "-c", SERVES))
    image = f"oci-archive:{imagery.write_oci_archive(made, folder / 'web.tar')}"
    with socket.socket() as plain, socket.socket() as tls:
        for sock in (plain, tls):
            sock.bind(("127.0.0.1", 0))
        ports = plain.getsockname()[1], tls.getsockname()[1]
    flags = ["--set", f"routes.http=127.0.0.1:{ports[0]}", "--set", f"routes.https=127.0.0.1:{ports[1]}"]
    with running(folder, *flags) as skerry:
        here = Site(skerry, ports[0], image)
        yield here
        for name in [one["name"] for one in here.call("GET", "/service/")["services"]]:
            here.call("DELETE", f"/service/{name}")
        eventually_sync(lambda: not here.call("GET", "/instance/")["instances"])
        sockets = [path for path in Path("/run/skerry-routes").glob("*") if path.is_dir()]
        assert here.skerry.stop() == 0
        assert here.haproxy() == []
        left = sorted(path.name for path in (here.skerry.data / "routes").iterdir())
        assert left == ["certificates", "certificates.txt"]
        assert any(not path.exists() for path in sockets), "its sockets are gone"


def is_at(site: Site, revision: int, replicas: int) -> Callable[[], bool]:
    def look() -> bool:
        seen = site.call("GET", "/service/web")
        return (seen["status"], seen["revision"], seen["ready"]) == ("HEALTHY", revision, replicas)

    return look


def test_updates_and_scaling_under_load_lose_no_request(site: Site) -> None:
    site.service("web", replicas=2)
    assert site.skerry.cli("route", "add", "shop.test", "--to", "service/web").returncode == 0
    site.until("shop.test", (200, "1"))
    master = site.haproxy()[0]
    with Load(site, "shop.test") as load:
        eventually_sync(lambda: load.answers["1"] > 50)
        site.call("PATCH", "/service/web", {"environment": ["VERSION=2"]})
        eventually_sync(is_at(site, 2, 2), what="revision 2")
        eventually_sync(lambda: load.answers["2"] > 50)
        site.call("POST", "/service/web/scale", {"replicas": 4})
        eventually_sync(is_at(site, 2, 4), what="4 copies")
        assert site.skerry.cli("route", "add", "other.test", "--to", "service/web").returncode == 0
        site.until("other.test", (200, "2"))
        site.call("POST", "/service/web/scale", {"replicas": 1})
        eventually_sync(is_at(site, 2, 1), what="1 copy")
        load.answers.clear()
        eventually_sync(lambda: load.answers["2"] > 50)
    assert load.failures == []
    assert site.haproxy()[0] == master


def test_a_request_starts_a_service_without_copies(site: Site) -> None:
    scaling = {"min": 0, "max": 3, "metric": "requests", "target": 5, "idle_s": 5, "up_after_s": 0}
    site.service("cold", autoscale=scaling)
    site.call("PUT", "/route/", {"host": "cold.test", "to": "service/cold:80"})
    site.until("shop.test", (200, "2"))
    assert site.call("GET", "/service/cold")["replicas"] == 0
    site.until("cold.test", (200, "1"))
    assert site.call("GET", "/service/cold")["replicas"] >= 1
    eventually_sync(lambda: site.call("GET", "/service/cold")["copies"] == [], what="it is idle")
    assert site.get("cold.test") == (200, "1"), "held, and answered"


def test_haproxy_survives_the_server_and_is_replaced_if_it_is_killed(site: Site) -> None:
    for pid in site.haproxy():
        os.kill(pid, signal.SIGKILL)
    site.until("shop.test", (200, "2"))
    assert site.haproxy()


def test_routes_of_a_file_are_applied(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text("routes:\n  - {host: file.test, to: service/web, rate: 100/s}\n")
    assert "created route file.test" in site.skerry.cli("apply", "-f", str(file)).stdout
    assert "unchanged: route file.test" in site.skerry.cli("apply", "-f", str(file)).stdout
    file.write_text("routes:\n  - {host: file.test, to: service/web, methods: [GET]}\n")
    assert "changed route file.test (methods, rate)" in site.skerry.cli("apply", "-f", str(file)).stdout
    site.until("file.test", (200, "2"))
    assert site.skerry.cli("route", "delete", "file.test").returncode == 0
    site.until("file.test", (404, "there is no route for this host and path"))
