"""The name server at a real bridge: who may ask it, where, and what the resolv.conf of containers says."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.network import Egress, NetworkPolicy
from skerry.model.network_objects import InstanceAddress
from skerry.node.network.dns.name_server import NameServer
from skerry.node.network.network import Network
from tests.node.network.dns.objects import instance, keyed
from tests.node.network.dns.resolvers import answering, fake_resolver, question, values
from tests.node.network.machines import Ground, Machine, inside, mappings, run
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.root


@contextlib.asynccontextmanager
async def agent(ground: Ground, **more: object) -> AsyncIterator[tuple[Network, NameServer]]:
    """A network with its name server."""
    settings = more.pop("settings", ground.settings)
    choice = {name: more.pop(name) for name in ("assigned", "waits") if name in more}
    network = Network(ground.folder, settings, SystemClock(), key=ground.key)  # type: ignore[arg-type]
    names = NameServer(settings, SystemClock())  # type: ignore[arg-type]
    names.use_objects(InstanceAddress, keyed(instance("db", "10.99.0.7")))
    network.use_names(names)
    await network.open(**choice)  # type: ignore[arg-type]
    try:
        yield network, names
    finally:
        await network.close()


async def asked(place: Path | str, server: str, packet: bytes = question("db.shop.skerry")) -> list[str]:
    """The answer that a program at `place` gets; empty: none."""
    sender = inside(place, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with sender:
        sender.setblocking(False)
        sender.sendto(packet, (server, 53))
        found: list[bytes] = []

        def received() -> bool:
            with contextlib.suppress(BlockingIOError):
                found.append(sender.recv(2000))
            return bool(found)

        await eventually(received)
    return values(found[0])


async def is_silent(place: Path | str, server: str, witness: Path | str) -> bool:
    """True if nothing comes back from `server`, though it answers `witness` meanwhile."""
    sender = inside(place, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with sender:
        sender.setblocking(False)
        with contextlib.suppress(OSError):
            sender.sendto(question("db.shop.skerry"), (server, 53))
        await asked(witness, server)
        try:
            sender.recv(2000)
        except BlockingIOError:
            return True
        return False


async def test_containers_ask_the_bridge_whatever_their_egress(ground: Ground) -> None:
    async with agent(ground) as (network, _):
        web = await network.attach("web")
        strict = await network.attach("strict", policy=NetworkPolicy(egress=Egress.INTERNET))
        for each in (web, strict):
            assert await asked(each.namespace, each.gateway) == ["10.99.0.7"]
            assert network.resolv_conf(each, tenant="shop").startswith(
                "nameserver 10.99.0.1\nsearch shop.skerry skerry"
            )
        assert network.resolv_conf(web).splitlines()[1].startswith("search skerry")
        assert await asked(ground.machine.place, "10.99.0.1") == ["10.99.0.7"], "the node itself"
        assert "nameserver 192.0.2.99\n" in network.resolv_conf(web, ("192.0.2.99",))
        assert "search shop" not in network.resolv_conf(web, ("192.0.2.99",), tenant="shop")
        await network.detach("web")
        await network.detach("strict")


async def test_guests_and_other_hosts_are_not_told_names(ground: Ground, other: Machine) -> None:
    settings = msgspec.structs.replace(ground.settings, dns=("192.0.2.53",))
    async with agent(ground, settings=settings) as (network, _):
        web = await network.attach("web")
        guest = await network.attach("guest", is_isolated=True)
        assert "nameserver 192.0.2.53\n" in network.resolv_conf(guest)
        assert "skerry" not in network.resolv_conf(guest, tenant="shop")
        assert await is_silent(guest.namespace, "10.99.0.1", web.namespace)
        other.run("ip", "route", "add", "10.99.0.0/24", "via", "192.0.2.1")
        assert await is_silent(other.place, "10.99.0.1", web.namespace)
        await network.detach("web")
        await network.detach("guest")


async def test_other_names_are_asked_for_by_the_node(ground: Ground) -> None:
    run("ip", "address", "add", "192.0.2.53/32", "dev", "lo")
    settings = msgspec.structs.replace(ground.settings, dns=("192.0.2.53",))
    async with fake_resolver(answering(), "192.0.2.53", 53) as fake, agent(ground, settings=settings) as made:
        network, names = made
        assert names.upstreams() == ("192.0.2.53",)
        web = await network.attach("web", policy=NetworkPolicy(egress=Egress.INTERNET))
        for _ in range(2):
            assert await asked(web.namespace, web.gateway, question("example.org")) == ["192.0.2.7"]
        assert fake.asked == ["example.org."]
        await network.detach("web")


async def test_it_follows_the_subnet(ground: Ground) -> None:
    settings = msgspec.structs.replace(ground.settings, subnet="")
    async with agent(ground, settings=settings, waits=True) as (network, names):
        assert names.lacking() == ()
        await network.use("10.98.0.0/24")
        old = await network.attach("old")
        await network.use("10.97.0.0/24")
        new = await network.attach("new")
        for each in (old, new):
            assert await asked(each.namespace, each.gateway) == ["10.99.0.7"]
            assert f"nameserver {each.gateway}\n" in network.resolv_conf(each)
        assert (old.gateway, new.gateway) == ("10.98.0.1", "10.97.0.1")
        await network.detach("old")
        assert not names.serves("10.98.0.1")
        await network.detach("new")


async def test_a_container_that_ends_during_the_stop_leaves_no_rules(ground: Ground) -> None:
    settings = msgspec.structs.replace(ground.settings, subnet="")
    async with agent(ground, settings=settings, waits=True) as (network, names):
        await network.use("10.98.0.0/24")
        await network.attach("old")
        await network.use("10.97.0.0/24")
        async with asyncio.TaskGroup() as both:
            both.create_task(network.close())
            both.create_task(network.detach("old"))  # the last of a former subnet, which goes with it
    await names.serve(network._subnets.all)
    assert not any("_dns" in each for each in ground.tables())
    assert not names.serves("10.97.0.1")


async def test_a_port_in_use_is_reported_and_containers_ask_the_machines_resolvers(ground: Ground) -> None:
    settings = msgspec.structs.replace(ground.settings, dns=("192.0.2.53",))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("0.0.0.0", 53))
        async with agent(ground, settings=settings) as (network, names):
            (reason,) = network.lacking()
            assert "port 53 of 10.99.0.1 cannot be had" in reason
            web = await network.attach("web")
            assert network.resolv_conf(web, tenant="shop").startswith("nameserver 192.0.2.53\n")
            taken.close()
            await names.serve(network._subnets.all)
            assert names.lacking() == ()
            assert network.resolv_conf(web).startswith("nameserver 10.99.0.1\n")
            await network.detach("web")


async def test_a_container_may_still_publish_port_53(ground: Ground) -> None:
    async with agent(ground) as (network, _):
        dns = await network.attach("dns", mappings("53:53/udp", "53:53"))
        await network.publish("dns")
        web = await network.attach("web")
        server = inside(dns.namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with server:
            server.bind(("0.0.0.0", 53))
            server.settimeout(PATIENCE_S)
            assert await asked(web.namespace, web.gateway) == ["10.99.0.7"], "not the published port"
            caller = inside(ground.machine.place, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            with caller:
                caller.sendto(b"hello", ("127.0.0.1", 53))
                assert server.recv(100) == b"hello"
        await network.use("10.97.0.0/24")
        late = await network.attach("late")
        assert await asked(late.namespace, late.gateway) == ["10.99.0.7"]
        for each in ("dns", "web", "late"):
            await network.detach(each)


async def test_a_flood_of_one_container_is_dropped_by_the_kernel(ground: Ground) -> None:
    settings = msgspec.structs.replace(ground.settings, dns_rate=10)
    async with agent(ground, settings=settings) as (network, names):
        flood, web = await network.attach("flood"), await network.attach("web")
        received: list[bytes] = []
        handle = names._resolver.handle
        names._resolver.handle = lambda packet, *more: received.append(packet) or handle(packet, *more)  # type: ignore[assignment, func-returns-value]
        sender = inside(flood.namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with sender:
            sender.setblocking(False)
            for _ in range(2000):
                with contextlib.suppress(BlockingIOError):
                    sender.sendto(question("nope.shop.skerry"), ("10.99.0.1", 53))
        assert await asked(web.namespace, web.gateway) == ["10.99.0.7"]
        assert len(received) < 500
        await network.detach("flood")
        await network.detach("web")


async def test_flushed_rules_are_written_again(ground: Ground) -> None:
    async with agent(ground) as (_, names):
        assert any("_dns" in each for each in ground.tables())
        run("nft", "delete", "table", "ip", f"skerry_{ground.key}_dns")
        await names.check()
        assert any("_dns" in each for each in ground.tables())
    assert not any("_dns" in each for each in ground.tables())


async def test_a_firewall_between_containers_and_the_node_is_noticed(ground: Ground) -> None:
    settings = msgspec.structs.replace(ground.settings, dns=("192.0.2.53",))
    chain = "type filter hook input priority 0; policy accept;"
    run(
        "nft",
        "-f",
        "-",
        text=f"table ip other {{\nchain input {{\n{chain}\niifname sk-{ground.key} drop\n}}\n}}\n",
    )
    async with agent(ground, settings=settings) as (network, names):
        web = await network.attach("web")
        assert network.resolv_conf(web).startswith("nameserver 192.0.2.53\n")
        (reason,) = network.lacking()
        assert "another firewall of this machine drops their packets to port 53 of 10.99.0.1" in reason
        run("nft", "delete", "table", "ip", "other")
        await names.serve(network._subnets.all)  # as with a new subnet: it is tried again
        shop = await network.attach("shop")
        assert network.resolv_conf(shop).startswith("nameserver 10.99.0.1\n")
        assert network.lacking() == ()
        await network.detach("web")
        await network.detach("shop")


async def test_without_a_name_server_containers_get_the_resolvers_of_the_settings(ground: Ground) -> None:
    settings = msgspec.structs.replace(ground.settings, dns=("192.0.2.53",))
    async with ground.agent(settings=settings) as network:
        web = await network.attach("web")
        assert "nameserver 192.0.2.53\n" in network.resolv_conf(web)
        assert network.lacking() == ()
        await network.detach("web")
    with pytest.raises(errors.Invalid, match=r"127\.0\.0\.1"):
        await ground.open(settings=msgspec.structs.replace(ground.settings, dns=("127.0.0.1",)))
