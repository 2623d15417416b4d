"""Who is kept apart reaches the world, and nothing and nobody around it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import msgspec
import pytest

from skerry.model import errors
from skerry.node.network import isolation_rules
from skerry.node.network.network import Attachment, Network
from skerry.node.network.subnets import mac_of
from tests.node.network.machines import (
    Call,
    Ground,
    Machine,
    add_addresses,
    add_routes,
    datagrams,
    exchange,
    frames,
    inside,
    listen,
    mappings,
    reachable,
    run,
    speak,
    twin,
    unreached,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.root

NODE = "192.0.2.1"
OUTSIDE = "192.0.2.9"
GATEWAY = "10.99.0.1"
TABLE = "skerry_5ce1a7e0"
GROUP6 = "33:33:00:00:00:01"  # by which machines and routers tell each other of addresses
OURS = [f"table bridge {TABLE}", f"table ip {TABLE}", f"table ip6 {TABLE}"]
APART = [f"{each}_apart" for each in OURS]
BRIDGE = "sk-5ce1a7e0"
PRIVATE = "172.20.1.1"
METADATA = "169.254.169.254"
CLOUD = "198.51.100.7"  # of a pool that is not private


@contextlib.asynccontextmanager
async def village(
    ground: Ground, other: Machine, *, is_isolated: bool, bridged_is_filtered: str = "1"
) -> AsyncIterator[tuple[Network, dict[str, Attachment]]]:
    """`guest` and `second`, both apart or both not, and an ordinary `web` whose port 80 is published as 8080.
    Everybody listens on 80, the node on 1324, and the machine outside has private addresses as well."""
    for switch in Path("/proc/sys/net/bridge").glob("bridge-nf-call-ip*tables"):
        switch.write_text(bridged_is_filtered)
    add_addresses(other, PRIVATE, METADATA, CLOUD)
    add_routes(ground.machine, PRIVATE, METADATA, CLOUD, via=OUTSIDE)
    async with ground.agent(closed=[IPv4Network("198.51.100.0/24")]) as network:
        web = await network.attach("web", mappings("8080:80"))
        await network.publish("web")
        here = {
            "guest": await network.attach("guest", is_isolated=is_isolated),
            "second": await network.attach("second", is_isolated=is_isolated),
            "web": web,
        }
        with contextlib.ExitStack() as listeners:
            for each in here.values():
                listeners.enter_context(listen(each.namespace, "0.0.0.0", 80))
            listeners.enter_context(listen(ground.machine.place, "0.0.0.0", 1324))
            listeners.enter_context(listen(other.place, "0.0.0.0", 443))
            yield network, here
        await network.keep_only(set())


def calls_around(ground: Ground, here: dict[str, Attachment]) -> list[Call]:
    guest, second, web = here["guest"], here["second"], here["web"]
    return [
        ("container", guest.namespace, web.address, 80),
        ("guest to guest", guest.namespace, second.address, 80),
        ("published port", guest.namespace, NODE, 8080),
        ("published port on the bridge", guest.namespace, GATEWAY, 8080),
        ("node", guest.namespace, NODE, 1324),
        ("node on the bridge", guest.namespace, GATEWAY, 1324),
        ("private network", guest.namespace, PRIVATE, 443),
        ("link-local", guest.namespace, METADATA, 443),
        ("other pool of the cloud", guest.namespace, CLOUD, 443),
        ("from a container", web.namespace, guest.address, 80),
        ("from the node", str(ground.machine.place), guest.address, 80),
    ]


@pytest.mark.parametrize("bridged_is_filtered", ["0", "1"])
async def test_who_is_kept_apart_reaches_nobody_here_and_is_reached_by_nobody(
    ground: Ground, other: Machine, bridged_is_filtered: str
) -> None:
    async with village(ground, other, is_isolated=True, bridged_is_filtered=bridged_is_filtered) as (_, here):
        assert await reachable(calls_around(ground, here)) == []
        assert await reachable([("outside", here["guest"].namespace, OUTSIDE, 443)]) == ["outside"]
        # Nor by the detour over the node, which any container may ask to pass packets on.
        for one, another in (("guest", "web"), ("web", "guest")):
            route = (f"{here[another].address}/32", "via", GATEWAY)
            inside(here[one].namespace, lambda route=route: run("ip", "route", "add", *route))
        assert await reachable(calls_around(ground, here)) == []


async def test_others_reach_and_are_reached_by_all_of_these(ground: Ground, other: Machine) -> None:
    """So that the test above is known to be able to fail."""
    async with village(ground, other, is_isolated=False) as (_, here):
        # But for what is closed to everybody.
        calls = [call for call in calls_around(ground, here) if call[0] != "link-local"]
        assert await unreached(calls) == []


async def test_who_is_kept_apart_reaches_other_hosts_as_the_node(ground: Ground, other: Machine) -> None:
    async with ground.agent() as network:
        guest = await network.attach("guest", is_isolated=True)
        with (
            listen(other.place, "0.0.0.0", 443) as listener,
            datagrams(other.place, port=53) as server,
            datagrams(guest.namespace) as caller,
        ):
            assert speak(listener, guest.namespace, OUTSIDE, 443) == NODE
            assert exchange(server, caller, OUTSIDE, 53) == NODE
        await network.detach("guest")


@pytest.mark.parametrize("server", [GATEWAY, PRIVATE])
async def test_who_is_kept_apart_reaches_its_name_server_wherever_that_is(
    ground: Ground, other: Machine, server: str
) -> None:
    ground.settings = msgspec.structs.replace(ground.settings, dns=(server,))
    async with village(ground, other, is_isolated=True) as (_, here):
        place = ground.machine.place if server == GATEWAY else other.place
        with (
            datagrams(place, server, 53) as answering,
            listen(place, server, 53) as accepting,
            datagrams(here["guest"].namespace) as caller,
        ):
            exchange(answering, caller, server, 53)
            speak(accepting, here["guest"].namespace, server, 53)
        assert await reachable(calls_around(ground, here)) == []


@pytest.mark.parametrize("called", [OUTSIDE, GATEWAY])
async def test_who_is_kept_apart_has_so_many_connections_at_once_and_leaves_the_rest_to_others(
    ground: Ground, other: Machine, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation_rules, "MOST_CONNECTIONS", 3)
    ground.settings = msgspec.structs.replace(ground.settings, dns=(GATEWAY,))
    async with village(ground, other, is_isolated=True) as (_, here):
        with contextlib.ExitStack() as opened:
            place = ground.machine.place if called == GATEWAY else other.place
            server = opened.enter_context(datagrams(place, called, 53))
            greedy = [opened.enter_context(datagrams(here["guest"].namespace)) for _ in range(5)]
            second = opened.enter_context(datagrams(here["second"].namespace))
            for each in greedy[:3]:
                exchange(server, each, called, 53)
            for each in greedy[3:]:
                each.sendto(b"one more", (called, 53))
            exchange(server, second, called, 53)  # which would have heard of one more before
            exchange(server, greedy[0], called, 53)


def frame(source: str, kind: int, payload: bytes, *, target: str = mac_of(IPv4Address(GATEWAY))) -> bytes:
    return (
        bytes.fromhex(target.replace(":", "") + source.replace(":", "")) + struct.pack("!H", kind) + payload
    )


def arp(mac: str, address: str) -> bytes:
    """`address` is at `mac`, said unasked to the gateway."""
    return (
        struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2)
        + bytes.fromhex(mac.replace(":", ""))
        + socket.inet_aton(address)
        + bytes(6)
        + socket.inet_aton(GATEWAY)
    )


def packet(source: str) -> bytes:
    """An empty one to the machine outside, of a protocol that nobody speaks."""
    words = struct.pack("!BBHHHBBH", 0x45, 0, 20, 0, 0, 64, 253, 0)
    words += b"".join(map(socket.inet_aton, (source, OUTSIDE)))
    total = sum(struct.unpack("!10H", words))
    checksum = ~(total + (total >> 16)) & 0xFFFF
    return words[:10] + struct.pack("!H", checksum) + words[12:]


def packet6(source: str) -> bytes:
    """The same of IPv6."""
    ends = (socket.inet_pton(socket.AF_INET6, each) for each in (source, twin(OUTSIDE)))
    return struct.pack("!IHBB", 0x60000000, 0, 253, 64) + b"".join(ends)


def lies(guest: Attachment, web: Attachment) -> Iterator[bytes]:
    """Frames that pretend to be of `web`, or are of no kind that a container has to send."""
    own, other = (mac_of(IPv4Address(each.address)) for each in (guest, web))
    yield frame(own, 0x0800, packet(web.address))
    yield frame(own, 0x0800, packet("192.0.2.77"))
    yield frame(other, 0x0800, packet(guest.address))
    yield frame(own, 0x0806, arp(other, guest.address))
    yield frame(own, 0x0806, arp(own, web.address))
    yield frame(other, 0x0806, arp(own, guest.address))
    yield frame(own, 0x0806, arp(own, GATEWAY), target="ff:ff:ff:ff:ff:ff")
    yield frame(own, 0x86DD, b"\x60" + bytes(39))
    yield frame(own, 0x86DD, packet6(web.address6))
    yield frame(own, 0x86DD, packet6("2001:db8::77"))
    yield frame(other, 0x86DD, packet6(guest.address6))
    yield frame(own, 0x86DD, packet6(guest.address6), target=GROUP6)
    yield frame(own, 0x8100, struct.pack("!HH", 7, 0x0800) + packet(web.address))
    yield frame(own, 0x88B5, b"experiment")


def untagged(each: bytes) -> bytes:
    """As the kernel hands it out, without the tag of a VLAN."""
    return each[:12] + each[16:] if each[12:14] == b"\x81\x00" else each


@pytest.mark.parametrize("is_isolated", [False, True])
async def test_only_who_is_kept_apart_cannot_pretend_to_be_somebody_else(
    ground: Ground, other: Machine, is_isolated: bool
) -> None:
    async with village(ground, other, is_isolated=is_isolated, bridged_is_filtered="0") as (_, here):
        guest, web = here["guest"], here["web"]
        own = mac_of(IPv4Address(guest.address))
        honest = frame(own, 0x0800, packet(guest.address))
        forged = list(lies(guest, web))
        truths = [frame(own, 0x86DD, packet6(guest.address6)), honest]
        with frames(guest.namespace, "eth0") as speaker, frames(ground.machine.place, BRIDGE) as ear:
            for each in [*forged, *truths]:
                speaker.send(each)
            received = []
            while not received or received[-1] != honest:
                received.append(ear.recv(2000))
        assert [each for each in truths if each in received] == truths
        believed = [each for each in map(untagged, forged) if each in received]
        group = bytes.fromhex(GROUP6.replace(":", ""))
        rest = [each for each in map(untagged, forged) if not each.startswith(group)]  # to which nobody sends
        assert believed == ([] if is_isolated else rest)


async def test_the_bridge_learns_nothing_false_of_where_others_are(ground: Ground, other: Machine) -> None:
    async with village(ground, other, is_isolated=True) as (_, here):
        guest, web = here["guest"], here["web"]
        own, there = (mac_of(IPv4Address(each.address)) for each in (guest, web))
        # Frames to this group are never passed on, and so take another way through the bridge.
        lldp = frame(there, 0x88CC, b"", target="01:80:c2:00:00:0e")
        with frames(guest.namespace, "eth0") as speaker:
            for each in [lldp, *lies(guest, web), frame(own, 0x0800, packet(guest.address))]:
                speaker.send(each)
        link = f"s5ce1a7e0{IPv4Address(guest.address).packed[1:].hex()}"

        def learnt() -> str:
            return run("bridge", "fdb", "show", "br", BRIDGE)

        await eventually(lambda: f"{own} dev {link}" in learnt())  # by the last of them
        assert [line for line in learnt().splitlines() if there in line and link in line] == []


async def test_who_is_kept_apart_hears_nothing_that_is_for_others(ground: Ground, other: Machine) -> None:
    async with village(ground, other, is_isolated=True) as (_, here):
        guest, web = here["guest"], here["web"]
        with frames(guest.namespace, "eth0") as ear, datagrams(ground.machine.place) as node:
            # The bridge has forgotten where they are, and asks everybody.
            run("ip", "link", "set", BRIDGE, "type", "bridge", "fdb_flush")
            run("ip", "neighbour", "flush", "dev", BRIDGE)
            for each in (web, guest):
                node.sendto(b"secret of " + each.owner.encode(), (each.address, 4000))
            received = [ear.recv(2000)]
            while b"secret of guest" not in received[-1]:
                received.append(ear.recv(2000))
        assert not any(b"secret of web" in each or socket.inet_aton(web.address) in each for each in received)


async def test_nobody_is_kept_apart_before_somebody_has_to_be_nor_afterwards(ground: Ground) -> None:
    async with ground.agent() as network:
        working = network._isolation._tables.programs
        network._isolation._tables.programs = msgspec.structs.replace(working, nft_path="/bin/false")
        await network.attach("web", mappings("8080:80"))  # and for others nothing is done
        await network.publish("web")
        await network._isolation.check()
        await network.detach("web")
        network._isolation._tables.programs = working
        assert sorted(ground.tables()) == OURS
        await asyncio.gather(*(network.attach(owner, is_isolated=True) for owner in ("one", "two")))
        assert sorted(ground.tables()) == sorted([*OURS, *APART])
        await network.detach("one")
        assert len(guests()) == 1
        await network.detach("two")
        assert sorted(ground.tables()) == OURS


def guests() -> list[str]:
    """The addresses that the kernel keeps apart, which both tables must agree on."""
    found = [
        set(re.findall(r"10\.99\.0\.\d+", run("nft", "list", "set", family, f"{TABLE}_apart", name)))
        for family, name in (("bridge", "identities"), ("bridge", "addresses"), ("ip", "guests"))
    ]
    assert found[0] == found[1] == found[2]
    for family, name in (("bridge", "identities6"), ("ip6", "guests")):
        listed = run("nft", "list", "set", family, f"{TABLE}_apart", name)
        assert set(re.findall(r"fda8:[\da-f:]+", listed)) == set(map(twin, found[0]))
    return sorted(found[0])


async def test_the_next_agent_goes_on_to_keep_apart_who_was(ground: Ground, other: Machine) -> None:
    network = await ground.open()
    gone = await network.attach("gone", is_isolated=True)
    guest = await network.attach("guest", is_isolated=True)
    await network.attach("web")
    await network.close()
    assert guests() == sorted([gone.address, guest.address])
    # One whose link went away meanwhile is no more.
    run("ip", "link", "delete", f"s5ce1a7e0{IPv4Address(gone.address).packed[1:].hex()}")
    async with ground.agent() as network:
        assert network.attachments()["guest"] == guest
        assert guests() == [guest.address]
        with listen(ground.machine.place, "0.0.0.0", 1324), listen(other.place, "0.0.0.0", 443):
            calls = [("node", guest.namespace, NODE, 1324), ("outside", guest.namespace, OUTSIDE, 443)]
            assert await reachable(calls) == ["outside"]
        await network.keep_only(set())


@pytest.mark.parametrize("flush", ["flush ruleset", f"flush table bridge {TABLE}_apart"])
async def test_walls_that_somebody_took_down_are_put_up_again(ground: Ground, flush: str) -> None:
    async with ground.agent() as network:
        guest = await network.attach("guest", is_isolated=True)
        run("nft", flush)
        await network._isolation.check()
        assert guests() == [guest.address]
        assert run("nft", "list", "chain", "bridge", f"{TABLE}_apart", "between_ports").count("drop") == 2
        run("nft", "flush", "ruleset")
        second = await network.attach("second", is_isolated=True)  # who comes now finds out
        assert guests() == sorted([guest.address, second.address])
        await network.keep_only(set())


async def test_where_nobody_can_be_kept_apart_nobody_is_attached_so(ground: Ground) -> None:
    async with ground.agent() as network:
        working = network._isolation._tables.programs
        network._isolation._tables.programs = msgspec.structs.replace(working, nft_path="/bin/false")
        with pytest.raises(errors.Unavailable, match="cannot be isolated"):
            await network.attach("guest", is_isolated=True)
        assert network.attachments() == {}
        network._isolation._tables.programs = working
        web = await network.attach("web")
        assert web.address == "10.99.0.2"  # the one that was not used, and not apart
        assert sorted(ground.tables()) == OURS
        await network.detach("web")


async def test_an_address_that_was_given_up_is_not_apart_for_whoever_gets_it(ground: Ground) -> None:
    async with ground.agent() as network:
        running = asyncio.create_task(network.attach("guest", is_isolated=True))
        await eventually(lambda: network._isolation._pending_or_isolated)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await network.attach("web")).address == "10.99.0.2"
        assert sorted(ground.tables()) == OURS
        await network.detach("web")


async def test_who_is_kept_apart_publishes_no_ports(ground: Ground) -> None:
    async with ground.agent() as network:
        with pytest.raises(errors.Invalid, match="isolated network"):
            await network.attach("guest", mappings("8080:80"), is_isolated=True)
