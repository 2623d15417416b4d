"""The records of a store, as a backup is checked for them: those of the control plane decode as what they
are.

Others (of the market, of the mesh, small indexes) are checked by their digests alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from skerry.control.backup.archive import BackedUpVolume
from skerry.control.recovery.store_history import PREFIX as HISTORY
from skerry.control.recovery.store_history import ServerRun
from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.callers import Certificate, Token
from skerry.model.console_sessions import ConsoleSession
from skerry.model.events import Event
from skerry.model.functions import Function
from skerry.model.jobs import Job
from skerry.model.nodes import Node
from skerry.model.routes import Route
from skerry.model.schedules import Schedule
from skerry.model.secrets import Secret
from skerry.model.services import Service
from skerry.model.snapshots import Snapshot
from skerry.model.versions import DataStamp
from skerry.model.volumes import Volume
from skerry.model.workloads import Instance, Workload
from skerry.store.protocol import Entry
from skerry.store.stamp import KEY as STAMP

TYPES: Final[Mapping[str, type[Any]]] = {
    HISTORY: ServerRun,
    "config/": Secret,
    "event/": Event,
    "function/": Function,
    "identity/certificates/": Certificate,
    "identity/console-sessions/": ConsoleSession,
    "identity/tokens/": Token,
    "instance/": Instance,
    "job/": Job,
    "node/": Node,
    "registry/": Secret,
    "route/": Route,
    "schedule/": Schedule,
    "secret/": Secret,
    "service/": Service,
    "snapshot/": Snapshot,
    STAMP: DataStamp,
    "volume/": Volume,
    "workload/": Workload,
}


def prefix_of(key: str) -> str:
    """What a key belongs to: `identity/tokens/` of `identity/tokens/01k...`."""
    first, slash, rest = key.partition("/")
    if first in ("identity", "market"):
        second, slash, _ = rest.partition("/")
        return f"{first}/{second}{slash}"
    return first + slash


def check(entry: Entry) -> None:
    """Raise `Invalid` if the record is not what its key says."""
    kind = TYPES.get(prefix_of(entry.key))
    if kind is None:
        return
    try:
        json_codec.decode(entry.value, kind)
    except (json_codec.InvalidJson, errors.Invalid, msgspec.ValidationError) as error:
        raise errors.Invalid(f"the record {entry.key!r} cannot be read: {error}") from None


def counts(entries: Iterable[Entry]) -> dict[str, int]:
    """How many records there are, by prefix."""
    found: dict[str, int] = {}
    for entry in entries:
        prefix = prefix_of(entry.key)
        found[prefix] = found.get(prefix, 0) + 1
    return dict(sorted(found.items()))


def volumes(entries: Iterable[Entry]) -> tuple[BackedUpVolume, ...]:
    """The volumes among them, with the names of their nodes."""
    names: dict[str, str] = {}
    found: list[Volume] = []
    for entry in entries:
        if entry.key.startswith("node/"):
            node = json_codec.decode(entry.value, Node)
            names[node.id] = node.name
        elif entry.key.startswith("volume/"):
            found.append(json_codec.decode(entry.value, Volume))
    return tuple(
        BackedUpVolume(one.namespace, one.name, one.size, names.get(one.node or "", one.node or ""))
        for one in found
    )
