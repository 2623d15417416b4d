"""Messages between the agent and the process of a guest's network (`skerry.daemon.guest_network`).

One JSON document per line, over a pair of sockets that both processes have. The agent makes requests, each of
which is answered; the other process also sends events. Pure but for reading and writing lines.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from skerry.kit import json_codec
from skerry.model import errors, network_kinds
from skerry.model.ids import NodeId
from skerry.model.network import NetworkPolicy
from skerry.model.network_objects import NetworkKey, NetworkObject, UnknownObject
from skerry.model.node_messages import NetworkUpdate
from skerry.model.settings import NetworkSettings
from skerry.node.network.attachments import Attachment

MAX_LINE: Final = 32 * 1024 * 1024


class EncodedObject(msgspec.Struct, frozen=True):
    """A network object."""

    kind: str
    key: str
    value: msgspec.Raw

    @classmethod
    def of(cls, value: NetworkObject) -> EncodedObject:
        return cls(*value.network_key, msgspec.Raw(network_kinds.encode(value)))

    def decode(self) -> NetworkObject:
        """Raises Invalid."""
        return network_kinds.decode(self.kind, self.key, bytes(self.value))


class OpenNetwork(msgspec.Struct, frozen=True, tag="open"):
    """Adopt what is there, and make the rest; the first request. `folder` is for its files."""

    folder: str
    key: str  # 8 hex digits that no other network of this machine has
    users: str  # scope of the user namespaces of containers
    settings: NetworkSettings
    node: NodeId  # of the buyer's cloud
    subnet: str  # that its containers have addresses of; the buyer's


class AttachContainer(msgspec.Struct, frozen=True, tag="attach"):
    owner: str
    policy: NetworkPolicy


class DetachContainer(msgspec.Struct, frozen=True, tag="detach"):
    owner: str


class RestrictContainer(msgspec.Struct, frozen=True, tag="restrict"):
    owner: str
    policy: NetworkPolicy


class UseSubnet(msgspec.Struct, frozen=True, tag="use"):
    subnet: str


class ApplyUpdate(msgspec.Struct, frozen=True, tag="update"):
    """Network objects of the buyer; with `is_full`, all of them."""

    is_full: bool
    objects: tuple[EncodedObject, ...] = ()
    removed: tuple[NetworkKey, ...] = ()

    @classmethod
    def of(cls, update: NetworkUpdate) -> ApplyUpdate:
        return cls(update.is_full, tuple(map(EncodedObject.of, update.objects)), update.removed)

    def decode(self) -> NetworkUpdate:
        """Raises Invalid."""
        decoded = tuple(each.decode() for each in self.objects)
        known = tuple(each for each in decoded if not isinstance(each, UnknownObject))
        return NetworkUpdate(self.is_full, known, self.removed)


class EndSession(msgspec.Struct, frozen=True, tag="end-session"):
    """The buyer sends nothing more for now."""


class CloseNetwork(msgspec.Struct, frozen=True, tag="close"):
    """Stop. Attached containers keep their network; without any, all of it is removed."""


Call = (
    OpenNetwork
    | AttachContainer
    | DetachContainer
    | RestrictContainer
    | UseSubnet
    | ApplyUpdate
    | EndSession
    | CloseNetwork
)


class Request(msgspec.Struct, frozen=True):
    number: int
    call: Call


class Reply(msgspec.Struct, frozen=True, tag="reply", omit_defaults=True):
    """The answer to a request. `attached`: to `OpenNetwork` all attachments, to `AttachContainer` the new
    one, to `CloseNetwork` those that stay."""

    number: int
    error: str = ""  # its class; empty: it was done
    message: str = ""
    attached: tuple[Attachment, ...] = ()

    def raise_error(self) -> None:
        if self.error:
            kind = getattr(errors, self.error, errors.Unavailable)
            if not (isinstance(kind, type) and issubclass(kind, errors.SkerryError)):
                kind = errors.Unavailable
            raise kind(self.message)


class NodeReports(msgspec.Struct, frozen=True, tag="reports"):
    """Network objects that the node reports to the buyer."""

    objects: tuple[EncodedObject, ...]


class NetworkCondition(msgspec.Struct, frozen=True, tag="condition"):
    """What does not work, in sentences."""

    warnings: tuple[str, ...]


Answer = Reply | NodeReports | NetworkCondition


async def read_line(reader: asyncio.StreamReader) -> bytes:
    """The next document; empty at the end."""
    try:
        line = await reader.readline()
    except (OSError, ValueError):  # it is broken, or the line too long
        return b""
    return line if line.endswith(b"\n") else b""


def write_line(writer: asyncio.StreamWriter, value: msgspec.Struct) -> None:
    writer.write(json_codec.encode(value) + b"\n")
