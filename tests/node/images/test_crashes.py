"""`kill -9` at every step of pulls and removals: what looks complete is complete, and everything goes on."""

from __future__ import annotations

import asyncio
import signal

import pytest

from skerry.node.images.images import Images
from skerry.node.layers.unpacker_client import LayerUnpacker
from tests.node.images.ground import Ground, diff_ids
from tests.support import imagery
from tests.support.drivers import Drivers
from tests.support.imagery import Made
from tests.support.registry import Registry

pytestmark = pytest.mark.root

BASE = imagery.layer(*(imagery.file(f"base{number}", "b" * 3000) for number in range(20)))
OLD = imagery.image(BASE, imagery.layer(imagery.file("old", "o" * 100)))
NEW = imagery.image(BASE, imagery.layer(imagery.file("new", "n" * 100)))

STEPS = [
    *((step, 1) for step in ("pull.version", "pull.found")),
    *(
        (step, times)
        for step in ("layer.draft", "layer.unpacked", "layer.synced", "layer.kept")
        for times in (1, 2)
    ),
    *((step, times) for step in ("pull.image", "pull.name") for times in (1, 2)),
    *((step, 1) for step in ("remove.name", "remove.image", "layers.away")),
]


def drive(drivers: Drivers, ground: Ground, step: str, times: int, *calls: str) -> list[str]:
    """Have a process do `calls` until it dies of `step`; those that were done."""
    done = drivers.run("tests.node.images.driver", str(ground.folder), step, str(times), *calls)
    assert done.returncode == (-signal.SIGKILL if step else 0)
    return done.stdout.splitlines()


def check_whole(images: Images, *known: Made) -> None:
    """Every image that is told of has all its files."""
    for image in images.list():
        created = next(each for each in known if each.id == image.id)
        for path, layer in zip(images.layers(image), created.layers, strict=True):
            wanted = {f"base{number}": 3000 for number in range(20)} if layer == BASE else None
            found = {file.name: file.stat().st_size for file in path.iterdir()}
            assert found == wanted or (wanted is None and list(found.values()) == [100])


@pytest.mark.parametrize(("step", "times"), STEPS)
async def test_an_agent_that_dies_after_a_step_leaves_nothing_that_only_looks_complete(
    drivers: Drivers, registry: Registry, ground: Ground, step: str, times: int
) -> None:
    ground.unpacker = LayerUnpacker()
    name = f"{registry.address}/crash:{step}-{times}"
    registry.push(OLD, f"crash:{step}-{times}")
    other = f"{name}-other"
    registry.push(NEW, f"crash:{step}-{times}-other")
    calls = (f"pull:{name}", f"pull:{other}", f"remove:{name}", "collect:")
    done = await asyncio.to_thread(drive, drivers, ground, step, times, *calls)
    assert len(done) < len(calls)
    async with ground.images() as images:
        acknowledged = {call.removeprefix("pull:") for call in done if call.startswith("pull:")}
        reported = {each for image in images.list() for each in image.names}
        under_way = calls[len(done)]
        assert reported - acknowledged <= {under_way.removeprefix("pull:")}
        assert acknowledged - reported <= {under_way.removeprefix("remove:")}
        check_whole(images, OLD, NEW)
        assert list((ground.folder / "drafts").iterdir()) == []
        assert list((ground.folder / "trash").iterdir()) == []
        # As good as new: everything can be done from here.
        assert (await images.pull(name)).id == OLD.id
        assert (await images.pull(other)).id == NEW.id
        check_whole(images, OLD, NEW)
        await images.collect()
        assert ground.stored_layers() == diff_ids(OLD, NEW)
        for each in (name, other):
            await images.remove(each)
        assert ground.stored() == []


async def test_an_agent_that_dies_while_a_layer_streams_leaves_no_child_behind(
    drivers: Drivers, registry: Registry, ground: Ground
) -> None:
    """The death of the step before the end of the stream: the draft is there, the unpacker is at work."""
    registry.push(OLD, "crash:stream")
    await asyncio.to_thread(drive, drivers, ground, "layer.draft", 1, f"pull:{registry.address}/crash:stream")
    assert [path.name for path in (ground.folder / "drafts").iterdir()] == ["0"]
    ground.unpacker = LayerUnpacker()
    async with ground.images() as images:
        assert images.list() == []
        assert ground.stored() == []
