"""Copies of images, where no overlay can be mounted: what is visible is what an overlay would show."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from skerry.node.containers.copied_roots import CopiedRoots
from skerry.node.containers.overlays import UPPER, WORK, Overlays
from skerry.node.layers.unpacker.layer_writer import USER_OPAQUE_XATTR

pytestmark = pytest.mark.root


class Layers:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lowers = [folder / "low", folder / "high"]
        for path in (*self.lowers, folder / "layer" / UPPER, folder / "layer" / WORK):
            path.mkdir(parents=True)
        low, high = self.lowers
        for name in ("kept", "removed", "replaced", "hidden/below", "merged/below", "folder/file"):
            (low / name).parent.mkdir(exist_ok=True)
            (low / name).write_text(f"low {name}")
        os.link(low / "kept", low / "linked")
        (low / "link").symlink_to("/etc/passwd")
        (low / "kept").chmod(0o4750)
        os.chown(low / "merged", 7, 8)
        os.utime(low / "merged/below", (1, 1))
        for name in ("replaced", "hidden/above", "merged/above", "link/inside"):
            (high / name).parent.mkdir(exist_ok=True)
            (high / name).write_text(f"high {name}")
        os.mknod(high / "removed", stat.S_IFCHR, os.makedev(0, 0))
        (high / "folder").write_text("no folder any more")
        for attribute in (USER_OPAQUE_XATTR, "trusted.overlay.opaque"):
            os.setxattr(high / "hidden", attribute, b"y")

    def seen(self, roots: Overlays) -> dict[str, tuple[object, ...]]:
        """Everything in the mounted root, with its attributes."""
        target = self.folder / "target"
        roots.mount(target, self.lowers, layer=self.folder / "layer")
        try:
            found = {}
            for path in sorted(target.rglob("*")):
                status = path.lstat()
                content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
                found[str(path.relative_to(target))] = (
                    status.st_mode,
                    status.st_uid,
                    status.st_gid,
                    int(status.st_mtime),
                    content,
                    path.readlink() if path.is_symlink() else None,
                )
            return found
        finally:
            roots.unmount(target)


def test_a_copy_looks_as_an_overlay_does(tmp_path: Path) -> None:
    copied = Layers(tmp_path / "copied").seen(CopiedRoots(tmp_path / "copied", "boot"))
    overlaid = Layers(tmp_path / "overlaid").seen(Overlays(tmp_path / "overlaid", "boot"))
    assert {name for name in copied if name.startswith(("hidden", "removed", "folder", "link"))} == {
        *("hidden", "hidden/above", "folder", "link", "link/inside", "linked")
    }
    assert _without_folder_times(copied) == _without_folder_times(overlaid)
    assert not Path("/etc/inside").exists()


def test_what_a_container_wrote_stays_when_it_is_started_again(tmp_path: Path) -> None:
    layers, roots = Layers(tmp_path), CopiedRoots(tmp_path, "boot")
    target, layer = tmp_path / "target", tmp_path / "layer"
    roots.mount(target, layers.lowers, layer=layer)
    (target / "kept").unlink()
    (target / "new").write_text("mine")
    roots.unmount(target)
    assert not roots.mount(target, layers.lowers, layer=layer)
    assert (target / "new").read_text() == "mine"
    assert not (target / "kept").exists()
    roots.unmount(target)


def test_a_copy_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    layers, roots = Layers(tmp_path), CopiedRoots(tmp_path, "boot")
    (tmp_path / "layer" / "copy").mkdir()
    (tmp_path / "layer" / "copy" / "half").touch()
    assert "half" not in layers.seen(roots)


def _without_folder_times(seen: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    return {
        name: (*each[:3], *each[4:]) if stat.S_ISDIR(int(str(each[0]))) else each
        for name, each in seen.items()
    }
