"""Images by name and id, claims, removal, collection, and work that is shared between pulls."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import random
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.images import ImageAccess, ImageId, PullProgress
from skerry.node.images.images import Images
from tests.node.images.fakes import FakeRegistry
from tests.node.images.ground import Ground, Listener, diff_ids
from tests.support import imagery
from tests.support.waiting import eventually

BASE = imagery.layer(imagery.file("base", "b" * 3000))
ONE = imagery.image(BASE, imagery.layer(imagery.file("one")))
TWO = imagery.image(BASE, imagery.layer(imagery.file("two")))


async def test_ensure_asks_nobody_for_what_is_here(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(ONE)
    async with ground.images() as images:
        first = await images.ensure(f"{fake.address}/web:1")
        requested = len(fake.requests)
        assert await images.ensure(f"{fake.address}/web:1") == first
        assert await images.ensure(first.id) == first
        assert len(fake.requests) == requested
        with pytest.raises(errors.NotFound, match="no image sha256:00"):
            await images.ensure("sha256:" + "0" * 64)


async def test_an_image_is_found_by_name_id_and_the_beginning_of_an_id(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(ONE, "1")
    fake.hold(TWO, "2")
    async with ground.images() as images:
        one = await images.pull(f"{fake.address}/web:1")
        two = await images.pull(f"{fake.address}/web:2")
        digits = one.id.removeprefix("sha256:")
        for text in (f"{fake.address}/web:1", one.id, digits, digits[:6], one.id[:13]):
            assert images.find(text) == one
        assert images.list() == [one, two]
        with pytest.raises(errors.NotFound, match="pull it with `skerry image pull web:3`"):
            images.find("web:3")
        with pytest.raises(errors.NotFound):
            images.find(digits[:5])
        with pytest.raises(errors.Invalid):
            images.find("Not A Reference")


async def test_the_beginning_of_two_ids_is_not_enough(ground: Ground, tmp_path: Path) -> None:
    # Ids of folders depend on nothing but their path, so that two with a common beginning can be looked for.
    from skerry.node.images import rootfs_sources

    seen: dict[str, str] = {}
    number, same = 0, ""
    while not same:
        path = str(tmp_path / str(number))
        digits = rootfs_sources.id_of_folder(path).removeprefix("sha256:")[:6]
        same = seen.get(digits, "")
        seen[digits] = path
        number += 1
    async with ground.images() as images:
        for each in (same, path):
            Path(each).mkdir()
            await images.pull(f"rootfs:{each}", access=ImageAccess.ALL)
        with pytest.raises(
            errors.Invalid, match=f"2 images have an id that begins with {digits}; write more"
        ):
            images.find(digits, access=ImageAccess.ALL)


async def test_removing_a_name_keeps_the_image_until_its_last_one(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(ONE, "1")
    fake.hold(ONE, "2")
    async with ground.images() as images:
        await images.pull(f"{fake.address}/web:1")
        await images.pull(f"{fake.address}/web:2")
        assert await images.remove(f"{fake.address}/web:1") == 0
        assert [image.names for image in images.list()] == [(f"{fake.address}/web:2",)]
        assert await images.remove(f"{fake.address}/web:2") > 3000
        assert images.list() == []
        with pytest.raises(errors.NotFound):
            await images.remove(f"{fake.address}/web:2")
    assert ground.stored() == []


async def test_removing_by_id_takes_all_names_and_leaves_layers_that_others_have(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(ONE, "1")
    fake.hold(ONE, "one")
    fake.hold(TWO, "2")
    async with ground.images() as images:
        for tag in ("1", "one", "2"):
            await images.pull(f"{fake.address}/web:{tag}")
        await images.remove(ONE.id[7:19])
        assert [image.id for image in images.list()] == [TWO.id]
        assert ground.stored_layers() == diff_ids(TWO)


async def test_what_is_claimed_is_not_removed_and_the_message_names_who_uses_it(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(ONE, "1")
    fake.hold(ONE, "2")
    async with ground.images() as images:
        image = await images.pull(f"{fake.address}/web:1", owner="web-1")
        images.claim("web-2", image.id)
        await images.pull(f"{fake.address}/web:2")
        assert await images.remove(f"{fake.address}/web:2") == 0  # only a name
        for what in (f"{fake.address}/web:1", image.id):
            with pytest.raises(
                errors.FailedPrecondition, match="is used by web-1, web-2; remove what uses it first"
            ):
                await images.remove(what)
        images.release("web-1")
        images.release("nobody")
        with pytest.raises(errors.FailedPrecondition, match="is used by web-2;"):
            await images.remove(image.id)
        images.release("web-2")
        assert await images.remove(image.id) > 0
        with pytest.raises(errors.NotFound, match="pull it first"):
            images.claim("web-1", image.id)
        with pytest.raises(errors.NotFound):
            images.claim("web-1", ImageId("sha256:" + "0" * 64))


async def test_collecting_takes_what_has_no_name_and_no_claim(fake: FakeRegistry, ground: Ground) -> None:
    name = f"{fake.address}/web:1"
    async with ground.images() as images:
        fake.hold(ONE)
        await images.ensure(name, owner="web")
        fake.hold(TWO)
        await images.pull(name)
        assert {image.id: image.names for image in images.list()} == {TWO.id: (name,), ONE.id: ()}
        assert await images.collect() == 0
        assert [(path / "one").exists() for path in images.layers(images.find(ONE.id))] == [False, True]
    # A claim is not remembered: who uses images claims them again before anything is collected.
    async with ground.images() as images:
        images.claim("web", ImageId(ONE.id))
        assert await images.collect() == 0
        images.release("web")
        assert await images.collect() > 0
        assert [image.id for image in images.list()] == [TWO.id]
        assert ground.stored_layers() == diff_ids(TWO)
        assert await images.collect() == 0


async def test_pulls_of_one_thing_at_once_share_the_work(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(ONE)
    listeners = [Listener() for _ in range(5)]
    async with ground.images() as images:
        pulled = await asyncio.gather(
            *(
                images.pull(f"{fake.address}/web:1", owner=f"web-{n}", on_progress=listener)
                for n, listener in enumerate(listeners)
            )
        )
        assert {image.id for image in pulled} == {ONE.id}
        with pytest.raises(errors.FailedPrecondition, match="used by web-0, web-1, web-2, web-3, web-4"):
            await images.remove(ONE.id)
    assert ground.fake.begun == 2
    assert len(fake.requested("GET /v2/web/manifests")) == 1
    assert [listener.reported[-1].message for listener in listeners] == [f"{fake.address}/web:1 is here"] * 5


async def test_images_with_a_layer_in_common_share_its_way_here(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(ONE, "1")
    fake.hold(TWO, "2")
    ground.fake.gate.clear()
    listeners = Listener(), Listener()
    async with ground.images() as images:
        async with asyncio.TaskGroup() as group:
            for tag, listener in zip("12", listeners, strict=True):
                group.create_task(images.pull(f"{fake.address}/web:{tag}", on_progress=listener))
            await eventually(lambda: ground.fake.begun == 3)
            ground.fake.gate.set()
        assert len(fake.requested(f"GET /v2/web/blobs/{BASE.digest}")) == 1
        assert {image.id for image in images.list()} == {ONE.id, TWO.id}
    for listener in listeners:
        assert listener.states()[0] in {
            ("waiting", "waiting"),
            ("pulling", "waiting"),
            ("unpacking", "waiting"),
        }
        assert listener.states()[-1] == ("done", "done")


async def test_who_gives_up_does_not_end_the_pull_for_others(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(ONE, "1")
    fake.hold(TWO, "2")
    ground.fake.gate.clear()
    async with ground.images() as images:
        pulls = [asyncio.create_task(images.pull(f"{fake.address}/web:{tag}")) for tag in "112"]
        await eventually(lambda: ground.fake.begun == 3)
        # The first of two for one image, and the only one for another that shares a layer.
        pulls[0].cancel()
        pulls[2].cancel()
        await asyncio.wait([pulls[0], pulls[2]])
        ground.fake.gate.set()
        assert (await pulls[1]).id == ONE.id
        assert [image.id for image in images.list()] == [ONE.id]
        assert ground.stored_layers() == diff_ids(ONE)
    assert len(fake.requested(f"GET /v2/web/blobs/{BASE.digest}")) == 1


async def test_a_layer_on_its_way_arrives_for_others_when_who_began_it_gives_up(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(ONE, "1")
    fake.hold(TWO, "2")
    fake.held = {BASE.digest}
    async with ground.images() as images:
        first = asyncio.create_task(images.pull(f"{fake.address}/web:1"))
        await eventually(lambda: fake.requested(BASE.digest))
        second = asyncio.create_task(images.pull(f"{fake.address}/web:2"))
        await eventually(
            lambda: TWO.layers[1].diff_id in ground.stored_layers()
        )  # the other one it waits for
        first.cancel()
        await asyncio.wait([first])
        fake.gate.set()
        assert (await second).id == TWO.id
    assert len(fake.requested(BASE.digest)) == 1


async def test_a_layer_that_another_source_cannot_give_is_taken_from_ones_own(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(ONE)
    fake.blobs[BASE.digest] = b"\x1f\x8b" + bytes(len(BASE.data) - 2)
    fake.held = {BASE.digest}
    async with ground.images() as images, FakeRegistry().serving() as other:
        other.hold(TWO)
        bad = asyncio.create_task(images.pull(f"{fake.address}/web:1"))
        await eventually(lambda: fake.requested(BASE.digest))
        good = asyncio.create_task(images.pull(f"{other.address}/web:1"))
        await eventually(
            lambda: TWO.layers[1].diff_id in ground.stored_layers()
        )  # the other one it waits for
        fake.gate.set()
        with pytest.raises(errors.Unprocessable, match="wrong digest"):
            await bad
        assert (await good).id == TWO.id
        assert ground.stored_layers() == diff_ids(TWO)


async def test_no_more_layers_are_pulled_at_once_than_the_settings_say(
    fake: FakeRegistry, ground: Ground
) -> None:
    created = fake.hold(imagery.image(*(imagery.layer(imagery.file(str(number))) for number in range(7))))
    ground.set(parallel=2)
    ground.fake.gate.clear()
    async with ground.images() as images:
        pull = asyncio.create_task(images.pull(f"{fake.address}/web:1"))
        await eventually(lambda: ground.fake.at_once == 2)
        ground.fake.gate.set()
        assert (await pull).id == created.id
    assert ground.fake.most_at_once == 2


async def test_what_a_pull_counts_on_is_not_taken_away_meanwhile(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(ONE, "1")
    fake.hold(TWO, "2")
    async with ground.images() as images:
        await images.pull(f"{fake.address}/web:1")
        ground.fake.gate.clear()
        pull = asyncio.create_task(images.pull(f"{fake.address}/web:2"))
        await eventually(lambda: ground.fake.begun == 3)
        # TWO found its lower layer here; it belongs to ONE, which goes.
        await images.remove(ONE.id)
        await images.collect()
        assert BASE.diff_id in ground.stored_layers()
        ground.fake.gate.set()
        two = await pull
        assert [path.is_dir() for path in images.layers(two)] == [True, True]
        assert ground.stored_layers() == diff_ids(TWO)


async def test_a_layer_that_an_image_has_twice_is_stacked_once_as_the_upper_one(
    fake: FakeRegistry, ground: Ground
) -> None:
    other = imagery.layer(imagery.file("other"))
    fake.hold(imagery.image(BASE, other, BASE))
    async with ground.images() as images:
        image = await images.pull(f"{fake.address}/web:1")
        assert len(image.layers) == 3
        assert [path.parent.name for path in images.layers(image)] == [
            layer.diff_id.removeprefix("sha256:") for layer in (other, BASE)
        ]
    assert ground.fake.begun == 2


async def test_images_are_there_for_the_next_agent(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(ONE, "1")
    fake.hold(ONE, "2")
    async with ground.images() as images:
        await images.pull(f"{fake.address}/web:1")
        await images.pull(f"{fake.address}/web:2")
        before = images.list()
    async with ground.images() as images:
        assert images.list() == before
        await images.pull(f"{fake.address}/web:1")
    assert ground.fake.begun == 2


async def test_records_that_do_not_hold_are_dropped(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(ONE, "1")
    fake.hold(TWO, "2")
    async with ground.images() as images:
        await images.pull(f"{fake.address}/web:1")
        await images.pull(f"{fake.address}/web:2")
    # Somebody took a layer of ONE away, half of another record, and left things of their own.
    upper = ground.folder / "layers" / ONE.layers[1].diff_id.removeprefix("sha256:")
    (upper / "layer.json").unlink()
    (ground.folder / "names" / "junk").write_text("junk")
    (ground.folder / "images" / ("0" * 64 + ".json")).write_text("{")
    (ground.folder / "layers" / "junk").mkdir()
    (ground.folder / "drafts" / "7").mkdir()
    (ground.folder / "trash" / "8").write_text("junk")
    async with ground.images() as images:
        assert [image.id for image in images.list()] == [TWO.id]
        await images.collect()
        assert ground.stored_layers() == diff_ids(TWO)
        assert len(ground.stored()) == 4


async def test_a_record_of_a_layer_tells_nothing_that_was_not_checked(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(ONE)
    async with ground.images() as images:
        await images.pull(f"{fake.address}/web:1")
    records = [json.loads(path.read_text()) for path in (ground.folder / "layers").glob("*/layer.json")]
    assert sorted(record["files"] for record in records) == [1, 1]
    assert ground.folder.stat().st_mode & 0o777 == 0o700


async def test_a_listener_that_fails_does_not_end_the_pull(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(ONE)
    listener = Listener()

    def fail(progress: PullProgress) -> None:
        raise RuntimeError("the line is dead")

    async with ground.images() as images:
        failing, listening = await asyncio.gather(
            images.pull(f"{fake.address}/web:1", on_progress=fail),
            images.pull(f"{fake.address}/web:1", on_progress=listener),
        )
    assert failing == listening
    assert listener.states()[-1] == ("done", "done")


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (errno.ENOSPC, errors.ResourcesExhausted, "the disk is too full"),
        (errno.EIO, errors.Internal, "input/output error"),
    ],
)
async def test_a_disk_that_fails_is_told_and_nothing_is_kept(
    fake: FakeRegistry, ground: Ground, number: int, error: type[errors.SkerryError], message: str
) -> None:
    fake.hold(ONE)

    def fail(step: str) -> None:
        if step == "layer.synced":
            raise OSError(number, "x" if number == errno.ENOSPC else "Input/output error")

    async with ground.images(failpoint=fail) as images:
        with pytest.raises(error, match=message):
            await images.pull(f"{fake.address}/web:1")
    assert ground.stored() == []


class Crowd:
    """Many who pull, use, remove and collect a few images that share layers, all at once, in any order."""

    def __init__(self, images: Images, address: str, chance: random.Random) -> None:
        self.images = images
        self.names = [f"{address}/web:{tag}" for tag in range(4)]
        self.chance = chance

    async def one(self, number: int) -> None:
        name = self.chance.choice(self.names)
        match self.chance.randrange(6):
            case 0:
                with contextlib.suppress(errors.NotFound, errors.FailedPrecondition):
                    await self.images.remove(name)
            case 1:
                await self.images.collect()
            case 2:
                pull = asyncio.create_task(self.images.pull(name))
                for _ in range(self.chance.randrange(30)):
                    await asyncio.sleep(0)
                pull.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await pull
            case other:
                request = self.images.pull if other == 3 else self.images.ensure
                image = await request(name, owner=f"user-{number}")
                # What somebody was given stays whole for as long as they have it.
                for _ in range(self.chance.randrange(10)):
                    assert all(path.is_dir() for path in self.images.layers(image))
                    await asyncio.sleep(0)
                assert self.images.find(image.id).id == image.id
                self.images.release(f"user-{number}")


@pytest.mark.parametrize("seed", range(4))
async def test_never_is_anything_taken_from_who_uses_it(
    fake: FakeRegistry, ground: Ground, seed: int
) -> None:
    layers = [imagery.layer(imagery.file(f"file{number}")) for number in range(4)]
    for tag in range(4):
        fake.hold(imagery.image(*layers[: tag + 1]), str(tag))
    async with ground.images() as images:
        crowd = Crowd(images, fake.address, random.Random(seed))
        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(crowd.one(number))
        await images.collect()
        assert ground.stored_layers() == {layer for image in images.list() for layer in image.layers}
        assert list((ground.folder / "drafts").iterdir()) == []
        assert list((ground.folder / "trash").iterdir()) == []
        before = images.list()
    async with ground.images() as images:
        assert images.list() == before
