"""Images of namespaces: pulled with their logins, and private to those that a registry showed them to."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.model.images import ImageAccess
from skerry.model.secrets import RegistryLoginValue, SecretRef
from skerry.node.images.images import Images, NamespaceImages
from tests.node.images.fakes import FakeRegistry
from tests.node.images.ground import Ground
from tests.support import imagery
from tests.support.registry import PASSWORD, USER, Registry

SHOP, LAB = Namespace("shop"), Namespace("lab")
PRIVATE = imagery.image(imagery.layer(imagery.file("private", "canary" * 100)))


class Logins:
    """What the server would answer."""

    def __init__(self, *namespaces: Namespace, password: str = PASSWORD) -> None:
        self.namespaces = set(namespaces)
        self.password = password
        self.asked: list[SecretRef] = []

    async def fetch(self, ref: SecretRef) -> bytes | None:
        self.asked.append(ref)
        if ref.namespace not in self.namespaces:
            return None
        return json_codec.encode(RegistryLoginValue(USER, self.password))


def of(images: Images, namespace: Namespace, logins: Logins) -> NamespaceImages:
    return images.for_namespace(namespace, logins.fetch)


@pytest.fixture
def closed(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """A real registry that wants a password."""
    return Registry(tmp_path_factory.mktemp("closed"), password=True)


async def test_the_login_of_a_namespace_is_used_for_its_images_alone(
    closed: Registry, ground: Ground
) -> None:
    logins = Logins(SHOP)
    with closed:
        closed.push(PRIVATE, "web:1")
        name = f"{closed.address}/web:1"
        async with ground.images() as images:
            got = await of(images, SHOP, logins).ensure(name, owner="a")
            assert got.id == PRIVATE.id
            assert got.namespaces == (SHOP,)
            assert (logins.asked[0].namespace, logins.asked[0].name) == (SHOP, closed.address)
            # Here it is, and yet another namespace has no more right to it than before.
            lab = of(images, LAB, logins)
            for reference in (name, f"{closed.address}/web@{got.manifest}"):
                with pytest.raises(errors.FailedPrecondition, match="skerry registry login"):
                    await lab.ensure(reference)
            with pytest.raises(errors.NotFound):
                await lab.ensure(got.id)
            with pytest.raises(errors.NotFound):
                lab.find(got.id.removeprefix("sha256:")[:12])
            assert (await of(images, SHOP, logins).ensure(got.id)).id == got.id
            logins.namespaces.add(LAB)
            assert (await lab.ensure(name)).namespaces == (LAB, SHOP)
            assert (await lab.ensure(got.id)).id == got.id
        async with ground.images() as images:  # the next agent knows
            assert images.get(got.id).namespaces == (LAB, SHOP)
            with pytest.raises(errors.NotFound):
                await of(images, Namespace("third"), logins).ensure(got.id)


async def test_a_private_image_that_came_from_the_disk_too_is_private_all_the_same(
    closed: Registry, ground: Ground, tmp_path: Path
) -> None:
    archive = f"oci-archive:{imagery.write_oci_archive(PRIVATE, tmp_path / 'web.tar')}"
    with closed:
        closed.push(PRIVATE, "web:1")
        async with ground.images() as images:
            await images.ensure(archive, access=ImageAccess.ALL)
            got = await of(images, SHOP, Logins(SHOP)).ensure(f"{closed.address}/web:1")
            assert images.get(got.id).namespaces == (SHOP,)
            with pytest.raises(errors.FailedPrecondition):
                await of(images, LAB, Logins()).ensure(f"{closed.address}/web:1")
            with pytest.raises(errors.NotFound):
                await of(images, LAB, Logins()).ensure(got.id)
            assert (await of(images, LAB, Logins()).ensure(archive, access=ImageAccess.ALL)).id == got.id


async def test_a_wrong_password_is_refused_and_in_no_message(closed: Registry, ground: Ground) -> None:
    with closed:
        closed.push(PRIVATE, "web:1")
        async with ground.images() as images:
            with pytest.raises(errors.FailedPrecondition, match="skerry registry login") as refused:
                await of(images, SHOP, Logins(SHOP, password="wrong-7d1")).ensure(f"{closed.address}/web:1")
            assert "wrong-7d1" not in refused.value.message + refused.value.detail
            with pytest.raises(errors.Unavailable):
                await of(images, LAB, Unreachable()).ensure(f"{closed.address}/web:1")


class Unreachable(Logins):
    async def fetch(self, ref: SecretRef) -> bytes | None:
        raise errors.Unavailable("the server is away")


async def test_what_anybody_may_have_is_for_all(registry: Registry, ground: Ground) -> None:
    """The registry asked for no login, so none was sent."""
    public = imagery.image(imagery.layer(imagery.file("public", "p" * 50)))
    registry.push(public, "ns/public:1")
    name = f"{registry.address}/ns/public:1"
    async with ground.images() as images:
        assert (await of(images, SHOP, Logins(SHOP)).ensure(name)).namespaces == ()
        logins = Logins()
        assert (await of(images, LAB, logins).ensure(name)).id == public.id
        assert logins.asked == []  # it is here: nobody is asked


async def test_a_registry_that_claims_to_have_a_private_image_gives_nobody_access_to_it(
    closed: Registry, fake: FakeRegistry, ground: Ground
) -> None:
    """Knowing the digests of an image, of its manifest and of its layers, gives no right to it."""
    with closed:
        closed.push(PRIVATE, "web:1")
        async with ground.images() as images:
            got = await of(images, SHOP, Logins(SHOP)).ensure(f"{closed.address}/web:1")
            fake.hold(PRIVATE)  # manifest and configuration, but not the layers

            def refuse_blobs(request: web.Request) -> web.Response | None:
                is_layer = any(layer.digest in request.path for layer in PRIVATE.layers)
                return web.Response(status=404) if is_layer else None

            fake.before = refuse_blobs
            with pytest.raises(errors.SkerryError):
                await of(images, LAB, Logins()).ensure(f"{fake.address}/web:1")
            assert images.get(got.id).namespaces == (SHOP,)
            with pytest.raises(errors.NotFound):
                of(images, LAB, Logins()).find(got.id)
            # A registry that has all of it, and shows it to anybody, makes it public.
            fake.before = lambda request: None
            assert (await of(images, LAB, Logins()).ensure(f"{fake.address}/web:1")).id == got.id
            assert images.get(got.id).namespaces == ()
