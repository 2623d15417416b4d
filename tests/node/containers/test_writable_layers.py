"""Writable layers: held by quotas as the kernel would hold them, or measured; removed whatever is in them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.node.containers import runtime_commands, tree_size
from skerry.node.containers import writable_layers as disks_module
from skerry.node.containers.overlays import Overlays
from skerry.node.containers.quotas import ProjectQuota, ProjectQuotas
from skerry.node.containers.writable_layers import DiskLimitKind, WritableLayers
from tests.node.containers.fake_quotas import DiskQuota, FakeQuotas
from tests.support.bundles import Bundle, busybox_root, needs_runc

MB = 1024 * 1024
FOREVER_S = 60.0


@pytest.fixture(params=["ext4", "xfs"])
def kernel(request: pytest.FixtureRequest) -> FakeQuotas:
    return FakeQuotas(says_nothing=request.param == "xfs")


class TestQuotas:
    def test_a_layer_is_held_to_its_limit_with_all_that_comes_into_it(
        self, tmp_path: Path, kernel: FakeQuotas
    ) -> None:
        disks, layer = WritableLayers(ProjectQuotas(kernel)), tmp_path / "layer"
        assert disks.kind is DiskLimitKind.QUOTA
        assert disks.open(layer, 5 * MB) == (DiskLimitKind.QUOTA, False)
        attributes = kernel.attributes[layer.stat().st_ino]
        assert attributes.xflags == 0x80 | 0x200  # what was there, and inheritance
        assert attributes.extsize == 7
        quota = kernel.quotas[attributes.projid]
        assert (quota.blk_hardlimit, quota.blk_softlimit) == (5 * 2048, 5 * 2048)
        assert (quota.ino_hardlimit, quota.ino_softlimit) == (320, 320)  # one for every 16 KB
        assert {path.name for path in layer.iterdir()} == {"upper", "work"}

    def test_quotas_are_not_relied_on_where_containers_have_the_nodes_ids(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever owns a file there can give it to another project."""
        monkeypatch.setattr(disks_module, "_enforces", lambda quotas, trial: True)
        for has_userns in (True, False):
            disks = WritableLayers.on(tmp_path, "boot", has_userns=has_userns)
            assert (disks.kind is DiskLimitKind.QUOTA) is has_userns
            disks.close()

    def test_what_is_used_is_what_the_kernel_has_counted(self, tmp_path: Path, kernel: FakeQuotas) -> None:
        disks, layer = WritableLayers(ProjectQuotas(kernel)), tmp_path / "layer"
        disks.make(layer, 5 * MB)
        kernel.quotas[kernel.attributes[layer.stat().st_ino].projid].bcount = 123
        assert disks.used(layer) == 123 * 512

    def test_a_limit_may_change_and_go(self, tmp_path: Path, kernel: FakeQuotas) -> None:
        quotas, layer = ProjectQuotas(kernel), tmp_path / "layer"
        disks = WritableLayers(quotas)
        disks.make(layer, 5 * MB)
        assert disks.limit(layer, 7 * MB) is DiskLimitKind.QUOTA
        assert quotas.read(layer) == ProjectQuota(7 * MB, 0)
        assert disks.limit(layer, 1) is DiskLimitKind.QUOTA
        assert quotas.read(layer).limit == 512  # not none
        (stored,) = kernel.quotas.values()
        assert stored.ino_hardlimit == 64  # enough for what the overlay makes itself
        assert disks.limit(layer, None) is DiskLimitKind.NONE
        assert quotas.read(layer) == ProjectQuota(0, 0)
        assert stored.ino_hardlimit == 0

    def test_making_it_again_keeps_its_project(self, tmp_path: Path, kernel: FakeQuotas) -> None:
        layer = tmp_path / "layer"
        WritableLayers(ProjectQuotas(kernel)).make(layer, 5 * MB)
        project = kernel.attributes[layer.stat().st_ino].projid
        WritableLayers(ProjectQuotas(kernel)).make(layer, 6 * MB)
        assert kernel.attributes[layer.stat().st_ino].projid == project

    def test_no_two_layers_share_a_project(self, tmp_path: Path, kernel: FakeQuotas) -> None:
        disks = WritableLayers(ProjectQuotas(kernel))
        for number in range(5):
            disks.make(tmp_path / str(number), MB)
        projects = {attributes.projid for attributes in kernel.attributes.values()}
        assert len(projects) == 5
        assert min(projects) >= 1 << 30

    def test_a_project_that_somebody_uses_is_left_alone(self, tmp_path: Path, kernel: FakeQuotas) -> None:
        disks, layer = WritableLayers(ProjectQuotas(kernel)), tmp_path / "layer"
        layer.mkdir()
        wanted = (1 << 30) + layer.stat().st_ino % (1 << 30)
        kernel.quotas[wanted] = DiskQuota(bcount=1)
        disks.make(layer, 2 * MB)
        assert kernel.attributes[layer.stat().st_ino].projid == wanted + 1
        assert kernel.quotas[wanted].blk_hardlimit == 0

    def test_a_removed_layer_leaves_no_limit_for_the_next_with_its_number(
        self, tmp_path: Path, kernel: FakeQuotas
    ) -> None:
        disks, layer = WritableLayers(ProjectQuotas(kernel)), tmp_path / "layer"
        disks.make(layer, 5 * MB)
        disks.remove(layer)
        disks.remove(layer)
        assert [(quota.blk_hardlimit, quota.ino_hardlimit) for quota in kernel.quotas.values()] == [(0, 0)]
        assert not layer.exists()

    def test_a_layer_from_before_quotas_worked_is_measured(self, tmp_path: Path, kernel: FakeQuotas) -> None:
        layer = tmp_path / "layer"
        WritableLayers(None).make(layer, MB)
        (layer / "upper" / "file").write_bytes(bytes(8192))
        later = WritableLayers(ProjectQuotas(kernel))
        assert later.limit(layer, MB) is DiskLimitKind.MEASURED
        assert later.used(layer) == tree_size.measure(layer / "upper", within_s=FOREVER_S).bytes
        later.remove(layer)
        assert not layer.exists()


class TestMeasured:
    def test_a_file_system_that_cannot_is_found_out(self, tmp_path: Path) -> None:
        folder = Path("/dev/shm") / f"skerry-test-{os.getpid()}"
        folder.mkdir()
        try:
            disks = WritableLayers.on(folder, "boot")
            assert disks.kind is not DiskLimitKind.QUOTA
            disks.close()
            assert list(folder.iterdir()) == []
        finally:
            shutil.rmtree(folder)

    def test_a_limit_is_said_to_be_measured_or_none(self, tmp_path: Path) -> None:
        disks = WritableLayers(None)
        assert disks.kind is DiskLimitKind.MEASURED
        assert disks.open(tmp_path / "a", MB).kind is DiskLimitKind.MEASURED
        assert disks.open(tmp_path / "b", None).kind is DiskLimitKind.NONE

    def test_what_is_written_is_counted_in_blocks(self, tmp_path: Path) -> None:
        disks, layer = WritableLayers(None), tmp_path / "layer"
        disks.make(layer, MB)
        assert disks.used(layer) == 0
        (layer / "upper" / "file").write_bytes(bytes(100_000))
        assert 100_000 <= disks.used(layer) <= 110_000

    def test_a_hole_costs_nothing_and_a_file_counts_once_whatever_its_names(self, tmp_path: Path) -> None:
        disks, layer = WritableLayers(None), tmp_path / "layer"
        disks.make(layer, MB)
        file = layer / "upper" / "file"
        file.write_bytes(bytes(100_000))
        for number in range(10):
            (layer / "upper" / str(number)).hardlink_to(file)
        os.truncate(layer / "upper" / "file", 1 << 40)
        assert disks.used(layer) <= 110_000

    def test_no_link_is_followed(self, tmp_path: Path) -> None:
        disks, layer = WritableLayers(None), tmp_path / "layer"
        (tmp_path / "large").write_bytes(bytes(MB))
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "large").write_bytes(bytes(MB))
        disks.make(layer, MB)
        (layer / "upper" / "file").symlink_to(tmp_path / "large")
        (layer / "upper" / "folder").symlink_to(tmp_path / "folder")
        assert disks.used(layer) < 10_000

    def test_a_layer_that_is_not_there_takes_nothing(self, tmp_path: Path) -> None:
        assert WritableLayers(None).used(tmp_path / "absent") == 0

    def test_it_agrees_with_du(self, tmp_path: Path) -> None:
        for number in range(30):
            folder = tmp_path / "tree" / f"{number % 3}" / f"{number % 5}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"file{number}").write_bytes(bytes(number * 777))
        size = tree_size.measure(tmp_path / "tree", within_s=FOREVER_S)
        reported = subprocess.run(
            ["du", "-s", "--block-size=1", str(tmp_path / "tree")], capture_output=True, text=True, check=True
        )
        own = os.stat(tmp_path / "tree").st_blocks * 512
        assert size.bytes + own == int(reported.stdout.split()[0])
        assert size.files == 3 + 15 + 30


def write_at(folder: int, name: str, size: int) -> None:
    descriptor = os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=folder)
    os.write(descriptor, bytes(size))
    os.close(descriptor)


class TestHostileTrees:
    DEPTH = 1500

    @pytest.fixture
    def deep(self) -> Iterator[Path]:
        """Folders in each other, deeper than any path may be long; in memory, where that is quick to make."""
        root = Path(f"/dev/shm/skerry-test-{os.getpid()}/upper")
        root.mkdir(parents=True)
        here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        for number in range(self.DEPTH):
            name = f"{'x' * (number % 50)}y"
            os.mkdir(name, dir_fd=here)
            write_at(here, "beside", 1)
            there = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = there
        write_at(here, "last", 50_000)
        os.close(here)
        yield root
        tree_size.remove(root.parent)

    def test_what_lies_deep_is_counted(self, deep: Path) -> None:
        size = tree_size.measure(deep, within_s=FOREVER_S)
        assert size.whole
        assert size.bytes >= 50_000
        assert size.files == 2 * self.DEPTH + 1

    def test_what_lies_deep_is_removed(self, deep: Path) -> None:
        WritableLayers(None).remove(deep.parent)
        assert not deep.parent.exists()

    def test_a_depth_beyond_reason_is_said_not_to_be_whole(
        self, deep: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tree_size, "_MOST_STEPS", 2)
        size = tree_size.measure(deep, within_s=FOREVER_S)
        assert not size.whole
        assert 0 < size.files < 2 * self.DEPTH

    def test_measuring_ends_when_its_time_is_over(self, deep: Path) -> None:
        size = tree_size.measure(deep, within_s=-1)
        assert (size.whole, size.files) == (False, 2)

    def test_a_layer_too_large_to_measure_counts_with_what_was_seen(
        self, deep: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(disks_module, "_MEASURING_S", -1)
        assert 0 < WritableLayers(None).used(deep.parent) < MB


@settings(max_examples=30)
@given(st.recursive(st.none(), lambda inner: st.dictionaries(st.sampled_from("abcde"), inner, max_size=4)))
def test_every_tree_is_counted_and_removed(tmp_path_factory: pytest.TempPathFactory, tree: object) -> None:
    root = tmp_path_factory.mktemp("tree") / "root"
    root.mkdir()
    expected = plant(root, tree)
    assert tree_size.measure(root, within_s=FOREVER_S).files == expected
    tree_size.remove(root)
    assert not root.exists()


def plant(folder: Path, tree: object) -> int:
    count = 0
    for name, inner in tree.items() if isinstance(tree, dict) else ():
        count += 1
        if inner is None:
            (folder / name).touch()
        else:
            (folder / name).mkdir()
            count += plant(folder / name, inner)
    return count


@needs_runc
@pytest.mark.skipif(shutil.which("mkfs.ext4", path=runtime_commands.PATH) is None, reason="needs mkfs.ext4")
@pytest.mark.root
def test_a_real_file_system_with_quotas_stops_a_container_at_its_limit(tmp_path: Path) -> None:
    image, place = tmp_path / "image", tmp_path / "mounted"
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(256 * MB)
    subprocess.run(
        ["mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota", str(image)], check=True
    )
    done = subprocess.run(
        ["mount", "-o", "loop,prjquota", str(image), str(place)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip("this machine cannot mount ext4 with project quotas")
    overlays = Overlays(place, "boot")
    try:
        disks = WritableLayers.on(place, "boot")
        assert disks.kind is DiskLimitKind.QUOTA
        layer = place / "layer"
        assert disks.open(layer, 4 * MB).kind is DiskLimitKind.QUOTA
        root = busybox_root(place / "images")
        overlays.mount(place / "rootfs", [root], layer=layer)
        box = Bundle(tmp_path, place / "rootfs")
        ended = box.run(box.config("/bin/busybox", "dd", "if=/dev/zero", "of=/file", "bs=1M", "count=8"))
        assert ended.returncode != 0
        assert "quota" in ended.stderr.lower() or "no space" in ended.stderr.lower()
        assert MB < disks.used(layer) <= 4 * MB
        overlays.unmount(place / "rootfs")
        disks.remove(layer)
    finally:
        overlays.unmount(place / "rootfs")
        subprocess.run(["umount", str(place)], check=True)
