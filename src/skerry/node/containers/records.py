"""Stores containers on disk for the next agent.

    all/
      web/                the container `web`
        container.json    its spec, its image, its cell
        run.json          the last run: its boot, and its exit
        removing          present while it is removed: the next agent finishes that
        layer/  rootfs/   its writable layer, and the mount point of its root
        config.json       and other files for the runtime
        execs/            its execs, a folder each
      .new-web  .gone-7   being created and being removed: left over only by a crash

A file is whole or absent. Writes at the end of a run or at a removal may use the reserve of the disk
(`skerry.kit.disk_reserve`). A container survives a reboot, so creation and removal are synced; a run does
not, and its record is not. `adoption` interprets the records. `removal` deletes files, which must not happen
while something is mounted among them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from skerry.kit import disk_reserve, files
from skerry.model.cells import Cell, ExitStatus
from skerry.model.containers import ContainerSpec
from skerry.model.images import ImageConfig, ImageId
from skerry.model.network import Egress, NetworkAccess, NetworkPolicy
from skerry.node import record_files
from skerry.node.containers import tree_size
from skerry.node.record_files import RecordFolders

_NAME = re.compile(r"[a-z0-9-]{1,63}")
_ROOTFS = "rootfs"


class ContainerRecord(msgspec.Struct, frozen=True):
    """A created container. `config` is that of the image at creation, and does not change; its `access` may
    change."""

    spec: ContainerSpec
    image: ImageId
    config: ImageConfig
    cell: Cell
    created_at: float
    egress: Egress = Egress.ALL
    namespace: str = ""
    is_isolated: bool = False

    @property
    def access(self) -> NetworkAccess:
        return NetworkAccess(self.egress, self.namespace, self.is_isolated)

    def with_access(self, access: NetworkAccess) -> ContainerRecord:
        return msgspec.structs.replace(
            self, egress=access.egress, namespace=access.namespace, is_isolated=access.is_isolated
        )

    @property
    def policy(self) -> NetworkPolicy:
        """The policy of its network."""
        return self.access.policy(self.spec.ingress)


class RunRecord(msgspec.Struct, frozen=True):
    """One run of a container."""

    boot: str
    started_at: float
    exit: ExitStatus | None = None
    has_ended: bool = False  # also with unknown exit status
    reason: str = ""  # for people, if it was unexpected


class StoredContainer(msgspec.Struct, frozen=True):
    """The records of one container, as far as they exist."""

    name: str
    record: ContainerRecord | None
    run: RunRecord | None
    is_removing: bool


class ContainerPaths:
    """Paths of one container. The OCI bundle, which is written at each start, may be in another folder."""

    def __init__(self, folder: Path, bundle: Path | None = None) -> None:
        self.folder = folder
        self.layer = folder / "layer"
        self.execs = folder / "execs"
        self.bundle = folder if bundle is None else bundle
        self.rootfs = self.bundle / _ROOTFS
        self.pid_file = self.bundle / "pid"
        self.runtime_log = self.bundle / "runtime.log"

    @property
    def own_bundle(self) -> Path | None:
        """The folder of the bundle if it is another one."""
        return None if self.bundle == self.folder else self.bundle


class ContainerRecords:
    """The folder of all containers."""

    def __init__(self, top: Path, bundles: Path | None = None) -> None:
        """`bundles`: a folder in memory for bundles; without one, they are with the records."""
        # Overlays and the runtime store their state beside it, under names that a container may have.
        self._containers = RecordFolders(top / "all")
        self._folder = self._containers.folder
        self._bundles = bundles

    def paths(self, name: str) -> ContainerPaths:
        folder = self._folder / name
        # Containers of earlier versions, which may be running, stay as they are.
        if self._bundles is None or (folder / _ROOTFS).exists():
            return ContainerPaths(folder)
        return ContainerPaths(folder, self._bundles / name)

    def owner(self, path: Path) -> str | None:
        """The name of the container, or of what is removed as one, whose folder contains `path`."""
        for folder in filter(None, (self._folder, self._bundles)):
            if path.is_relative_to(folder):
                inside = path.relative_to(folder).parts
                return inside[0] if inside and _NAME.fullmatch(inside[0]) else None
        return None

    def bundled(self) -> set[str]:
        """Names with a bundle in memory: of containers that run, or that a crash left."""
        return set() if self._bundles is None else set(os.listdir(self._bundles))

    def add(self, record: ContainerRecord) -> None:
        """Create the container's folder with its record, atomically."""
        draft = self._folder / f"{record_files.DRAFT}{record.spec.name}"
        draft.mkdir(mode=0o700)
        try:
            record_files.write(draft / "container.json", record)
            os.rename(draft, self._folder / record.spec.name)
        except BaseException:
            tree_size.remove(draft)
            raise

    def replace(self, record: ContainerRecord) -> None:
        """Replace the record of an existing container."""
        record_files.write(self._folder / record.spec.name / "container.json", record)

    def sync(self, names: Iterable[str]) -> None:
        """Make the last `add` or `replace` of each survive a power cut. Waits for the disk, for many hardly
        longer than for one."""
        for name in names:
            folder = self._folder / name
            record_files.sync(folder / "container.json")
            files.sync_folder(folder)
        files.sync_folder(self._folder)

    def set_run(self, name: str, run: RunRecord) -> None:
        disk_reserve.spend(lambda: record_files.write(self._folder / name / "run.json", run))

    def mark_removing(self, name: str) -> None:
        self._containers.mark(self._folder / name / "removing")

    def discard(self, name: str) -> Path | None:
        """Remove the container's folder from the list, at once and durably; returns the folder that its files
        are in now. Nothing may be mounted in it. Waits for the disk."""
        trash = self._containers.discard(self._folder / name)
        if trash is not None:
            files.sync_folder(self._folder)
        return trash

    def trash(self) -> list[Path]:
        """Folders that a crash left half created or half removed. Call it before anything else."""
        return self._containers.leftovers()

    def scan(self) -> Iterator[StoredContainer]:
        """Every container, ordered by name."""
        for path in sorted(self._folder.iterdir()):
            if _NAME.fullmatch(path.name) and path.is_dir():
                record = record_files.read(path / "container.json", ContainerRecord)
                yield StoredContainer(
                    name=path.name,
                    record=record if record is not None and record.spec.name == path.name else None,
                    run=record_files.read(path / "run.json", RunRecord),
                    is_removing=(path / "removing").exists(),
                )
