"""The folders with the output of executables, for forwarding: of present, previous and removed runs.

`Cells` owns the entries. The output of what runs in a leased cell is its buyer's, and is not listed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from skerry.model.cells import Cell, CellOwner, Executable, upwards
from skerry.model.ids import CellName, ExecutableName
from skerry.node import record_files
from skerry.node.cells.records import CellRecord, CellRecords, ProcessRecord
from skerry.node.cells.state import CellEntry


class OutputFolder(NamedTuple):
    """The output of one run of an executable."""

    cell: Cell
    executable: ExecutableName
    started_at: float
    folder: Path
    has_ended: bool

    @property
    def key(self) -> str:
        """Names the run, wherever its folder is moved."""
        return f"{self.cell.name}:{self.executable}@{self.started_at}"


class OutputFolders:
    """Lists folders, and passes those on that are about to be removed."""

    def __init__(self, entries: Mapping[CellName, CellEntry], records: CellRecords) -> None:
        self._entries = entries
        self._records = records
        # By cell: the inode of the folder of the previous run, and that run.
        self._previous: dict[CellName, tuple[int, OutputFolder | None]] = {}

    def list_folders(self) -> Iterator[OutputFolder]:
        """All runs, of each cell the previous one first."""
        for stale in self._previous.keys() - self._entries.keys():
            del self._previous[stale]
        for entry in self._entries.values():
            cell = entry.record.cell
            if self._is_leased(cell):
                continue
            if cell.owner is CellOwner.CONTAINER and (previous := self._previous_run(cell)) is not None:
                yield previous
            for executable in entry.executables.values():
                yield OutputFolder(
                    cell,
                    executable.spec.name,
                    executable.started.at,
                    self._records.folder(entry.name, executable.number),
                    executable.has_ended,
                )

    def follow_removals(self, retain: Callable[[OutputFolder], None]) -> None:
        """Call `retain` with every folder that is about to be deleted; it may move the folder away."""

        def on_removal(name: CellName, folder: Path) -> None:
            entry = self._entries.get(name)
            record = entry.record if entry is not None else None
            if record is None:  # the whole cell is removed
                record = record_files.read(folder.parent / "cell.json", CellRecord)
            if record is not None and not self._is_leased(record.cell):
                run = _stored_run(record.cell, folder)
                if run is not None:
                    retain(run)

        self._records.on_removal = on_removal

    def _previous_run(self, cell: Cell) -> OutputFolder | None:
        folder = self._records.previous(cell.name)
        try:
            inode = os.stat(folder).st_ino
        except FileNotFoundError:
            return None
        known = self._previous.get(cell.name)
        if known is None or known[0] != inode:
            known = self._previous[cell.name] = inode, _stored_run(cell, folder)
        return known[1]

    def _is_leased(self, cell: Cell) -> bool:
        above = (self._entries.get(name) for name in upwards(cell.name))
        return cell.owner is CellOwner.CONTRACT or any(
            entry is not None and entry.record.cell.owner is CellOwner.CONTRACT for entry in above
        )


def _stored_run(cell: Cell, folder: Path) -> OutputFolder | None:
    spec = record_files.read(folder / "spec.json", Executable)
    started = record_files.read(folder / "started.json", ProcessRecord)
    if spec is None or started is None:
        return None  # it never ran
    return OutputFolder(cell, spec.name, started.at, folder, has_ended=True)
