"""Routes of a whole Skerry with real containers: updates and scaling under load, a start from zero, gRPC,
WebSockets, large bodies, kills, and a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support import imagery
from tests.support.python_images import python_image
from tests.support.skerry import Skerry
from tests.support.waiting import eventually_sync

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
]

SERVES = "echo $VERSION > /www/index.html; exec httpd -f -p 80 -h /www"
CHECK = {"role": "readiness", "method": "http", "port": 80, "interval_s": 0.3, "timeout_s": 2}
QUICK = {"min_ready_s": 0.2, "drain_s": 1, "deadline_s": 60}


class Site:
    """A Skerry with its routes."""

    def __init__(
        self, skerry: Skerry, ports: tuple[int, int], image: str, start: Callable[[], Skerry]
    ) -> None:
        self.skerry = skerry
        self.start = start
        self.port, self.tls_port = ports
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

    def master(self) -> int:
        """The process of HAProxy that stays while workers are replaced."""
        written = self.skerry.data / "routes" / "haproxy.pid"
        return int(eventually_sync(written.read_text, what="the pid, which HAProxy writes anew"))

    def haproxy(self) -> list[int]:
        """The processes of its HAProxy."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if f"{self.skerry.data}/routes/haproxy.cfg".encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
        return found


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
    with contextlib.ExitStack() as undo:

        def start() -> Skerry:
            made = Skerry(folder, *flags)
            undo.callback(lambda: made.kill() if made.process.poll() is None else None)
            made.wait_ready()
            return made

        here = Site(start(), ports, image, start)
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


@pytest.fixture(scope="module")
def shop(site: Site) -> str:
    """The host name of the service `web`, which answers "2"."""
    site.service("web", replicas=2, environment=["VERSION=2"])
    site.call("PUT", "/route/", {"host": "shop.test", "to": "service/web"})
    site.until("shop.test", (200, "2"))
    eventually_sync(lambda: site.call("GET", "/service/web")["status"] == "HEALTHY")
    return "shop.test"


def is_at(site: Site, revision: int, replicas: int) -> Callable[[], bool]:
    def look() -> bool:
        seen = site.call("GET", "/service/updated")
        return (seen["status"], seen["revision"], seen["ready"]) == ("HEALTHY", revision, replicas)

    return look


def test_updates_and_scaling_under_load_lose_no_request(site: Site) -> None:
    site.service("updated", replicas=2)
    assert site.skerry.cli("route", "add", "updated.test", "--to", "service/updated").returncode == 0
    site.until("updated.test", (200, "1"))
    master = site.master()
    with Load(site, "updated.test") as load:
        eventually_sync(lambda: load.answers["1"] > 50)
        site.call("PATCH", "/service/updated", {"environment": ["VERSION=2"]})
        eventually_sync(is_at(site, 2, 2), what="revision 2")
        eventually_sync(lambda: load.answers["2"] > 50)
        site.call("POST", "/service/updated/scale", {"replicas": 4})
        eventually_sync(is_at(site, 2, 4), what="4 copies")
        assert site.skerry.cli("route", "add", "other.test", "--to", "service/updated").returncode == 0
        site.until("other.test", (200, "2"))
        site.call("POST", "/service/updated/scale", {"replicas": 1})
        eventually_sync(is_at(site, 2, 1), what="1 copy")
        load.answers.clear()
        eventually_sync(lambda: load.answers["2"] > 50)
    assert load.failures == []
    assert site.master() == master


def test_a_request_starts_a_service_without_copies(site: Site, shop: str) -> None:
    scaling = {"min": 0, "max": 3, "metric": "requests", "target": 5, "idle_s": 5, "up_after_s": 0}
    site.service("cold", autoscale=scaling)
    site.call("PUT", "/route/", {"host": "cold.test", "to": "service/cold:80"})
    site.until(shop, (200, "2"))
    assert site.call("GET", "/service/cold")["replicas"] == 0
    site.until("cold.test", (200, "1"))
    assert site.call("GET", "/service/cold")["replicas"] >= 1
    eventually_sync(lambda: site.call("GET", "/service/cold")["copies"] == [], what="it is idle")
    assert site.get("cold.test") == (200, "1"), "held, and answered"


@pytest.fixture(scope="module")
def echo(site: Site, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A service of `tests.support.echo_server`; its host name, which has a certificate of the cloud's CA."""
    archive = imagery.write_oci_archive(
        python_image("tests.support.echo_server"), tmp_path_factory.mktemp("echo") / "echo.tar"
    )
    site.service("echo", image=f"oci-archive:{archive}", resources={"cpu": 500, "memory": 128})
    host = "echo.default.skerry"
    site.call("PUT", "/route/", {"host": host, "to": "service/echo"})
    grpc_route = {"host": host, "path": "/echo.Echo", "to": "service/echo:9000", "protocol": "h2"}
    site.call("PUT", "/route/", grpc_route)
    site.until(host, (200, "1"))
    eventually_sync(lambda: peer_name(site, host) == host, what="its certificate is used")
    return host


def authority(site: Site) -> str:
    return (site.skerry.data / "pki" / "ca.crt").read_text()


def peer_name(site: Site, host: str) -> str:
    context = ssl.create_default_context(cadata=authority(site))
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", site.tls_port)) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        return str(dict(secure.getpeercert()["subjectAltName"])["DNS"])
    return ""


def test_grpc_goes_through_a_route_with_tls(site: Site, echo: str) -> None:
    asked = {"target": f"127.0.0.1:{site.tls_port}", "host": echo, "ca": authority(site)}
    found = subprocess.run(
        [sys.executable, "-m", "tests.support.echo_client", json.dumps(asked)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(found.stdout) == {
        "say": "1 hello",
        "seen_for": "127.0.0.1",
        "trailer": "trailer",
        "at_once": 100,
        "counted": True,
        "talked": ["A", "B"],
        "failed": ["ABORTED", "as asked"],
        "unknown": "UNIMPLEMENTED",
    }


MANY_BYTES = 256 * 1024 * 1024


def test_large_bodies_are_streamed_and_not_kept(site: Site, echo: str) -> None:
    before = peak_memory(site)
    part = os.urandom(1 << 20)
    digest = hashlib.sha256()

    def parts() -> Iterator[bytes]:
        for _ in range(MANY_BYTES // len(part)):
            digest.update(part)
            yield part

    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)) as connection:
        connection.request("POST", "/sink", parts(), {"Host": echo}, encode_chunked=True)
        answer = json.loads(connection.getresponse().read())
        assert answer == {"size": MANY_BYTES, "sha256": digest.hexdigest()}
        connection.request("GET", f"/bytes/{MANY_BYTES}", headers={"Host": echo})
        response = connection.getresponse()
        size = 0
        while data := response.read(1 << 20):
            size += len(data)
    assert size == MANY_BYTES
    assert peak_memory(site) - before < MANY_BYTES // 8


def peak_memory(site: Site) -> int:
    """Of the processes of HAProxy and of Skerry, in bytes."""
    total = 0
    for pid in (*site.haproxy(), site.skerry.process.pid):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1]) * 1024
    return total


def test_websockets_are_echoed_with_and_without_tls_and_outlive_changes_of_routes(
    site: Site, echo: str
) -> None:
    async def talk() -> None:
        context = ssl.create_default_context(cadata=authority(site))
        urls = [f"ws://127.0.0.1:{site.port}/socket", f"wss://127.0.0.1:{site.tls_port}/socket"]
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(aiohttp.ClientSession())
            opened = [
                await stack.enter_async_context(
                    client.ws_connect(url, headers={"Host": echo}, ssl=context, server_hostname=echo)
                )
                for url in urls
            ]
            for number, one in enumerate(opened):
                await one.send_str(str(number))
                assert await one.receive_str() == f"echo {number}"
            await asyncio.to_thread(
                site.call, "PUT", "/route/", {"host": "ws-more.test", "to": "service/echo"}
            )
            await asyncio.to_thread(site.until, "ws-more.test", (200, "1"))
            for one in opened:
                await one.send_str("still")
                assert await one.receive_str() == "echo still"

    asyncio.run(talk())


@pytest.fixture(scope="module", params=[Skerry.stop, Skerry.kill])
def failures_at_restart(request: pytest.FixtureRequest, site: Site, shop: str) -> list[str]:
    """What failed through a route while Skerry was ended, and started again: in a fixture of the module, as
    the new one stays for other tests."""
    site.until(shop, (200, "2"))
    master = site.master()
    with Load(site, shop) as load:
        request.param(site.skerry)
        load.answers.clear()
        eventually_sync(lambda: load.answers["2"] > 50, what="answers without Skerry")
        site.skerry = site.start()
        load.answers.clear()
        eventually_sync(lambda: load.answers["2"] > 50)
    assert site.master() == master, "adopted"
    return load.failures


def test_routes_to_containers_go_on_while_skerry_is_restarted(
    site: Site, failures_at_restart: list[str]
) -> None:
    assert failures_at_restart == []
    master = site.master()
    assert site.skerry.cli("route", "add", "restarted.test", "--to", "service/web").returncode == 0
    site.until("restarted.test", (200, "2"))
    assert site.skerry.cli("route", "delete", "restarted.test").returncode == 0
    assert site.master() == master


def test_haproxy_survives_the_server_and_is_replaced_if_it_is_killed(site: Site, shop: str) -> None:
    for pid in site.haproxy():
        with contextlib.suppress(ProcessLookupError):  # one that an earlier reload replaced
            os.kill(pid, signal.SIGKILL)
    site.until(shop, (200, "2"))
    assert site.haproxy()


@pytest.mark.usefixtures("shop")
def test_routes_of_a_file_are_applied(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(
        "routes:\n"
        "  - {host: file.test, to: service/web, rate: 100/s}\n"
        "  - {host: lost.test, to: service/none}\n"
    )
    assert "created route file.test" in site.skerry.cli("apply", "-f", str(file)).stdout
    # That the target of one does not answer is no difference between it and the file.
    assert site.call("GET", "/route/lost.test")["problem"]
    again = site.skerry.cli("apply", "-f", str(file))
    assert again.stdout == "unchanged: route file.test\nunchanged: route lost.test\n", again.stderr
    assert site.skerry.cli("route", "delete", "lost.test").returncode == 0
    file.write_text("routes:\n  - {host: file.test, to: service/web, methods: [GET]}\n")
    assert "changed route file.test (methods, rate)" in site.skerry.cli("apply", "-f", str(file)).stdout
    site.until("file.test", (200, "2"))
    assert site.skerry.cli("route", "delete", "file.test").returncode == 0
    site.until("file.test", (404, "there is no route for this host and path"))
