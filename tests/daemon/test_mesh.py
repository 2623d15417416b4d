"""A mesh of four machines, two of them behind routers that translate addresses: containers reach each other
by their own addresses and names, services by theirs, and the internet reaches them by a route, whatever
happens to links, addresses, relays, agents, tunnels and the server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.node.network.machines import cannot_dial, dial, inside, listen, speak
from tests.support import leaks
from tests.support.nat_lab import EDGE, LARGE, PLACES, NatLab, nat_lab, page, web_image
from tests.support.waiting import PATIENCE_S, eventually_sync

pytestmark = pytest.mark.root

_CANARY = b"a-canary-that-nobody-on-the-internet-may-read"
_HOST = "shop.test"  # of the route


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    return web_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, image: str) -> Iterator[NatLab]:
    """Every node has one container of the image."""
    with nat_lab(tmp_path_factory.mktemp("mesh")) as made:
        made.run_containers(image)
        made.until_connected()
        # Routers that keep ports let two nodes behind them reach each other, and others do not.
        made.until_path("home", "office", "direct")
        made.use_any_port("cable")
        made.until_path("home", "office", "relayed")
        made.until_connected()
        yield made


@pytest.fixture(scope="module")
def web(lab: NatLab, image: str) -> Iterator[str]:
    """The address of a service with a copy on every node, to which a route leads."""
    lab.call(
        "PUT",
        "/service/",
        {
            "name": "web",
            "image": image,
            "replicas": len(lab.machines),
            "max_per_node": 1,
            "resources": {"cpu": 200, "memory": 32},
            "checks": [{"role": "readiness", "method": "http", "port": 80, "interval_s": 0.3}],
            "update": {"min_ready_s": 0, "drain_s": 0},
        },
    )
    lab.call("PUT", "/route/", {"host": _HOST, "to": "service/web:80", "http_only": True})
    eventually_sync(lambda: lab.call("GET", "/service/web")["status"] == "HEALTHY")
    yield lab.call("GET", "/service/web")["address"]
    lab.call("DELETE", f"/route/{_HOST}")
    lab.call("DELETE", "/service/web")
    eventually_sync(lambda: set(lab.instances()) == set(lab.ids.values()))


@pytest.fixture(autouse=True)
def nothing_leaks(lab: NatLab) -> Iterator[None]:
    """Processes of the lab, each with a pipe, are replaced by others: they are counted."""

    def pipes(held: leaks.Footprint) -> frozenset[str]:
        return frozenset(name for name in held.files if " -> pipe:" in name)

    def counts(held: leaks.Footprint) -> tuple[int, int]:
        return len(held.children), len(pipes(held))

    before = leaks.footprint()
    yield
    eventually_sync(lambda: counts(leaks.footprint()) == counts(before), what="as many processes as before")
    now = leaks.footprint()
    leaks.assert_nothing_leaked(replace(before, children=now.children, files=before.files | pipes(now)))


@contextlib.contextmanager
def connection(lab: NatLab, one: str, other: str, port: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection between two containers."""
    with (
        listen(lab.place_of(other), "0.0.0.0", port) as listener,
        dial(lab.place_of(one), lab.containers[other], port) as near,
    ):
        far, _ = listener.accept()
        with far:
            far.settimeout(PATIENCE_S)
            near.settimeout(PATIENCE_S)
            yield near, far


def say(near: socket.socket, far: socket.socket, data: bytes = b"still here") -> None:
    near.sendall(data)
    got = b""
    while len(got) < len(data):
        more = far.recv(65536)
        assert more, "the connection is over"
        got += more
    assert got == data


def copies(lab: NatLab) -> set[str]:
    """The names of the copies of the service, each on a node of its own."""
    found = lab.call("GET", "/service/web")["copies"]
    assert {lab.node_of(each) for each in found} == set(lab.machines)
    return {each["name"] for each in found}


def answered_by_all(get: Callable[[], str], expected: set[str]) -> Counter[str]:
    """How often each of `expected` answered, until all have; nobody else may, and no request may fail."""
    answers: Counter[str] = Counter()

    def have_all() -> bool:
        answers[get().strip()] += 1
        return set(answers) >= expected

    eventually_sync(have_all, what=f"answers of {expected}, not of {answers}")
    assert set(answers) == expected
    return answers


def relay_of(lab: NatLab, one: str, other: str) -> str:
    return str(lab.mesh()[one, other]["relays"][0])


def test_a_container_sees_the_address_of_the_one_that_calls_it(lab: NatLab) -> None:
    for one, other in (("home", "office"), ("office", "east"), ("west", "home")):
        with listen(lab.place_of(other), "0.0.0.0", 4000) as listener:
            seen = speak(listener, lab.place_of(one), lab.containers[other], 4000)
        assert seen == lab.containers[one]


def test_large_amounts_pass_whatever_the_size_of_packets_on_the_way(lab: NatLab) -> None:
    with connection(lab, "home", "office", 4001) as (near, far):
        near.setblocking(True)
        block = os.urandom(48 * 1024)
        for _ in range(8):
            say(near, far, block)
            say(far, near, block)


def test_the_status_shows_for_each_pair_how_it_is_connected(lab: NatLab) -> None:
    pairs = lab.mesh()
    assert {pair: found["path"] for pair, found in pairs.items()} == {
        ("east", "home"): "direct",
        ("east", "office"): "direct",
        ("east", "west"): "direct",
        ("home", "office"): "relayed",
        ("home", "west"): "direct",
        ("office", "west"): "direct",
    }
    assert pairs["home", "office"]["relays"] in (["east"], ["west"])
    eventually_sync(lambda: all(pair["round_trip_ms"] for pair in lab.mesh().values()))
    direct = lab.mesh()["east", "home"]
    assert direct["handshake_age_s"] < PATIENCE_S * 10
    assert direct["bytes_sent"] > 0
    shown = lab.server.cli("mesh", "status")
    assert "relayed" in shown.stdout
    assert json.loads(lab.server.cli("mesh", "status", "-o", "json").stdout)["encryption"] == "wireguard"
    nodes = {node["name"]: node for node in lab.call("GET", "/mesh/")["nodes"]}
    assert [name for name, node in nodes.items() if node["behind_nat"]] == ["home", "office"]


def test_nobody_on_the_way_can_read_what_containers_send(lab: NatLab) -> None:
    capture = lab.capture()
    assert capture.stdout is not None
    try:
        got = capture.stdout.read(24)  # the header: it listens
        assert got
        with (
            connection(lab, "home", "office", 4002) as (near, far),
            connection(lab, "east", "west", 4002) as more,
        ):
            for _ in range(20):
                say(near, far, _CANARY)
                say(*more, _CANARY)
    finally:
        capture.send_signal(signal.SIGINT)
        captured = capture.stdout.read()
        capture.stdout.close()
        capture.wait()
    assert len(captured) > 80 * len(_CANARY), "it saw the packets"
    assert _CANARY not in captured


def test_the_mesh_leads_to_containers_and_to_nothing_else_of_a_node(lab: NatLab) -> None:
    east = lab.machines["east"].place
    gateway = lab.containers["east"].rpartition(".")[0] + ".1"
    with listen(east, "0.0.0.0", 4003):
        assert not cannot_dial(lab.place_of("east"), gateway, 4003, within_s=5)
        assert cannot_dial(lab.place_of("west"), gateway, 4003)
        assert cannot_dial(lab.machines["west"].place, gateway, 4003)


def test_a_relay_that_dies_is_replaced_and_connections_go_on(lab: NatLab) -> None:
    with connection(lab, "home", "office", 4004) as (near, far):
        say(near, far)
        relay = relay_of(lab, "home", "office")
        other = "west" if relay == "east" else "east"
        lab.cut(relay)
        try:
            say(near, far)
            lab.until_path("home", "office", "relayed", [other])
            lab.until_connected("home", "office", other)
        finally:
            lab.mend(relay)
    lab.until_connected()


def test_a_new_address_of_a_router_or_a_public_node_is_followed(lab: NatLab) -> None:
    with connection(lab, "home", "east", 4005) as (near, far):
        say(near, far)
        lab.move("cable", "198.51.100.31", "198.51.100.41")
        say(near, far)
        lab.move("east", "198.51.100.21", "198.51.100.51")
        say(near, far)
    lab.until_connected()


def test_a_tunnel_that_is_killed_is_made_again(lab: NatLab) -> None:
    if (pid := lab.tunnel("home")) is None:
        pytest.skip("this kernel has WireGuard itself")
    with connection(lab, "home", "office", 4006) as (near, far):
        say(near, far)
        os.kill(pid, signal.SIGKILL)
        say(near, far)
    assert lab.tunnel("home") not in (None, pid)
    lab.until_connected()


def test_the_mesh_goes_on_without_an_agent_and_the_next_one_adopts_it_and_replaces_its_key(
    lab: NatLab,
) -> None:
    def key() -> str:
        found = lab.call("GET", "/mesh/")["nodes"]
        return str(next(node["public_key"] for node in found if node["name"] == "office"))

    pid, before = lab.tunnel("office"), key()
    with connection(lab, "home", "office", 4007) as (near, far):
        lab.kill_agent("office")
        say(near, far)
        lab.restart_agent("office", "--set", "mesh.key_days=0.0001")
        say(near, far)
        eventually_sync(lambda: key() != before)
        say(near, far)
    assert lab.tunnel("office") == pid
    lab.until_connected()
    file = lab.nodes["office"].data / "mesh-key.json"
    assert file.stat().st_mode & 0o777 == 0o600
    private = json.loads(file.read_text())["private"]
    assert not any(private in node.said() for node in lab.nodes.values())


def test_machines_have_no_address_in_the_mesh_that_others_use(lab: NatLab) -> None:
    """Only subnets of peers are routed to the interface, and the default route stays where it was."""
    for name, machine in lab.machines.items():
        routes = json.loads(machine.run("ip", "-json", "route"))
        mesh = {route["dst"] for route in routes if route["dev"] == lab.interface(name)}
        others = {
            f"{lab.containers[other].rpartition('.')[0]}.0/24" for other in lab.machines if other != name
        }
        assert mesh == others
        if PLACES[name].router:
            assert next(route["dev"] for route in routes if route["dst"] == "default") == "eth0"
    assert inside(lab.machines["home"].place, socket.gethostname)


def test_every_container_reaches_every_other_by_its_name(lab: NatLab) -> None:
    eventually_sync(lambda: lab.unnamed() == [], what="all names are known")
    for source, name in (("home", "office"), ("office", "west.default.skerry")):
        done = lab.server.cli("exec", lab.ids[source], "--", "wget", "-q", "-O", "-", f"http://{name}/")
        assert done.stdout == f"{name.partition('.')[0]}\n", done.stderr


def from_everywhere(lab: NatLab) -> Iterator[tuple[str, Path]]:
    """Where calls come from: the container on each node, and each node itself."""
    for name, machine in lab.machines.items():
        yield f"the container on {name}", lab.place_of(name)
        yield name, machine.place


def test_a_service_is_reached_by_its_address_from_every_node_and_by_a_route_from_the_internet(
    lab: NatLab, web: str
) -> None:
    expected = copies(lab)
    edge = lab.addresses[EDGE]

    def all_answer() -> None:
        for _, place in from_everywhere(lab):
            answered_by_all(lambda place=place: page(place, web, within_s=PATIENCE_S), expected)
        answered_by_all(lambda: page(lab.internet.place, edge, host=_HOST, within_s=PATIENCE_S), expected)

    eventually_sync(lambda: page(lab.internet.place, edge, host=_HOST) != "", what="the route is served")
    eventually_sync(lambda: all(lab.resolve(name, "web.default.skerry") == [web] for name in lab.machines))
    all_answer()
    for _ in range(8):
        assert len(page(lab.internet.place, edge, path="/large", host=_HOST, within_s=PATIENCE_S)) == LARGE
        assert len(page(lab.machines["home"].place, web, path="/large", within_s=PATIENCE_S)) == LARGE
        assert len(page(lab.place_of("office"), web, path="/large", within_s=PATIENCE_S)) == LARGE
    with lab.without_server():
        all_answer()
        without_far_copies(lab, web)
        assert lab.unnamed() == []
        assert all(lab.resolve(name, "web.default.skerry") == [web] for name in lab.machines)
    all_answer()


def without_far_copies(lab: NatLab, web: str) -> None:
    """A node that is away gets no connections, though no server says so, and gets them again."""
    in_a_row, answers = 0, set()

    def is_avoided() -> bool:
        nonlocal in_a_row
        in_a_row = in_a_row + 1 if page(lab.place_of("home"), web) else 0
        return in_a_row == 100  # by chance once in a million tries

    def answers_again() -> bool:
        answers.add(page(lab.place_of("home"), web))
        return len(answers - {""}) == len(lab.machines)

    lab.cut("west")
    try:
        eventually_sync(is_avoided)
    finally:
        lab.mend("west")
    eventually_sync(answers_again)
    eventually_sync(lambda: lab.unreached() == [])


def test_isolated_namespaces_are_so_across_nodes(lab: NatLab, image: str) -> None:
    ids = [
        lab.create_container(image, "db", "office", "shop"),
        lab.create_container(image, "tool", "home", "shop"),
        lab.create_container(image, "stranger", "west", "lab"),
    ]
    try:
        db, *others = [lab.until(id, "RUNNING")["ip"] for id in ids]
        tool, stranger = map(lab.place_of, ("home", "west"), others)
        eventually_sync(lambda: page(stranger, db) == "db\n")
        lab.call("PATCH", "/namespace/shop", {"policy": {"isolated": True}})
        eventually_sync(lambda: page(stranger, db) == "")
        with pytest.raises(ConnectionRefusedError):
            dial(stranger, db, 80)
        eventually_sync(lambda: page(tool, db) == "db\n")
        for machine in lab.machines.values():
            assert page(machine.place, db, within_s=PATIENCE_S) == "db\n"
        assert cannot_dial(lab.place_of("home"), db, 80, within_s=PATIENCE_S)
        explain = ("explain", "--to", "shop/db", "--port", "80", "--from")
        assert lab.server.cli(*explain, "shop/tool").returncode == 0
        assert lab.server.cli(*explain, "lab/stranger").returncode == 1
    finally:
        lab.destroy(*ids)
