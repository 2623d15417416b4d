"""Isolated namespaces and the egress of workloads, on a real bridge beside another node."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv4Address, IPv4Network

import pytest

from skerry.model.network import Egress, Ingress, NetworkPolicy
from skerry.node.network.network import Attachment, Network
from skerry.node.network.policy_rules import CloudNetwork
from tests.node.network.machines import (
    WITHIN_S,
    Call,
    Ground,
    Machine,
    add_addresses,
    add_routes,
    datagrams,
    dial,
    inside,
    listen,
    mappings,
    reachable,
    run,
    twin,
    unreached,
)

pytestmark = pytest.mark.root

NODE, OUTSIDE = "192.0.2.1", "192.0.2.9"
TABLE = "skerry_5ce1a7e0"
OTHER_NODE = "10.98.0.1"  # its address on its own bridge
REMOTE_SHOP, REMOTE_LAB, REMOTE_UNKNOWN = "10.98.0.5", "10.98.0.6", "10.98.0.7"
VIRTUAL = "10.63.0.1"  # of a service
PORT = 8080

SHOP = NetworkPolicy(Ingress.NAMESPACE, namespace="shop")
OPEN_SHOP = NetworkPolicy(namespace="shop")
LAB = NetworkPolicy(namespace="lab")
FRIEND = NetworkPolicy(namespace="friends")
CLOUD = CloudNetwork(
    subnets=(IPv4Network("10.98.0.0/24"),),
    services=frozenset({IPv4Address(VIRTUAL)}),
    allow_from={"shop": frozenset({"friends"})},
    containers={
        "shop": frozenset({IPv4Address(REMOTE_SHOP)}),
        "lab": frozenset({IPv4Address(REMOTE_LAB)}),
    },
)


@contextlib.contextmanager
def other_node(ground: Ground, other: Machine) -> Iterator[None]:
    """The machine outside is another node too: packets of its containers arrive with their addresses."""
    add_addresses(other, OTHER_NODE, REMOTE_SHOP, REMOTE_LAB, REMOTE_UNKNOWN, VIRTUAL)
    add_routes(other, "10.99.0.0/24", via=NODE)
    add_routes(ground.machine, "10.98.0.0/24", VIRTUAL, via=OUTSIDE)
    with listen(other.place, "0.0.0.0", PORT):
        yield


def accept_mesh() -> None:
    """As the mesh does: what comes from other nodes is not refused for that, and keeps its address."""
    for family, network in (("ip", "10.98.0.0/24"), ("ip6", f"{twin('10.98.0.0')}/120")):
        listed = run("nft", "-a", "list", "table", family, TABLE)
        entering = listed[listed.index("chain entering") :]
        handle = next(line for line in entering.splitlines() if "established" in line).rpartition(" ")[2]
        place = ["nft", "insert", "rule", family, TABLE]
        run(*place, "entering", "position", handle, family, "saddr", network, "accept")
        run(*place, "leaving", family, "daddr", network, "accept")


def call_from(other: Machine, source: str, address: str, port: int = PORT, *, within_s: float = 0.3) -> bool:
    """True if a connection from this address of the other machine is accepted, by IPv6 as by IPv4."""
    answers = set()
    for one, another in ((source, address), (twin(source), twin(address))):
        try:
            with dial_from(other, one, another, port, within_s=within_s):
                answers.add(True)
        except OSError:
            answers.add(False)
    (is_accepted,) = answers
    return is_accepted


def dial_from(
    other: Machine, source: str, address: str, port: int, *, within_s: float = WITHIN_S
) -> socket.socket:
    return inside(
        other.place,
        lambda: socket.create_connection((address, port), timeout=within_s, source_address=(source, 0)),
    )


def calls(sources: dict[str, Attachment], to: Attachment) -> list[Call]:
    return [(name, each.namespace, to.address, PORT) for name, each in sources.items()]


@contextlib.asynccontextmanager
async def populated(ground: Ground, other: Machine) -> AsyncIterator[tuple[Network, dict[str, Attachment]]]:
    """Containers of three namespaces; those of `shop` are isolated, and listen, as one of `lab` does."""
    with other_node(ground, other):
        async with ground.agent() as network:
            await network.follow_cloud(CLOUD)
            attached = {
                "web": await network.attach("web", mappings("8081:8080"), policy=SHOP),
                "db": await network.attach("db", policy=SHOP),
                "lab": await network.attach("lab", policy=LAB),
                "friend": await network.attach("friend", policy=FRIEND),
            }
            await network.publish("web")
            accept_mesh()
            with contextlib.ExitStack() as listeners:
                for name in ("web", "db", "lab"):
                    listeners.enter_context(listen(attached[name].namespace, "0.0.0.0", PORT))
                yield network, attached
            await network.keep_only(set())


async def test_an_isolated_namespace_is_reached_by_itself_and_by_whom_it_allows(
    ground: Ground, other: Machine
) -> None:
    async with populated(ground, other) as (_, attached):
        web = attached["web"]
        assert await unreached(calls({"db": attached["db"], "friend": attached["friend"]}, web)) == []
        for address in (web.address, web.address6):
            with pytest.raises(ConnectionRefusedError):  # at once, whoever is in a hurry or not
                dial(attached["lab"].namespace, address, PORT)
        assert await unreached([("node", str(ground.machine.place), web.address, PORT)]) == []
        # Isolation is about connections to it: its own are not restricted.
        assert await unreached(calls({"web": web}, attached["lab"])) == []
        assert await unreached([("outside", web.namespace, OUTSIDE, PORT)]) == []


async def test_containers_of_other_nodes_are_known_by_their_addresses(ground: Ground, other: Machine) -> None:
    async with populated(ground, other) as (_, attached):
        web, lab = attached["web"].address, attached["lab"].address
        assert call_from(other, REMOTE_SHOP, web, within_s=WITHIN_S)
        assert call_from(other, OTHER_NODE, web, within_s=WITHIN_S)
        assert call_from(other, REMOTE_LAB, lab, within_s=WITHIN_S)
        assert not call_from(other, REMOTE_LAB, web)
        assert not call_from(other, REMOTE_UNKNOWN, web)


async def test_a_published_port_is_open_to_the_outside_and_not_to_containers_of_other_namespaces(
    ground: Ground, other: Machine
) -> None:
    async with populated(ground, other) as (_, attached):
        assert call_from(other, OUTSIDE, NODE, 8081, within_s=WITHIN_S)
        assert not call_from(other, REMOTE_LAB, NODE, 8081)
        assert await unreached([("friend", attached["friend"].namespace, NODE, 8081)]) == []
        assert await reachable([("lab", attached["lab"].namespace, NODE, 8081)]) == []


async def test_isolating_cuts_connections_of_others_and_keeps_those_of_the_namespace(
    ground: Ground, other: Machine
) -> None:
    async with populated(ground, other) as (network, attached):
        for name in ("web", "db"):
            await network.restrict(name, OPEN_SHOP)
        accept_mesh()
        listener = listen(attached["web"].namespace, "0.0.0.0", 9000)
        web = attached["web"].address
        with listener, contextlib.ExitStack() as opened:
            pairs = {}
            for name in ("db", "lab"):
                caller = opened.enter_context(dial(attached[name].namespace, web, 9000))
                accepted = opened.enter_context(listener.accept()[0])
                pairs[name] = (caller, accepted)
            for name in ("web", "db"):
                await network.restrict(name, SHOP)
            # A reply is the first packet that the node sees of either.
            for _, accepted in pairs.values():
                accepted.sendall(b"late")
            caller, accepted = pairs["db"]
            assert caller.recv(10) == b"late"
            caller, accepted = pairs["lab"]
            with pytest.raises(ConnectionResetError):
                accepted.recv(10)
            caller.settimeout(0.3)
            with pytest.raises(TimeoutError):
                caller.recv(10)


async def test_egress_none_answers_and_calls_nobody(ground: Ground, other: Machine) -> None:
    async with populated(ground, other) as (network, attached):
        quiet = await network.attach("quiet", policy=NetworkPolicy(egress=Egress.NONE, namespace="lab"))
        accept_mesh()
        with (
            listen(quiet.namespace, "0.0.0.0", PORT),
            listen(ground.machine.place, "0.0.0.0", 1324),
            datagrams(other.place, OUTSIDE, 53) as name_server,
            datagrams(quiet.namespace) as caller,
        ):
            assert await unreached(calls({"lab": attached["lab"]}, quiet)) == []
            targets = {"lab": attached["lab"].address, "node": NODE, "outside": OUTSIDE, "remote": REMOTE_LAB}
            ports = {"node": 1324}
            assert (
                await reachable(
                    [
                        (name, quiet.namespace, address, ports.get(name, PORT))
                        for name, address in targets.items()
                    ]
                )
                == []
            )
            caller.sendto(b"question", (OUTSIDE, 53))
            name_server.settimeout(0.3)
            with pytest.raises(TimeoutError):
                name_server.recv(10)


async def test_egress_mesh_reaches_this_cloud_and_nothing_outside(ground: Ground, other: Machine) -> None:
    async with populated(ground, other) as (network, attached):
        inner = await network.attach("inner", policy=NetworkPolicy(egress=Egress.MESH, namespace="lab"))
        with listen(ground.machine.place, "0.0.0.0", 1324):
            inside_cloud = [
                ("lab", inner.namespace, attached["lab"].address, PORT),
                ("remote", inner.namespace, REMOTE_LAB, PORT),
                ("service", inner.namespace, VIRTUAL, PORT),
            ]
            assert await unreached(inside_cloud) == []
            outside = [
                ("outside", inner.namespace, OUTSIDE, PORT),
                ("node", inner.namespace, NODE, 1324),
                ("gateway", inner.namespace, "10.99.0.1", 1324),
                ("other node", inner.namespace, OTHER_NODE, PORT),
                ("isolated", inner.namespace, attached["web"].address, PORT),
            ]
            assert await reachable(outside) == []


async def test_egress_internet_reaches_other_nodes_containers_and_services(
    ground: Ground, other: Machine
) -> None:
    async with populated(ground, other) as (network, _):
        policy = NetworkPolicy(egress=Egress.INTERNET, namespace="lab")
        client = await network.attach("client", policy=policy)
        targets = [(name, client.namespace, name, PORT) for name in (REMOTE_LAB, VIRTUAL, OUTSIDE)]
        assert await unreached(targets) == []
        assert await reachable([("other node", client.namespace, OTHER_NODE, PORT)]) == []


async def test_a_killed_agents_policies_hold_and_are_adopted(ground: Ground, other: Machine) -> None:
    async with populated(ground, other) as (_, attached):
        again = await ground.open(cloud=lambda own: CLOUD)  # the first one is as good as killed
        accept_mesh()
        try:
            web = attached["web"]
            assert await unreached(calls({"db": attached["db"], "friend": attached["friend"]}, web)) == []
            assert await reachable(calls({"lab": attached["lab"]}, web)) == []
            assert call_from(other, REMOTE_SHOP, web.address, within_s=WITHIN_S)
            assert not call_from(other, REMOTE_LAB, web.address)
        finally:
            again._reservations.close()


async def test_what_is_allowed_can_change_while_containers_run(ground: Ground, other: Machine) -> None:
    async with populated(ground, other) as (network, attached):
        web = attached["web"]
        await network.follow_cloud(CloudNetwork(CLOUD.subnets, allow_from={"shop": frozenset({"lab"})}))
        assert await unreached(calls({"lab": attached["lab"], "db": attached["db"]}, web)) == []
        assert await reachable(calls({"friend": attached["friend"]}, web)) == []
        # Without an object about it, no address of another node is admitted.
        assert not call_from(other, REMOTE_SHOP, web.address)
        await network.restrict("web", OPEN_SHOP)
        assert await unreached(calls({"friend": attached["friend"]}, web)) == []
