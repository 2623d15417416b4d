"""Stores instances on disk for the next agent.

    instances/
      terms.json          the last session config: restarts and reports
      copies/
        01hx...json       an instance: its order, its status, its pending reports

A file is whole or absent, and may use the reserve of the disk (`skerry.kit.disk_reserve`): an order to stop
must be taken, and an exit reported, also when the disk is full. Orders are synced before they are carried out
(`sync`); the status of a run does not survive a power cut, and is not synced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import structlog

from skerry.kit import disk_reserve, files, json_codec
from skerry.model.ids import InstanceId
from skerry.model.node_messages import SessionConfig
from skerry.node import record_files
from skerry.node.agent.instances.state import LocalInstance
from skerry.node.record_files import RecordFiles, UnreadableRecord

log = structlog.get_logger(__name__)


class InstanceRecords:
    """The folder of all instances."""

    def __init__(self, folder: Path) -> None:
        self._config_file = files.private_folder(folder) / "terms.json"
        self._copies = RecordFiles(folder / "copies", LocalInstance, lambda copy: copy.instance)

    def save(self, copy: LocalInstance) -> None:
        disk_reserve.spend(lambda: self._copies.save(copy))

    def sync(self, instances: Iterable[InstanceId]) -> None:
        """Make what was saved of these survive a power cut. Waits for the disk."""
        self._copies.sync(instances)

    def forget(self, instance: InstanceId) -> None:
        self._copies.remove(instance)

    def load(self) -> Iterator[LocalInstance]:
        """Every instance; files that a crash left half written are removed."""
        return self._copies.scan(_warn)

    def set_config(self, config: SessionConfig) -> None:
        """Waits for the disk."""
        files.write_atomically(self._config_file, json_codec.encode(config), files.PRIVATE)

    def config(self) -> SessionConfig | None:
        """None if no control plane was ever reached."""
        try:
            return record_files.load(self._config_file, SessionConfig)
        except UnreadableRecord as error:
            if self._config_file.exists():
                _warn(self._config_file, str(error))
            return None


def _warn(path: Path, reason: str) -> None:
    log.warning("instances.unreadable", file=path.name, error=reason)
