"""What the node remembers of its instances on disk, for the agent that comes after this one.

    instances/
      terms.json          what the control plane said last of how to go about restarts and reports
      copies/
        01hx...json       an instance: its order, what became of it, what is still to be told

A file is whole or absent, and may use the reserve of the disk (`skerry.kit.disk_reserve`): an order to stop
must be taken, and an end told, also when the disk is full. An order is acted on only when it would outlive
the machine's going down (`sync`); what becomes of a run does not outlive that, and is not synced.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import structlog

from skerry.kit import disk_reserve, files, json_codec
from skerry.model import errors
from skerry.model.ids import InstanceId
from skerry.model.node_messages import SessionConfig
from skerry.node.agent.instances.state import LocalInstance

log = structlog.get_logger(__name__)

T = TypeVar("T")

_SUFFIX = ".json"
_DRAFT = ".new"


class InstanceRecords:
    """The folder of all instances."""

    def __init__(self, folder: Path) -> None:
        self._folder = files.private_folder(folder)
        self._copies = files.private_folder(folder / "copies")

    def save(self, copy: LocalInstance) -> None:
        path = self._path(copy.instance)
        draft = path.with_name(f".{path.name}{_DRAFT}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        data = json_codec.encode(copy)

        def write() -> None:
            # The environment of an instance may hold secrets.
            with open(os.open(draft, flags, files.PRIVATE), "wb") as file:
                file.write(data)
            os.rename(draft, path)

        disk_reserve.spend(write)

    def sync(self, instances: Iterable[InstanceId]) -> None:
        """What was saved of these outlives a power cut from now on. Waits for the disk."""
        for instance in instances:
            try:
                descriptor = os.open(self._path(instance), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # forgotten meanwhile
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        files.sync_folder(self._copies)

    def forget(self, instance: InstanceId) -> None:
        self._path(instance).unlink(missing_ok=True)

    def load(self) -> Iterator[LocalInstance]:
        """Everything there is; what a crash left half written is removed."""
        for path in sorted(self._copies.iterdir()):
            if path.name.endswith(_DRAFT):
                path.unlink()
            elif (copy := _read(path, LocalInstance)) is not None and path == self._path(copy.instance):
                yield copy

    def set_terms(self, terms: SessionConfig) -> None:
        """Waits for the disk."""
        files.write_atomically(self._folder / "terms.json", json_codec.encode(terms), files.PRIVATE)

    def terms(self) -> SessionConfig | None:
        """None if no control plane was ever reached."""
        return _read(self._folder / "terms.json", SessionConfig)

    def _path(self, instance: InstanceId) -> Path:
        return self._copies / f"{instance}{_SUFFIX}"


def _read(path: Path, as_type: type[T]) -> T | None:
    """What the file holds; None if there is none, or nothing that this version understands."""
    try:
        return json_codec.decode(path.read_bytes(), as_type)
    except FileNotFoundError:
        return None
    except (json_codec.InvalidJson, errors.Invalid) as error:
        log.warning("instances.unreadable", file=path.name, error=str(error))
        return None
