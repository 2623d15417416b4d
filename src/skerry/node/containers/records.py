"""What the node remembers of its containers on disk, for the agent that comes after this one.

    all/
      web/                the container `web`
        container.json    what was asked for, its image, its cell
        run.json          the last run: in which boot of the machine, and how it ended
        removing          there while it is removed: whoever finds it finishes that
        layer/  rootfs/   what it has written, and where its root is mounted
        config.json       and others that the runtime is given at a start
        execs/            commands that are run in it, a folder each
      .new-web  .gone-7   being made and being removed: left over only by a crash

A file is whole or absent. What is written when a run ends or a container is removed may use the reserve of
the disk (`skerry.kit.disk_reserve`). A container outlives the boot, so what makes or removes one is synced; a
run does not, and its record is not. What a set of records means is decided in `adoption`. Removing files is
`removal`'s: while something is mounted among them that must not be done.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from skerry.kit import disk_reserve, files
from skerry.model.cells import Cell, ExitStatus
from skerry.model.containers import ContainerSpec
from skerry.model.images import ImageConfig, ImageId
from skerry.model.network import Egress, NetworkPolicy
from skerry.node import record_files
from skerry.node.containers import tree_size
from skerry.node.record_files import RecordFolders

_NAME = re.compile(r"[a-z0-9-]{1,63}")


class ContainerRecord(msgspec.Struct, frozen=True):
    """A container as it was created. `config` is the image's word, which does not change under it; `egress`
    may change."""

    spec: ContainerSpec
    image: ImageId
    config: ImageConfig
    cell: Cell
    created_at: float
    egress: Egress = Egress.ALL

    @property
    def policy(self) -> NetworkPolicy:
        """What its network is held to."""
        return NetworkPolicy(self.spec.ingress, self.egress)


class RunRecord(msgspec.Struct, frozen=True):
    """One run of a container."""

    boot: str
    started_at: float
    exit: ExitStatus | None = None
    has_ended: bool = False  # also if nobody knows how
    reason: str = ""  # for people, if it is not what they would expect


class StoredContainer(msgspec.Struct, frozen=True):
    """The records of one container, as far as they are there."""

    name: str
    record: ContainerRecord | None
    run: RunRecord | None
    is_removing: bool


class ContainerPaths:
    """Where things of one container are; the folder itself is the bundle that the runtime is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.layer = folder / "layer"
        self.rootfs = folder / "rootfs"
        self.execs = folder / "execs"
        self.pid_file = folder / "pid"
        self.runtime_log = folder / "runtime.log"


class ContainerRecords:
    """The folder of all containers."""

    def __init__(self, top: Path) -> None:
        # Beside it are what overlays and the runtime keep, under names that a container may have.
        self._containers = RecordFolders(top / "all")
        self._folder = self._containers.folder

    def place(self, name: str) -> ContainerPaths:
        return ContainerPaths(self._folder / name)

    def owner(self, path: Path) -> str | None:
        """The name of the container, or what stands for one, whose folder `path` is in."""
        try:
            inside = path.relative_to(self._folder).parts
        except ValueError:
            return None
        return inside[0] if inside and _NAME.fullmatch(inside[0]) else None

    def add(self, record: ContainerRecord) -> None:
        """Make the container's folder with its record in it: all of it, or nothing."""
        draft = self._folder / f"{record_files.DRAFT}{record.spec.name}"
        draft.mkdir(mode=0o700)
        try:
            record_files.write(draft / "container.json", record)
            os.rename(draft, self._folder / record.spec.name)
        except BaseException:
            tree_size.remove(draft)
            raise

    def replace(self, record: ContainerRecord) -> None:
        """Another record for a container that is there."""
        record_files.write(self._folder / record.spec.name / "container.json", record)

    def sync(self, name: str) -> None:
        """Make what `add` or `replace` wrote last through a power cut. Waits for the disk."""
        folder = self._folder / name
        record_files.sync(folder / "container.json")
        files.sync_folder(folder)
        files.sync_folder(self._folder)

    def set_run(self, name: str, run: RunRecord) -> None:
        disk_reserve.spend(lambda: record_files.write(self._folder / name / "run.json", run))

    def mark_removing(self, name: str) -> None:
        self._containers.mark(self._folder / name / "removing")

    def discard(self, name: str) -> Path | None:
        """Take the container out of sight, at once and for good; the folder that its files are in now.
        Nothing may be mounted in it. Waits for the disk."""
        trash = self._containers.discard(self._folder / name)
        if trash is not None:
            files.sync_folder(self._folder)
        return trash

    def trash(self) -> list[Path]:
        """Folders that a crash left half made or half removed. Before anything else is done here."""
        return self._containers.leftovers()

    def scan(self) -> Iterator[StoredContainer]:
        """Everything there is, in the order of names."""
        for path in sorted(self._folder.iterdir()):
            if _NAME.fullmatch(path.name) and path.is_dir():
                record = record_files.read(path / "container.json", ContainerRecord)
                yield StoredContainer(
                    name=path.name,
                    record=record if record is not None and record.spec.name == path.name else None,
                    run=record_files.read(path / "run.json", RunRecord),
                    is_removing=(path / "removing").exists(),
                )
