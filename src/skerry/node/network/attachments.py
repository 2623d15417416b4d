"""Who is attached to the network, and what is remembered of it on disk.

    network/
      ns/10.86.0.5              a network namespace, kept by a mount on this file
      attached/10.86.0.5.json   whom it was given to, with which ports

A file is whole or absent. Nothing is synced: namespaces do not outlive the machine's boot, and what this boot
wrote it can read, also after `kill -9`. What a set of records means for an agent that starts is
`skerry.node.network.adoption`'s to say.
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
    """A network namespace with an address, as its owner sees it."""

    owner: str
    namespace: str  # path of a file that the namespace is mounted on
    address: str
    prefix: int
    gateway: str
    ports: tuple[PortMapping, ...] = ()
    is_apart: bool = False  # from everybody else here, and from the node
    users: UserNamespace | None = None  # that the namespace belongs to; None: the node's own
    policy: NetworkPolicy = OPEN_POLICY


class AttachmentRecord(msgspec.Struct, frozen=True):
    """An attachment as it was made."""

    attachment: Attachment
    boot: str
    at: float


def attachment_records(folder: Path) -> RecordFiles[AttachmentRecord]:
    """The folder of all attachments. Nothing that is done to it waits for a disk."""
    return RecordFiles(folder, AttachmentRecord, _address)


def _address(record: AttachmentRecord) -> str:
    try:
        return str(IPv4Address(record.attachment.address))
    except ValueError:
        return ""  # no file has this name, so such a record is passed over
