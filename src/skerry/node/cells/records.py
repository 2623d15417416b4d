"""Stores cells on disk for the next agent.

    cells/
      a.b/              the cell a/b: names contain no '.', so this is unique
      @a/               the internal cell @a
        cell.json       its spec, its uid, the boot it was created in
        init.json       its init, after the first start in it
        freeing         present while it is freed: the next agent finishes that
        x1/             an executable, with its logs
          spec.json  started.json  exit.json
        previous/       the executable of the previous run, likewise; of containers only
      .gone-7           being removed: left over only by a crash

A file is whole or absent. Writes at the end of something may use the reserve of the disk
(`skerry.kit.disk_reserve`). Nothing is synced: a cell does not survive a reboot, and what this boot wrote can
be read, also after `kill -9`. The caller decides the order of writes; `adoption` interprets the records. The
init writes `exit.json`; it is read here, and completed with what only the agent can determine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from skerry.kit import disk_reserve, files, json_codec
from skerry.model.cells import Cell, Executable, parse_any_name
from skerry.model.errors import Invalid
from skerry.model.ids import CellName
from skerry.node import record_files
from skerry.node.record_files import RecordFolders

_PASSES = 50


class CellRecord(msgspec.Struct, frozen=True):
    """An allocated cell."""

    cell: Cell
    uid: int
    boot: str
    at: float
    is_marked: bool = False  # created by a version that marks the names of internal cells


class InitRecord(msgspec.Struct, frozen=True):
    """The process that runs a cell's executables, and the descriptor of the agent's socket in it."""

    pid: int
    start_time: int
    control_fd: int


class ProcessRecord(msgspec.Struct, frozen=True):
    """The process of a started executable, as the node sees it.

    `ooms` is the kernel's count of OOM kills at its start, where its own would be counted.
    """

    pid: int
    at: float
    ooms: int = 0


class ExitRecord(msgspec.Struct, frozen=True):
    """Exit of an executable; `oom` is None until an agent has read the kernel's counters."""

    at: float
    code: int | None = None
    signal: int | None = None
    oom: bool | None = None


class StoredExecutable(msgspec.Struct, frozen=True):
    """The records of one executable, as far as they exist."""

    number: int
    spec: Executable | None
    started: ProcessRecord | None
    exit: ExitRecord | None


class StoredCell(msgspec.Struct, frozen=True):
    """The records of one cell, as far as they exist."""

    name: CellName
    record: CellRecord | None
    init: InitRecord | None
    is_freeing: bool
    executables: tuple[StoredExecutable, ...]


class CellRecords:
    """The folder of all cells. No method waits for the disk."""

    def __init__(self, folder: Path) -> None:
        self._cells = RecordFolders(folder)
        # Called with every executable that is removed, by its folder, which it may move away.
        self.on_removal: Callable[[CellName, Path], None] | None = None
        self._excluded: set[CellName] = set()

    def exclude(self, cell: CellName) -> None:
        """Store nothing of this new cell: the next agent finds its groups alone, and removes them."""
        self._excluded.add(cell)

    def folder(self, cell: CellName, number: int | None = None) -> Path:
        """The folder of a cell, or of one executable in it."""
        entry = self._cells.folder / cell.replace("/", ".")
        return entry if number is None else entry / f"x{number}"

    def add_cell(self, record: CellRecord) -> None:
        if record.cell.name in self._excluded:
            return
        folder = self.folder(record.cell.name)
        os.mkdir(folder, 0o700)
        _write_new(f"{folder}/cell.json", record)

    def change_cell(self, record: CellRecord) -> None:
        if record.cell.name in self._excluded:
            return
        record_files.write(self.folder(record.cell.name) / "cell.json", record)

    def set_init(self, cell: CellName, record: InitRecord | None) -> None:
        if cell in self._excluded:
            return
        path = self.folder(cell) / "init.json"
        if record is None:
            path.unlink(missing_ok=True)
        else:
            record_files.write(path, record)

    def mark_freeing(self, cell: CellName) -> None:
        if cell in self._excluded:
            return
        self._cells.mark(self.folder(cell) / "freeing")

    def add_executable(self, spec: Executable, number: int) -> Path:
        if spec.cell in self._excluded:
            return self.folder(spec.cell, number)
        folder = self.folder(spec.cell, number)
        os.mkdir(folder, 0o700)
        _write_new(f"{folder}/spec.json", spec)
        return folder

    def change_started(self, cell: CellName, number: int, record: ProcessRecord) -> None:
        if cell in self._excluded:
            return
        disk_reserve.spend(lambda: record_files.write(self.folder(cell, number) / "started.json", record))

    def set_started(self, cell: CellName, number: int, record: ProcessRecord) -> None:
        if cell in self._excluded:
            return
        _write_new(f"{self.folder(cell, number)}/started.json", record)

    def exit(self, cell: CellName, number: int) -> ExitRecord | None:
        if cell in self._excluded:
            return None
        return record_files.read(self.folder(cell, number) / "exit.json", ExitRecord)

    def set_exit(self, cell: CellName, number: int, record: ExitRecord) -> None:
        if cell in self._excluded:
            return
        disk_reserve.spend(lambda: record_files.write(self.folder(cell, number) / "exit.json", record))

    def remove(self, cell: CellName, number: int | None = None) -> None:
        """Remove a cell with everything in it, or one executable: at once for readers, then file by file."""
        if cell in self._excluded:
            if number is None:
                self._excluded.discard(cell)
            return
        trash = self._cells.discard(self.folder(cell, number))
        if trash is None:
            return
        self._pass_on(cell, trash, number)
        # An init may be about to add an exit record. A pass fails only if a file was just created or renamed
        # there,
        # and after a pass that succeeds none can be added.
        for _ in range(_PASSES):
            shutil.rmtree(trash, ignore_errors=True)
            if not trash.exists():
                return

    def previous(self, cell: CellName) -> Path:
        """The folder of the previous run, whether or not it exists."""
        return self.folder(cell) / "previous"

    def keep_as_previous(self, cell: CellName, number: int) -> None:
        """Keep an ended executable as the previous run, in place of the one before it.

        After a crash in between, the executable is still there under its number: one run too few is kept,
        and none is mixed with another.
        """
        trash = self._cells.discard(self.previous(cell))
        disk_reserve.spend(lambda: os.rename(self.folder(cell, number), self.previous(cell)))
        if trash is not None:
            self._pass_on(cell, trash, number)
            shutil.rmtree(trash, ignore_errors=True)

    def _pass_on(self, cell: CellName, trash: Path, number: int | None) -> None:
        """Call `on_removal` with a removed executable, or with each of a removed cell."""
        if self.on_removal is None:
            return
        removed = [trash] if number is not None else [each.parent for each in trash.glob("*/started.json")]
        for folder in removed:
            self.on_removal(cell, folder)

    def empty_trash(self) -> None:
        """Remove what a crash left half removed, and what is no record. Call it before anything else."""
        for path in self._cells.leftovers():
            shutil.rmtree(path, ignore_errors=True)

    def scan(self) -> Iterator[StoredCell]:
        """Every cell, ordered by name."""
        for path in sorted(self._cells.folder.iterdir()):
            try:
                name = parse_any_name(path.name.replace(".", "/"))
            except Invalid:
                continue  # not ours
            if path.is_dir():
                yield self._found(name, path)

    def _found(self, name: CellName, folder: Path) -> StoredCell:
        numbers = sorted(
            int(path.name[1:])
            for path in folder.iterdir()
            if path.name[:1] == "x" and path.name[1:].isdigit()
        )
        record = record_files.read(folder / "cell.json", CellRecord)
        return StoredCell(
            name=name,
            record=record if record is not None and record.cell.name == name else None,
            init=record_files.read(folder / "init.json", InitRecord),
            is_freeing=(folder / "freeing").exists(),
            executables=tuple(
                StoredExecutable(
                    number=number,
                    spec=record_files.read(self.folder(name, number) / "spec.json", Executable),
                    started=record_files.read(self.folder(name, number) / "started.json", ProcessRecord),
                    exit=self.exit(name, number),
                )
                for number in numbers
            ),
        )


def _write_new(path: str, value: object) -> None:
    """For a file that is written once, in one call: whole, or empty after a crash, which reads as absent."""
    try:
        files.write_whole(path, json_codec.encode(value), flags=os.O_EXCL)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        raise
