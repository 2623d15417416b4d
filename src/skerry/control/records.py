"""Records of workloads and instances in the store: their keys, their bytes, the revision each stands at.

One key holds all that is known of an instance, wish and observation together, so that every change is one
compare-and-set on one revision (docs/adr/0017). What the records mean is `skerry.model.workloads`; what may
become of an instance is `skerry.control.instances.transitions`.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from skerry.kit import json_codec
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.workloads import Instance, Workload
from skerry.store.protocol import Entry, Expect, Put

T = TypeVar("T", Instance, Workload)
H = TypeVar("H")

INSTANCES = "instance/"
WORKLOADS = "workload/"
_NAMES = "workload-name/"

# Writes on their way to the cache are at most as many as the transactions under way can hold.
_REMEMBERED = 16_384


def name_key(namespace: Namespace, name: str) -> str:
    """Of a workload's name: which workload has it, in that namespace.

    Names have no slash, so no two of these are the same; those of the default namespace are as they were
    before there were others.
    """
    return _NAMES + (name if namespace == DEFAULT_NAMESPACE else f"{namespace}/{name}")


class Record(NamedTuple, Generic[H]):
    """A record as the store holds it."""

    value: H
    revision: int


class RecordCodec(Generic[T]):
    """Turns records of one kind into bytes and back; those it wrote itself it need not read again."""

    def __init__(self, prefix: str, as_type: type[T]) -> None:
        self.prefix = prefix
        self._type: type[T] = as_type
        self._written: dict[str, tuple[bytes, T]] = {}

    def key(self, id: str) -> str:
        return self.prefix + id

    def put(self, value: T) -> Put:
        key, data = self.prefix + value.id, json_codec.encode(value)
        if len(self._written) >= _REMEMBERED:
            self._written.clear()
        self._written[key] = data, value
        return Put(key, data)

    def read(self, entry: Entry) -> Record[T]:
        written = self._written.pop(entry.key, None)
        if written is not None and written[0] == entry.value:
            return Record(written[1], entry.revision)
        return Record(json_codec.decode(entry.value, self._type), entry.revision)

    def expect(self, held: Record[T]) -> Expect:
        """That the record is still as it was when it was read."""
        return Expect(self.prefix + held.value.id, held.revision)
