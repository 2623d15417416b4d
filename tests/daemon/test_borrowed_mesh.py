"""A borrowed node in the mesh of its buyer: services on it are reached as all others are, by real WireGuard,
and the walls between the two clouds stay. Whatever ends, nothing of it stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from skerry.model.ipv6_addresses import ipv6_network_of
from tests.node.network.machines import inside, run
from tests.support import imagery
from tests.support.lans import Resident
from tests.support.nat_lab import page
from tests.support.neighbours import Neighbour, Street, neighbours
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

SMALL = {"cpu": 100, "memory": 32}
# What is borrowed has no disk: its files are in memory.
SERVE = "hostname > /dev/shm/index.html; exec httpd -f -p 80 -h /dev/shm"
INTERFACE = re.compile(r"sw-[0-9a-f]{8}")
HOST = "shop.test"


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    settings = {
        "market__guest_mesh": "true",
        "market__drain_s": "1",
        "node__edge": "true",
        "routes__http": "0.0.0.0:80",
    }
    streets: list[Street] = []
    try:
        with neighbours(tmp_path_factory.mktemp("street"), **settings) as made:
            streets.append(made)
            add_peer(made, mesh=True)
            made.south.done("market", "buyers", "add", made.north.cloud, "--note", "north")
            yield made
    finally:
        for each in streets:
            end_interfaces(each)


def end_interfaces(street: Street) -> None:
    """Whatever a failed test has left: their processes would keep their machines alive."""
    names = {
        name for cloud in (street.north, street.south) for name in INTERFACE.findall(cloud.server.said())
    }
    for pid, command in commands("wireguard-go"):
        if names.intersection(command.split()):
            os.kill(pid, signal.SIGTERM)  # which removes its socket


def commands(text: str) -> list[tuple[int, str]]:
    """The processes of this machine whose command has this text."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if text in command:
                found.append((int(folder.name), command))
    return found


def add_peer(street: Street, *, mesh: bool) -> None:
    south = street.south
    more = ["--mesh"] if mesh else []
    street.north.done(
        "market", "peers", "add", "south", south.address, "--cloud", south.cloud, "--ca", south.authority,
        *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def image(street: Street) -> str:
    return street.push(imagery.busybox(command=("sh", "-c", SERVE)), "web:1")


@pytest.fixture(scope="module")
def own(street: Street, image: str) -> dict[str, Any]:
    """A container of the provider's own."""
    return street.south.until(street.south.create(name="own", uri=image, resources=SMALL), "RUNNING")


@pytest.fixture(scope="module")
def contract(street: Street) -> dict[str, Any]:
    street.south.done(
        "market", "sell", "--cpu", "1", "--memory", "512", "--price", "0.10", "--currency", "EUR",
    )  # fmt: skip
    return dict(street.north.done("market", "buy", "--cpu", "1", "--memory", "512", "--for", "1h"))


@pytest.fixture(scope="module")
def copies(street: Street, image: str, contract: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The copies of two services: `here` is on the buyer's own node, `there` on the one that it borrowed."""
    north = street.north
    found = {}
    for name, constraint in (("here", "skerry.borrowed!=south"), ("there", "skerry.borrowed=south")):
        north.call(
            "PUT",
            "/service/",
            {
                "name": name,
                "image": image,
                "constraints": [constraint],
                "resources": SMALL,
                "checks": [{"role": "readiness", "method": "http", "port": 80, "interval_s": 0.3}],
                "update": {"min_ready_s": 0, "drain_s": 0},
            },
        )
    for name in ("here", "there"):
        eventually_sync(lambda: north.call("GET", f"/service/{name}")["status"] == "HEALTHY")  # noqa: B023
        (copy,) = north.call("GET", f"/service/{name}")["copies"]
        found[name] = north.instance(copy["instance_id"])
    assert found["there"]["node_id"] == contract["node"]
    eventually_sync(lambda: path(north) == "direct", what="a link to the borrowed node")
    return found


def machine(cloud: Neighbour) -> Path:
    assert isinstance(cloud.server, Resident)
    return cloud.server.machine.place


def run_on(cloud: Neighbour, *command: str) -> str:
    return inside(machine(cloud), lambda: run(*command))


def path(cloud: Neighbour) -> str:
    pairs = cloud.call("GET", "/mesh/")["pairs"]
    return str(pairs[0]["path"]) if pairs else ""


def get(cloud: Neighbour, instance: dict[str, Any], url: str) -> str:
    """What a container gets; empty if it gets nothing. `cloud` is the one whose machine it is on."""
    (place,) = cloud.server.data.glob(f"**/ns/{instance['ip']}")
    return fetch(place, url)


def fetch(place: Path, url: str) -> str:
    def work() -> str:
        with contextlib.suppress(AssertionError):
            return run("curl", "-s", "-k", "-m", "2", url).strip()
        return ""

    return inside(place, work)


def get_by_name(buyer: Neighbour, instance: dict[str, Any], name: str) -> str:
    """What a container gets at the name of a service, with its own resolver."""
    url = f"http://{name}.default.skerry/"
    return buyer.server.cli("exec", instance["id"], "--", "wget", "-q", "-O", "-", url).stdout.strip()


def test_services_of_both_nodes_are_reached_from_both_by_address_name_and_route(
    street: Street, copies: dict[str, dict[str, Any]]
) -> None:
    north, south = street.north, street.south
    for place, client, server in ((north, "here", "there"), (south, "there", "here")):
        target = copies[server]
        address = north.call("GET", f"/service/{server}")["address"]
        assert get(place, copies[client], f"http://{target['ip']}/") == target["name"]
        eventually_sync(partial(get, place, copies[client], f"http://{address}/"))
        assert get_by_name(north, copies[client], server) == target["name"]
    north.call("PUT", "/route/", {"host": HOST, "to": "service/there:80", "http_only": True})
    eventually_sync(
        lambda: page(machine(south), "192.0.2.11", host=HOST).strip() == copies["there"]["name"],
        what="the route to the borrowed node",
    )
    north.call("DELETE", f"/route/{HOST}")
    assert re.search(r"\(borrowed\) .*direct", north.server.cli("mesh", "status").stdout)


def test_the_walls_between_the_two_clouds_stay(
    street: Street, copies: dict[str, dict[str, Any]], own: dict[str, Any], contract: dict[str, Any]
) -> None:
    north, south = street.north, street.south
    here, there = copies["here"], copies["there"]
    gateway = own["ip"].rpartition(".")[0] + ".1"
    assert fetch(machine(south), f"http://{own['ip']}/") == own["name"], "what is asked for is there"
    assert fetch(machine(south), f"{south.address}/healthz")
    for url in (f"http://{own['ip']}/", f"{south.address}/healthz", f"https://{gateway}:1323/healthz"):
        assert get(south, there, url) == ""
    assert get(north, here, f"http://{own['ip']}/") == ""
    # Nor does the provider reach the buyer's network, though a part of it is on its machine.
    for url in (f"http://{there['ip']}/", f"http://{here['ip']}/"):
        assert get(south, own, url) == ""
        assert fetch(machine(south), url) == ""
    # The buyer's node takes nothing from the other but what comes from its subnet.
    subnet = north.call("GET", f"/node/{contract['node']}")["subnet"]
    (interface,) = INTERFACE.findall(run_on(north, "ip", "-br", "link"))
    (line,) = run_on(north, "wg", "show", interface, "allowed-ips").splitlines()
    assert [each for each in line.split()[1:] if not each.startswith("fd53:")] == [
        subnet,
        str(ipv6_network_of(IPv4Network(subnet))),
    ]


def processes(cloud: Neighbour) -> set[int]:
    """The processes of networks of guests that a cloud has."""
    return {
        pid
        for pid, _ in commands("skerry.daemon.guest_network")
        if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        == cloud.server.process.pid
    }


@pytest.fixture(scope="module")
def survived(street: Street, copies: dict[str, dict[str, Any]]) -> list[str]:
    """What was killed, and the containers reached each other afterwards."""
    north, south = street.north, street.south
    here, there = copies["here"], copies["there"]
    survived = []

    def reach_each_other() -> bool:
        one, other = get(north, here, f"http://{there['ip']}/"), get(south, there, f"http://{here['ip']}/")
        return (one, other) == (there["name"], here["name"])

    (process,) = processes(south)
    os.kill(process, signal.SIGKILL)
    assert reach_each_other(), "while it is away"
    eventually_sync(lambda: processes(south) - {process}, what="it is started again")
    survived.append("the process")
    for cloud in (south, north):
        cloud.server.kill()
        cloud.start_again()
        eventually_sync(reach_each_other)
        survived.append(cloud.name)
    eventually_sync(lambda: path(north) == "direct", what="the link")
    return survived


def test_it_goes_on_after_its_process_and_both_clouds_were_killed(
    street: Street, copies: dict[str, dict[str, Any]], survived: list[str]
) -> None:
    assert survived == ["the process", "south", "north"]
    there = copies["there"]
    assert street.north.until(there["id"], "RUNNING")["generation"] == there["generation"]


def test_the_end_of_the_contract_leaves_nothing(
    street: Street, copies: dict[str, dict[str, Any]], contract: dict[str, Any], survived: list[str]
) -> None:
    north, south = street.north, street.south
    north.done("market", "release", contract["id"])
    north.until_node(contract["node"], code="not-found")
    folder = south.server.data / "guest-networks"
    eventually_sync(lambda: list(folder.iterdir()) == [], what="no files")
    assert processes(south) == set()
    names = set(INTERFACE.findall(north.server.said() + south.server.said()))
    assert len(names) == 2

    def left() -> list[tuple[int, str]]:
        return [each for each in commands("wireguard-go") if names.intersection(each[1].split())]

    with contextlib.suppress(AssertionError):
        eventually_sync(lambda: not left(), within=20.0)
    assert left() == []
    assert names.isdisjoint(each.stem for each in Path("/var/run/wireguard").iterdir())
    eventually_sync(
        lambda: (
            not INTERFACE.findall(run_on(north, "ip", "-br", "link") + run_on(south, "ip", "-br", "link"))
        ),
        what="no interface",
    )
    document = json.dumps(north.call("GET", "/mesh/"))
    assert contract["node"] not in document
    for name in copies:
        north.call("DELETE", f"/service/{name}")
    south.destroy(*south.instances())
    eventually_sync(lambda: north.instances() == south.instances() == [])
