"""Images for strangers: what anybody could have from a public registry, and nothing else that is here."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest
from aiohttp import web

from skerry.model import errors
from skerry.node.images.images import Images
from skerry.node.images.layer_store import LayerStore
from tests.node.images.fakes import FakeRegistry
from tests.node.images.ground import Ground, Listener, diff_ids
from tests.support import imagery
from tests.support.waiting import eventually

BASE = imagery.layer(imagery.file("base", "b" * 3000))
ONE = imagery.image(BASE, imagery.layer(imagery.file("one")))
TWO = imagery.image(BASE, imagery.layer(imagery.file("two")))
LOGIN = base64.b64encode(b"provider:secret").decode()


@pytest.fixture
def open_ground(ground: Ground, fake: FakeRegistry) -> Ground:
    """One whose provider lets strangers use the registry on its loopback."""
    ground.guest_registries = ("127.0.0.1:*",)
    return ground


def log_in(ground: Ground, registry: FakeRegistry) -> None:
    auths = {registry.address: {"auth": LOGIN}}
    Path(ground.settings.credentials).write_text(json.dumps({"auths": auths}))


def wants_login(request: web.Request) -> web.Response | None:
    if request.headers.get("Authorization") == f"Basic {LOGIN}":
        return None
    return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="registry"'})


async def idle(images: Images) -> None:
    await eventually(lambda: not images.for_guests()._tidying)


async def test_a_stranger_gets_an_image_that_anybody_may_have(
    fake: FakeRegistry, open_ground: Ground
) -> None:
    fake.hold(ONE)
    log_in(open_ground, fake)
    listener = Listener()
    async with open_ground.images() as images:
        got = await images.for_guests().ensure(f"{fake.address}/web:1", owner="guest", on_progress=listener)
        assert got.id == ONE.id
        assert images.get(got.id).names == ()  # it is nobody's `web:1`
        assert listener.reported
    assert set(fake.visible) == {""}  # the provider's login was shown to nobody


async def test_an_image_that_wants_a_login_is_refused_though_the_provider_has_one(
    fake: FakeRegistry, open_ground: Ground
) -> None:
    fake.hold(ONE)
    fake.before = wants_login
    log_in(open_ground, fake)
    async with open_ground.images() as images:
        mine = await images.pull(f"{fake.address}/web:1")  # and what the provider has of it is no help
        fake.visible.clear()
        with pytest.raises(errors.FailedPrecondition, match="make it public") as caught:
            await images.for_guests().ensure(f"{fake.address}/web:1", owner="guest", on_progress=Listener())
        assert str(open_ground.settings.credentials) not in caught.value.message
        assert set(fake.visible) == {""}
        assert images.list() == [mine]
        await images.remove(mine.id)  # nobody claims it


async def test_a_registry_cannot_say_that_it_means_an_image_of_somebody_else(
    fake: FakeRegistry, open_ground: Ground
) -> None:
    """The digest of a manifest is no secret, so naming it is no proof of having it."""
    fake.hold(ONE)
    async with open_ground.images() as images, FakeRegistry().serving() as evil:
        await images.pull(f"{fake.address}/web:1")
        headers = {"Docker-Content-Digest": ONE.digest, "Content-Type": ONE.media_type}

        def lie(request: web.Request) -> web.Response | None:
            is_question = request.method == "HEAD" and "/manifests/" in request.path
            return web.Response(headers=headers) if is_question else None

        evil.before = lie
        with pytest.raises(errors.NotFound):
            await images.for_guests().ensure(f"{evil.address}/web:1", owner="guest", on_progress=Listener())


async def test_the_registry_is_asked_each_time_and_layers_come_once(
    fake: FakeRegistry, open_ground: Ground
) -> None:
    fake.hold(ONE)
    async with open_ground.images() as images:
        guests = images.for_guests()
        await images.pull(f"{fake.address}/web:1")
        fetched = fake.requested("blobs")
        await guests.ensure(f"{fake.address}/web:1", owner="guest", on_progress=Listener())
        assert [each for each in fake.requested("blobs")[len(fetched) :] if ONE.id not in each] == []
        requested = len(fake.requests)
        await guests.ensure(f"{fake.address}/web:1", owner="guest", on_progress=Listener())
        assert fake.requests[requested:] == ["GET /v2/", "HEAD /v2/web/manifests/1"]
        fake.manifests.clear()
        with pytest.raises(errors.NotFound):
            await guests.ensure(f"{fake.address}/web:1", owner="guest", on_progress=Listener())


async def test_names_of_the_provider_do_not_move_because_of_a_stranger(
    fake: FakeRegistry, open_ground: Ground
) -> None:
    fake.hold(ONE)
    async with open_ground.images() as images:
        await images.pull(f"{fake.address}/web:1")
        fake.hold(TWO)
        got = await images.for_guests().ensure(f"{fake.address}/web:1", owner="guest", on_progress=Listener())
        assert got.id == TWO.id
        assert (await images.ensure(f"{fake.address}/web:1")).id == ONE.id


async def test_an_image_goes_with_the_last_stranger_who_needs_it(
    fake: FakeRegistry, open_ground: Ground
) -> None:
    fake.hold(ONE, "1")
    fake.hold(TWO, "2")
    async with open_ground.images() as images:
        guests = images.for_guests()
        await images.pull(f"{fake.address}/web:2")
        for owner in ("a", "b"):
            await guests.ensure(f"{fake.address}/web:1", owner=owner, on_progress=Listener())
        await guests.ensure(f"{fake.address}/web:2", owner="c", on_progress=Listener())
        for owner in ("a", "c", "nobody"):
            guests.release(owner)
        await idle(images)
        assert {each.id for each in images.list()} == {ONE.id, TWO.id}
        guests.release("b")
        await idle(images)
        assert [each.id for each in images.list()] == [TWO.id]  # which has a name
        assert open_ground.stored_layers() == diff_ids(TWO)
        # And it can be had again.
        assert (await guests.ensure(f"{fake.address}/web:1", owner="a", on_progress=Listener())).id == ONE.id


@pytest.mark.parametrize("ending", ["failure", "cancellation"])
async def test_a_pull_that_did_not_come_to_its_end_leaves_nothing(
    fake: FakeRegistry, open_ground: Ground, ending: str
) -> None:
    fake.hold(ONE)
    last = ONE.layers[-1].digest
    fake.held = {last}
    async with open_ground.images() as images:
        pulling = asyncio.create_task(
            images.for_guests().ensure(f"{fake.address}/web:1", owner="guest", on_progress=Listener())
        )
        await eventually(lambda: open_ground.stored_layers() == {BASE.diff_id} and fake.requested(last))
        if ending == "cancellation":
            pulling.cancel()
        else:
            fake.before = lambda request: web.Response(status=503, headers={"Retry-After": "0"})
            fake.blobs[last] = b""
            fake.gate.set()
        (outcome,) = await asyncio.gather(pulling, return_exceptions=True)
        assert isinstance(outcome, BaseException)
        assert open_ground.stored_layers() == set()
        fake.gate.set()


@pytest.mark.parametrize(
    ("free", "all_", "refusal"),
    [
        (50_000, 1_000_000, errors.ResourcesExhausted),  # no more than what is kept
        (50_000 + 4 * 9_000, 1_000_000, errors.TooLarge),  # four pulls at once may have 9 kB each
        (8 << 30, 1 << 40, errors.ResourcesExhausted),
    ],
)
async def test_images_do_not_fill_the_disk_of_the_node(
    fake: FakeRegistry,
    open_ground: Ground,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    all_: int,
    refusal: type[Exception],
) -> None:
    open_ground.set(parallel=4)
    fake.hold(imagery.image(imagery.layer(imagery.file("large", "x" * 100_000))))
    monkeypatch.setattr(LayerStore, "disk", lambda layers: (free, all_))
    async with open_ground.images() as images:
        with pytest.raises(refusal):
            await images.for_guests().ensure(f"{fake.address}/web:1", owner="guest")
        with pytest.raises(refusal):
            await images.pull(f"{fake.address}/web:1")
        assert images.list() == []


@pytest.mark.parametrize(
    "reference",
    [
        "oci:/srv/layout",
        "oci-archive:/srv/a.tar",
        "docker-archive:/srv/a.tar",
        "rootfs:/srv/tree",
        f"sha256:{'0' * 64}",
    ],
)
async def test_what_is_on_the_disk_of_the_node_is_refused(open_ground: Ground, reference: str) -> None:
    async with open_ground.images() as images:
        with pytest.raises(errors.Invalid, match="is not an image in a registry"):
            await images.for_guests().ensure(reference, owner="guest", on_progress=Listener())


async def test_an_id_of_an_image_that_is_here_is_no_way_to_it(
    fake: FakeRegistry, open_ground: Ground
) -> None:
    fake.hold(ONE)
    async with open_ground.images() as images:
        mine = await images.pull(f"{fake.address}/web:1")
        with pytest.raises(errors.Invalid):
            await images.for_guests().ensure(mine.id, owner="guest", on_progress=Listener())


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_a_registry_that_is_not_public_is_refused_unless_it_is_listed(
    fake: FakeRegistry, ground: Ground, name: str
) -> None:
    fake.hold(ONE)
    port = fake.address.rpartition(":")[2]
    async with ground.images() as images:
        with pytest.raises(errors.FailedPrecondition, match=f"{name} is not public"):
            await images.for_guests().ensure(f"{name}:{port}/web:1", owner="guest", on_progress=Listener())
        assert fake.requests == []  # it was not even spoken to
        await images.pull(f"{name}:{port}/web:1")  # the provider may
    ground.guest_registries = (f"{name}:{port}",)
    async with ground.images() as images:
        got = await images.for_guests().ensure(f"{name}:{port}/web:1", owner="guest", on_progress=Listener())
        assert got.id == ONE.id


async def test_a_registry_cannot_send_us_where_it_could_not_be_itself(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(ONE)
    async with FakeRegistry().serving() as inner:
        inner.hold(ONE)
        ground.guest_registries = (fake.address,)

        def lead(request: web.Request) -> web.Response | None:
            there = f"http://{inner.address}{request.path}"
            return web.Response(status=307, headers={"Location": there}) if "blobs" in request.path else None

        fake.before = lead
        async with ground.images() as images:
            with pytest.raises(errors.FailedPrecondition, match="is not public"):
                await images.for_guests().ensure(
                    f"{fake.address}/web:1", owner="guest", on_progress=Listener()
                )
        assert inner.requests == []


async def test_a_registry_cannot_name_a_token_server_where_it_could_not_be_itself(
    fake: FakeRegistry, ground: Ground
) -> None:
    async with FakeRegistry().serving() as inner:
        ground.guest_registries = (fake.address,)
        challenge = f'Bearer realm="http://{inner.address}/token",service="registry"'
        fake.before = lambda request: web.Response(status=401, headers={"WWW-Authenticate": challenge})
        async with ground.images() as images:
            with pytest.raises(errors.FailedPrecondition, match="is not public"):
                await images.for_guests().ensure(
                    f"{fake.address}/web:1", owner="guest", on_progress=Listener()
                )
        assert inner.requests == []
