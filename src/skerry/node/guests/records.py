"""Stores the leased cells of a node on disk for the next agent.

    lent/
      i-contract-01hx/    a leased cell, by its name
        cell.json         spec, cell, and when the cell was last created
        removing          present while it is removed: the next agent finishes that
        instances/        of its guest (`skerry.node.agent.instances.records`)
      .gone-7             being removed: left over only by a crash

A file is whole or absent, and survives a power cut. Every method waits for the disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, json_codec
from skerry.model.cells import Cell
from skerry.model.containers import ContainerSpec
from skerry.node import record_files
from skerry.node.record_files import RecordFolders, UnreadableRecord

log = structlog.get_logger(__name__)


class LeasedCellRecord(msgspec.Struct, frozen=True):
    """A leased cell."""

    spec: ContainerSpec  # as it was ordered
    cell: Cell
    created_at: float
    started_at: float | None = None  # when the current or last cell was created


class LeasedCellRecords:
    """The folder of all leased cells."""

    def __init__(self, folder: Path) -> None:
        self._cells = RecordFolders(folder)
        self._folder = self._cells.folder

    def guests_folder(self, name: str) -> Path:
        """Folder for the records of its guest."""
        return self._folder / name / "instances"

    def save(self, record: LeasedCellRecord) -> None:
        folder = files.private_folder(self._folder / record.spec.name)
        files.write_atomically(folder / "cell.json", json_codec.encode(record), files.PRIVATE)
        files.sync_folder(self._folder)

    def mark_removing(self, name: str) -> None:
        self._cells.mark(self._folder / name / "removing")

    def is_removing(self, name: str) -> bool:
        return (self._folder / name / "removing").exists()

    def discard(self, name: str) -> None:
        """Remove it: at once for readers, then file by file."""
        trash = self._cells.discard(self._folder / name)
        if trash is not None:
            files.sync_folder(self._folder)
            shutil.rmtree(trash, ignore_errors=True)

    def load(self) -> Iterator[LeasedCellRecord]:
        """Every record; what a crash left half removed is removed."""
        for folder in self._cells.leftovers():
            shutil.rmtree(folder, ignore_errors=True)
        for folder in sorted(self._folder.iterdir()):
            try:
                record = record_files.load(folder / "cell.json", LeasedCellRecord)
            except UnreadableRecord as error:
                log.warning("lent.unreadable", folder=folder.name, error=str(error))
                continue
            if record.spec.name == folder.name:
                yield record
