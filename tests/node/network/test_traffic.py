"""Packets go where they should, and only there."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from skerry.node.network.network import Attachment
from tests.node.network.machines import (
    Ground,
    Machine,
    cannot_dial,
    datagrams,
    exchange,
    inside,
    listen,
    mappings,
    run,
    speak,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.root

NODE = "192.0.2.1"
GATEWAY = "10.99.0.1"


@contextlib.contextmanager
def servers(attachment: Attachment, tcp: int, udp: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        listen(attachment.namespace, "0.0.0.0", tcp) as listener,
        datagrams(attachment.namespace, port=udp) as server,
    ):
        yield listener, server


async def test_another_host_reaches_a_published_port_and_is_seen_with_its_own_address(
    ground: Ground, other: Machine
) -> None:
    async with ground.agent() as network:
        web = await network.attach("web", mappings("8080:80", "8080:53/udp"))
        await network.publish("web")
        with servers(web, 80, 53) as (listener, server), datagrams(other.place) as caller:
            assert speak(listener, other.place, NODE, 8080) == "192.0.2.9"
            assert exchange(server, caller, NODE, 8080) == "192.0.2.9"
        await network.detach("web")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", NODE, GATEWAY])
async def test_the_node_itself_reaches_a_published_port(ground: Ground, other: Machine, address: str) -> None:
    async with ground.agent() as network:
        web = await network.attach("web", mappings("8080:80", "8080:53/udp"))
        await network.publish("web")
        with servers(web, 80, 53) as (listener, server), datagrams(ground.machine.place) as caller:
            seen = NODE if address == NODE else GATEWAY
            assert speak(listener, ground.machine.place, address, 8080) == seen
            assert exchange(server, caller, address, 8080) == seen
        await network.detach("web")


async def test_containers_reach_each_other_directly(ground: Ground) -> None:
    async with ground.agent() as network:
        web = await network.attach("web")
        shop = await network.attach("shop")
        with servers(web, 80, 53) as (listener, server), datagrams(shop.namespace) as caller:
            assert speak(listener, shop.namespace, web.address, 80) == shop.address
            assert exchange(server, caller, web.address, 53) == shop.address
        await network.keep_only(set())


@pytest.mark.parametrize("address", [NODE, GATEWAY])
async def test_containers_reach_a_published_port_of_another_and_of_their_own(
    ground: Ground, other: Machine, address: str
) -> None:
    async with ground.agent() as network:
        web = await network.attach("web", mappings("8080:80", "8080:53/udp"))
        shop = await network.attach("shop")
        await network.publish("web")
        with servers(web, 80, 53) as (listener, server):
            for place in (shop.namespace, web.namespace):
                with datagrams(place) as caller:
                    assert speak(listener, place, address, 8080) == GATEWAY
                    assert exchange(server, caller, address, 8080) == GATEWAY
        await network.keep_only(set())


async def test_a_container_reaches_other_hosts_as_the_node(ground: Ground, other: Machine) -> None:
    async with ground.agent() as network:
        web = await network.attach("web")
        with (
            listen(other.place, "0.0.0.0", 443) as listener,
            datagrams(other.place, port=53) as server,
            datagrams(web.namespace) as caller,
        ):
            assert speak(listener, web.namespace, "192.0.2.9", 443) == NODE
            assert exchange(server, caller, "192.0.2.9", 53) == NODE
        await network.detach("web")


async def test_a_port_that_is_not_published_is_out_of_reach_of_other_hosts(
    ground: Ground, other: Machine
) -> None:
    async with ground.agent() as network:
        web = await network.attach("web", mappings("8080:80"))
        # A host that was told of the subnet is no better off.
        other.run("ip", "route", "add", "10.99.0.0/24", "via", NODE)
        with listen(web.namespace, "0.0.0.0", 80) as listener, listen(web.namespace, "0.0.0.0", 81):
            assert cannot_dial(other.place, NODE, 8080)  # not yet
            await network.publish("web")
            speak(listener, other.place, NODE, 8080)
            assert cannot_dial(other.place, NODE, 81)
            assert cannot_dial(other.place, web.address, 80)
            assert cannot_dial(other.place, web.address, 81)
        await network.detach("web")


async def test_a_withdrawn_port_leads_nowhere(ground: Ground, other: Machine) -> None:
    async with ground.agent() as network:
        web = await network.attach("web", mappings("8080:80"))
        await network.publish("web")
        await network.attach("stays")
        await network.detach("web")
        assert cannot_dial(other.place, NODE, 8080)
        assert cannot_dial(ground.machine.place, "127.0.0.1", 8080)
        assert "8080" not in run("nft", "list", "ruleset")
        with pytest.raises(FileNotFoundError):
            open(web.namespace, "rb").close()
        await network.detach("stays")


async def test_what_listens_on_the_loopback_of_the_node_is_out_of_reach_of_containers(ground: Ground) -> None:
    async with ground.agent() as network:
        web = await network.attach("web")
        with (
            listen(ground.machine.place, "127.0.0.1", 1323),
            listen(ground.machine.place, GATEWAY, 1324) as public,
        ):
            assert cannot_dial(web.namespace, GATEWAY, 1323)
            # A container that is root in its namespace can even send packets for 127.0.0.1 over the bridge.
            inside(
                web.namespace,
                lambda: run(
                    "sh",
                    "-c",
                    "ip address del 127.0.0.1/8 dev lo; echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet",
                ),
            )
            assert "via 10.99.0.1" in inside(web.namespace, lambda: run("ip", "route", "get", "127.0.0.1"))
            assert cannot_dial(web.namespace, "127.0.0.1", 1323)
            # What listens for the network is what they may use, as any other host may.
            assert speak(public, web.namespace, GATEWAY, 1324) == web.address
        await network.detach("web")


async def test_without_the_guard_the_loopback_of_the_node_would_be_in_reach(ground: Ground) -> None:
    """So that the test above is known to be able to fail."""
    async with ground.agent() as network:
        web = await network.attach("web")
        run("nft", "flush", "chain", "ip", "skerry_5ce1a7e0", "guard")
        inside(
            web.namespace,
            lambda: run(
                "sh",
                "-c",
                "ip address del 127.0.0.1/8 dev lo; echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet",
            ),
        )
        with listen(ground.machine.place, "127.0.0.1", 1323):
            assert not cannot_dial(web.namespace, "127.0.0.1", 1323)
        await network.detach("web")


async def test_packets_from_an_address_that_is_not_of_the_subnet_are_dropped(
    ground: Ground, other: Machine
) -> None:
    async with ground.agent() as network:
        web = await network.attach("web")
        # Whatever the machine itself thinks of where packets come from.
        for setting in Path("/proc/sys/net/ipv4/conf").glob("*/rp_filter"):
            setting.write_text("0")
        other.run("ip", "route", "add", "198.51.100.0/24", "via", NODE)
        inside(web.namespace, lambda: run("ip", "address", "add", "198.51.100.7/32", "dev", "lo"))
        with (
            datagrams(other.place, port=53) as server,
            datagrams(web.namespace, "198.51.100.7") as forger,
            datagrams(web.namespace) as honest,
        ):
            forger.sendto(b"forged", ("192.0.2.9", 53))
            honest.sendto(b"honest", ("192.0.2.9", 53))
            assert server.recv(100) == b"honest"
        await network.detach("web")


async def test_datagrams_that_never_pause_follow_the_port_to_its_next_owner(
    ground: Ground, other: Machine
) -> None:
    def unclaimed() -> int:
        """Datagrams to the node on ports where nobody listens."""
        names, values = (line.split() for line in snmp().splitlines() if line.startswith("Udp:"))
        return int(dict(zip(names, values, strict=True))["NoPorts"])

    def snmp() -> str:
        return inside(ground.machine.place, Path("/proc/thread-self/net/snmp").read_text)

    async def send_to_nobody(caller: socket.socket) -> None:
        """Returns when it has arrived: it may wait for its next hop, and would be heard by a later owner."""
        before = unclaimed()
        caller.sendto(b"too early", (NODE, 5353))
        await eventually(lambda: unclaimed() > before)

    async with ground.agent() as network:
        with datagrams(other.place) as caller:
            await send_to_nobody(caller)  # the kernel decides that this flow is the node's own
            for owner in ("one", "two"):
                holder = await network.attach(owner, mappings("5353:53/udp"))
                await network.publish(owner)
                with datagrams(holder.namespace, port=53) as server:
                    exchange(server, caller, NODE, 5353)
                await network.detach(owner)
                await send_to_nobody(caller)


async def test_without_ipv6_a_container_has_none_beyond_its_loopback(ground: Ground) -> None:
    ground.settings = msgspec.structs.replace(ground.settings, ipv6="off")
    async with ground.agent() as network:
        web = await network.attach("web")
        addresses = inside(web.namespace, lambda: run("ip", "-brief", "address")).splitlines()
        assert [line.split()[0].partition("@")[0] for line in addresses] == ["lo", "eth0"]
        assert addresses[0].split()[2:] == ["127.0.0.1/8", "::1/128"]
        assert addresses[1].split()[2:] == [f"{web.address}/24"]
        assert inside(web.namespace, lambda: run("ip", "route")).splitlines()[0].split()[:3] == [
            "default",
            "via",
            GATEWAY,
        ]
        assert "inet6" not in run("ip", "address", "show", "dev", "sk-5ce1a7e0")
        await network.detach("web")


async def test_any_user_of_a_container_may_listen_on_a_low_port(ground: Ground) -> None:
    async with ground.agent() as network:
        web = await network.attach("web")

        def setting() -> str:
            with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as file:
                return file.read().strip()

        assert inside(web.namespace, setting) == "0"
        assert setting() == "1024"
        await network.detach("web")


async def test_neighbours_get_the_same_hardware_address_with_the_same_address(ground: Ground) -> None:
    async with ground.agent() as network:
        web = await network.attach("web")
        visible = inside(web.namespace, lambda: run("ip", "-brief", "link", "show", "eth0"))
        assert visible.split()[2] == "02:53:0a:63:00:02"
        assert web.address == "10.99.0.2"
        await network.detach("web")


@pytest.mark.parametrize("bridged_is_filtered", ["0", "1"])
@pytest.mark.parametrize("reverse_paths", ["0", "1", "2"])
async def test_it_is_the_same_on_machines_that_filter_bridged_packets_or_check_where_they_come_from(
    ground: Ground, bridged_is_filtered: str, reverse_paths: str
) -> None:
    switch = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if switch.exists():
        switch.write_text(bridged_is_filtered)
    for setting in ("all", "default"):
        Path(f"/proc/sys/net/ipv4/conf/{setting}/rp_filter").write_text(reverse_paths)
    async with ground.agent() as network:
        web = await network.attach("web", mappings("8080:80"))
        shop = await network.attach("shop")
        await network.publish("web")
        with listen(web.namespace, "0.0.0.0", 80) as listener:
            speak(listener, shop.namespace, web.address, 80)
            speak(listener, shop.namespace, GATEWAY, 8080)
            speak(listener, web.namespace, GATEWAY, 8080)
            speak(listener, ground.machine.place, "127.0.0.1", 8080)
        await network.keep_only(set())
