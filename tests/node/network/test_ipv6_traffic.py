"""Packets of IPv6 go where those of IPv4 do, and nowhere else."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

import msgspec
import pytest

from skerry.model import errors
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.network import Attachment
from skerry.node.network.subnets import mac_of
from tests.node.network.machines import (
    Ground,
    Machine,
    cannot_dial,
    datagrams,
    dial,
    exchange,
    frames,
    inside,
    listen,
    mappings,
    run,
    speak,
)

pytestmark = pytest.mark.root

NODE = "2001:db8::1"
OTHER = "2001:db8::9"
PREFIX = "fda8:5e7c:f8fa::"
GATEWAY = f"{PREFIX}a63:1"
FIRST = f"{PREFIX}a63:2"
ALL_NODES = "ff02::1"
ROUTER_ADVERTISEMENT, NEIGHBOUR_ADVERTISEMENT = 134, 136


@contextlib.contextmanager
def servers(attachment: Attachment, tcp: int, udp: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        listen(attachment.namespace, "::", tcp) as listener,
        datagrams(attachment.namespace, "::", udp) as server,
    ):
        yield listener, server


async def test_a_container_has_an_address_that_follows_from_the_other(ground: Ground) -> None:
    async with ground.agent() as network:
        web = await network.attach("web")
        assert (web.address, web.address6) == ("10.99.0.2", FIRST)
        addresses = inside(web.namespace, lambda: run("ip", "-6", "-brief", "address")).splitlines()
        # No link-local one, and none that waits for its neighbours to object.
        assert [line.split()[2:] for line in addresses] == [["::1/128"], [f"{FIRST}/128"]]
        await network.detach("web")
        assert FIRST not in run("ip", "-6", "neighbour")


async def test_containers_reach_each_other_by_the_node(ground: Ground) -> None:
    async with ground.agent() as network:
        web, shop = await network.attach("web"), await network.attach("shop")
        with servers(web, 80, 53) as (listener, server), datagrams(shop.namespace, "::") as caller:
            assert speak(listener, shop.namespace, web.address6, 80) == shop.address6
            assert exchange(server, caller, web.address6, 53) == shop.address6
            assert speak(listener, ground.machine.place, web.address6, 80) == GATEWAY
        await network.keep_only(set())


async def test_another_host_reaches_a_published_port_and_is_seen_with_its_own_address(
    ground: Ground, other: Machine
) -> None:
    async with ground.agent() as network:
        web = await network.attach("web", mappings("8080:80", "8080:53/udp"))
        await network.publish("web")
        with servers(web, 80, 53) as (listener, server), datagrams(other.place, "::") as caller:
            assert speak(listener, other.place, NODE, 8080) == OTHER
            assert exchange(server, caller, NODE, 8080) == OTHER
        await network.detach("web")
        assert cannot_dial(other.place, NODE, 8080)


async def test_the_node_and_its_containers_reach_a_published_port(ground: Ground, other: Machine) -> None:
    async with ground.agent() as network:
        web = await network.attach("web", mappings("8080:80", "8080:53/udp"))
        shop = await network.attach("shop")
        await network.publish("web")
        with servers(web, 80, 53) as (listener, server):
            for address in (NODE, GATEWAY):
                assert speak(listener, ground.machine.place, address, 8080) in (NODE, GATEWAY)
                for place in (shop.namespace, web.namespace):
                    with datagrams(place, "::") as caller:
                        assert speak(listener, place, address, 8080) == GATEWAY
                        assert exchange(server, caller, address, 8080) == GATEWAY
            # The kernel forwards nothing of ::1. It says so at once, and programs take 127.0.0.1.
            with pytest.raises(ConnectionRefusedError):
                dial(ground.machine.place, "::1", 8080)
            speak(listener, ground.machine.place, "127.0.0.1", 8080)
        await network.keep_only(set())


async def test_a_published_port_is_held_at_ipv6_addresses(ground: Ground) -> None:
    async with ground.agent() as network:
        await network.attach("web", mappings("8080:80"))
        with socket.socket(socket.AF_INET6) as another, pytest.raises(OSError) as refused:
            another.bind(("::1", 8080))
        assert refused.value.errno == errno.EADDRINUSE
        await network.detach("web")
        listen(ground.machine.place, "::1", 8080).close()


async def test_a_container_reaches_other_hosts_as_the_node(ground: Ground, other: Machine) -> None:
    async with ground.agent() as network:
        web = await network.attach("web")
        with (
            listen(other.place, "::", 443) as listener,
            datagrams(other.place, "::", 53) as server,
            datagrams(web.namespace, "::") as caller,
        ):
            assert speak(listener, web.namespace, OTHER, 443) == NODE
            assert exchange(server, caller, OTHER, 53) == NODE
        await network.detach("web")


async def test_where_the_machine_has_no_route_a_connection_is_refused_at_once(ground: Ground) -> None:
    async with ground.agent() as network:
        web = await network.attach("web")
        # The kernel's own message would be seen after a second only, and as another error.
        with pytest.raises(ConnectionRefusedError):
            dial(web.namespace, "2600::1", 443)
        await network.detach("web")


async def test_a_port_that_is_not_published_is_out_of_reach_of_other_hosts(
    ground: Ground, other: Machine
) -> None:
    async with ground.agent() as network:
        web = await network.attach("web", mappings("8080:80"))
        other.run("ip", "route", "add", f"{PREFIX}/96", "via", NODE)
        with listen(web.namespace, "::", 80) as listener, listen(web.namespace, "::", 81):
            await network.publish("web")
            speak(listener, other.place, NODE, 8080)
            assert cannot_dial(other.place, NODE, 81)
            assert cannot_dial(other.place, web.address6, 80)
            assert cannot_dial(other.place, web.address6, 81)
        await network.detach("web")


async def test_packets_from_an_address_that_is_not_of_the_subnet_are_dropped(
    ground: Ground, other: Machine
) -> None:
    async with ground.agent() as network:
        web = await network.attach("web")
        other.run("ip", "route", "add", "2001:db8:7::/64", "via", NODE)
        inside(web.namespace, lambda: run("ip", "address", "add", "2001:db8:7::7/128", "dev", "lo", "nodad"))
        with (
            datagrams(other.place, "::", port=53) as server,
            datagrams(web.namespace, "2001:db8:7::7") as forger,
            datagrams(web.namespace, "::") as honest,
        ):
            forger.sendto(b"forged", (OTHER, 53))
            honest.sendto(b"honest", (OTHER, 53))
            assert server.recv(100) == b"honest"
        await network.detach("web")


def neighbour_message(kind: int, source: str, target: str, mac: bytes) -> bytes:
    """An ICMPv6 message that says that `target`, or a router, is at `mac`."""
    body = bytes([64, 0, 7, 8]) + bytes(8) if kind == ROUTER_ADVERTISEMENT else b"\xa0\0\0\0" + packed(target)
    option = bytes([1 if kind == ROUTER_ADVERTISEMENT else 2, 1]) + mac
    message = bytes([kind, 0, 0, 0]) + body + option
    pseudo = packed(source) + packed(ALL_NODES) + struct.pack("!II", len(message), 58) + message
    total = sum(struct.unpack(f"!{len(pseudo) // 2}H", pseudo))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    message = message[:2] + struct.pack("!H", ~total & 0xFFFF) + message[4:]
    return (
        struct.pack("!IHBB", 0x60000000, len(message), 58, 255) + packed(source) + packed(ALL_NODES) + message
    )


def packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6, address)


def hardware(address: str) -> bytes:
    return bytes.fromhex(mac_of(IPv4Address(address)).replace(":", ""))


async def test_a_container_can_tell_nobody_where_an_address_or_a_router_is(ground: Ground) -> None:
    async with ground.agent() as network:
        liar, web = await network.attach("liar"), await network.attach("web")
        own, there = hardware(liar.address), hardware(web.address)
        lies = [
            neighbour_message(kind, source, web.address6, own)
            for kind in (ROUTER_ADVERTISEMENT, NEIGHBOUR_ADVERTISEMENT)
            for source in (liar.address6, web.address6, GATEWAY, "fe80::1")
        ]
        with frames(liar.namespace, "eth0") as speaker, frames(web.namespace, "eth0") as ear:
            for lie in lies:
                for target in (bytes.fromhex("333300000001"), there, b"\xff" * 6, hardware("10.99.0.1")):
                    speaker.send(target + own + b"\x86\xdd" + lie)
            with datagrams(ground.machine.place, "::") as node:
                node.sendto(b"the last one", (web.address6, 4000))
            received = [ear.recv(2000)]
            while b"the last one" not in received[-1]:
                received.append(ear.recv(2000))
        assert [each for each in received if each[6:12] == own] == []
        assert f"{web.address6} dev sk-5ce1a7e0 lladdr {mac_of(IPv4Address(web.address))} PERMANENT" in run(
            "ip", "-6", "neighbour"
        )
        assert "default" not in run("ip", "-6", "route")
        with listen(web.namespace, "::", 80) as listener:
            assert speak(listener, liar.namespace, web.address6, 80) == liar.address6
        await network.keep_only(set())


async def test_a_container_cannot_reach_another_by_its_hardware_address(ground: Ground) -> None:
    """Frames of IPv6 all go to the node, whatever they are addressed to."""
    async with ground.agent() as network:
        one, two = await network.attach("one"), await network.attach("two")
        udp = struct.pack("!HHHH", 9, 4000, 8 + 6, 0) + b"forged"
        packet = (
            struct.pack("!IHBB", 0x60000000, len(udp), 17, 64) + packed("fe80::7") + packed("fe80::8") + udp
        )
        with frames(one.namespace, "eth0") as speaker, frames(two.namespace, "eth0") as ear:
            speaker.send(hardware(two.address) + hardware(one.address) + b"\x86\xdd" + packet)
            with datagrams(ground.machine.place, "::") as node:
                node.sendto(b"the last one", (two.address6, 4000))
            received = [ear.recv(2000)]
            while b"the last one" not in received[-1]:
                received.append(ear.recv(2000))
        assert [each for each in received if b"forged" in each] == []
        await network.keep_only(set())


async def test_a_machine_that_listens_to_routers_goes_on_when_it_forwards(
    ground: Ground, other: Machine
) -> None:
    conf = Path("/proc/sys/net/ipv6/conf")
    cable = next(each.name for each in conf.iterdir() if each.name.startswith("cable"))
    (conf / cable / "accept_ra").write_text("1")
    async with ground.agent() as network:
        assert (conf / "all/forwarding").read_text() == "1\n"
        assert (conf / cable / "accept_ra").read_text() == "2\n"
        assert (conf / "sk-5ce1a7e0/accept_ra").read_text() == "0\n"
        web = await network.attach("web")
        await network.detach(web.owner)


async def test_what_an_agent_without_ipv6_left_goes_on_with_one_that_has_it(ground: Ground) -> None:
    off = msgspec.structs.replace(ground.settings, ipv6="off")
    first = await ground.open(settings=off)
    old = await first.attach("old")
    await first.close()
    async with ground.agent() as second:
        new = await second.attach("new")
        assert (second.attachments()["old"].address6, bool(new.address6)) == ("", True)
        with listen(old.namespace, "0.0.0.0", 80) as listener:
            assert speak(listener, new.namespace, old.address, 80) == new.address
        await second.detach("old")
    # And the other way round: who had one has none that others are told of.
    async with ground.agent(settings=off) as third:
        assert third.attachments()["new"].address6 == ""
        assert "table ip6 skerry_5ce1a7e0" not in ground.tables()
        assert "inet6" not in run("ip", "address", "show", "dev", "sk-5ce1a7e0")
        await third.detach("new")


@pytest.mark.parametrize("family", ["ip6", "bridge"])
async def test_where_its_rules_cannot_be_had_there_is_no_ipv6(
    ground: Ground, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nft(self: NetworkCommands, text: str) -> None:
        if f"table {family} skerry" in text:
            raise errors.Unavailable("nft: Operation not supported")
        run("nft", "-f", "-", text=text)

    monkeypatch.setattr(NetworkCommands, "nft", nft)
    async with ground.agent() as network:
        web = await network.attach("web")
        assert web.address6 == ""
        assert any("containers have no IPv6" in sentence for sentence in network.lacking())
        addresses = inside(web.namespace, lambda: run("ip", "-6", "-brief", "address", "show", "eth0"))
        assert addresses == ""
        await network.detach("web")
