"""Attachments to the network, and their records on disk.

    network/
      ns/10.86.0.5              a network namespace, mounted on this file
      attached/10.86.0.5.json   its owner and ports

A file is whole or absent. Nothing is synced: namespaces do not survive a reboot, and what this boot wrote can
be read, also after `kill -9`. `skerry.node.network.adoption` interprets the records.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

import msgspec

from skerry.model.network import OPEN_POLICY, NetworkPolicy
from skerry.model.ports import PortMapping
from skerry.node.record_files import RecordFiles
from skerry.node.user_namespaces import UserNamespace


class Attachment(msgspec.Struct, frozen=True):
    """A network namespace with an address, and its owner."""

    owner: str
    namespace: str  # path of the file that the namespace is mounted on
    address: str
    prefix: int
    gateway: str
    ports: tuple[PortMapping, ...] = ()
    # From all other containers, and from the node.
    is_isolated: bool = msgspec.field(default=False, name="is_apart")
    users: UserNamespace | None = None  # that owns the namespace; None: the node's own
    policy: NetworkPolicy = OPEN_POLICY
    address6: str = ""  # IPv6; empty: it has none


class AttachmentRecord(msgspec.Struct, frozen=True):
    """An attachment with its boot."""

    attachment: Attachment
    boot: str
    at: float


class AttachmentRecords(RecordFiles[AttachmentRecord]):
    """The folder of all attachments. No operation on it waits for the disk."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, AttachmentRecord, _address)
        self._excluded: set[str] = set()

    def exclude(self, address: str, *, is_excluded: bool) -> None:
        """Store nothing of the owner that `address` gets now: the next agent removes its namespace."""
        if is_excluded:
            self._excluded.add(address)
        else:
            self._excluded.discard(address)

    def save(self, record: AttachmentRecord) -> None:
        if _address(record) not in self._excluded:
            super().save(record)

    def remove(self, key: str) -> None:
        if key not in self._excluded:
            super().remove(key)


def _address(record: AttachmentRecord) -> str:
    try:
        return str(IPv4Address(record.attachment.address))
    except ValueError:
        return ""  # no file has this name, so such a record is skipped
