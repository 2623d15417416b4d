"""What containers reach by default and by their policy, and who reaches those that only the node may call."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import msgspec
import pytest

from skerry.model import errors
from skerry.model.address_ranges import METADATA
from skerry.model.network import Egress, Ingress, NetworkPolicy
from skerry.node.network import nft_elements
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.network import Attachment, Network
from skerry.node.network.nft_elements import ElementChange
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
    pool_of,
    reachable,
    run,
    speak,
    unreached,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.root

NODE = "192.0.2.1"
OUTSIDE = "192.0.2.9"
GATEWAY = "10.99.0.1"
TABLE = "skerry_5ce1a7e0"
BRIDGE = "sk-5ce1a7e0"
LAN = "172.20.1.1"  # a private address that the machine outside has
LAN_OF_NODE = "172.21.1.1"  # one that the node has
CLOUD = "198.51.100.7"  # of a pool of this cloud that is not private
LOCAL_METADATA = "169.254.170.2"  # as some clouds serve it, on the machine itself
SERVICES = [str(IPv4Network(each)[0]) for each in METADATA[1:]] + ["169.254.169.254"]

FUNCTION = NetworkPolicy(ingress=Ingress.NODE)
INTERNET = NetworkPolicy(egress=Egress.INTERNET)


@contextlib.contextmanager
def rules_that_cannot_change(network: Network) -> Iterator[None]:
    """Neither by nft nor without it."""

    def refuse(table: str, changes: Sequence[ElementChange]) -> None:
        raise PermissionError("not now")

    tables = network._firewall._tables
    working = tables.programs
    tables.programs = msgspec.structs.replace(working, nft_path="/bin/false")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nft_elements, "apply", refuse)
        yield
    tables.programs = working


@contextlib.contextmanager
def neighbourhood(ground: Ground, other: Machine, *, bridged_is_filtered: str = "1") -> Iterator[None]:
    """The machine outside answers on 443 and 80 at its addresses, private and metadata's among them, and the
    node on 1324."""
    for switch in Path("/proc/sys/net/bridge").glob("bridge-nf-call-ip*tables"):
        switch.write_text(bridged_is_filtered)
    add_addresses(other, *SERVICES, LAN, CLOUD)
    add_routes(ground.machine, *SERVICES, LAN, CLOUD, via=OUTSIDE)
    add_addresses(ground.machine, LOCAL_METADATA, LAN_OF_NODE)
    with contextlib.ExitStack() as listeners:
        for place, port in ((other.place, 443), (other.place, 80), (ground.machine.place, 1324)):
            listeners.enter_context(listen(place, "0.0.0.0", port))
        yield


@contextlib.asynccontextmanager
async def surroundings(
    ground: Ground, other: Machine, *, bridged_is_filtered: str = "1"
) -> AsyncIterator[Network]:
    """A network in such a neighbourhood."""
    with neighbourhood(ground, other, bridged_is_filtered=bridged_is_filtered):
        async with ground.agent(closed=[IPv4Network("198.51.100.0/24")]) as network:
            yield network
            await network.keep_only(set())


def metadata_from(attachment: Attachment) -> list[Call]:
    calls = [(address, attachment.namespace, address, 80) for address in SERVICES]
    return [*calls, (LOCAL_METADATA, attachment.namespace, LOCAL_METADATA, 1324)]


@pytest.mark.parametrize("policy", [NetworkPolicy(), FUNCTION, INTERNET])
async def test_metadata_addresses_are_closed_to_every_container(
    ground: Ground, other: Machine, policy: NetworkPolicy
) -> None:
    async with surroundings(ground, other) as network:
        web = await network.attach("web", policy=policy)
        assert await reachable(metadata_from(web)) == []
        assert await unreached([("outside", web.namespace, OUTSIDE, 443)]) == []


async def test_without_the_chain_metadata_addresses_would_be_in_reach(ground: Ground, other: Machine) -> None:
    """So that the test above is known to be able to fail."""
    async with surroundings(ground, other) as network:
        web = await network.attach("web")
        for family in ("ip", "ip6"):
            run("nft", "flush", "chain", family, TABLE, "egress")
        assert await unreached(metadata_from(web)) == []


async def test_an_address_that_the_settings_allow_is_open_and_no_other(
    ground: Ground, other: Machine
) -> None:
    allow = ("169.254.169.254", "172.20.0.0/16", "fd00:ec2::254", "fd01:20::/64")
    ground.settings = msgspec.structs.replace(ground.settings, allow=allow)
    async with surroundings(ground, other) as network:
        web = await network.attach("web", policy=INTERNET)
        calls = [*metadata_from(web), *private_calls(web)]
        allowed = [call for call in calls if call[0] in ("169.254.169.254", "private network")]
        assert await unreached(allowed) == []
        assert await reachable([call for call in calls if call not in allowed]) == []


@pytest.mark.parametrize(("text", "kind"), [("metadata", "IPv4"), ("fd00::1/64", "IPv6")])
async def test_a_setting_that_is_no_network_is_refused_by_name(ground: Ground, text: str, kind: str) -> None:
    ground.settings = msgspec.structs.replace(ground.settings, allow=(text,))
    with pytest.raises(errors.Invalid, match=f"'{text}' is not an {kind} network") as caught:
        await ground.open()
    assert caught.value.field == "network.allow"


@pytest.mark.parametrize("server", ["169.254.169.254", LAN])
async def test_a_name_server_with_a_closed_address_answers_on_its_port_and_on_no_other(
    ground: Ground, other: Machine, server: str
) -> None:
    ground.settings = msgspec.structs.replace(ground.settings, dns=(server,))
    async with surroundings(ground, other) as network:
        web = await network.attach("web", policy=INTERNET)
        with (
            datagrams(other.place, server, 53) as answering,
            listen(other.place, server, 53) as accepting,
            datagrams(web.namespace) as caller,
        ):
            exchange(answering, caller, server, 53)
            speak(accepting, web.namespace, server, 53)
        assert await reachable([("another port", web.namespace, server, 80)]) == []


async def test_name_servers_that_change_are_open_within_the_next_check(
    ground: Ground, other: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with surroundings(ground, other) as network:
        web = await network.attach("web")
        monkeypatch.setattr(network._firewall, "_resolvers", lambda: ("169.254.169.254",))
        await network._firewall.check()
        with datagrams(other.place, "169.254.169.254", 53) as answering, datagrams(web.namespace) as caller:
            exchange(answering, caller, "169.254.169.254", 53)


def private_calls(attachment: Attachment) -> list[Call]:
    place = attachment.namespace
    return [
        ("private network", place, LAN, 443),
        ("pool of the cloud", place, CLOUD, 443),
        ("node", place, LAN_OF_NODE, 1324),
        ("node on the bridge", place, GATEWAY, 1324),
        ("node at a public address", place, NODE, 1324),
    ]


@pytest.mark.parametrize("bridged_is_filtered", ["0", "1"])
async def test_private_networks_and_the_node_are_closed_to_who_may_reach_the_internet_only(
    ground: Ground, other: Machine, bridged_is_filtered: str
) -> None:
    async with surroundings(ground, other, bridged_is_filtered=bridged_is_filtered) as network:
        free = await network.attach("free", mappings("8080:80"))
        held = await network.attach("held", mappings("8081:80"), policy=INTERNET)
        for owner in ("free", "held"):
            await network.publish(owner)
        assert await reachable(private_calls(held)) == []
        assert await unreached(private_calls(free)) == []
        with listen(free.namespace, "0.0.0.0", 80), listen(held.namespace, "0.0.0.0", 80):
            calls: list[Call] = [
                ("outside", held.namespace, OUTSIDE, 443),
                ("another container", held.namespace, free.address, 80),
                ("from another container", free.namespace, held.address, 80),
                ("from the node", str(ground.machine.place), held.address, 80),
                *(
                    (f"published at {address}:{port}", held.namespace, address, port)
                    for address in (NODE, LAN_OF_NODE, GATEWAY)
                    for port in (8080, 8081)
                ),
            ]
            assert await unreached(calls) == []


async def test_callers_from_a_private_network_are_answered_by_who_cannot_call_them(
    ground: Ground, other: Machine
) -> None:
    async with surroundings(ground, other) as network:
        web = await network.attach("web", mappings("8080:80"), policy=INTERNET)
        await network.publish("web")
        with listen(web.namespace, "0.0.0.0", 80) as listener:
            other.run("ip", "route", "add", LAN_OF_NODE, "via", NODE, "src", LAN)
            assert speak(listener, other.place, LAN_OF_NODE, 8080) == LAN


async def test_a_policy_changes_while_the_container_runs_and_the_next_agent_keeps_to_it(
    ground: Ground, other: Machine
) -> None:
    with neighbourhood(ground, other):
        first = await ground.open()
        web = await first.attach("web")
        call = [("private network", web.namespace, LAN, 443)]
        assert await unreached(call) == []
        await first.restrict("web", INTERNET)
        assert await reachable(call) == []
        await first.close()
        async with ground.agent() as second:
            assert second.attachments()["web"].policy == INTERNET
            assert await reachable(call) == []
            await second.restrict("web", NetworkPolicy())
            assert await unreached(call) == []
            await second.restrict("nobody", INTERNET)
            await second.detach("web")


async def test_a_policy_that_could_not_be_had_can_be_asked_for_again(ground: Ground, other: Machine) -> None:
    async with surroundings(ground, other) as network:
        web = await network.attach("web")
        with rules_that_cannot_change(network), pytest.raises(errors.Unavailable):
            await network.restrict("web", INTERNET)
        await network.restrict("web", INTERNET)
        assert await reachable([("private network", web.namespace, LAN, 443)]) == []


def function_calls(ground: Ground, here: dict[str, Attachment]) -> list[Call]:
    one, two, web = here["one"], here["two"], here["web"]
    return [
        ("function to function", one.namespace, two.address, 8080),
        ("container to function", web.namespace, two.address, 8080),
        ("function to container", one.namespace, web.address, 8080),
        ("function to published port", one.namespace, GATEWAY, 8081),
        ("function to outside", one.namespace, OUTSIDE, 443),
        ("function to node", one.namespace, GATEWAY, 1324),
        ("node to function", str(ground.machine.place), two.address, 8080),
    ]


@contextlib.asynccontextmanager
async def functions(
    ground: Ground, other: Machine, policy: NetworkPolicy = FUNCTION, *, bridged_is_filtered: str = "1"
) -> AsyncIterator[tuple[Network, dict[str, Attachment]]]:
    """`one` and `two` with `policy`, and a container `web` whose port 8080 is published as 8081. All of them
    listen on 8080."""
    async with surroundings(ground, other, bridged_is_filtered=bridged_is_filtered) as network:
        here = {
            "one": await network.attach("one", policy=policy),
            "two": await network.attach("two", policy=policy),
            "web": await network.attach("web", mappings("8081:8080")),
        }
        await network.publish("web")
        with contextlib.ExitStack() as listeners:
            for each in here.values():
                listeners.enter_context(listen(each.namespace, "0.0.0.0", 8080))
            yield network, here


@pytest.mark.parametrize("bridged_is_filtered", ["0", "1"])
async def test_only_the_node_reaches_a_function_which_reaches_what_any_container_does(
    ground: Ground, other: Machine, bridged_is_filtered: str
) -> None:
    async with functions(ground, other, bridged_is_filtered=bridged_is_filtered) as (_, here):
        calls = function_calls(ground, here)
        assert await unreached(calls[2:]) == []
        assert await reachable(calls[:2]) == []
        # Nor by the detour over the node.
        for one, another in (("one", "two"), ("web", "two")):
            route = (f"{here[another].address}/32", "via", GATEWAY)
            inside(here[one].namespace, lambda route=route: run("ip", "route", "add", *route))
        assert await reachable(calls[:2]) == []


async def test_without_that_policy_all_of_these_would_be_in_reach(ground: Ground, other: Machine) -> None:
    """So that the test above is known to be able to fail."""
    async with functions(ground, other, NetworkPolicy()) as (_, here):
        assert await unreached(function_calls(ground, here)) == []


@pytest.mark.parametrize("bridged_is_filtered", ["0", "1"])
async def test_datagrams_to_a_function_are_dropped_and_answers_to_its_own_are_not(
    ground: Ground, other: Machine, bridged_is_filtered: str
) -> None:
    async with functions(ground, other, bridged_is_filtered=bridged_is_filtered) as (_, here):
        with (
            datagrams(here["two"].namespace, port=4000) as two,
            datagrams(here["web"].namespace, port=4000) as web,
        ):
            for name in ("one", "web"):
                with datagrams(here[name].namespace) as caller:
                    caller.sendto(b"unasked", (here["two"].address, 4000))
            with datagrams(ground.machine.place) as node:
                node.sendto(b"from the node", (here["two"].address, 4000))
            assert two.recv(100) == b"from the node"
            assert exchange(web, two, here["web"].address, 4000) == here["two"].address


async def test_a_container_that_forges_frames_to_a_function_is_not_heard(
    ground: Ground, other: Machine
) -> None:
    """Whatever address it is sent to, by hardware or by IP, a frame of another link does not get there."""
    async with functions(ground, other, bridged_is_filtered="0") as (_, here):
        two, web = here["two"], here["web"]
        macs = {
            name: bytes.fromhex(mac_of(IPv4Address(each.address)).replace(":", ""))
            for name, each in here.items()
        }

        def datagram(target: str, payload: bytes) -> bytes:
            udp = struct.pack("!HHHH", 9, 4000, 8 + len(payload), 0) + payload
            header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0)
            header += socket.inet_aton(web.address) + socket.inet_aton(target)
            total = sum(struct.unpack("!10H", header))
            checksum = ~(total + (total >> 16)) & 0xFFFF
            return header[:10] + struct.pack("!H", checksum) + header[12:] + udp

        with frames(web.namespace, "eth0") as forger, frames(two.namespace, "eth0") as ear:
            for target in (two.address, "10.99.0.255", "224.0.0.1", "192.0.2.77"):
                for mac in (macs["two"], b"\xff" * 6):
                    forger.send(mac + macs["web"] + b"\x08\x00" + datagram(target, b"forged"))
            forger.send(macs["two"] + macs["web"] + b"\x86\xdd" + b"\x60" + bytes(39) + b"forged")
            forger.send(macs["two"] + macs["web"] + b"\x88\xb5" + b"forged")
            with datagrams(ground.machine.place) as node:
                node.sendto(b"honest", (two.address, 4000))
            received = [ear.recv(2000)]
            while b"honest" not in received[-1]:
                received.append(ear.recv(2000))
        assert [each for each in received if b"forged" in each] == []


async def test_without_ipv6_no_frame_of_it_reaches_the_node(ground: Ground, other: Machine) -> None:
    ground.settings = msgspec.structs.replace(ground.settings, ipv6="off")
    async with surroundings(ground, other) as network:
        web = await network.attach("web")
        own = bytes.fromhex(mac_of(IPv4Address(web.address)).replace(":", ""))
        gateway = bytes.fromhex(mac_of(IPv4Address(GATEWAY)).replace(":", ""))
        with frames(web.namespace, "eth0") as speaker, frames(ground.machine.place, BRIDGE) as ear:
            speaker.send(gateway + own + b"\x86\xdd" + b"\x60" + bytes(39))
            speaker.send(gateway + own + b"\x88\xb5" + b"the last one")
            received = [ear.recv(2000)]
            while b"the last one" not in received[-1]:
                received.append(ear.recv(2000))
        assert [each for each in received if each[12:14] == b"\x86\xdd"] == []


async def test_of_the_users_of_the_node_only_root_can_call_a_function(ground: Ground, other: Machine) -> None:
    async with functions(ground, other) as (_, here):

        def dial(user: int, owner: str) -> bool:
            command = f"exec 3<>/dev/tcp/{here[owner].address}/8080"
            return (
                subprocess.run(
                    ["timeout", "0.3", "bash", "-c", command], user=user, cwd="/", check=False
                ).returncode
                == 0
            )

        assert [dial(user, "two") for user in (0, 65534)] == [True, False]
        assert dial(65534, "web")


async def test_where_bridges_have_no_rules_functions_are_refused_and_containers_are_not(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nft(self: NetworkCommands, text: str) -> None:
        if "bridge skerry" in text:
            raise errors.Unavailable("nft: Operation not supported")
        run("nft", "-f", "-", text=text)

    monkeypatch.setattr(NetworkCommands, "nft", nft)
    async with ground.agent() as network:
        with pytest.raises(errors.Unavailable, match="--network none"):
            await network.attach("function", policy=FUNCTION)
        assert any("CONFIG_NF_TABLES_BRIDGE" in sentence for sentence in network.lacking())
        web = await network.attach("web", mappings("8080:80"), policy=INTERNET)
        assert web.policy == INTERNET
        await network.publish("web")
        await network._firewall.check()
        await network.detach("web")


async def test_a_function_does_not_wait_for_rules_when_another_came_before(ground: Ground) -> None:
    async with ground.agent() as network:
        running = asyncio.create_task(network.run())
        await network.attach("first", policy=FUNCTION)
        pool = pool_of(network, FUNCTION)
        await eventually(lambda: len(pool._ready) >= ground.settings.pool)
        with rules_that_cannot_change(network):
            second = await network.attach("second", policy=FUNCTION)
        assert second.address in run("nft", "list", "set", "ip", TABLE, "node_only")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await network.keep_only(set())


async def test_the_last_address_of_a_subnet_goes_to_whoever_asks_whatever_it_waited_for(
    ground: Ground,
) -> None:
    settings = msgspec.structs.replace(ground.settings, subnet="10.99.0.0/29")
    async with ground.agent(settings=settings) as network:
        running = asyncio.create_task(network.run())
        await network.attach("function", policy=FUNCTION)
        await eventually(lambda: pool_of(network)._addresses.free == 0 and not pool_of(network)._making)
        names = [f"c{number}" for number in range(4)]
        attached = [await network.attach(name) for name in names]
        with pytest.raises(errors.ResourcesExhausted):
            await network.attach("one more")
        listed = run("nft", "list", "set", "ip", TABLE, "node_only")
        assert [each.address for each in attached if each.address in listed] == []
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await network.keep_only(set())


async def test_an_address_that_was_given_up_has_no_policy_for_whoever_gets_it(ground: Ground) -> None:
    settings = msgspec.structs.replace(ground.settings, subnet="10.99.0.0/30")  # which has one address
    async with ground.agent(settings=settings) as network:
        with rules_that_cannot_change(network), pytest.raises(errors.Unavailable):
            await network.attach("function", policy=FUNCTION)
        assert (await network.attach("web")).address == "10.99.0.2"
        assert "10.99.0.2" not in run("nft", "list", "set", "ip", TABLE, "node_only")
        await network.detach("web")


async def test_rules_of_a_function_stay_for_the_next_one_at_its_address_and_for_no_container(
    ground: Ground,
) -> None:
    settings = msgspec.structs.replace(ground.settings, subnet="10.99.0.0/30", pool=0)
    async with ground.agent(settings=settings) as network:
        await network.attach("first", policy=FUNCTION)
        await network.detach("first")
        named = msgspec.structs.replace(FUNCTION, namespace="shop")
        with rules_that_cannot_change(network):
            second = await network.attach("second", policy=named, for_worker=True)
        assert network._firewall.namespace_at(IPv4Address(second.address)) == "shop"
        assert second.address in run("nft", "list", "set", "ip", TABLE, "node_only")
        await network.detach("second")
        assert network._firewall.namespace_at(IPv4Address(second.address)) == ""
        assert (await network.attach("web")).address == second.address
        assert second.address not in run("nft", "list", "set", "ip", TABLE, "node_only")
        await network.detach("web")
