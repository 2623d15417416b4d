"""Which images a reference leads to, by the access that it was given with."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.images import Image, ImageAccess, check_path_access, grant_access, is_path
from skerry.node.images import references
from skerry.node.images.images import Images
from tests.node.images.fakes import FakeRegistry
from tests.node.images.ground import Ground, diff_ids
from tests.support import imagery

ALL, REGISTRIES = ImageAccess.ALL, ImageAccess.REGISTRIES
SECRET = imagery.layer(imagery.file("secret", "s" * 500))
IMAGE = imagery.image(SECRET)
OTHER = imagery.image(imagery.layer(imagery.file("other", "o" * 500)))
SCHEMES = ["rootfs", "oci", "oci-archive", "docker-archive"]


@pytest.fixture
def archive(tmp_path: Path) -> str:
    return f"oci-archive:{imagery.write_oci_archive(IMAGE, tmp_path / 'made.tar')}"


async def found(images: Images, reference: str) -> Image:
    return images.find(reference)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("way", [Images.pull, Images.ensure, found])
async def test_a_path_is_refused_in_the_same_words_whatever_is_there(
    ground: Ground, tmp_path: Path, scheme: str, way: Callable[[Images, str], Awaitable[Image]]
) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "closed").mkdir(mode=0o000)
    output = set[str]()
    async with ground.images() as images:
        for path in ("file", "closed", "closed/in", "absent", ""):
            with pytest.raises(errors.Forbidden) as caught:
                await way(images, f"{scheme}:{tmp_path}/{path}")
            output.add(caught.value.message)
        assert images.list() == []
    (one,) = output
    assert str(tmp_path) not in one


async def test_an_image_from_a_path_that_is_here_is_found_by_neither_path_nor_id(
    ground: Ground, archive: str
) -> None:
    async with ground.images() as images:
        image = await images.pull(archive, access=ALL)
        with pytest.raises(errors.Forbidden):
            await images.ensure(archive)
        for id in (image.id, image.id.removeprefix("sha256:")[:12]):
            with pytest.raises(errors.NotFound, match="there is no image") as caught:
                images.find(id)
            absent = id.replace(id[-6:], "000000")
            with pytest.raises(errors.NotFound) as other:
                images.find(absent)
            assert caught.value.message.replace(id, absent) == other.value.message
            assert images.find(id, access=ALL) == image


async def test_an_image_that_came_from_a_registry_too_is_found_by_its_id_also_when_it_lost_its_name(
    fake: FakeRegistry, ground: Ground, archive: str
) -> None:
    fake.hold(IMAGE)
    async with ground.images() as images:
        await images.pull(archive, access=ALL)
        await images.pull(f"{fake.address}/web:1")
        fake.hold(imagery.image(imagery.layer(imagery.file("next"))))
        await images.pull(f"{fake.address}/web:1")
        assert images.find(IMAGE.id).names == (archive,)
    async with ground.images() as images:
        assert images.find(IMAGE.id).from_registry


async def test_who_may_not_use_an_image_cannot_remove_it(
    fake: FakeRegistry, ground: Ground, archive: str
) -> None:
    fake.hold(IMAGE)
    async with ground.images() as images:
        image = await images.pull(archive, access=ALL)
        with pytest.raises(errors.Forbidden):
            await images.remove(archive)
        with pytest.raises(errors.NotFound):
            await images.remove(image.id)
        await images.pull(f"{fake.address}/web:1")
        await images.remove(image.id)
        assert images.find(image.id, access=ALL).names == (archive,), "only the name that it may use goes"
        assert await images.remove(archive, access=ALL) > 0


async def test_what_an_earlier_version_pulled_came_from_where_its_names_say(
    fake: FakeRegistry, ground: Ground, archive: str
) -> None:
    other = fake.hold(imagery.image(imagery.layer(imagery.file("other"))))
    async with ground.images() as images:
        await images.pull(archive, access=ALL)
        await images.pull(f"{fake.address}/web:1")
    for record in (*ground.folder.glob("images/*.json"), *ground.folder.glob("layers/*/layer.json")):
        reported = json.loads(record.read_text())
        del reported["from_registry"]
        record.write_text(json.dumps(reported))
    fake.requests.clear()
    async with ground.images() as images:
        assert images.find(other.id).id == other.id
        with pytest.raises(errors.NotFound):
            images.find(IMAGE.id)
        again = imagery.image(*other.layers, config={"Cmd": ["again"]})
        fake.hold(again, "2")
        await images.pull(f"{fake.address}/web:2")
        assert fake.requested(other.layers[0].digest) == [], "its layer is known to be from a registry"


async def test_the_word_of_a_registry_is_no_way_to_an_image_from_a_path(
    fake: FakeRegistry, ground: Ground, archive: str
) -> None:
    """Digests are no secret: `image list` shows those of manifests and layers."""
    liar = imagery.image(SECRET, config={"Cmd": ["cat", "/secret"]})
    fake.hold(liar, "layer")
    del fake.blobs[SECRET.digest]
    headers = {"Docker-Content-Digest": IMAGE.digest, "Content-Type": IMAGE.media_type}
    fake.before = lambda request: (
        web.Response(headers=headers)
        if request.method == "HEAD" and request.path.endswith("/manifests/whole")
        else None
    )
    async with ground.images() as images:
        image = await images.pull(archive, access=ALL)
        for tag in ("whole", "layer"):
            with pytest.raises(errors.NotFound):
                await images.pull(f"{fake.address}/web:{tag}")
        assert images.list() == [image]
        # A registry that really has the layer hands it out, and from then on it is known.
        fake.blobs[SECRET.digest] = SECRET.data
        assert (await images.pull(f"{fake.address}/web:layer")).id == liar.id
        assert ground.stored_layers() == diff_ids(IMAGE)


async def try_in_vain(images: Images, reference: str) -> None:
    async with images.provisional(reference):
        await images.ensure(reference, access=ALL)
        raise errors.FailedPrecondition("it does not run")


async def test_what_came_for_a_trial_that_failed_goes_again(
    fake: FakeRegistry, ground: Ground, archive: str
) -> None:
    fake.hold(IMAGE)
    name = f"{fake.address}/web:1"
    async with ground.images() as images:
        with pytest.raises(errors.FailedPrecondition):
            await try_in_vain(images, name)
        assert (images.list(), ground.stored()) == ([], [])

        async with images.provisional(name):
            await images.ensure(name)
        with pytest.raises(errors.FailedPrecondition):  # it was here before
            await try_in_vain(images, name)
        with pytest.raises(
            errors.FailedPrecondition
        ):  # of what is here by another name, only the new one goes
            await try_in_vain(images, archive)
        assert [image.names for image in images.list()] == [(name,)]


async def pull_in_vain(images: Images, reference: str, owner: str = "") -> None:
    async with images.provisional(reference):
        await images.pull(reference, owner=owner)
        await images.collect()
        raise errors.FailedPrecondition("it does not run")


async def test_a_tag_that_was_moved_leads_again_to_what_it_led_to_when_the_trial_of_the_new_image_failed(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(IMAGE)
    name = f"{fake.address}/web:1"
    async with ground.images() as images:
        before = await images.pull(name)
        stored = ground.stored()
        fake.hold(OTHER)
        with pytest.raises(errors.FailedPrecondition):
            await pull_in_vain(images, name)
        assert (images.find(name), images.list(), ground.stored()) == (before, [before], stored)
        # Who uses the new image keeps it.
        with pytest.raises(errors.FailedPrecondition):
            await pull_in_vain(images, name, owner="somebody")
        assert images.find(name).id == OTHER.id
        images.release("somebody")
        # And a trial that succeeds beside one that fails, too.
        fake.hold(IMAGE)
        async with images.provisional(name):
            with pytest.raises(errors.FailedPrecondition):
                await pull_in_vain(images, name)
            assert images.find(name).id == before.id
        assert images.find(name).id == before.id
    async with ground.images() as images:
        assert [image.names for image in images.list() if image.names] == [(name,)]


texts = st.text("abcf0123:/@.-_" + "rootfsdckeivh", min_size=1, max_size=30)


@given(st.one_of(texts, st.builds("{}:{}".format, st.sampled_from([*SCHEMES, "sha256", "docker"]), texts)))
def test_what_reads_as_a_path_is_one(text: str) -> None:
    try:
        parsed = references.parse(text)
    except errors.Invalid:
        return
    assert is_path(text) == is_path(str(parsed)) == (not isinstance(parsed, references.RegistryReference))


ID = f"sha256:{'a' * 64}"


@pytest.mark.parametrize("reference", ["rootfs:/srv", ID, "abcdef"])
def test_the_authority_of_an_admin_is_recorded_with_what_takes_it(reference: str) -> None:
    assert grant_access(reference, ALL) is ALL
    assert grant_access("example.org/web:1", ALL) is REGISTRIES


def test_nobody_else_gets_more_than_an_unchanged_reference_had() -> None:
    assert grant_access(ID, REGISTRIES) is REGISTRIES
    assert grant_access(ID, REGISTRIES, before=ID, access_before=ALL) is ALL
    assert grant_access("rootfs:/srv", REGISTRIES, before="rootfs:/srv", access_before=ALL) is ALL
    for before, had in (("", REGISTRIES), ("rootfs:/srv/", ALL), ("rootfs:/srv", REGISTRIES)):
        with pytest.raises(errors.Forbidden):
            grant_access("rootfs:/srv", REGISTRIES, before=before, access_before=had)
    check_path_access("example.org/web:1", REGISTRIES)
