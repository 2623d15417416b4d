"""Bundles and the runtime's state in memory: where they are, and what earlier versions have left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.node.containers.boot_folder import BootFolder
from skerry.node.containers.records import ContainerRecords
from skerry.node.kernel import thread_syscalls
from tests.node.containers.real import needs_root


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[BootFolder]:
    opened = BootFolder.open(tmp_path / "boot")
    assert opened is not None
    yield opened
    if os.path.ismount(tmp_path / "boot"):
        thread_syscalls.unmount(str(tmp_path / "boot"))


@needs_root
@pytest.mark.root
def test_it_is_in_memory_and_only_root_may_enter(boot: BootFolder, tmp_path: Path) -> None:
    assert os.path.ismount(tmp_path / "boot")
    assert (tmp_path / "boot").stat().st_mode & 0o777 == 0o700
    assert boot.bundles.stat().st_dev != tmp_path.stat().st_dev


@needs_root
@pytest.mark.root
def test_it_outlives_an_agent_while_containers_run_and_not_longer(boot: BootFolder, tmp_path: Path) -> None:
    (boot.bundles / "web").mkdir()
    boot.close()
    again = BootFolder.open(tmp_path / "boot")
    assert again is not None
    assert [path.name for path in again.bundles.iterdir()] == ["web"]
    (boot.bundles / "web").rmdir()
    again.close()
    assert not os.path.ismount(tmp_path / "boot")
    assert list((tmp_path / "boot").iterdir()) == []


@needs_root
@pytest.mark.root
def test_the_state_of_the_runtime_stays_on_disk_while_an_earlier_version_has_containers_there(
    boot: BootFolder, tmp_path: Path
) -> None:
    former = tmp_path / "runtime"
    in_memory = boot.state_of_runtime(former)
    assert in_memory.is_relative_to(tmp_path / "boot")
    (former / "web").mkdir(parents=True)
    assert boot.state_of_runtime(former) == former
    (former / "web").rmdir()
    assert boot.state_of_runtime(former) == in_memory


@needs_root
@pytest.mark.root
def test_a_network_of_an_earlier_version_stays_where_it_is_until_that_has_removed_it(
    boot: BootFolder, tmp_path: Path
) -> None:
    former = tmp_path / "network"
    in_memory = boot.folder_of_network(former)
    assert in_memory.is_relative_to(tmp_path / "boot")
    former.mkdir()
    assert boot.folder_of_network(former) == former
    in_memory.mkdir()
    boot.close()
    assert os.path.ismount(tmp_path / "boot")  # something may be attached


def test_without_a_mount_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(thread_syscalls, "mount", refuse)
    assert BootFolder.open(tmp_path / "boot") is None


def test_a_bundle_is_in_memory_unless_an_earlier_version_has_made_it(tmp_path: Path) -> None:
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    records = ContainerRecords(tmp_path, bundles)
    (tmp_path / "all" / "old" / "rootfs").mkdir(parents=True)
    old, new = records.paths("old"), records.paths("new")
    assert old.rootfs == tmp_path / "all" / "old" / "rootfs"
    assert old.own_bundle is None
    assert new.rootfs == bundles / "new" / "rootfs"
    assert new.own_bundle == bundles / "new"
    assert new.layer == tmp_path / "all" / "new" / "layer"
    assert [records.owner(paths.rootfs) for paths in (old, new)] == ["old", "new"]
    assert records.owner(tmp_path / "boot") is None


def test_names_of_bundles_are_those_of_containers_that_run_or_were_left(tmp_path: Path) -> None:
    bundles = tmp_path / "bundles"
    (bundles / "web").mkdir(parents=True)
    assert ContainerRecords(tmp_path, bundles).bundled() == {"web"}
    assert ContainerRecords(tmp_path).bundled() == set()
