"""Encoded documents of instances, for lists: making and encoding one takes longer than the rest of a request.

A record that changes is another object, and so are a reason that comes from its node and another usage: a
document is used again only for the same. The number of those that are kept is bounded.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from skerry.kit import json_codec
from skerry.model.ids import InstanceId
from skerry.model.resources import Resources
from skerry.model.workloads import Instance
from skerry.wire.kudo import documents

MAX_DOCUMENTS: Final = 2000  # two of the longest pages; one is about 1.3 KB


class _Entry(NamedTuple):
    instance: Instance
    usage: Resources
    document: msgspec.Raw


class DocumentCache:
    """The documents that were asked for last."""

    def __init__(self, most: int = MAX_DOCUMENTS) -> None:
        self._most = most
        self._entries: dict[InstanceId, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def encode(self, instance: Instance, usage: Resources) -> msgspec.Raw:
        """The document of the instance."""
        entry = self._entries.get(instance.id)
        if entry is not None and entry.instance is instance and entry.usage == usage:
            return entry.document
        document = msgspec.Raw(json_codec.encode(documents.instance_document(instance, usage)))
        self._entries.pop(instance.id, None)  # the newest are last
        self._entries[instance.id] = _Entry(instance, usage, document)
        if len(self._entries) > self._most:
            del self._entries[next(iter(self._entries))]
        return document
