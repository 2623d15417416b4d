"""Who is attached to the network, and what is remembered of it on disk.

    network/
      ns/10.86.0.5              a network namespace, kept by a mount on this file
      attached/10.86.0.5.json   whom it was given to, with which ports

A file is whole or absent. Nothing is synced: namespaces do not outlive the machine's boot, and what this boot
wrote it can read, also after `kill -9`. What a set of records means for an agent that starts is
`skerry.node.network.adoption`'s to say.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address
from pathlib import Path

import msgspec

from skerry.kit import files, json_codec
from skerry.model.errors import Invalid
from skerry.model.network import OPEN_POLICY, NetworkPolicy
from skerry.model.ports import PortMapping
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


class AttachmentRecords:
    """The folder of all attachments. Every method is short: none waits for a disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = files.private_folder(folder)

    def add(self, record: AttachmentRecord) -> None:
        path = self._path(record.attachment.address)
        draft = path.with_name(f".{path.name}.new")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(json_codec.encode(record))
        os.rename(draft, path)

    def remove(self, address: str) -> None:
        self._path(address).unlink(missing_ok=True)

    def keep_only(self, addresses: Iterable[str]) -> None:
        kept = {self._path(address) for address in addresses}
        for path in self._folder.iterdir():
            if path not in kept:
                path.unlink()

    def scan(self) -> Iterator[AttachmentRecord]:
        """Every record; what is none, or none that this version understands, is passed over."""
        for path in sorted(self._folder.iterdir()):
            try:
                record = json_codec.decode(path.read_bytes(), AttachmentRecord)
                is_sound = self._path(str(IPv4Address(record.attachment.address))) == path
            except (json_codec.InvalidJson, Invalid, ValueError):
                continue
            if is_sound:
                yield record

    def _path(self, address: str) -> Path:
        return self._folder / f"{address}.json"
