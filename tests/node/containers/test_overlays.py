"""Overlay mounts by the real kernel, in both ways to mount them."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.node.containers import overlays
from skerry.node.containers.overlays import Overlays
from skerry.node.containers.writable_layers import WritableLayers
from skerry.node.kernel import thread_syscalls
from skerry.node.user_namespaces import UserNamespace, UserNamespaces
from tests.support.bundles import Bundle, busybox_root, needs_runc
from tests.support.waiting import PATIENCE_S

THIS_BOOT, NEXT_BOOT = "boot-1", "boot-2"


class Ground:
    """A folder with overlays in it, in one of the ways to mount them."""

    def __init__(self, folder: Path, *, appends_layers: bool) -> None:
        self.folder = folder
        self.appends_layers = appends_layers
        self.overlays = self.opened()
        self.disks = WritableLayers(None)
        self.target = folder / "rootfs"
        self.layer = folder / "layer"

    def opened(self, boot_id: str = THIS_BOOT, busy_s: float = 1.0) -> Overlays:
        """As an agent that was just started has it."""
        return Overlays(self.folder, boot_id, appends_layers=self.appends_layers, busy_s=busy_s)

    def lower(self, name: str, **files: str) -> Path:
        """A layer of an image, with these files."""
        folder = self.folder / "images" / name
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text)
        return folder

    def mount(self, *lowers: Path) -> bool:
        self.disks.make(self.layer, None)
        return self.overlays.mount(self.target, lowers, layer=self.layer)


@pytest.fixture(params=[True, False], ids=["by parts", "at once"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(tmp_path, appends_layers=request.param)
    yield ground
    for mount in ground.overlays.mounted():
        ground.overlays.unmount(mount)
    assert ground.overlays.mounted() == []


@pytest.mark.root
class TestMounting:
    def test_a_higher_layer_hides_a_lower_one_and_what_is_written_lies_in_the_layer(
        self, ground: Ground
    ) -> None:
        low, high = ground.lower("low", a="low", b="low"), ground.lower("high", a="high")
        ground.mount(low, high)
        assert (ground.target / "a").read_text() == "high"
        assert (ground.target / "b").read_text() == "low"
        (ground.target / "b").write_text("mine")
        (ground.target / "new").write_text("mine")
        assert {path.name for path in (ground.layer / overlays.UPPER).iterdir()} == {"b", "new"}
        assert (low / "b").read_text() == "low"

    def test_whiteouts_and_opaque_folders_hide_what_is_below(self, ground: Ground) -> None:
        low, high = ground.lower("low", gone="x"), ground.lower("high")
        (low / "folder").mkdir()
        (low / "folder" / "old").touch()
        os.mknod(high / "gone", stat.S_IFCHR, os.makedev(0, 0))
        (high / "folder").mkdir()
        (high / "folder" / "new").touch()
        os.setxattr(high / "folder", "trusted.overlay.opaque", b"y")
        ground.mount(low, high)
        assert not (ground.target / "gone").exists()
        assert [path.name for path in (ground.target / "folder").iterdir()] == ["new"]

    def test_what_a_runtime_mounts_on_is_there_unless_the_image_has_it(self, ground: Ground) -> None:
        low = ground.lower("low")
        (low / "etc").mkdir()
        (low / "etc" / "hosts").write_text("of the image")
        ground.mount(low)
        assert {path.name for path in ground.target.iterdir()} == {"dev", "etc", "proc", "sys"}
        assert (ground.target / "etc" / "hosts").read_text() == "of the image"
        assert (ground.target / "etc" / "resolv.conf").read_bytes() == b""
        assert not list((ground.layer / overlays.UPPER).iterdir())

    def test_the_root_is_like_the_highest_layers(self, ground: Ground) -> None:
        low = ground.lower("low")
        low.chmod(0o1751)
        os.chown(low, 11, 12)
        ground.mount(low)
        status = ground.target.stat()
        assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o1751, 11, 12)

    def test_without_a_layer_nothing_can_be_written(self, ground: Ground) -> None:
        assert ground.overlays.mount(ground.target, [ground.lower("low", a="x")], layer=None) is False
        assert (ground.target / "a").read_text() == "x"
        with pytest.raises(OSError, match="Read-only") as caught:
            (ground.target / "a").write_text("y")
        assert caught.value.errno == errno.EROFS

    def test_folders_of_the_image_can_be_renamed(self, ground: Ground) -> None:
        low = ground.lower("low")
        (low / "folder").mkdir()
        (low / "folder" / "a").write_text("x")
        ground.mount(low)
        os.rename(ground.target / "folder", ground.target / "other")
        assert (ground.target / "other" / "a").read_text() == "x"

    def test_a_device_of_the_image_cannot_be_opened(self, ground: Ground) -> None:
        low = ground.lower("low")
        os.mknod(low / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        ground.mount(low)
        with pytest.raises(PermissionError):
            os.open(ground.target / "null", os.O_RDONLY)

    @pytest.mark.parametrize("name", ["a:b", "a,b", "a\\b", "a=b c", "ü\n", "\udcff"])
    def test_names_may_hold_anything(self, ground: Ground, name: str) -> None:
        odd = ground.folder / name
        odd.mkdir()
        inner = Ground(odd, appends_layers=ground.appends_layers)
        inner.mount(inner.lower("low", a="x"), inner.lower("low:est,of\\all", b="y"))
        try:
            assert (inner.target / "a").read_text() + (inner.target / "b").read_text() == "xy"
            assert inner.overlays.mounted() == [inner.target]
        finally:
            inner.overlays.unmount(inner.target)

    def test_names_may_be_long(self, ground: Ground) -> None:
        deep = ground.folder / ("x" * 200) / ("y" * 200)
        deep.mkdir(parents=True)
        inner = Ground(deep, appends_layers=ground.appends_layers)
        inner.mount(*(inner.lower(f"{number}", **{f"f{number}": "x"}) for number in range(20)))
        try:
            assert (inner.target / "f0").read_text() + (inner.target / "f19").read_text() == "xx"
        finally:
            inner.overlays.unmount(inner.target)

    def test_an_image_may_have_as_many_layers_as_docker_allows(self, ground: Ground) -> None:
        ground.mount(*(ground.lower(f"{number}", a=f"{number}") for number in range(127)))
        assert (ground.target / "a").read_text() == "126"

    def test_many_more_layers_are_mounted_or_plainly_refused(self, ground: Ground) -> None:
        lowers = [ground.lower(f"{number}", a=f"{number}") for number in range(499)]
        if ground.appends_layers:
            ground.mount(*lowers)
            assert (ground.target / "a").read_text() == "498"
        else:
            with pytest.raises(
                errors.FailedPrecondition, match="cannot mount 499 layers at once; build the image with fewer"
            ):
                ground.mount(*lowers)
        with pytest.raises(errors.FailedPrecondition, match="build it with at most 499"):
            ground.overlays.mount(ground.folder / "other", [*lowers, lowers[0]], layer=None)

    @pytest.mark.parametrize("step", ["open_file_system", "set_option", "make_file_system"])
    def test_an_older_kernel_is_found_out_wherever_it_says_so(
        self, ground: Ground, step: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        requested = []

        def refuse(*arguments: object) -> int:
            requested.append(arguments)
            raise OSError(errno.ENOSYS if step == "open_file_system" else errno.EINVAL, "not here")

        monkeypatch.setattr(thread_syscalls, step, refuse)
        for number in range(2):
            ground.mount(ground.lower(f"low{number}", a="x"))
            assert (ground.target / "a").read_text() == "x"
            ground.overlays.unmount(ground.target)
        assert len(requested) == (1 if ground.appends_layers else 0)

    def test_a_layer_that_is_not_there_is_told_and_nothing_is_mounted(self, ground: Ground) -> None:
        with pytest.raises((errors.Internal, FileNotFoundError)):
            ground.mount(ground.folder / "absent")
        assert ground.overlays.mounted() == []


@pytest.mark.root
class TestAgain:
    def test_mounting_what_is_mounted_and_unmounting_what_is_not_change_nothing(self, ground: Ground) -> None:
        low = ground.lower("low", a="x")
        ground.mount(low)
        ground.mount(low)
        assert ground.overlays.mounted() == [ground.target]
        ground.overlays.unmount(ground.target)
        ground.overlays.unmount(ground.target)
        assert ground.overlays.mounted() == []
        ground.overlays.unmount(ground.folder / "absent")

    def test_what_was_mounted_twice_is_unmounted_whole(self, ground: Ground) -> None:
        ground.mount(ground.lower("low"))
        thread_syscalls.mount("tmpfs", str(ground.target), "tmpfs", 0, "")
        assert ground.overlays.mounted() == [ground.target] * 2
        ground.overlays.unmount(ground.target)
        assert ground.overlays.mounted() == []

    def test_what_was_written_is_there_the_next_time_also_for_another_agent(self, ground: Ground) -> None:
        low = ground.lower("low")
        assert ground.mount(low) is False
        (ground.target / "new").write_text("mine")
        ground.overlays.unmount(ground.target)
        ground.overlays = ground.opened()
        assert ground.mount(low) is False
        assert (ground.target / "new").read_text() == "mine"

    def test_after_a_boot_what_was_written_is_thrown_away_and_that_is_told(self, ground: Ground) -> None:
        low = ground.lower("low", a="of the image")
        ground.mount(low)
        (ground.target / "a").write_text("mine")
        ground.overlays.unmount(ground.target)
        ground.overlays = ground.opened(NEXT_BOOT)
        assert ground.mount(low) is True
        assert (ground.target / "a").read_text() == "of the image"
        ground.overlays.unmount(ground.target)
        assert ground.mount(low) is False

    def test_a_layer_whose_mark_was_lost_with_the_power_is_thrown_away(self, ground: Ground) -> None:
        low = ground.lower("low")
        ground.mount(low)
        (ground.target / "new").touch()
        ground.overlays.unmount(ground.target)
        os.truncate(ground.layer / "boot", 0)
        assert ground.mount(low) is True
        assert not (ground.target / "new").exists()

    def test_a_sync_in_a_container_costs_nothing_as_its_layer_is_not_for_keeps(self, ground: Ground) -> None:
        ground.mount(ground.lower("low"))
        mine = next(
            line for line in Path("/proc/self/mounts").read_text().splitlines() if str(ground.target) in line
        )
        options = mine.split()[3].split(",")
        assert {"volatile", "fsync=volatile"} & set(options)
        assert {"nodev", "rw"} <= set(options)

    def test_a_skeleton_that_was_left_half_made_is_made_anew(self, ground: Ground) -> None:
        (ground.folder / ".skeleton" / "dev").mkdir(parents=True)
        ground.mount(ground.lower("low"))
        assert (ground.target / "etc" / "hosts").exists()

    def test_a_busy_mount_goes_when_its_user_does(self, ground: Ground) -> None:
        ground.mount(ground.lower("low"))
        user = subprocess.Popen(["sleep", "0.2"], cwd=ground.target)
        try:
            ground.opened(busy_s=30).unmount(ground.target)
            assert user.poll() is not None or user.wait(timeout=PATIENCE_S) == 0
            assert ground.overlays.mounted() == []
        finally:
            user.kill()
            user.wait()

    def test_a_mount_that_stays_busy_is_taken_out_of_sight(self, ground: Ground) -> None:
        ground.mount(ground.lower("low"))
        with open(ground.target / "file", "w"):
            ground.opened(busy_s=0).unmount(ground.target)
            assert ground.overlays.mounted() == []
            assert not (ground.target / "file").exists()


@needs_runc
@pytest.mark.root
@pytest.mark.parametrize("read_only", [False, True])
def test_a_runtime_runs_on_it(ground: Ground, read_only: bool) -> None:
    """Also without a writable layer, where a runtime can make nothing to mount things on."""
    low = busybox_root(ground.folder / "images" / "busybox")
    layer = None if read_only else ground.layer
    if layer is not None:
        ground.disks.make(layer, None)
    ground.overlays.mount(ground.target, [low], layer=layer)
    box = Bundle(ground.folder, ground.target)
    assert box.output("cat /etc/hostname; ls /sys/fs/cgroup >/dev/null", read_only=read_only) == "box\n"
    done = box.run(box.config("/bin/sh", "-c", "echo mine > /file", read_only=read_only))
    assert (done.returncode != 0) == read_only
    if layer is not None:
        assert {path.name for path in (layer / overlays.UPPER).iterdir()} == {"file"}


@pytest.mark.root
class TestDetached:
    """Roots that are mounted nowhere."""

    def test_are_read_by_whoever_has_them_and_disappear_with_the_last(self, ground: Ground) -> None:
        low = ground.lower("low", a="low")
        ground.disks.make(ground.layer, None)
        root = ground.overlays.open(ground.target, [low], layer=ground.layer)
        assert (root.path / "a").read_text() == "low"
        (root.path / "b").write_text("mine")
        assert (root.mounted is not None) == ground.appends_layers
        assert ground.overlays.mounted() == ([] if ground.appends_layers else [ground.target])
        root.close()
        ground.overlays.unmount(ground.target)
        assert (ground.layer / overlays.UPPER / "b").read_text() == "mine"
        thread_syscalls.mount("tmpfs", str(ground.layer), "tmpfs", 0, "")  # it would be in use
        ground.overlays.unmount(ground.layer)

    def test_that_begin_anew_after_a_boot_say_so(self, ground: Ground) -> None:
        low = ground.lower("low")
        ground.mount(low)
        (ground.target / "new").touch()
        ground.overlays.unmount(ground.target)
        later = ground.opened(NEXT_BOOT)
        for expected in (True, False):
            root = later.open(ground.target, [low], layer=ground.layer)
            assert root.was_emptied is expected
            assert not (root.path / "new").exists()
            root.close()
            later.unmount(ground.target)

    @pytest.mark.parametrize("has_descriptors", [True, False])
    def test_have_owners_in_a_user_namespace(
        self, ground: Ground, users: UserNamespace, has_descriptors: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refused = []

        def refuse(file_system: int, key: str, descriptor: int) -> None:
            refused.append(key)
            raise OSError(errno.EINVAL, "before Linux 6.15")

        if not has_descriptors:
            monkeypatch.setattr(thread_syscalls, "set_descriptor", refuse)
        low, high = ground.lower("low", a="low"), ground.lower("high", b="high")
        os.chown(low / "a", 7, 8)
        ground.disks.make(ground.layer, None)
        for _ in range(2):
            root = ground.overlays.open(ground.target, [low, high], layer=ground.layer, users=users)
            owners = [(root.path / name).stat().st_uid - users.first_id for name in ("a", "b")]
            assert owners == [7, 0]
            root.close()
            if root.mounted is None:
                with ground.overlays.reachable(ground.target, users):
                    pass
            ground.overlays.unmount(ground.target)
        assert len(refused) == (not has_descriptors and ground.appends_layers), "it is tried once"
        assert ground.overlays.mounted() == []


@pytest.fixture
def users() -> Iterator[UserNamespace]:
    namespaces = UserNamespaces(f"skt-overlays-{os.getpid()}")
    created = namespaces.make("web")
    yield created
    namespaces.keep_only(())
    assert not Path(created.folder).exists()


@pytest.mark.root
class TestOwners:
    """As those in a user namespace see them."""

    @pytest.mark.parametrize("is_mount_point", [False, True])
    def test_are_shown_as_the_namespaces_and_written_as_they_are(
        self, ground: Ground, users: UserNamespace, is_mount_point: bool
    ) -> None:
        low, high = ground.lower("low", a="low", old="low"), ground.lower("high", b="high")
        os.chown(low / "a", 7, 8)
        if is_mount_point:  # a file system of its own for what the container writes
            ground.layer.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "layer", ground.layer], check=True)
        ground.disks.make(ground.layer, None)
        ground.overlays.mount(ground.target, [low, high], layer=ground.layer, users=users)
        first = users.first_id
        with ground.overlays.reachable(ground.target, users) as rootfs:
            assert (rootfs / "b").read_text() == "high"
            visible = [(rootfs / name).stat() for name in ("a", "b")]
            assert [(each.st_uid - first, each.st_gid - first) for each in visible] == [(7, 8), (0, 0)]
            its_root = ("setpriv", f"--reuid={first}", f"--regid={first}", "--clear-groups")
            script = f"echo mine > {rootfs}/new && rm {rootfs}/old"
            subprocess.run((*its_root, "sh", "-c", script), check=True)
        upper = ground.layer / overlays.UPPER
        assert {path.name: path.lstat().st_uid for path in upper.iterdir()} == {"new": 0, "old": 0}
        # Nothing of it is held any more but the overlay itself.
        assert not os.path.ismount(users.root)
        ground.overlays.unmount(ground.target)
        if is_mount_point:
            thread_syscalls.unmount(str(ground.layer))  # would be busy

    def test_of_a_file_system_that_cannot_show_others_are_refused(
        self, ground: Ground, users: UserNamespace
    ) -> None:
        ground.disks.make(ground.layer, None)
        with pytest.raises(errors.FailedPrecondition, match=r"no id-mapped mounts.*userns host"):
            ground.overlays.mount(ground.target, [Path("/proc/sys")], layer=ground.layer, users=users)
        assert not os.path.ismount(ground.target)


def test_mount_points_are_read_as_the_kernel_writes_them() -> None:
    line = rb"40 28 0:35 / /a\040b\134c\012d rw,nodev - overlay overlay rw"
    assert overlays.mount_points(line + b"\n" + line.replace(rb"/a\040b\134c\012d", b"/x")) == [
        Path("/a b\\c\nd"),
        Path("/x"),
    ]


def test_mount_points_of_a_folder_are_it_and_those_in_it() -> None:
    lines = [f"40 28 0:35 / {point} rw - tmpfs t rw".encode() for point in ("/", "/a", "/a/b", "/ab", "/c/a")]
    text = b"\n".join(lines)
    assert overlays.mount_points(text, below=Path("/a")) == [Path("/a"), Path("/a/b")]
    assert len(overlays.mount_points(text)) == 5


def test_mounts_of_a_folder_are_those_at_it_and_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("40 28 0:35 / /all/a\\040b/rootfs rw - overlay overlay rw\n")
    monkeypatch.setattr(overlays, "_MOUNTINFO", mountinfo)
    found = Overlays(tmp_path, "")
    assert found.has_mounts(Path("/all/a b/rootfs"))
    assert found.has_mounts(Path("/all/a b"))
    assert not found.has_mounts(Path("/all/a"))
    assert not found.has_mounts(Path("/all/a b/rootfs/x"))
