"""Mounts: how they are written, and what is refused."""

from __future__ import annotations

import pytest

from skerry.model import errors
from skerry.model.ids import VolumeId
from skerry.model.mounts import Mount, MountKind, parse_template, parse_tmpfs, parse_volume
from skerry.model.workloads import InstanceSpec, check_granted


@pytest.mark.parametrize("text", ["db:/var/lib/db", "db:/data:ro", "/srv/www:/www:ro", "/srv:/a"])
def test_a_mount_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_volume(text)) == text


def test_what_begins_with_a_slash_is_a_path_of_the_node_and_not_granted() -> None:
    mount = parse_volume("/etc:/mnt")
    assert (mount.kind, mount.is_granted) == (MountKind.HOST, False)
    spec = InstanceSpec("web", "example.org/web:1", mounts=(mount,))
    with pytest.raises(errors.Forbidden, match="only an admin"):
        check_granted(spec)
    with pytest.raises(errors.Forbidden):
        check_granted(spec, spec)


def test_templates_and_tmpfs_have_sizes() -> None:
    assert parse_template("data:/var/lib/db:10").size == 10
    assert str(parse_template("data:/var/lib/db:10")) == "data:/var/lib/db:10"
    assert (parse_tmpfs("/scratch:64").size, parse_tmpfs("/scratch").size) == (64, 0)
    assert str(parse_tmpfs("/scratch:64")) == "/scratch:64"


@pytest.mark.parametrize(
    "text",
    [
        "db",
        "db:",
        "db:data",
        "db:/",
        "db:/a/../b",
        "db:/a//b",
        "db:/a/",
        "db:/proc",
        "db:/proc/sys",
        "db:/dev/shm",
        "db:/sys",
        "db:/a:rx",
        "db:/a:ro:ro",
        "Db:/a",
        "-x:/a",
        ":/a",
        "/a/../b:/c",
        "db:/a\nb",
        "db:/" + "x" * 2000,
    ],
)
def test_what_cannot_be_mounted_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid):
        parse_volume(text)


@pytest.mark.parametrize("text", ["data:/a", "data:/a:", "data:/a:x", "data:/a:0", "data:/a:-1", "data:/a:²"])
def test_a_template_needs_a_size(text: str) -> None:
    with pytest.raises(errors.Invalid):
        parse_template(text)


@pytest.mark.parametrize("paths", [("/a", "/a"), ("/a", "/a/b"), ("/a/b/c", "/a"), ("/a", "/a-b", "/a/c")])
def test_mounts_are_not_in_each_other(paths: tuple[str, ...]) -> None:
    mounts = tuple(Mount(MountKind.TMPFS, path) for path in paths)
    with pytest.raises(errors.Invalid):
        InstanceSpec("web", "example.org/web:1", mounts=mounts)


def test_an_order_has_the_volume_of_each_mount() -> None:
    spec = InstanceSpec(
        "web",
        "example.org/web:1",
        mounts=(parse_volume("a:/a"), parse_tmpfs("/t"), parse_volume("b:/b")),
    )
    ids = [mount.volume for mount in spec.with_volumes((VolumeId("1"), VolumeId("2"))).mounts]
    assert ids == ["1", "", "2"]
