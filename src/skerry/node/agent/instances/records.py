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
        """What was saved of these outlives a power cut from now on. Waits for the disk."""
        self._copies.sync(instances)

    def forget(self, instance: InstanceId) -> None:
        self._copies.remove(instance)

    def load(self) -> Iterator[LocalInstance]:
        """Everything there is; what a crash left half written is removed."""
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


def _warn(path: Path, why: str) -> None:
    log.warning("instances.unreadable", file=path.name, error=why)
