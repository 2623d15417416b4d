"""A mesh of four machines, two of them behind routers that translate addresses: containers reach each other
by their own addresses, whatever happens to links, addresses, relays, agents and tunnels."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.node.network.machines import cannot_dial, dial, inside, listen, speak
from tests.support import imagery, leaks
from tests.support.nat_lab import PLACES, NatLab, nat_lab
from tests.support.waiting import PATIENCE_S, eventually_sync

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the mesh needs root")

_CANARY = b"a-canary-that-nobody-on-the-internet-may-read"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatLab]:
    """Every node has one container, which serves its name at port 80."""
    script = (
        "read -r name < /proc/sys/kernel/hostname; echo $name > /www/index.html; exec httpd -f -p 80 -h /www"
    )
    folder = tmp_path_factory.mktemp("mesh")
    image = imagery.write_oci_archive(imagery.busybox(command=("sh", "-c", script)), folder / "web.tar")
    with nat_lab(folder) as made:
        made.run_containers(f"oci-archive:{image}")
        made.until_connected()
        # Routers that keep ports let two nodes behind them reach each other, and others do not.
        made.until_path("home", "office", "direct")
        made.use_any_port("cable")
        made.until_path("home", "office", "relayed")
        made.until_connected()
        yield made


@pytest.fixture(autouse=True)
def nothing_leaks(lab: NatLab) -> Iterator[None]:
    """Agents of the lab are replaced by others: they are counted."""
    before = leaks.footprint()
    yield
    eventually_sync(lambda: len(leaks.footprint().children) == len(before.children))
    leaks.assert_nothing_leaked(replace(before, children=leaks.footprint().children))


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
