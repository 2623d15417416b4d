"""Applying entries holds by itself: without the walls of the process, nothing outside is ever touched."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.kit.tar import reader as tar_reader
from skerry.kit.tar.reader import TarEntry
from skerry.node.layers import stacking
from skerry.node.layers.unpacker import errors
from skerry.node.layers.unpacker.errors import UnpackError
from skerry.node.layers.unpacker.folder_tree import LayerFolderTree
from skerry.node.layers.unpacker.layer_writer import USER_OPAQUE_XATTR, LayerWriter, MappedIds
from tests.node.layers.ground import look, needs_root

pytestmark = needs_root

PARTS = (b"a", b"b", b"c", b"..", b".", b"", b".wh.a", b".wh.b", b".wh..wh..opq", b".wh...", b"canary")
KINDS = (
    tar_reader.FILE,
    tar_reader.FOLDER,
    tar_reader.SYMLINK,
    tar_reader.HARD_LINK,
    tar_reader.CHARACTER_DEVICE,
    tar_reader.FIFO,
)


def paths(*, parts: tuple[bytes, ...] = PARTS) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(parts), min_size=1, max_size=4).map(b"/".join)


@st.composite
def entries(draw: st.DrawFn) -> TarEntry:
    kind = draw(st.sampled_from(KINDS))
    # Mostly plain names, so that the odd ones meet a tree in which they could do something.
    name = draw(st.one_of(paths(parts=PARTS[:3]), paths(parts=PARTS[:3]), paths()))
    entry = TarEntry(
        name, kind, mode=draw(st.sampled_from((0o755, 0o4711, 0o000))), major=draw(st.integers(0, 1))
    )
    if kind in (tar_reader.SYMLINK, tar_reader.HARD_LINK):
        entry.link = draw(paths())
        if draw(st.booleans()):
            entry.link = b"/" + entry.link
    return entry


def content() -> Iterator[memoryview]:
    yield memoryview(b"overwritten")


def outcome(tree: LayerWriter, sequence: list[TarEntry]) -> str:
    try:
        for entry in sequence:
            tree.apply(entry, content)
        for _ in tree.finish():
            pass
    except UnpackError as fault:
        return fault.kind
    finally:
        tree.close()
    return "applied"


@settings(max_examples=200)
@given(st.lists(entries(), max_size=14))
def test_no_sequence_of_entries_reaches_outside(sequence: list[TarEntry]) -> None:
    place = Path(tempfile.mkdtemp(prefix="skerry-trees-"))
    try:
        (place / "canary").mkdir()
        (place / "canary" / "a").write_bytes(b"secret")
        os.symlink("canary", place / "a")
        os.utime(place / "canary", (1, 1))
        (place / "target").mkdir()
        os.utime(place, (1, 1))
        before = {path: thing for path, thing in look(place).items() if not path.startswith("target")}
        root = os.open(place / "target", os.O_RDONLY)
        try:
            assert outcome(LayerWriter(root, 1000), sequence) in ("applied", errors.REFUSED)
        finally:
            os.close(root)
        assert {path: thing for path, thing in look(place).items() if not path.startswith("target")} == before
        removals = [path for path in (place / "target").rglob("*") if is_removal(path)]
        named = {name for entry in sequence for part in entry.name.split(b"/") if (name := part[4:])}
        assert {os.fsencode(path.name) for path in removals} <= named
    finally:
        shutil.rmtree(place)


def is_removal(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "root").mkdir()
    opened = os.open(tmp_path / "root", os.O_RDONLY)
    yield opened
    os.close(opened)


def test_more_folders_than_may_be_open_at_once_are_written_to_in_turn(root: int, tmp_path: Path) -> None:
    tree = LayerWriter(root, 10_000)
    for turn in range(3):
        for number in range(200):
            tree.apply(TarEntry(b"f%d/sub/%d" % (number, turn)), content)
    open_files = len(os.listdir("/proc/self/fd"))
    for _ in tree.finish():
        pass
    tree.close()
    assert open_files - len(os.listdir("/proc/self/fd")) <= 64
    assert len(list((tmp_path / "root").glob("f*/sub/*"))) == 600
    assert tree.files == 600 + 400


def test_a_link_is_followed_within_the_root_and_no_further(root: int) -> None:
    folders = LayerFolderTree(root)
    folders.root.links.update({b"up": b"../../a", b"abs": b"/b/./c//", b"loop": b"loop"})
    assert folders.resolve([b"up", b"x"]) == (folders.root, [b"a", b"x"])
    assert folders.resolve([b"abs", b"..", b"..", b"..", b"z"]) == (folders.root, [b"z"])
    with pytest.raises(UnpackError, match="too many symbolic links"):
        folders.resolve([b"loop"])


@pytest.mark.root
def test_owners_that_are_not_mapped_become_root_devices_are_left_out_and_both_are_counted(
    root: int, tmp_path: Path
) -> None:
    tree = LayerWriter(root, 100, MappedIds(users=100, groups=50))
    tree.apply(owned(TarEntry(b"mapped"), 99, 49), content)
    tree.apply(owned(TarEntry(b"group"), 99, 50), content)
    tree.apply(owned(TarEntry(b"folder", tar_reader.FOLDER), 100, 1), content)
    tree.apply(TarEntry(b"folder/.wh..wh..opq"), content)
    link = owned(TarEntry(b"link", tar_reader.SYMLINK), 100_000, 100_000)
    link.link = b"x"
    tree.apply(link, content)
    tree.apply(TarEntry(b"disk", tar_reader.BLOCK_DEVICE, major=8), content)
    tree.apply(TarEntry(b"pipe", tar_reader.FIFO), content)
    tree.apply(TarEntry(b".wh.gone"), content)
    for _ in tree.finish():
        pass
    tree.close()
    found = {path.name: path.lstat() for path in (tmp_path / "root").iterdir()}
    assert {name: (each.st_uid, each.st_gid) for name, each in found.items()} == {
        "mapped": (99, 49),
        "group": (99, 0),
        "folder": (0, 1),
        "link": (0, 0),
        "pipe": (0, 0),
        "gone": (0, 0),
    }
    assert (tree.changed_owners, tree.devices) == (3, 1)
    assert os.listxattr(tmp_path / "root" / "folder") == [USER_OPAQUE_XATTR]
    assert is_removal(tmp_path / "root" / "gone")
    assert stacking.visible([tmp_path / "root", tmp_path / "root" / "folder"]) == [
        tmp_path / "root" / "folder"
    ]


def owned(entry: TarEntry, uid: int, gid: int) -> TarEntry:
    entry.uid, entry.gid = uid, gid
    return entry
