"""File systems in files: as large as was asked and no larger, quick to have, and gone without a trace."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.node.containers import disk_images, loop_devices
from skerry.node.containers.disk_images import SMALLEST, DiskImages
from skerry.node.containers.overlays import Overlays, mount_points
from skerry.node.containers.writable_layers import DiskLimitKind, SharedDisk, WritableLayers
from skerry.node.kernel import mount_flags, thread_syscalls
from tests.node.containers.real import stuck_loops

pytestmark = pytest.mark.root

MB = 1024**2
GB = 1024**3


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where nothing is mounted in the end."""
    yield tmp_path
    overlays = Overlays(tmp_path, "boot")
    leftovers = overlays.mounted()
    for point in leftovers:
        overlays.unmount(point)
    assert leftovers == []
    assert stuck_loops(tmp_path) == []


@pytest.fixture
def systems(folder: Path) -> Iterator[DiskImages]:
    systems = DiskImages(folder / "systems")
    yield systems
    systems.close()
    assert not (folder / "systems").exists()


@pytest.fixture
def place(folder: Path) -> Path:
    place = folder / "place"
    place.mkdir()
    return place


class TestFileSystems:
    def test_work_here(self, systems: DiskImages) -> None:
        assert systems.probe_failure() == ""

    @pytest.mark.parametrize("size", [SMALLEST, 100 * MB + 4097, GB, 300 * GB])
    def test_have_the_size_that_was_asked_nearly_all_of_it_to_write_to(
        self, systems: DiskImages, folder: Path, place: Path, size: int
    ) -> None:
        image = folder / "image"
        systems.ensure(image, size)
        disk = os.statvfs(folder)
        size = min(size, disk.f_blocks * disk.f_frsize)
        assert size - MB < image.stat().st_size <= size
        assert image.stat().st_blocks * 512 < 4 * MB
        systems.mount(image, place)
        status = os.statvfs(place)
        assert 0.96 * size - MB < status.f_bavail * status.f_frsize < size
        assert status.f_files == pytest.approx(size / (16 * 1024), rel=0.1)
        thread_syscalls.unmount(str(place))

    def test_are_not_made_smaller_than_makes_sense(self, systems: DiskImages, folder: Path) -> None:
        with pytest.raises(errors.Invalid):
            systems.ensure(folder / "image", SMALLEST - 1)
        assert not (folder / "image").exists()

    def test_keep_a_bounded_number_of_templates(self, systems: DiskImages, folder: Path) -> None:
        for number in range(20):
            systems.ensure(folder / f"image{number}", SMALLEST + number * MB)
        assert len(list((systems.folder / "templates").glob("*.template"))) == 16

    def test_made_of_one_template_are_apart(self, systems: DiskImages, folder: Path, place: Path) -> None:
        for name in ("one", "two"):
            systems.ensure(folder / name, SMALLEST)
            systems.mount(folder / name, place)
            assert not (place / "file").exists()
            (place / "file").write_text(name)
            thread_syscalls.unmount(str(place))
        systems.ensure(folder / "one", SMALLEST)
        systems.mount(folder / "one", place)
        assert (place / "file").read_text() == "one"
        thread_syscalls.unmount(str(place))

    def test_mounted_twice_are_the_same_one(self, systems: DiskImages, folder: Path, place: Path) -> None:
        other = folder / "other"
        other.mkdir()
        systems.ensure(folder / "image", SMALLEST)
        systems.mount(folder / "image", place)
        systems.mount(folder / "image", other)
        (place / "file").write_text("here")
        assert (other / "file").read_text() == "here"
        assert place.stat().st_dev == other.stat().st_dev
        for each in (place, other):
            thread_syscalls.unmount(str(each))

    def test_in_a_file_that_somebody_locked_are_not_mounted(
        self, systems: DiskImages, folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loop_devices, "_BUSY_S", 0.0)
        systems.ensure(folder / "image", SMALLEST)
        with open(folder / "image", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(errors.Unavailable):
                systems.mount(folder / "image", place)

    def test_give_back_what_was_deleted(self, systems: DiskImages, folder: Path, place: Path) -> None:
        image = folder / "image"
        systems.ensure(image, GB)
        systems.mount(image, place)
        assert not disk_images.discard_unused(image, place)
        (place / "file").write_bytes(os.urandom(100 * MB))
        os.sync()
        assert disk_images.measure_file(image) > 100 * MB
        (place / "file").unlink()
        assert disk_images.discard_unused(image, place)
        assert disk_images.measure_file(image) < 10 * MB
        thread_syscalls.unmount(str(place))

    def test_on_a_disk_that_is_full_fail_alone(self, systems: DiskImages, folder: Path, place: Path) -> None:
        host = folder / "host"
        host.mkdir()
        systems.ensure(folder / "disk", 64 * MB)
        systems.mount(folder / "disk", host)
        systems.ensure(host / "image", 48 * MB)
        systems.mount(host / "image", place)
        with pytest.raises(OSError, match="No space left"):
            (host / "others").write_bytes(bytes(64 * MB))
        file = os.open(place / "file", os.O_WRONLY | os.O_CREAT)
        os.write(file, bytes(8 * MB))
        with pytest.raises(OSError, match=r"Input/output|No space"):
            os.fsync(file)
        os.close(file)
        thread_syscalls.unmount(str(place))
        (host / "others").unlink()
        (host / "file").write_bytes(bytes(8 * MB))
        # Another namespace may have a copy of the inner mount, which has a file of this one open.
        thread_syscalls.unmount(str(host), mount_flags.MNT_DETACH)

    def test_that_cannot_be_made_say_why(self, systems: DiskImages, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(disk_images, "_PROGRAM", "no-such-program")
        assert "install e2fsprogs" in systems.probe_failure()

    def test_without_loop_devices_say_so(self, systems: DiskImages, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loop_devices, "_CONTROL", "/dev/no-loop-control")
        assert "/dev/no-loop-control" in systems.probe_failure()

    def test_removed_give_up_their_blocks_though_another_namespace_has_them_mounted(
        self, systems: DiskImages, folder: Path, place: Path
    ) -> None:
        image = folder / "image"
        systems.ensure(image, GB)
        systems.mount(image, place)
        (place / "file").write_bytes(os.urandom(10 * MB))
        os.sync()
        with open(image, "rb") as file:
            other = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            with other:
                assert other.stdout is not None
                assert other.stdout.readline() == b"\n"
                thread_syscalls.unmount(str(place))
                disk_images.remove(image)
                assert os.fstat(file.fileno()).st_blocks == 0
                assert other.stdin is not None
                other.stdin.close()


class TestDisks:
    @pytest.fixture
    def disks(self, folder: Path) -> Iterator[WritableLayers]:
        disks = WritableLayers.on(folder, "boot-1")
        if disks.kind is DiskLimitKind.QUOTA:
            pytest.skip("this file system has project quotas")
        yield disks
        disks.close()

    def test_a_layer_with_a_limit_is_mounted_while_it_is_in_use(
        self, disks: WritableLayers, folder: Path
    ) -> None:
        overlays, layer = Overlays(folder, "boot-1"), folder / "web" / "layer"
        layer.parent.mkdir()
        disks.make(layer, SMALLEST)
        assert not os.path.ismount(layer)
        assert disks.open(layer, SMALLEST) == (DiskLimitKind.FILE_SYSTEM, False)
        (layer / "upper" / "file").write_bytes(bytes(MB))
        assert MB <= disks.used(layer) < 2 * MB
        assert disks.open(layer, SMALLEST).kind is DiskLimitKind.FILE_SYSTEM  # again
        assert disks.limit(layer, SMALLEST) is DiskLimitKind.FILE_SYSTEM
        overlays.unmount(layer)
        assert MB <= disks.used(layer) < 2 * MB
        assert disks.open(layer, SMALLEST) == (DiskLimitKind.FILE_SYSTEM, False)
        assert (layer / "upper" / "file").exists()
        overlays.unmount(layer)
        disks.remove(layer)
        assert list(layer.parent.iterdir()) == []

    def test_one_without_a_limit_is_a_folder(self, disks: WritableLayers, folder: Path) -> None:
        assert disks.open(folder / "layer", None) == (DiskLimitKind.NONE, False)
        assert {path.name for path in (folder / "layer").iterdir()} == {"upper", "work"}
        disks.remove(folder / "layer")

    def test_what_an_earlier_boot_left_is_never_mounted(self, disks: WritableLayers, folder: Path) -> None:
        overlays, layer = Overlays(folder, "boot-2"), folder / "layer"
        disks.open(layer, SMALLEST)
        (layer / "upper" / "file").touch()
        overlays.unmount(layer)
        later = WritableLayers.on(folder, "boot-2")
        assert later.open(layer, SMALLEST) == (DiskLimitKind.FILE_SYSTEM, True)
        assert not (layer / "upper" / "file").exists()
        overlays.unmount(layer)
        later.remove(layer)
        later.close()
        assert not list(folder.glob("*.ext4"))

    def test_a_folder_from_before_there_were_file_systems_stays_one(
        self, disks: WritableLayers, folder: Path
    ) -> None:
        layer = folder / "layer"
        WritableLayers(None).open(layer, SMALLEST)
        (layer / "upper" / "file").touch()
        (layer / "boot").write_text("boot-1")  # when it was mounted
        assert disks.open(layer, SMALLEST) == (DiskLimitKind.MEASURED, False)
        assert (layer / "upper" / "file").exists()
        disks.remove(layer)

    @pytest.mark.parametrize("shared", [None, SharedDisk("lent", SMALLEST)])
    def test_one_of_an_earlier_boot_becomes_a_file_system(
        self, disks: WritableLayers, folder: Path, shared: SharedDisk | None
    ) -> None:
        layer = folder / "web" / "layer"
        layer.parent.mkdir()
        WritableLayers(None).open(layer, SMALLEST)
        (layer / "upper" / "file").touch()
        (layer / "boot").write_text("boot-0")
        assert disks.open(layer, SMALLEST, shared) == (DiskLimitKind.FILE_SYSTEM, True)
        assert os.listdir(layer / "upper") == []
        for point in Overlays(folder, "boot-1").mounted():
            thread_syscalls.unmount(str(point))
        if shared is not None:
            disks.remove_shared(layer, shared)
        disks.remove(layer)

    def test_layers_that_share_are_apart_but_for_what_they_can_have(
        self, disks: WritableLayers, folder: Path
    ) -> None:
        overlays, shared = Overlays(folder, "boot-1"), SharedDisk("lent", 32 * MB)
        one, two = (folder / name / "layer" for name in ("one", "two"))
        for layer in (one, two):
            layer.parent.mkdir()
            disks.make(layer, 32 * MB, shared)
        assert disks.open(one, 32 * MB, shared) == (DiskLimitKind.FILE_SYSTEM, True)
        assert disks.open(two, 16 * MB, shared) == (DiskLimitKind.FILE_SYSTEM, True)
        assert [path.name for path in (two / "upper").iterdir()] == []
        assert {path.name for path in one.iterdir()} == {"upper", "work"}
        with pytest.raises(OSError, match="No space left"):
            (two / "upper" / "file").write_bytes(bytes(17 * MB))
        os.sync()
        with pytest.raises(OSError, match="No space left"):
            (one / "upper" / "file").write_bytes(bytes(24 * MB))
        assert 0 < disks.used(one) < 24 * MB
        assert 24 * MB < disks.shared_usage("lent") <= 32 * MB
        for layer in (one, two):
            overlays.unmount(layer)
        assert disks.open(one, 32 * MB, shared) == (DiskLimitKind.FILE_SYSTEM, False)
        assert (one / "upper" / "file").exists()
        overlays.unmount(one)
        disks.remove_shared(one, shared)
        assert disks.shared_usage("lent") > 0
        disks.keep_only({"lent"})
        disks.remove_shared(two, shared)
        disks.remove_shared(two, shared)
        assert disks.shared_usage("lent") == 0

    def test_a_shared_one_that_cannot_be_changed_any_more_goes_with_the_last(
        self, disks: WritableLayers, folder: Path
    ) -> None:
        overlays, shared = Overlays(folder, "boot-1"), SharedDisk("lent", SMALLEST)
        layer = folder / "web" / "layer"
        layer.parent.mkdir()
        disks.open(layer, None, shared)
        assert disks.limit(layer, None) is DiskLimitKind.FILE_SYSTEM
        subprocess.run(["mount", "-o", "remount,ro", str(layer)], check=True)
        mounted = os.open(layer, os.O_RDONLY)  # so it stays as it is
        for point in overlays.mounted():
            thread_syscalls.unmount(str(point), mount_flags.MNT_DETACH)
        disks.remove_shared(layer, shared)
        assert disks.shared_usage("lent") == 0
        os.close(mounted)

    def test_one_that_is_no_file_system_any_more_goes(self, disks: WritableLayers, folder: Path) -> None:
        shared = SharedDisk("lent", SMALLEST)
        disks.make(folder / "layer", None, shared)
        (image,) = (folder / "filesystems").glob("*.ext4")
        os.truncate(image, 0)
        os.truncate(image, SMALLEST)
        disks.remove_shared(folder / "layer", shared)
        assert not image.exists()

    def test_a_shared_one_that_cannot_be_mounted_for_now_stays(
        self, disks: WritableLayers, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shared = SharedDisk("lent", SMALLEST)
        disks.make(folder / "layer", None, shared)

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(DiskImages, "mount", refuse)
            with pytest.raises(OSError, match="Too many open files"):
                disks.remove_shared(folder / "layer", shared)
        assert disks.shared_usage("lent") > 0
        disks.remove_shared(folder / "layer", shared)
        assert disks.shared_usage("lent") == 0

    def test_shared_ones_that_nobody_has_go(self, disks: WritableLayers, folder: Path) -> None:
        disks.make(folder / "layer", None, SharedDisk("lent", SMALLEST))
        assert disks.shared_usage("lent") > 0
        unfinished = folder / "filesystems" / ".other.boot-1.ext4.new"
        unfinished.touch()  # by an agent that was killed
        disks.keep_only(set())
        assert disks.shared_usage("lent") == 0
        assert not unfinished.exists()
        disks.remove(folder / "layer")

    def test_an_agent_that_died_while_it_tried_is_no_hindrance(
        self, disks: WritableLayers, folder: Path
    ) -> None:
        systems = DiskImages(folder / "filesystems")
        trial = systems.folder / "templates" / "trial"
        trial.mkdir()
        systems.ensure(folder / "image", SMALLEST)
        systems.mount(folder / "image", trial)
        DiskImages(folder / "filesystems").close()
        points = mount_points(Path("/proc/self/mountinfo").read_bytes())
        assert not [point for point in points if point.is_relative_to(folder)]
