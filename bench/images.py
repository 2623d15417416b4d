"""Pulling and unpacking an image from a registry on loopback, against skopeo and umoci doing the same.

The image is made here: 100 MB in five gzip layers, thousands of small files and some large ones. Ours
includes the sync that makes a pull durable; theirs has none. Rounds take turns, and each starts with nothing
there.
"""

from __future__ import annotations

import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop
from tests.support import imagery
from tests.support.imagery import Entry, Layer, Made
from tests.support.registry import Registry

from bench.figures import Figure
from skerry.kit import logs
from skerry.kit.clock import SystemClock
from skerry.model.image_settings import ImageSettings
from skerry.model.images import Platform
from skerry.node.images.images import Images
from skerry.node.layers.unpacker_client import LayerUnpacker

ROUNDS = 5
SEED = 4
# Layers as images have them: a system, a language, its packages, an application, its configuration.
SMALL_FILES = (1200, 1600, 2400, 300, 20)
LARGE_FILES = (10, 5, 2, 2, 0)
SMALL_BYTES = 6_000
LARGE_BYTES = 3_200_000


def measure() -> Iterator[Figure]:
    logs.setup("warning")
    with tempfile.TemporaryDirectory(prefix="skerry-images-") as folder:
        place = Path(folder)
        made = make_image()
        with Registry(place / "registry") as registry:
            registry.push(made, "bench:1")
            ours, theirs, again = rounds(place, f"{registry.address}/bench:1")
    unpacked = sum(len(imagery.plain(layer)) for layer in made.layers)
    packed = sum(len(layer.data) for layer in made.layers)
    yield Figure("the image", unpacked / 1e6, "MB", note=f"{packed / 1e6:.0f} MB compressed")
    yield Figure("skopeo copy + umoci unpack", statistics.median(theirs), "s")
    yield Figure("pull, durable", statistics.median(ours), "s")
    ratio = statistics.median(ours) / statistics.median(theirs)
    yield Figure(
        "pull against skopeo copy + umoci unpack",
        ratio,
        "x",
        at_most=1.0,
        peer=statistics.median(theirs),
        peer_unit="s",
        peer_name="skopeo copy + umoci unpack",
    )
    yield Figure("pull of an image that is here", statistics.median(again) * 1e3, "ms")


def rounds(place: Path, reference: str) -> tuple[list[float], list[float], list[float]]:
    """Seconds of each round: ours, theirs, and ours once more with everything there."""
    ours: list[float] = []
    theirs: list[float] = []
    again: list[float] = []
    uvloop.run(pull(place / "warm-up", reference))
    for _ in range(ROUNDS):
        theirs.append(copy_and_unpack(place, reference))
        first, second = uvloop.run(pull(place / "ours", reference))
        ours.append(first)
        again.append(second)
    return ours, theirs, again


async def pull(folder: Path, reference: str) -> tuple[float, float]:
    images = await Images.open(
        folder, ImageSettings(), SystemClock(), platform=Platform(), unpacker=LayerUnpacker()
    )
    begin = time.perf_counter()
    await images.pull(reference)
    middle = time.perf_counter()
    await images.pull(reference)
    end = time.perf_counter()
    await images.close()
    shutil.rmtree(folder)
    return middle - begin, end - middle


def copy_and_unpack(place: Path, reference: str) -> float:
    layout, bundle = place / "layout", place / "bundle"
    begin = time.perf_counter()
    run("skopeo", "copy", "--quiet", "--src-tls-verify=false", f"docker://{reference}", f"oci:{layout}:bench")
    run("umoci", "unpack", "--image", f"{layout}:bench", str(bundle))
    took = time.perf_counter() - begin
    shutil.rmtree(layout)
    shutil.rmtree(bundle)
    return took


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def make_image() -> Made:
    chance = random.Random(SEED)
    words = [
        bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(4000)
    ]
    layers = [
        make_layer(number, small, large, words, chance)
        for number, (small, large) in enumerate(zip(SMALL_FILES, LARGE_FILES, strict=True))
    ]
    return imagery.image(*layers, config={"Cmd": ["/bin/true"]})


def make_layer(number: int, small: int, large: int, words: list[bytes], chance: random.Random) -> Layer:
    top = f"layer{number}"
    entries: list[Entry] = [imagery.folder(top)]
    for each in range(small):
        if each % 20 == 0:
            entries.append(imagery.folder(f"{top}/{each // 20}"))
        size = int(chance.expovariate(1 / SMALL_BYTES))
        entries.append(imagery.file(f"{top}/{each // 20}/{each}.txt", text(size, words, chance)))
    # Programs: part text, part what does not compress.
    entries += [
        imagery.file(
            f"{top}/program{each}",
            text(LARGE_BYTES * 3 // 5, words, chance) + chance.randbytes(LARGE_BYTES * 2 // 5),
            mode=0o755,
        )
        for each in range(large)
    ]
    return imagery.layer(*entries)


def text(size: int, words: list[bytes], chance: random.Random) -> bytes:
    return b" ".join(chance.choices(words, k=size // 6 + 1))[:size]
