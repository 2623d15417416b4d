"""The same images unpacked by umoci and by us are the same trees, layer by layer and whole."""

from __future__ import annotations

import gzip
import subprocess
import tarfile
from pathlib import Path

import pytest

from skerry.node.layers import stacking
from tests.node.layers.ground import (
    Member,
    Thing,
    device,
    digest_of,
    file,
    folder,
    hard_link,
    look,
    member,
    needs_root,
    pack,
    stacked,
    symlink,
    unpack,
)
from tests.support import imagery

pytestmark = needs_root

CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")  # cap_net_raw=ep, of version 2


def odd_entries() -> list[Member]:
    return [
        folder("odd", mtime=1_500_000_000.25),
        folder("odd/sticky", mode=0o1777),
        folder("odd/shared", mode=0o2775, gid=50),
        file("odd/shared/made-in-a-setgid-folder"),
        file("odd/setuid", mode=0o4755),
        file("odd/setgid", mode=0o2755, uid=1000, gid=50),
        file("odd/unreadable", mode=0o000),
        file("odd/empty", b""),
        file("odd/large-owner", uid=4_000_000_000, gid=2_097_152),
        file("odd/fraction", mtime=1_400_000_000.123456),
        file("odd/before-the-epoch", mtime=-86400),
        file("odd/" + "long-" * 45 + "name", b"long"),
        *(folder("odd/" + "/".join(["deep"] * depth)) for depth in range(1, 61)),
        file("odd/" + "/".join(["deep"] * 60) + "/file", b"deep"),
        file("odd/ÜMLÄUT and blank", b"unicode"),
        symlink("odd/absolute", "/etc/passwd"),
        symlink("odd/upwards", "../../../../etc/passwd"),
        symlink("odd/dangling", "nowhere"),
        symlink("odd/long-link", "x/" * 120 + "end", uid=7, gid=8),
        hard_link("odd/hard", "odd/setuid"),
        hard_link("odd/hard-to-link", "odd/absolute"),
        device("odd/null", 1, 3, mode=0o666),
        device("odd/disk", 8, 1, tarfile.BLKTYPE, mode=0o660, gid=6),
        member("odd/fifo", tarfile.FIFOTYPE, mode=0o600, uid=5),
        file("odd/capable", mode=0o755, xattrs={"security.capability": CAPABILITY}),
        file("odd/attributed", xattrs={"user.note": b"\x00\xff binary", "user.empty": b""}),
        folder("odd/attributed-folder", xattrs={"user.note": b"folder"}),
    ]


IMAGES: dict[str, list[list[Member]]] = {
    "odd things": [odd_entries()],
    "folders merge and keep the attributes of the layer that names them last": [
        [folder("a", 0o700, uid=1), file("a/one"), folder("a/b"), file("a/b/two")],
        [folder("a", 0o750, uid=2, mtime=5), file("a/three")],
    ],
    "removals": [
        [folder("a"), file("a/one"), file("a/two"), folder("a/b"), file("a/b/x"), file("top"), file("kept")],
        [folder("a"), file("a/.wh.one"), file("a/.wh.b"), file(".wh.top")],
    ],
    "a removal of what is not there": [[folder("a")], [folder("a"), file("a/.wh.nothing")]],
    "an opaque folder": [
        [folder("a"), file("a/one"), folder("a/b"), file("a/b/two")],
        [folder("a"), file("a/.wh..wh..opq"), file("a/new")],
    ],
    "an opaque folder told after what is in it": [
        [folder("a"), file("a/one"), file("a/two", b"old")],
        [folder("a"), file("a/two", b"new"), file("a/.wh..wh..opq")],
    ],
    "a folder removed and made anew in one layer": [
        [folder("a"), file("a/one"), folder("a/b"), file("a/b/two")],
        [file(".wh.a"), folder("a", 0o700), file("a/new")],
    ],
    "a file removed and made anew in one layer": [
        [file("a", b"old")],
        [file(".wh.a"), file("a", b"new")],
    ],
    "a file over a folder": [[folder("a"), file("a/one")], [file("a", b"file")]],
    "a folder over a file": [[file("a", b"file")], [folder("a"), file("a/one")]],
    "a link over a folder": [[folder("a"), file("a/one"), folder("b")], [symlink("a", "b")]],
    "a folder over a link": [[folder("b"), file("b/one"), symlink("a", "b")], [folder("a"), file("a/two")]],
    "a device over a file and a file over a device": [
        [file("a"), device("b", 1, 3)],
        [device("a", 1, 5), file("b", b"file")],
    ],
    "files through links of the same layer": [
        [
            folder("usr"),
            folder("usr/lib"),
            symlink("lib", "usr/lib"),
            symlink("abs", "/usr/lib"),
            symlink("up", "../../../usr/lib"),
            symlink("chain", "abs/.."),
            file("lib/one"),
            file("abs/two"),
            file("up/three"),
            file("chain/four"),
            folder("lib/sub", 0o711),
            hard_link("hard", "abs/one"),
        ]
    ],
    "types changing within a layer": [
        [
            folder("a"),
            file("a/one"),
            file("a", b"now a file"),
            file("b"),
            folder("b"),
            file("b/one"),
            symlink("c", "b"),
            file("c", b"not through the link"),
            folder("d"),
            folder("d/e"),
            file("d/e/f"),
            symlink("d", "b"),
        ]
    ],
    "duplicates: the last one counts": [
        [
            file("a", b"first"),
            hard_link("kept", "a"),
            file("a", b"second", mode=0o600),
            folder("b", 0o700),
            file("b/one"),
            folder("b", 0o711, uid=3),
            symlink("l", "a"),
            symlink("l", "b"),
        ]
    ],
    "hard links of one layer": [
        [folder("a"), file("a/one", b"1"), hard_link("a/two", "a/one"), hard_link("three", "./a/two")]
    ],
    "a removal told after what is in its place": [
        [folder("a"), file("a/one"), folder("a/b"), file("a/b/old"), file("a/two", b"old")],
        [folder("a"), folder("a/b"), file("a/b/new"), file("a/.wh.b"), file("a/two"), file("a/.wh.two")],
    ],
    "an opaque folder over a folder over an opaque folder": [
        [folder("a"), file("a/one")],
        [folder("a"), file("a/.wh..wh..opq"), file("a/two")],
        [folder("a"), file("a/three")],
        [folder("a"), file("a/.wh..wh..opq"), file("a/four")],
    ],
    "a file, a removal and a file again": [[file("a", b"1")], [file(".wh.a")], [file("a", b"3")]],
    "a folder, a removal and a folder again": [
        [folder("a"), file("a/one")],
        [file(".wh.a")],
        [folder("a"), file("a/two")],
    ],
    "folders that nobody named": [[file("a/b/c"), folder("d"), symlink("e", "gone/x"), file("e/f")]],
    "names with dots and slashes": [
        [folder("./"), folder("./a/"), file("./a//one"), file("/a/two"), file("a/./three"), folder("a/b/")]
    ],
    "a root with attributes": [
        [folder(".", 0o711, uid=9, mtime=1234), file("a")],
        [folder("./", 0o700, gid=9, mtime=1235), file("b")],
    ],
    "an opaque root": [
        [folder("."), file("a"), folder("b"), file("b/c")],
        [folder("."), file(".wh..wh..opq"), file("d")],
        [folder("."), file("e")],
    ],
}


# Folders that umoci leaves with the time of the unpacking; ours are the same whenever a layer is unpacked.
TIMELESS = {
    "a removal told after what is in its place": {"a/b"},
    "folders that nobody named": {".", "a", "a/b", "gone", "gone/x"},
}


@pytest.mark.parametrize("name", IMAGES)
async def test_umoci_and_we_make_the_same_tree_of(name: str, tmp_path: Path) -> None:
    # umoci, unlike a layer, is not the same each time where a layer does not say what its root is.
    layers = [members if "root" in name else [folder("."), *members] for members in IMAGES[name]]
    theirs, ours = await both(layers, tmp_path)
    for path in TIMELESS.get(name, ()):
        theirs[path] = theirs[path]._replace(mtime_ns=0)
        ours[path] = ours[path]._replace(mtime_ns=0)
    assert differences(ours, theirs) == {}


async def test_an_image_of_busybox_with_many_files_is_the_same_tree(tmp_path: Path) -> None:
    data = gzip.decompress(imagery.busybox_layer().data)
    many = [
        folder(".", mtime=7),
        folder("srv", mtime=8),
        *(folder(f"srv/{number}", mtime=number) for number in range(40)),
        *(
            file(f"srv/{number % 40}/{number}", bytes([number % 251]) * (number * 5), mtime=number)
            for number in range(2000)
        ),
    ]
    theirs, ours = await both_of([data, pack(*many)], tmp_path)
    assert len(ours) > 2000
    assert differences(ours, theirs) == {}


async def test_a_folder_that_only_a_layer_below_names_is_dockers_and_not_umocis(tmp_path: Path) -> None:
    """A layer is unpacked once, for all images, so it cannot know what lies below it."""
    theirs, ours = await both(
        [[folder("."), folder("a", 0o700, uid=5), file("a/one")], [folder("."), file("a/two")]], tmp_path
    )
    assert (theirs["a"].mode, theirs["a"].uid) == (0o700, 5)
    assert (ours["a"].mode, ours["a"].uid) == (0o755, 0)
    assert differences(ours | {"a": theirs["a"]}, theirs) == {}


async def test_a_link_of_a_layer_below_is_not_followed_as_docker_does_not(tmp_path: Path) -> None:
    theirs, ours = await both([[folder("b"), symlink("a", "b")], [file("a/one")]], tmp_path)
    assert (theirs["a"].kind, ours["a"].kind) == ("symlink", "folder")
    assert "b/one" in theirs
    assert "a/one" in ours


def differences(
    ours: dict[str, Thing], theirs: dict[str, Thing]
) -> dict[str, tuple[Thing | None, Thing | None]]:
    return {
        path: (ours.get(path), theirs.get(path))
        for path in sorted({*ours, *theirs})
        if ours.get(path) != theirs.get(path)
    }


async def both(layers: list[list[Member]], place: Path) -> tuple[dict[str, Thing], dict[str, Thing]]:
    """The trees that umoci and we make of the same image."""
    return await both_of([pack(*members) for members in layers], place)


async def both_of(tars: list[bytes], place: Path) -> tuple[dict[str, Thing], dict[str, Thing]]:
    created = imagery.image(*(imagery.Layer(data, digest_of(data), "") for data in tars))
    imagery.write_layout(created, place / "layout")
    subprocess.run(
        ["umoci", "--log=error", "unpack", "--image", place / "layout:latest", place / "bundle"],
        check=True,
        capture_output=True,
    )
    theirs = look(place / "bundle" / "rootfs")
    targets = []
    for number, data in enumerate(tars):
        targets.append(place / f"layer-{number}")
        await unpack(data, targets[-1], diff_id=digest_of(data))
    with stacked(stacking.visible(targets), place / "merged") as merged:
        return theirs, look(merged)
