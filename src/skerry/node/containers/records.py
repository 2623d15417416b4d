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

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from skerry.kit import disk_reserve, files, json_codec
from skerry.model.cells import Cell, ExitStatus
from skerry.model.containers import ContainerSpec
from skerry.model.errors import Invalid
from skerry.model.images import ImageConfig, ImageId
from skerry.model.network import Egress, NetworkPolicy
from skerry.node.containers import tree_size

_NAME = re.compile(r"[a-z0-9-]{1,63}")
_DRAFT = ".new-"
_TRASH = ".gone-"

T = TypeVar("T")


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

    def __init__(self, folder: Path) -> None:
        self._folder = files.private_folder(folder)
        self._removals = itertools.count()

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
        draft = self._folder / f"{_DRAFT}{record.spec.name}"
        draft.mkdir(mode=0o700)
        try:
            write_json(draft / "container.json", record)
            os.rename(draft, self._folder / record.spec.name)
        except BaseException:
            tree_size.remove(draft)
            raise

    def replace(self, record: ContainerRecord) -> None:
        """Another record for a container that is there."""
        write_json(self._folder / record.spec.name / "container.json", record)

    def sync(self, name: str) -> None:
        """Make what `add` or `replace` wrote last through a power cut. Waits for the disk."""
        folder = self._folder / name
        descriptor = os.open(folder / "container.json", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        files.sync_folder(folder)
        files.sync_folder(self._folder)

    def set_run(self, name: str, run: RunRecord) -> None:
        disk_reserve.spend(lambda: write_json(self._folder / name / "run.json", run))

    def mark_removing(self, name: str) -> None:
        disk_reserve.spend(lambda: (self._folder / name / "removing").touch(mode=0o600))

    def discard(self, name: str) -> Path | None:
        """Take the container out of sight, at once and for good; the folder that its files are in now.
        Nothing may be mounted in it. Waits for the disk."""
        trash = self._folder / f"{_TRASH}{next(self._removals)}"
        try:
            disk_reserve.spend(lambda: os.rename(self._folder / name, trash))
        except FileNotFoundError:
            return None
        files.sync_folder(self._folder)
        return trash

    def trash(self) -> list[Path]:
        """Folders that a crash left half made or half removed. Before anything else is done here."""
        found = [path for path in self._folder.iterdir() if path.name.startswith((_DRAFT, _TRASH))]
        numbers = [int(path.name.removeprefix(_TRASH)) for path in found if path.name.startswith(_TRASH)]
        self._removals = itertools.count(max(numbers, default=0) + 1)
        return found

    def scan(self) -> Iterator[StoredContainer]:
        """Everything there is, in the order of names."""
        for path in sorted(self._folder.iterdir()):
            if _NAME.fullmatch(path.name) and path.is_dir():
                record = _read(path / "container.json", ContainerRecord)
                yield StoredContainer(
                    name=path.name,
                    record=record if record is not None and record.spec.name == path.name else None,
                    run=_read(path / "run.json", RunRecord),
                    is_removing=(path / "removing").exists(),
                )


def write_json(path: Path, value: object) -> None:
    """Whole or absent, and for us alone. Each file has one writer at a time."""
    draft = path.with_name(f".{path.name}.new")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(json_codec.encode(value))
    os.rename(draft, path)


def _read(path: Path, as_type: type[T]) -> T | None:
    """What the file holds; None if there is none, or nothing that this version understands."""
    try:
        return json_codec.decode(path.read_bytes(), as_type)
    except (FileNotFoundError, NotADirectoryError, json_codec.InvalidJson, Invalid):
        return None
