"""Attaching and detaching on a machine of its own: what is given, what is refused, and what is left."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import socket
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import msgspec
import pytest

from skerry.model import errors
from skerry.model.settings import NetworkSettings
from skerry.node.network.network import Network
from skerry.node.network.route_netlink import RouteSocket
from tests.node.network.machines import (
    Ground,
    Machine,
    cannot_dial,
    datagrams,
    inside,
    listen,
    mappings,
    pool_of,
    run,
    speak,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.root

TABLE = "skerry_5ce1a7e0"
FOREIGN = """
table ip other {
  chain forward { type filter hook forward priority 0; policy accept; counter; }
  map ports { type inet_service : ipv4_addr; elements = { 9999 : 198.51.100.1 } }
}
"""


async def filled(network: Network, ground: Ground, count: int) -> asyncio.Task[None]:
    """Its background loop, after it has made `count` namespaces."""
    running = asyncio.create_task(network.run())
    await eventually(lambda: len(pool_of(network)._ready) == count, what="the pool is full")
    assert len(ground.mounts()) == count + len(network.attachments())
    return running


def addresses_of_bridge() -> list[str]:
    (bridge,) = json.loads(run("ip", "-j", "-4", "address", "show", "sk-5ce1a7e0"))
    return [f"{each['local']}/{each['prefixlen']}" for each in bridge["addr_info"]]


async def stop(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_attachment_is_taken_from_the_pool_and_the_pool_is_filled_again(ground: Ground) -> None:
    async with ground.agent() as network:
        running = await filled(network, ground, 2)
        ready = list(pool_of(network)._ready)
        web = await network.attach("web")
        assert web.address == str(ready[0])
        assert (web.prefix, web.gateway) == (24, "10.99.0.1")
        await eventually(lambda: len(pool_of(network)._ready) == 2)
        assert network.attachments() == {"web": web}
        await network.detach("web")
        assert network.attachments() == {}
        await stop(running)


async def test_an_owner_is_attached_once(ground: Ground) -> None:
    async with ground.agent() as network:
        outcomes = await asyncio.gather(*(network.attach("web") for _ in range(3)), return_exceptions=True)
        assert sorted(type(each).__name__ for each in outcomes) == [
            "AlreadyExists",
            "AlreadyExists",
            "Attachment",
        ]
        await network.detach("web")


async def test_detaching_is_done_once_and_can_be_asked_for_again_and_again(ground: Ground) -> None:
    async with ground.agent() as network:
        await network.attach("web", mappings("8080:80"))
        await network.publish("web")
        await asyncio.gather(*(network.detach("web") for _ in range(3)))
        await network.detach("web")
        await network.detach("nobody")


async def test_detaching_goes_on_when_the_caller_goes(ground: Ground) -> None:
    async with ground.agent() as network:
        await network.attach("web", mappings("8080:80"))
        await network.publish("web")
        caller = asyncio.create_task(network.detach("web"))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        await eventually(lambda: network.attachments() == {})


async def test_attaching_whose_caller_goes_leaves_its_ports_and_address_free(ground: Ground) -> None:
    async with ground.agent() as network:
        caller = asyncio.create_task(network.attach("web", mappings("8080:80")))
        await asyncio.sleep(0)
        assert pool_of(network)._making
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        await network.attach("shop", mappings("8080:80"))
        assert list(network.attachments()) == ["shop"]
        await network.detach("shop")


async def test_a_full_subnet_says_so_and_the_pool_keeps_nothing_back(ground: Ground) -> None:
    settings = NetworkSettings(subnet="10.99.0.0/29", pool=4)
    async with ground.agent(settings=settings) as network:
        running = await filled(network, ground, 4)
        owners = [f"c{number}" for number in range(5)]
        given = await asyncio.gather(*(network.attach(owner) for owner in owners))
        assert sorted(each.address for each in given) == [f"10.99.0.{last}" for last in range(2, 7)]
        with pytest.raises(errors.ResourcesExhausted, match=r"all 5 addresses of 10\.99\.0\.0/29"):
            await network.attach("one-too-many", mappings("8080:80"))
        await network.detach("c3")
        assert (await network.attach("next", mappings("8080:80"))).address == given[3].address
        await network.keep_only(set())
        await stop(running)


async def test_the_smallest_subnet_has_room_for_one(ground: Ground) -> None:
    async with ground.agent(settings=NetworkSettings(subnet="10.99.0.4/30", pool=4)) as network:
        assert (await network.attach("one")).address == "10.99.0.6"
        with pytest.raises(errors.ResourcesExhausted):
            await network.attach("two")
        await network.detach("one")
        assert (await network.attach("two")).address == "10.99.0.6"
        await network.detach("two")


async def test_the_widest_subnet_works_up_to_its_last_address(ground: Ground) -> None:
    async with ground.agent(settings=NetworkSettings(subnet="10.0.0.0/8", pool=0)) as network:
        pool_of(network)._addresses._next[False] = 2**24 - 4
        last = await network.attach("last")
        first = await network.attach("first")
        assert (last.address, first.address) == ("10.255.255.254", "10.0.0.2")
        with listen(last.namespace, "0.0.0.0", 80) as listener:
            assert speak(listener, first.namespace, last.address, 80) == first.address
        await network.keep_only(set())


async def test_a_port_of_another_owner_is_refused_by_name(ground: Ground) -> None:
    async with ground.agent() as network:
        await network.attach("web", mappings("8080:80"))
        with pytest.raises(errors.FailedPrecondition, match=r"port 8080/tcp is published by 'web'"):
            await network.attach("shop", mappings("9090:90", "8080:80"))
        await network.attach("shop", mappings("9090:90", "8080:80/udp"))
        await network.keep_only(set())


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "192.0.2.1"])
async def test_a_port_of_a_process_is_refused_by_its_name(
    ground: Ground, other: Machine, address: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        "python3",
        "-c",
        f"import socket; s = socket.create_server(('{address}', 8080)); print('on', flush=True); input()",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"on\n"
    try:
        async with ground.agent() as network:
            with pytest.raises(
                errors.FailedPrecondition, match=rf"8080/tcp .* by process {process.pid} \(python3"
            ):
                await network.attach("web", mappings("9090:90", "8080:80"))
            await network.attach("web", mappings("9090:90", "8080:80/udp"))
            await network.detach("web")
    finally:
        await process.communicate(b"\n")


async def test_a_port_that_skerry_listens_on_is_refused(ground: Ground) -> None:
    async with ground.agent() as network:
        with (
            listen(ground.machine.place, "127.0.0.1", 1323),
            pytest.raises(errors.FailedPrecondition, match=r"1323/tcp .* Skerry itself"),
        ):
            await network.attach("web", mappings("1323:80"))
        with (
            datagrams(ground.machine.place, port=53),
            pytest.raises(errors.FailedPrecondition, match=r"53/udp .* Skerry itself"),
        ):
            await network.attach("web", mappings("53:53/udp"))


async def test_a_published_port_is_held_until_it_is_detached(ground: Ground) -> None:
    def take(kind: socket.SocketKind) -> None:
        with socket.socket(socket.AF_INET, kind) as taker:
            taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taker.bind(("127.0.0.1", 8080))
            if kind is socket.SOCK_STREAM:
                taker.listen()

    kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
    network = await ground.open()
    await network.attach("web", mappings("8080:80", "8080:80/udp"))
    for kind in kinds:
        with pytest.raises(OSError, match="in use"):
            take(kind)
    await network.close()
    async with ground.agent() as network:
        for kind in kinds:
            with pytest.raises(OSError, match="in use"):
                take(kind)
        await network.detach("web")
        for kind in kinds:
            take(kind)


async def test_a_port_with_only_ended_connections_on_it_can_be_published(ground: Ground) -> None:
    with listen(ground.machine.place, "127.0.0.1", 8080) as listener:
        caller = socket.create_connection(("127.0.0.1", 8080))
        accepted, _ = listener.accept()
        accepted.close()  # who closes first lingers
        caller.close()
    async with ground.agent() as network:
        web = await network.attach("web", mappings("8080:80"))
        await network.publish("web")
        with listen(web.namespace, "0.0.0.0", 80) as inner:
            speak(inner, ground.machine.place, "127.0.0.1", 8080)
        await network.detach("web")


async def test_publishing_for_nobody_is_not_found(ground: Ground) -> None:
    async with ground.agent() as network:
        with pytest.raises(errors.NotFound):
            await network.publish("nobody")


async def test_fifty_at_once_come_and_go_and_leave_nothing(ground: Ground) -> None:
    async with ground.agent() as network:
        running = asyncio.create_task(network.run())

        async def one(number: int) -> str:
            owner = f"c{number}"
            given = await network.attach(owner, mappings(f"{9000 + number}:80", f"{9000 + number}:80/udp"))
            await network.publish(owner)
            return given.address

        descriptors = len(os.listdir("/proc/self/fd"))
        addresses = await asyncio.gather(*(one(number) for number in range(50)))
        assert len(set(addresses)) == 50
        assert run("nft", "list", "map", "ip", TABLE, "tcp_ports").count(" : 10.99.0.") == 50
        last = network.attachments()["c49"]
        with listen(last.namespace, "0.0.0.0", 80) as listener:
            speak(listener, ground.machine.place, "127.0.0.1", 9049)
        await asyncio.gather(*(network.detach(f"c{number}") for number in range(50)))
        await eventually(lambda: len(pool_of(network)._ready) >= 2 and not pool_of(network)._making)
        waiting = len(pool_of(network)._ready)
        assert pool_of(network)._addresses.free == 253 - waiting
        assert len(ground.links()) == 1 + waiting
        assert len(ground.mounts()) == waiting
        assert not re.search(r"\d : ", run("nft", "list", "table", "ip", TABLE))
        assert list((ground.folder / "attached").iterdir()) == []
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        await stop(running)


async def test_rules_of_others_are_left_alone(ground: Ground) -> None:
    run("nft", "-f", "-", text=FOREIGN)
    before = run("nft", "list", "table", "ip", "other")
    async with ground.agent() as network:
        await network.attach("web", mappings("8080:80"))
        await network.publish("web")
        await network.detach("web")
    assert run("nft", "list", "table", "ip", "other") == before
    assert ground.tables() == ["table ip other"]
    run("nft", "delete", "table", "ip", "other")


async def test_a_foreign_chain_that_drops_what_is_forwarded_is_told_of(
    ground: Ground, other: Machine
) -> None:
    chain = "type filter hook forward priority 0; policy drop; counter;"
    text = f"table ip filter {{ chain FORWARD {{ {chain} }}; }}"
    run("nft", "-f", "-", text=text)
    async with ground.agent(settings=msgspec.structs.replace(ground.settings, dns=("192.0.2.9",))) as network:
        (sentence,) = network.lacking()
        assert "chain FORWARD of the table ip filter" in sentence
        assert "sk-5ce1a7e0" in sentence
        # What the sentence says is true, and what it says to do helps.
        web = await network.attach("web")
        with datagrams(other.place, port=53) as server, datagrams(web.namespace) as caller:
            caller.sendto(b"dropped", ("192.0.2.9", 53))
            # It waits in its namespace until the next hop is found.
            await eventually(
                lambda: "packets 0 " not in run("nft", "list", "chain", "ip", "filter", "FORWARD")
            )
            for direction in ("iifname", "oifname"):
                run("nft", f"add rule ip filter FORWARD {direction} sk-5ce1a7e0 accept")
            caller.sendto(b"through", ("192.0.2.9", 53))
            assert server.recv(100) == b"through"
        await network.detach("web")
    run("nft", "delete", "table", "ip", "filter")


@pytest.mark.parametrize(
    "flush", ["flush ruleset", f"flush table ip {TABLE}", f"delete table bridge {TABLE}"]
)
async def test_rules_that_somebody_flushed_are_written_anew(ground: Ground, flush: str) -> None:
    async with ground.agent() as network:
        web = await network.attach("web", mappings("8080:80"))
        await network.publish("web")
        run("nft", flush)
        await network._firewall.check()
        assert {f"table ip {TABLE}", f"table bridge {TABLE}"} <= set(ground.tables())
        with listen(web.namespace, "0.0.0.0", 80) as listener:
            speak(listener, ground.machine.place, "127.0.0.1", 8080)
        await network.detach("web")


async def test_publishing_after_somebody_flushed_all_rules_brings_back_those_of_before(
    ground: Ground,
) -> None:
    async with ground.agent() as network:
        web = await network.attach("web", mappings("8080:80"))
        await network.publish("web")
        run("nft", "flush", "ruleset")
        await network.attach("shop", mappings("9090:90"))
        await network.publish("shop")
        with listen(web.namespace, "0.0.0.0", 80) as listener:
            speak(listener, ground.machine.place, "127.0.0.1", 8080)
        await network.keep_only(set())


async def test_two_skerrys_on_one_machine_do_not_meet(ground: Ground) -> None:
    second_folder = ground.tmp / "second"
    async with ground.agent() as first:
        with pytest.raises(errors.FailedPrecondition, match=r"overlaps 10\.99\.0\.0/24, .* by sk-5ce1a7e0"):
            await ground.open(folder=second_folder, key="0123abcd")
        assert not second_folder.exists()
        settings = NetworkSettings(subnet="10.98.0.0/24", pool=2)
        second = await ground.open(folder=second_folder, key="0123abcd", settings=settings)
        web, shop = await first.attach("web", mappings("8080:80")), await second.attach("web")
        first_gateway = web.gateway
        await first.publish("web")
        with listen(web.namespace, "0.0.0.0", 80) as listener:
            assert speak(listener, shop.namespace, "10.98.0.1", 8080) == first_gateway
        with pytest.raises(errors.FailedPrecondition, match="8080/tcp"):
            await second.attach("shop", mappings("8080:80"))
        await second.keep_only(set())
        await second.close()
        assert not second_folder.exists()
        with listen(web.namespace, "0.0.0.0", 80) as listener:
            speak(listener, ground.machine.place, "127.0.0.1", 8080)
        await first.detach("web")


async def test_a_subnet_that_the_machine_uses_is_refused_by_the_name_of_its_interface(
    ground: Ground, other: Machine
) -> None:
    run("ip", "route", "add", "default", "via", "192.0.2.9")
    run("ip", "route", "add", "0.0.0.0/1", "via", "192.0.2.9")  # as some VPNs do it
    with pytest.raises(
        errors.FailedPrecondition, match=r"192\.0\.2\.0/25 .* overlaps 192\.0\.2\.0/24, .* by cable"
    ):
        await ground.open(settings=NetworkSettings(subnet="192.0.2.0/25"))
    async with ground.agent():
        pass


async def test_forwarding_is_switched_on_and_stays_on(ground: Ground) -> None:
    switch = Path("/proc/sys/net/ipv4/ip_forward")
    switch.write_text("0")
    async with ground.agent():
        assert switch.read_text() == "1\n"
    assert switch.read_text() == "1\n"


async def test_only_our_bridge_may_carry_addresses_of_the_loopback(ground: Ground, other: Machine) -> None:
    async with ground.agent():
        values = {
            path.parent.name: path.read_text().strip()
            for path in Path("/proc/sys/net/ipv4/conf").glob("*/route_localnet")
        }
        assert {name for name, value in values.items() if value == "1"} == {"sk-5ce1a7e0"}


async def test_an_attachment_goes_on_without_an_agent_and_with_the_next(
    ground: Ground, other: Machine
) -> None:
    network = await ground.open()
    web = await network.attach("web", mappings("8080:80"))
    await network.publish("web")
    await network.attach("shop")
    await network.close()
    with listen(web.namespace, "0.0.0.0", 80) as listener:
        speak(listener, other.place, "192.0.2.1", 8080)
        async with ground.agent() as network:
            assert network.attachments()["web"] == web
            speak(listener, other.place, "192.0.2.1", 8080)
            await network.keep_only({"web"})
            assert list(network.attachments()) == ["web"]
            assert (await network.attach("next")).address != web.address
            speak(listener, other.place, "192.0.2.1", 8080)
            await network.keep_only(set())


async def test_a_bridge_that_somebody_removed_is_made_again_with_all_on_it(ground: Ground) -> None:
    network = await ground.open()
    web = await network.attach("web", mappings("8080:80"))
    await network.close()
    run("ip", "link", "delete", "sk-5ce1a7e0")
    async with ground.agent() as network:
        with listen(web.namespace, "0.0.0.0", 80) as listener:
            speak(listener, ground.machine.place, "127.0.0.1", 8080)
        await network.detach("web")


async def test_an_attachment_whose_link_somebody_removed_is_dropped(ground: Ground) -> None:
    network = await ground.open()
    web = await network.attach("web", mappings("8080:80"))
    await network.close()
    inside(web.namespace, lambda: run("ip", "link", "delete", "eth0"))
    async with ground.agent() as network:
        assert network.attachments() == {}
        assert "8080" not in run("nft", "list", "ruleset")


async def test_attachments_of_another_boot_are_dropped(ground: Ground) -> None:
    network = await ground.open(boot="one")
    await network.attach("web", mappings("8080:80"))
    await network.close()
    async with ground.agent(boot="two") as network:
        assert network.attachments() == {}


@pytest.mark.parametrize("assigned", ["10.98.0.0/24", "10.99.0.0/16", "172.99.0.0/24"])
@pytest.mark.parametrize("is_started_again", [False, True])
async def test_another_subnet_is_for_new_containers_and_those_that_run_keep_theirs(
    ground: Ground, other: Machine, assigned: str, is_started_again: bool
) -> None:
    network = await ground.open()
    running = await filled(network, ground, 2)
    before = network.subnet
    old = await network.attach("old", mappings("8080:80"))
    guest = await network.attach("guest", is_isolated=True)
    await network.publish("old")
    if is_started_again:
        await stop(running)
        await network.close()
        network = await ground.open(assigned=assigned)
        running = await filled(network, ground, 2)
    else:
        await network.use(assigned)
    assert (network.subnet, network.former) == (assigned, (before,))
    new = await network.attach("new", mappings("8081:80"))
    await network.publish("new")
    assert IPv4Address(new.address) in IPv4Network(assigned)
    assert network.attachments()["old"] == old
    with listen(old.namespace, "0.0.0.0", 80) as listener:
        speak(listener, other.place, "192.0.2.1", 8080)
        speak(listener, ground.machine.place, "127.0.0.1", 8080)
        speak(listener, new.namespace, old.address, 80)
    with listen(new.namespace, "0.0.0.0", 80) as listener:
        speak(listener, other.place, "192.0.2.1", 8081)
        speak(listener, old.namespace, new.address, 80)
    with listen(other.place, "192.0.2.9", 80) as listener:
        assert speak(listener, old.namespace, "192.0.2.9", 80) == "192.0.2.1"
        assert speak(listener, new.namespace, "192.0.2.9", 80) == "192.0.2.1"
    with listen(ground.machine.place, "0.0.0.0", 81):
        assert cannot_dial(guest.namespace, new.gateway, 81), "it is kept apart from the new ones, too"
    await network.detach("old")
    await network.detach("guest")
    assert addresses_of_bridge() == [f"{new.gateway}/{new.prefix}"]
    assert network.former == ()
    await network.detach("new")
    await stop(running)
    await network.close()


async def test_a_node_that_was_given_no_subnet_makes_containers_wait_and_says_what_for(
    ground: Ground,
) -> None:
    settings = NetworkSettings(subnet="10.97.0.0/24", pool=2)
    async with ground.agent(settings=settings, waits=True) as network:
        running = asyncio.create_task(network.run())
        assert network.subnet == ""
        network.explain_wait(lambda: "all 2 subnets of 10.9.0.0/23 are taken")
        with pytest.raises(errors.Unavailable, match=r"to assign a subnet .*: all 2 subnets .* are taken"):
            await network.attach("web", mappings("8080:80"))
        await network._firewall.check()
        assert ground.links() == []
        await network.use("10.98.0.0/24")
        web = await network.attach("web", mappings("8080:80"))
        assert web.address == "10.98.0.2"
        await network.publish("web")
        with listen(web.namespace, "0.0.0.0", 80) as listener:
            speak(listener, ground.machine.place, "127.0.0.1", 8080)
        await network.detach("web")
        await stop(running)


async def test_a_subnet_that_the_machine_reaches_otherwise_is_not_used_and_told(
    ground: Ground, other: Machine
) -> None:
    async with ground.agent() as network:
        assert network.occupied == ("192.0.2.0/24",)
        with pytest.raises(errors.FailedPrecondition, match=r"overlaps 192\.0\.2\.0/24"):
            await network.use("192.0.2.0/25")
        assert network.subnet == "10.99.0.0/24"
    async with ground.agent(assigned="192.0.2.0/25") as network:
        assert network.subnet == "", "the server gives another one"


async def test_a_detach_that_fails_can_be_asked_for_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ignore(self: RouteSocket, requests: object, **_: object) -> None:
        pass

    async with ground.agent() as network:
        web = await network.attach("web", mappings("8080:80"))
        await network.publish("web")
        with monkeypatch.context() as broken:
            broken.setattr(RouteSocket, "send", ignore)
            with pytest.raises(errors.Unavailable, match="links cannot be removed"):
                await network.detach("web")
        assert network.attachments() == {"web": web}
        with pytest.raises(errors.FailedPrecondition, match="by 'web'"):
            await network.attach("shop", mappings("8080:80"))
        await network.detach("web")
        assert network.attachments() == {}


async def test_an_attachment_that_cannot_be_written_down_is_none(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(record: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with ground.agent() as network:
        with monkeypatch.context() as full:
            full.setattr(network._records, "save", fail)
            with pytest.raises(errors.Unavailable, match="No space left"):
                await network.attach("web", mappings("8080:80"))
        assert network.attachments() == {}
        web = await network.attach("web", mappings("8080:80"))
        assert web.address == "10.99.0.2"  # the one that was not used
        await network.detach("web")


async def test_a_namespace_that_cannot_be_made_is_told_and_leaves_nothing(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ground.agent() as network:
        with monkeypatch.context() as broken:
            # A route that the kernel refuses: no network of the container has its gateway.
            broken.setattr(network._subnets.current, "gateway", IPv4Address("192.0.2.1"))
            with pytest.raises(errors.Unavailable, match=r"via 192\.0\.2\.1: Network is unreachable"):
                await network.attach("web", mappings("8080:80"))
        assert ground.mounts() == []
        assert ground.links() == ["sk-5ce1a7e0"]
        await network.attach("web", mappings("8080:80"))
        await network.detach("web")


async def test_without_a_subnet_of_its_own_a_network_takes_a_free_one_and_stays_with_it(
    ground: Ground,
) -> None:
    settings = NetworkSettings(pool=0)
    async with ground.agent(settings=settings) as network:
        usual = network.subnet
    # Somebody else has it now: another one is taken, for as long as anybody is attached.
    run("ip", "link", "add", "other0", "type", "bridge")
    run("ip", "address", "add", usual.replace("0/24", "9/24"), "dev", "other0")
    run("ip", "link", "set", "other0", "up")
    async with ground.agent(settings=settings) as network:
        assert network.subnet != usual
        chosen = network.subnet
        await network.attach("web")
    run("ip", "link", "delete", "other0")
    async with ground.agent(settings=settings) as network:
        assert network.subnet == chosen
        await network.detach("web")
    async with ground.agent(settings=settings) as network:
        assert network.subnet == usual
