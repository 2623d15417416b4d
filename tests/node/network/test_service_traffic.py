"""Connections to the virtual address of a service reach its ready copies, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address
from pathlib import Path

import msgspec
import pytest

from skerry.model.ids import InstanceId, Namespace, NodeId, ServiceId
from skerry.model.network import Egress, NetworkPolicy
from skerry.model.network_objects import (
    EndpointState,
    NodeLocation,
    ServiceAddress,
    ServiceEndpoint,
    ServicePort,
    ServiceSubnet,
)
from skerry.model.ports import Protocol
from skerry.node.network import conntrack
from skerry.node.network.network import Attachment, Network
from tests.node.network.machines import (
    WITHIN_S,
    Ground,
    Machine,
    connecting,
    datagrams,
    dial,
    exchange,
    listen,
    reachable,
    run,
    speak,
    twin,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.root

RANGE = "10.63.0.0/16"
WEB = "10.63.4.2"
HERE = NodeId("here")
GATEWAY = "10.99.0.1"


def copy(
    place: Attachment | str, state: EndpointState = EndpointState.READY, node: str = HERE
) -> ServiceEndpoint:
    address, address6 = (place, "") if isinstance(place, str) else (place.address, place.address6)
    return ServiceEndpoint(InstanceId(f"i-{address}"), NodeId(node), address, state, address6=address6)


def service(
    *copies: ServiceEndpoint, address: str = WEB, affinity_s: int = 0, ports: Sequence[ServicePort] = ()
) -> ServiceAddress:
    return ServiceAddress(
        ServiceId(f"s-{address}"), "web", Namespace("shop"), address, tuple(ports), affinity_s, copies
    )


async def know(network: Network, *services: ServiceAddress, range: str = RANGE) -> None:
    """What a server would say, and the rules follow."""
    network.services.follow(HERE)
    network.services.ranges_changed({range: ServiceSubnet(range)})
    network.services.locations_changed({name: NodeLocation(NodeId(name), name) for name in (HERE, "there")})
    network.services.services_changed({each.key: each for each in services})
    await network.services.apply()


@contextlib.contextmanager
def echo(*places: Attachment, port: int = 80) -> Iterator[dict[str, socket.socket]]:
    """A listener in each, by address."""
    with contextlib.ExitStack() as stack:
        yield {each.address: stack.enter_context(listen(each.namespace, "0.0.0.0", port)) for each in places}


def answers(
    listeners: dict[str, socket.socket], place: Path | str, times: int, address: str = WEB, port: int = 80
) -> Counter[str]:
    """Which copies take `times` connections from `place`."""
    found: Counter[str] = Counter()
    for each in listeners.values():
        each.settimeout(0.0)
    for _ in range(times):
        with dial(place, address, port):
            for copied, listener in listeners.items():
                with contextlib.suppress(BlockingIOError):
                    listener.accept()[0].close()
                    found[copied] += 1
    return found


def is_refused(place: Path | str, address: str, port: int = 80) -> bool:
    """True if the answer is a refusal, by IPv6 as by IPv4; a time-out is an error."""
    refused = set()
    for each in (address, twin(address)):
        try:
            dial(place, each, port, within_s=WITHIN_S).close()
            refused.add(False)
        except ConnectionRefusedError:
            refused.add(True)
    return refused == {True}


def is_datagram_refused(place: Path | str, address: str, port: int) -> bool:
    with datagrams(place) as caller:
        caller.connect((address, port))
        try:
            caller.send(b"question")
            caller.recv(1)
        except (ConnectionRefusedError, PermissionError):  # the latter for processes of the node
            return True
    return False


async def test_containers_and_the_node_reach_every_ready_copy_and_only_those(ground: Ground) -> None:
    async with ground.agent() as network:
        first, second, third, client = [await network.attach(name) for name in ("a", "b", "c", "client")]
        with echo(first, second, third) as listeners:
            await know(network, service(copy(first), copy(second), copy(third, EndpointState.NOT_READY)))
            for place in (client.namespace, ground.machine.place):
                for address in (WEB, twin(WEB)):
                    found = answers(listeners, place, 40, address)
                    assert found.total() == 40
                    assert set(found) == {first.address, second.address}
        await network.keep_only(set())


async def test_copies_without_ipv6_get_no_connections_of_it(ground: Ground) -> None:
    async with ground.agent() as network:
        first, second, client = [await network.attach(name) for name in ("a", "b", "client")]
        with echo(first, second) as listeners:
            await know(network, service(copy(first), msgspec.structs.replace(copy(second), address6="")))
            assert set(answers(listeners, client.namespace, 20)) == {first.address, second.address}
            assert set(answers(listeners, client.namespace, 20, twin(WEB))) == {first.address}
            await know(network, service(msgspec.structs.replace(copy(second), address6="")))
            with pytest.raises(ConnectionRefusedError):
                dial(client.namespace, twin(WEB), 80)
        await network.keep_only(set())


async def test_copies_see_the_address_of_the_client(ground: Ground) -> None:
    async with ground.agent() as network:
        web, client = await network.attach("web"), await network.attach("client")
        await know(network, service(copy(web)))
        with echo(web) as listeners, datagrams(web.namespace, port=53) as server:
            assert speak(listeners[web.address], client.namespace, WEB, 80) == client.address
            assert speak(listeners[web.address], ground.machine.place, WEB, 80) == GATEWAY
            assert speak(listeners[web.address], client.namespace, twin(WEB), 80) == client.address6
            assert speak(listeners[web.address], ground.machine.place, twin(WEB), 80) == twin(GATEWAY)
            assert speak(listeners[web.address], web.namespace, twin(WEB), 80) == twin(GATEWAY)  # itself
            # And directly, as before.
            assert speak(listeners[web.address], client.namespace, web.address, 80) == client.address
            with datagrams(client.namespace) as caller:
                assert exchange(server, caller, WEB, 53) == client.address
            with datagrams(ground.machine.place) as caller:
                assert exchange(server, caller, WEB, 53) == GATEWAY
        await network.keep_only(set())


async def test_a_copy_may_be_connected_to_itself(ground: Ground) -> None:
    async with ground.agent() as network:
        web = await network.attach("web")
        await know(network, service(copy(web)))
        with echo(web) as listeners:
            assert speak(listeners[web.address], web.namespace, WEB, 80) == GATEWAY
        await network.keep_only(set())


async def test_ports_lead_to_those_of_the_copies_and_others_are_refused(ground: Ground) -> None:
    async with ground.agent() as network:
        web, other, client = [await network.attach(name) for name in ("web", "other", "client")]
        ports = [ServicePort(80, 8080), ServicePort(53, 5353, Protocol.UDP)]
        await know(network, service(copy(web), copy(other), ports=ports))
        with (
            echo(web, other, port=8080) as listeners,
            datagrams(web.namespace, port=5353) as first,
            datagrams(other.namespace, port=5353) as second,
            datagrams(client.namespace) as caller,
        ):
            assert answers(listeners, client.namespace, 10).total() == 10
            assert is_refused(client.namespace, WEB, 8080)
            caller.connect((WEB, 53))
            caller.send(b"question")
            first.settimeout(0.0)
            second.settimeout(0.0)
            seen = []
            while not seen:
                for each in (first, second):
                    with contextlib.suppress(BlockingIOError):
                        seen.append(each.recvfrom(100)[1][0])
            assert seen == [client.address]
        await network.keep_only(set())


async def test_without_a_ready_copy_connections_are_refused_at_once(ground: Ground) -> None:
    async with ground.agent() as network:
        web, client = await network.attach("web"), await network.attach("client")
        await know(network, service(copy(web, EndpointState.NOT_READY)))
        with echo(web):
            for place in (client.namespace, ground.machine.place):
                assert is_refused(place, WEB)
                assert is_refused(place, "10.63.9.9")  # no service at all
                assert is_datagram_refused(place, WEB, 53)
        await network.keep_only(set())


async def test_a_draining_copy_keeps_its_connections_and_gets_no_new_ones(ground: Ground) -> None:
    async with ground.agent() as network:
        old, new, client = [await network.attach(name) for name in ("old", "new", "client")]
        await know(network, service(copy(old)))
        with echo(old, new) as listeners, dial(client.namespace, WEB, 80) as before:
            accepted, _ = listeners[old.address].accept()
            await know(network, service(copy(old, EndpointState.DRAINING), copy(new)))
            assert set(answers(listeners, client.namespace, 10)) == {new.address}
            with accepted:
                accepted.settimeout(WITHIN_S)
                before.sendall(b"still here")
                assert accepted.recv(100) == b"still here"
                accepted.sendall(b"yes")
                assert before.recv(100) == b"yes"
        await network.keep_only(set())


async def test_datagrams_of_an_open_flow_go_to_another_copy_when_theirs_is_gone(ground: Ground) -> None:
    async with ground.agent() as network:
        old, new, client = [await network.attach(name) for name in ("old", "new", "client")]
        await know(network, service(copy(old)))
        with (
            datagrams(old.namespace, port=53) as first,
            datagrams(new.namespace, port=53) as second,
            datagrams(client.namespace) as caller,
        ):
            assert exchange(first, caller, WEB, 53) == client.address
            await know(network, service(copy(old, EndpointState.DRAINING), copy(new)))
            assert exchange(first, caller, WEB, 53) == client.address
            await know(network, service(copy(new)))
            assert exchange(second, caller, WEB, 53) == client.address
        await network.keep_only(set())


async def test_a_connection_that_no_copy_has_answered_goes_to_another_when_its_node_is_lost(
    ground: Ground, other: Machine
) -> None:
    """A client repeats its first packet after 1, 3, 7 seconds, for which the kernel makes no new choice."""
    run("ip", "route", "add", "10.98.0.0/24", "via", "192.0.2.9")  # who answers nothing for that address
    there = copy("10.98.0.7", node="there")
    async with ground.agent() as network:
        near, client = await network.attach("near"), await network.attach("client")
        await know(network, service(there))
        with echo(near) as listeners, connecting(client.namespace, WEB, 80) as caller:
            await know(network, service(there, copy(near)))
            network.services.unreachable_changed(frozenset([NodeId("there")]))
            await network.services.apply()
            accepted, _ = await asyncio.to_thread(listeners[near.address].accept)
            caller.settimeout(WITHIN_S)
            with accepted:
                # One that was answered stays, whatever becomes of its copy.
                await know(network, service(there, copy(near, EndpointState.NOT_READY)))
                await asyncio.to_thread(accepted.sendall, b"answer")
                assert await asyncio.to_thread(caller.recv, 100) == b"answer"
        await network.keep_only(set())


async def test_rules_change_while_flows_of_a_closed_copy_are_removed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may take long to look at all of its flows."""
    removing, goes_on = threading.Event(), threading.Event()

    def forget(closed: object, *, has_ipv6: bool) -> None:
        removing.set()
        goes_on.wait()

    monkeypatch.setattr(conntrack, "forget_unanswered_of_services", forget)
    async with ground.agent() as network, asyncio.TaskGroup() as group:
        first, second, client = [await network.attach(name) for name in ("first", "second", "client")]
        await know(network, service(copy(first)))
        follows = group.create_task(network.services.run())
        try:
            network.services.services_changed({"web": service(copy(first, EndpointState.NOT_READY))})
            await eventually(removing.is_set)
            network.services.services_changed({"web": service(copy(second))})
            with echo(second) as listeners:
                await eventually(lambda: not is_refused(client.namespace, WEB))
                assert answers(listeners, client.namespace, 1).keys() == {second.address}
        finally:
            goes_on.set()
            follows.cancel()
        await network.keep_only(set())


async def test_with_affinity_a_client_keeps_its_copy_while_it_is_ready(ground: Ground) -> None:
    async with ground.agent() as network:
        copies = [await network.attach(name) for name in "abcd"]
        client = await network.attach("client")
        ports = [ServicePort(80), ServicePort(81, 80)]
        with echo(*copies) as listeners:
            for given in ((), ports):
                await know(network, service(*map(copy, copies), affinity_s=600, ports=given))
                (kept,) = answers(listeners, client.namespace, 20)
                assert set(answers(listeners, client.namespace, 20, port=81 if given else 80)) == {kept}
                # Other clients have copies of their own.
                others = [answers(listeners, each.namespace, 1) for each in copies]
                assert sum(each.total() for each in others) == 4
                states = {kept: EndpointState.NOT_READY}
                await know(
                    network,
                    service(
                        *(copy(each, states.get(each.address, EndpointState.READY)) for each in copies),
                        affinity_s=600,
                        ports=given,
                    ),
                )
                (moved,) = answers(listeners, client.namespace, 20)
                assert moved != kept
        await network.keep_only(set())


async def test_isolated_containers_and_those_with_internet_egress_do_not_reach_services(
    ground: Ground,
) -> None:
    async with ground.agent() as network:
        web = await network.attach("web")
        guest = await network.attach("guest", is_isolated=True)
        limited = await network.attach("limited", policy=NetworkPolicy(egress=Egress.INTERNET))
        client = await network.attach("client")
        await know(network, service(copy(web)))
        with echo(web):
            calls = [
                (name, place.namespace, WEB, 80)
                for name, place in (("guest", guest), ("limited", limited), ("client", client))
            ]
            assert await reachable(calls) == ["client"]
        await network.keep_only(set())


async def test_flushed_rules_come_back_and_those_of_others_stay(ground: Ground) -> None:
    async with ground.agent() as network:
        web, client = await network.attach("web"), await network.attach("client")
        await know(network, service(copy(web)))
        table = network._names.services_table
        for harm in (
            f"flush chain ip {table} balance",
            f"flush chain ip {table} service_0a3f0402",
            f"delete table ip {table}",
            f"delete table bridge {table}",
        ):
            run("nft", "-f", "-", text=f"table ip others {{ }}\n{harm}\n")
            await network.services.apply(is_doubtful=True)
            assert "table ip others" in ground.tables()
            with echo(web) as listeners:
                assert answers(listeners, client.namespace, 1) == {web.address: 1}
                assert answers(listeners, ground.machine.place, 1) == {web.address: 1}
        run("ip", "route", "del", RANGE)
        await network.services.apply(is_doubtful=True)
        with echo(web) as listeners:
            assert answers(listeners, ground.machine.place, 1) == {web.address: 1}
        run("nft", "delete", "table", "ip", "others")
        await network.keep_only(set())


async def test_rules_outlive_the_agent_and_the_next_one_takes_them_over(ground: Ground) -> None:
    network = await ground.open()
    web, client = await network.attach("web"), await network.attach("client")
    await know(network, service(copy(web)), service(copy(web), address="10.63.7.7"))
    await network.close()
    with echo(web) as listeners:
        assert answers(listeners, client.namespace, 1) == {web.address: 1}
        async with ground.agent() as successor:
            assert answers(listeners, client.namespace, 1) == {web.address: 1}
            await know(successor, service(copy(web)))
            assert answers(listeners, client.namespace, 1) == {web.address: 1}
            assert is_refused(client.namespace, "10.63.7.7")
            await successor.keep_only(set())


async def test_a_successor_moves_datagrams_from_copies_that_went_meanwhile(ground: Ground) -> None:
    network = await ground.open()
    old, new, client = [await network.attach(name) for name in ("old", "new", "client")]
    await know(network, service(copy(old)))
    with (
        datagrams(old.namespace, port=53) as first,
        datagrams(new.namespace, port=53) as second,
        datagrams(client.namespace) as caller,
    ):
        assert exchange(first, caller, WEB, 53) == client.address
        await network.close()
        async with ground.agent() as successor:
            await know(successor, service(copy(new)))
            assert exchange(second, caller, WEB, 53) == client.address
            await successor.keep_only(set())


async def test_a_machine_with_another_route_to_the_range_keeps_it(ground: Ground, other: Machine) -> None:
    run("ip", "route", "add", "10.63.0.0/16", "via", "192.0.2.9")
    other.run("ip", "address", "add", "10.63.4.2/32", "dev", "lo")
    async with ground.agent() as network:
        web, client = await network.attach("web"), await network.attach("client")
        await know(network, service(copy(web)))
        with echo(web) as listeners, listen(other.place, "10.63.4.2", 80) as elsewhere:
            assert answers(listeners, client.namespace, 1) == {web.address: 1}
            assert speak(elsewhere, ground.machine.place, WEB, 80) == "192.0.2.1"
        await network.keep_only(set())


async def test_a_changed_subnet_of_containers_and_range_of_addresses_are_followed(ground: Ground) -> None:
    async with ground.agent() as network:
        web, client = await network.attach("web"), await network.attach("client")
        await know(network, service(copy(web)))
        await network.use("10.98.0.0/24")
        late = await network.attach("late")
        await network.services.apply()
        await know(network, service(copy(web), copy(late)))
        with echo(web, late) as listeners:
            assert set(answers(listeners, ground.machine.place, 40)) == {web.address, late.address}
            assert set(answers(listeners, client.namespace, 40)) == {web.address, late.address}
            moved = "10.62.1.1"
            known = service(copy(web), address=moved)
            await know(network, known)
            await know(network, known, range="10.62.0.0/16")
            assert answers(listeners, ground.machine.place, 1, address=moved) == {web.address: 1}
            assert answers(listeners, client.namespace, 1, address=moved) == {web.address: 1}
        routes = run("ip", "route")
        assert "10.62.0.0/16" in routes
        assert RANGE not in routes
        await network.keep_only(set())


async def test_copies_on_another_node_are_reached_by_its_subnet(ground: Ground, other: Machine) -> None:
    """The mesh gives routes between nodes; here one is set by hand, and the other node is a host."""
    run("ip", "route", "add", "10.98.0.0/24", "via", "192.0.2.9")
    other.run("ip", "address", "add", "10.98.0.7/32", "dev", "lo")
    async with ground.agent() as network:
        near, client = await network.attach("near"), await network.attach("client")
        await know(network, service(copy("10.98.0.7", node="there")))
        with listen(other.place, "10.98.0.7", 80) as far, echo(near) as listeners:
            # Without the mesh, what leaves the node is masqueraded.
            assert speak(far, client.namespace, WEB, 80) == "192.0.2.1"
            assert speak(far, ground.machine.place, WEB, 80)
            listeners = {"10.98.0.7": far, **listeners}
            await know(network, service(copy("10.98.0.7", node="there"), copy(near)))
            found = answers(listeners, client.namespace, 200)
            assert found[near.address] > found["10.98.0.7"] > 0
        await network.keep_only(set())


async def test_a_node_to_which_no_packet_gets_is_avoided_unless_it_has_the_only_copy(
    ground: Ground, other: Machine
) -> None:
    run("ip", "route", "add", "10.98.0.0/24", "via", "192.0.2.9")
    other.run("ip", "address", "add", "10.98.0.7/32", "dev", "lo")
    there, unreachable = copy("10.98.0.7", node="there"), frozenset([NodeId("there")])
    async with ground.agent() as network:
        near, client = await network.attach("near"), await network.attach("client")
        network.services.unreachable_changed(unreachable)
        await know(network, service(there))
        with (
            listen(other.place, "10.98.0.7", 80) as far,
            echo(near) as listeners,
            datagrams(other.place, "10.98.0.7", 53) as first,
            datagrams(near.namespace, port=53) as second,
            datagrams(client.namespace) as caller,
        ):
            assert speak(far, client.namespace, WEB, 80)
            exchange(first, caller, WEB, 53)
            await know(network, service(there, copy(near)))
            exchange(second, caller, WEB, 53)
            listeners = {"10.98.0.7": far, **listeners}
            assert answers(listeners, client.namespace, 100).keys() == {near.address}
            network.services.unreachable_changed(frozenset())
            await network.services.apply()
            assert answers(listeners, client.namespace, 100).keys() == {near.address, "10.98.0.7"}
        await network.keep_only(set())


async def test_many_services_are_written_and_changed_in_part(ground: Ground) -> None:
    async with ground.agent() as network:
        web, client = await network.attach("web"), await network.attach("client")
        many = [
            service(
                *(copy(f"10.99.{number % 250}.{index + 2}", node="there") for index in range(10)),
                address=str(IPv4Address("10.63.128.0") + number),
            )
            for number in range(300)
        ]
        await know(network, *many, service(copy(web, EndpointState.NOT_READY)))
        assert is_refused(client.namespace, WEB)
        await know(network, *many[:-1], service(copy(web)))
        with echo(web) as listeners:
            assert answers(listeners, client.namespace, 1) == {web.address: 1}
        listed = run("nft", "list", "map", "ip", network._names.services_table, "services")
        assert listed.count("goto service_") == 300
        await network.keep_only(set())


async def test_objects_that_cannot_be_do_not_hinder_others(ground: Ground) -> None:
    async with ground.agent() as network:
        web, client = await network.attach("web"), await network.attach("client")
        twin = ServiceAddress(ServiceId("twin"), "twin", Namespace("shop"), WEB, endpoints=(copy(client),))
        odd = [
            service(copy(web), address=each) for each in ("", "nonsense; flush ruleset", "192.0.2.7", "::1")
        ]
        bad = service(copy("no address }"), copy(web), address="10.63.0.5")
        await know(network, service(copy(web)), twin, *odd, bad)
        with echo(web) as listeners:
            assert answers(listeners, client.namespace, 1) == {web.address: 1}
            assert answers(listeners, client.namespace, 1, address="10.63.0.5") == {web.address: 1}
        await network.keep_only(set())


async def test_strict_checks_of_sources_do_not_hinder_refusals(ground: Ground) -> None:
    """Refusals come from the virtual address, on the loopback."""
    run("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1")
    async with ground.agent() as network:
        web = await network.attach("web")
        await know(network, service(copy(web, EndpointState.NOT_READY)))
        assert is_refused(ground.machine.place, WEB)
        await know(network, service(copy(web)))
        with echo(web) as listeners:
            assert answers(listeners, ground.machine.place, 1) == {web.address: 1}
        await network.keep_only(set())
