"""Links in an image at the paths of mounts: followed inside the container, and never to a reserved path."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.mounts import Mount, MountKind
from skerry.node.containers import rootfs_files
from skerry.node.containers.mounts import check_links

OTHER = Mount(MountKind.VOLUME, "/var/lib/other", "other")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/dev", "/dev are the kernel's"),
        ("../../../sys", "/dev are the kernel's"),
        ("second", "/dev are the kernel's"),
        ("/", "no path to mount at"),
        ("/var/lib/other", "two mounts"),
        ("/var/lib/other/below", "inside the mount"),
        ("/var/lib", "inside the mount"),
        ("place", "circle of links"),
    ],
)
def test_a_link_to_where_no_mount_may_be_is_refused(tmp_path: Path, target: str, message: str) -> None:
    (tmp_path / "place").symlink_to(target)
    (tmp_path / "second").symlink_to("./proc/")
    with pytest.raises(errors.FailedPrecondition, match=message):
        check_links((Mount(MountKind.TMPFS, "/place"), OTHER), tmp_path)


def test_other_links_are_followed_inside_the_root(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("../../../run")
    (tmp_path / "data").symlink_to(tmp_path)
    assert rootfs_files.resolve(tmp_path, "/var/run/db/./x") == "/run/db/x"
    assert rootfs_files.resolve(tmp_path, "/data") == str(tmp_path)
    check_links((Mount(MountKind.VOLUME, "/var/run/db", "db"), OTHER), tmp_path)
