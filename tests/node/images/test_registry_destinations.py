"""Where a registry may send a pull: one rule for token servers and redirects, at the address that is used."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import web
from aiohttp.abc import ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from skerry.kit import address_zones
from skerry.kit.address_zones import Address, AddressZone, zones_of
from skerry.model import errors
from skerry.node.images.registry_http import RegistryHttpClient
from tests.node.images.fakes import FakeRegistry
from tests.node.images.ground import Ground
from tests.support import imagery

IMAGE = imagery.image(imagery.layer(imagery.file("file", "content" * 2000)))
LOGIN = base64.b64encode(b"user:secret").decode()
INSIDE = "further inside the network"
# All of these are this machine; in these tests each stands for one that is somewhere else.
PLACES = {
    "127.0.0.1": AddressZone.MACHINE,
    "127.0.0.2": AddressZone.PUBLIC,
    "127.0.0.3": AddressZone.PRIVATE,
    "127.0.0.4": AddressZone.LINK,
    "127.0.0.5": AddressZone.PUBLIC,
}


class World(NamedTuple):
    """A server in each zone that holds `IMAGE`, and what names mean."""

    machine: FakeRegistry
    public: FakeRegistry
    private: FakeRegistry
    link: FakeRegistry
    other: FakeRegistry  # public, too
    names: dict[str, list[list[str]]]  # the next answers of the name server; the last one stays


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    real = address_zones._zone_of

    def zone_of(address: Address, own: set[Address]) -> AddressZone:
        return PLACES.get(str(address), real(address, own))

    names: dict[str, list[list[str]]] = {}

    async def resolve(
        self: ThreadedResolver, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        answers = names[host]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            ResolveResult(
                hostname=host,
                host=each,
                port=port,
                family=socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for each in addresses
        ]

    monkeypatch.setattr(address_zones, "_zone_of", zone_of)
    monkeypatch.setattr(ThreadedResolver, "resolve", resolve)
    async with AsyncExitStack() as undo:
        servers = [await undo.enter_async_context(FakeRegistry().serving(place)) for place in PLACES]
        for server in servers:
            server.hold(IMAGE)
        yield World(*servers, names)


def redirecting(part: str, target: str) -> Callable[[web.Request], web.Response | None]:
    """Requests with `part` in their path are sent to `target`."""

    def before(request: web.Request) -> web.Response | None:
        if part not in request.path or request.path == "/v2/":
            return None
        return web.Response(status=307, headers={"Location": f"http://{target}{request.path}"})

    return before


def challenging(realm: str) -> Callable[[web.Request], web.Response | None]:
    """Everybody must bring a token of `realm`."""

    def before(request: web.Request) -> web.Response | None:
        if request.headers.get("Authorization") == "Bearer good":
            return None
        challenge = f'Bearer realm="http://{realm}/token",service="s"'
        return web.Response(status=401, headers={"WWW-Authenticate": challenge})

    return before


def giving_tokens(request: web.Request) -> web.Response | None:
    return web.json_response({"token": "good"}) if request.path == "/token" else None


def port_of(server: FakeRegistry) -> str:
    return server.address.rpartition(":")[2]


async def is_pulled(ground: Ground, address: str) -> bool:
    """False if it is refused because of where it leads."""
    async with ground.images() as images:
        try:
            return (await images.pull(f"{address}/web:1")).id == IMAGE.id
        except errors.FailedPrecondition as error:
            if INSIDE not in error.message or "images.internal_hosts" not in error.message:
                raise
            return False


@pytest.mark.parametrize("kind", ["token", "manifests", "blobs"])
@pytest.mark.parametrize(
    ("source", "target", "is_led"),
    [
        ("public", "other", True),
        ("public", "private", False),
        ("public", "machine", False),
        ("public", "link", False),
        ("private", "public", True),
        ("private", "machine", False),
        ("private", "link", False),
        ("machine", "public", True),
        ("machine", "private", True),
        ("machine", "link", False),
        ("link", "private", True),
        ("link", "machine", False),
    ],
)
async def test_a_registry_sends_us_no_further_inside_than_it_is_itself(
    world: World, ground: Ground, kind: str, source: str, target: str, is_led: bool
) -> None:
    here, there = getattr(world, source), getattr(world, target)
    if kind == "token":
        here.before, there.before = challenging(there.address), giving_tokens
    else:
        here.before = redirecting(f"/{kind}/", there.address)
    assert await is_pulled(ground, here.address) is is_led
    assert bool(there.requests) is is_led, "nobody who may not be spoken to hears anything"


async def test_on_its_own_host_a_registry_may_have_everything(world: World, ground: Ground) -> None:
    for server in (world.public, world.private, world.machine):

        def both(request: web.Request, server: FakeRegistry = server) -> web.Response | None:
            return giving_tokens(request) or challenging(server.address)(request)

        server.before = both
        assert await is_pulled(ground, server.address)


@pytest.mark.parametrize("kind", ["token", "manifests", "blobs"])
@pytest.mark.parametrize(
    "spelling", ["127.1", "2130706433", "0177.0.0.1", "127.000.000.001", "127.0.0.1.", "0", "012.9.9.9"]
)
async def test_an_address_in_another_spelling_leads_nowhere(
    world: World, ground: Ground, kind: str, spelling: str
) -> None:
    """The system's own functions take each of these for an address that is further inside."""
    target = f"{spelling}:{port_of(world.machine)}"
    ground.set(insecure=(target,))
    world.public.before = challenging(target) if kind == "token" else redirecting(f"/{kind}/", target)
    async with ground.images() as images:
        with pytest.raises(
            errors.Unavailable, match=rf"redirects to .*{target}.*, which is not a valid address"
        ):
            await images.pull(f"{world.public.address}/web:1")
    assert world.machine.requests == []


async def test_the_outermost_host_of_a_chain_decides(world: World, ground: Ground) -> None:
    world.machine.before = redirecting("/blobs/", world.public.address)
    world.public.before = redirecting("/blobs/", world.private.address)
    assert not await is_pulled(ground, world.machine.address)
    assert world.public.requested("/blobs/")
    assert world.private.requests == []


async def test_a_token_server_redirects_by_the_same_rule(world: World, ground: Ground) -> None:
    world.public.before = challenging(world.other.address)
    world.other.before = redirecting("/token", world.machine.address)
    world.machine.before = giving_tokens
    assert not await is_pulled(ground, world.public.address)
    assert world.machine.requests == []


async def test_hosts_that_the_settings_name_may_be_anywhere(world: World, ground: Ground) -> None:
    world.public.before = redirecting("/blobs/", world.private.address)
    for setting in ({"internal_hosts": ("127.0.0.3:*",)}, {"insecure": (world.private.address,)}):
        ground.set(**{"internal_hosts": (), "insecure": (), **setting})
        async with ground.images() as images:
            image = await images.pull(f"{world.public.address}/web:1")
            await images.remove(image.id)


async def test_a_name_is_judged_by_the_address_that_is_connected_to(world: World, ground: Ground) -> None:
    """It means a public address when it is named, and this machine when it is called."""
    name = f"rebind.example:{port_of(world.machine)}"
    ground.set(insecure=())
    world.names["rebind.example"] = [["127.0.0.1"]]
    world.public.before = redirecting("/blobs/", name)
    async with ground.images() as images:
        with pytest.raises(errors.FailedPrecondition, match="without TLS"):  # whatever it means
            await images.pull(f"{world.public.address}/web:1")
    world.public.before = lambda request: (
        web.Response(status=307, headers={"Location": f"https://{name}/"})
        if "blobs" in request.path
        else None
    )
    for addresses in (["127.0.0.1"], ["127.0.0.5", "127.0.0.1"]):
        world.names["rebind.example"] = [addresses]
        assert not await is_pulled(ground, world.public.address)
    assert world.machine.requests == []


async def test_a_registry_that_changes_its_address_is_where_it_was_furthest_outside(world: World) -> None:
    """Or else it would be outside when it says where to go, and inside when that is judged."""
    registry, target = URL("https://registry.example/v2"), URL("https://storage.example/")
    transport = RegistryHttpClient("registry.example", insecure=(), ca="", timeout_s=1.0)
    for address in ("127.0.0.1", "127.0.0.2", "127.0.0.1"):
        transport._record_zone("registry.example", [address])
    assert transport._lead(registry, target, None) is AddressZone.PUBLIC
    assert transport._lead(target, registry, AddressZone.PUBLIC) is None, (
        "who was named by a person may be anywhere"
    )


async def test_a_login_is_shown_to_nobody_that_a_redirect_leads_to(world: World, ground: Ground) -> None:
    logins = {world.public.address: {"auth": LOGIN}}
    Path(ground.settings.credentials).write_text(json.dumps({"auths": logins}))
    world.public.before = redirecting("/blobs/", world.other.address)
    world.other.before = lambda request: (
        giving_tokens(request) or web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="r"'})
    )
    async with ground.images() as images:
        with pytest.raises(errors.FailedPrecondition, match="requires a login; none is sent there"):
            await images.pull(f"{world.public.address}/web:1")
        world.other.before = challenging(world.other.address)
        with pytest.raises(errors.FailedPrecondition, match="none is sent there"):
            await images.pull(f"{world.public.address}/web:1")
    assert set(world.other.visible) == {""}
    assert world.other.requested("/token") == []


@pytest.mark.parametrize("identity", [False, True])
async def test_a_login_is_shown_to_a_token_server_on_another_host_only_if_the_settings_name_it(
    world: World, ground: Ground, *, identity: bool
) -> None:
    login = {"identitytoken": "the identity"} if identity else {"auth": LOGIN}
    Path(ground.settings.credentials).write_text(json.dumps({"auths": {world.public.address: login}}))

    def strict(request: web.Request) -> web.Response | None:
        knows = request.method == "POST" or request.headers.get("Authorization") == f"Basic {LOGIN}"
        return giving_tokens(request) if knows else web.Response(status=401)

    world.public.before = challenging(world.other.address)
    world.other.before = giving_tokens
    async with ground.images() as images:
        assert (await images.pull(f"{world.public.address}/web:1")).id == IMAGE.id, (
            "what is public needs none"
        )
    assert set(world.other.visible) == {""}
    assert [request.partition(" ")[0] for request in world.other.requested("/token")] == ["GET"]
    world.other.before = strict
    line = f"{world.public.address}={world.other.address}"
    async with ground.images() as images:
        await images.remove(f"{world.public.address}/web:1")
        with pytest.raises(errors.FailedPrecondition, match=f"add {line} to images.token_servers"):
            await images.pull(f"{world.public.address}/web:1")
    assert set(world.other.visible) == {""}
    ground.set(token_servers=(line,))
    async with ground.images() as images:
        assert (await images.pull(f"{world.public.address}/web:1")).id == IMAGE.id


@pytest.mark.parametrize("kind", ["token", "manifests", "blobs"])
async def test_off_the_loopback_nobody_is_spoken_to_without_tls_because_the_registry_was(
    world: World, ground: Ground, kind: str
) -> None:
    """Being named in `images.insecure` is for the one that is named."""
    name = f"registry.example:{port_of(world.private)}"
    there = f"tokens.example:{port_of(world.other)}"
    world.names["registry.example"] = [["127.0.0.3"]]
    world.names["tokens.example"] = [["127.0.0.5"]]
    ground.set(insecure=(name,))
    for target in (there, world.machine.address):
        is_token = kind == "token"
        world.private.before = challenging(target) if is_token else redirecting(f"/{kind}/", target)
        async with ground.images() as images:
            with pytest.raises(
                errors.FailedPrecondition, match=rf"redirects to {target} without TLS.*images\.insecure"
            ):
                await images.pull(f"{name}/web:1")
    assert world.other.requests == world.machine.requests == []


@pytest.mark.parametrize(
    ("address", "zone"),
    [
        ("8.8.8.8", AddressZone.PUBLIC),
        ("2606:4700::1111", AddressZone.PUBLIC),
        ("10.1.2.3", AddressZone.PRIVATE),
        ("100.64.0.1", AddressZone.PRIVATE),
        ("fd00:ec2::254", AddressZone.PRIVATE),
        ("::ffff:192.168.0.1", AddressZone.PRIVATE),
        ("127.9.9.9", AddressZone.MACHINE),
        ("0.0.0.0", AddressZone.MACHINE),
        ("::1", AddressZone.MACHINE),
        ("::ffff:127.0.0.1", AddressZone.MACHINE),
        ("64:ff9b::7f00:1", AddressZone.MACHINE),
        ("169.254.169.254", AddressZone.LINK),
        ("fe80::1%eth0", AddressZone.LINK),
        ("::ffff:169.254.169.254", AddressZone.LINK),
    ],
)
def test_every_address_is_in_one_zone(address: str, zone: AddressZone) -> None:
    assert zones_of([address]) == [zone]
