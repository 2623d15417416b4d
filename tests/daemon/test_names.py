"""Names in a whole Skerry, on a machine of its own: containers ask the node, which asks a resolver."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import threading
from collections.abc import Iterator

import pytest

from tests.node.network.dns.resolvers import FakeResolver, answering, fake_resolver
from tests.node.network.machines import Machine, inside
from tests.support import imagery
from tests.support.lans import Resident
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

_RESOLVER = "192.0.2.53"
needs_addresses = pytest.mark.skipif(
    importlib.util.find_spec("skerry.control.network.service_addresses") is None,
    reason="servers send no addresses of instances",
)


@contextlib.contextmanager
def resolver_on(machine: Machine) -> Iterator[FakeResolver]:
    """Another resolver, at an address of the machine."""
    started, ended = threading.Event(), threading.Event()
    found: list[FakeResolver] = []

    async def serve() -> None:
        async with fake_resolver(answering(), _RESOLVER, 53) as fake:
            found.append(fake)
            started.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: inside(machine.place, lambda: asyncio.run(serve())))
    thread.start()
    try:
        assert started.wait(20)
        yield found[0]
    finally:
        ended.set()
        thread.join()


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resident]:
    folder = tmp_path_factory.mktemp("names")
    machine = Machine(folder, "machine")
    try:
        machine.run("ip", "address", "add", f"{_RESOLVER}/32", "dev", "lo")
        # Somewhere to go: without a default route, the kernel has no address to ask from.
        machine.run("ip", "route", "add", "default", "dev", "lo", "src", _RESOLVER)
        with resolver_on(machine):
            made = Resident(folder / "up", machine, "--set", f"network.dns={_RESOLVER}", role="up")
            made.wait_ready()
            try:
                yield made
                for each in made.call("GET", "/instance/?namespace=*")[1]["instances"]:
                    made.call("DELETE", f"/instance/{each['id']}")
                eventually_sync(lambda: made.call("GET", "/instance/?namespace=*")[1]["count"] == 0)
            finally:
                made.stop()
            assert made.left() == []
    finally:
        machine.end()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = imagery.busybox(command=("sh", "-c", "while true; do sleep 1; done"))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'box.tar')}"


def run(skerry: Resident, image: str, name: str, namespace: str = "shop") -> str:
    """Its id, when it runs."""
    status, said = skerry.call("PUT", f"/namespace/{namespace}/instance/", {"name": name, "uri": image})
    assert status == 201, said
    path = f"/instance/{said['id']}"
    eventually_sync(lambda: skerry.call("GET", path)[1]["status"] == "RUNNING", what=f"{name} RUNNING")
    return str(said["id"])


def inside_of(skerry: Resident, id: str, *command: str) -> str:
    done = skerry.cli("exec", id, "--", *command)
    return done.stdout + done.stderr


def test_a_container_asks_the_node_which_asks_the_resolver(skerry: Resident, image: str) -> None:
    id = run(skerry, image, "box")
    gateway = skerry.subnet.replace(".0/24", ".1")
    conf = inside_of(skerry, id, "cat", "/etc/resolv.conf")
    assert conf.startswith(f"nameserver {gateway}\nsearch shop.skerry skerry")
    assert "192.0.2.7" in inside_of(skerry, id, "nslookup", "example.org")
    assert gateway in inside_of(skerry, id, "nslookup", "ns.skerry")
    eventually_sync(lambda: "NXDOMAIN" in inside_of(skerry, id, "nslookup", "nobody.shop.skerry"))


@needs_addresses
def test_an_instance_is_found_by_its_name_while_the_server_is_away_too(skerry: Resident, image: str) -> None:
    id, other = run(skerry, image, "db"), run(skerry, image, "client", "bank")
    address = skerry.call("GET", f"/instance/{id}")[1]["ip"]
    eventually_sync(lambda: address in inside_of(skerry, other, "nslookup", "db.shop.skerry"))
    assert "db.shop.skerry" in inside_of(skerry, other, "nslookup", address)
