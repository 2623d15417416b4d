"""The network objects that this node knows: received from a server, kept on disk, and handed to their users.

Users subscribe to a kind (`skerry.node.network` has them: names, addresses, mesh, routes) and are called with
all objects of it, at the start with those of the last session, so that they go on while no server can be
reached. What the node itself reports is kept in memory and sent again with every session.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar, cast

import msgspec
import structlog

from skerry.kit import files, json_codec
from skerry.kit.clock import Clock, SystemClock
from skerry.kit.tasks import in_thread
from skerry.model import errors, network_kinds
from skerry.model.authority_bundle import AuthorityBundle
from skerry.model.network_objects import NetworkKey, NetworkObject, UnknownObject
from skerry.model.node_messages import NetworkUpdate
from skerry.model.offline_tokens import TokenKey

log = structlog.get_logger(__name__)

T = TypeVar("T", bound=NetworkObject)
_PAUSE_RATIO = 10  # after a write, changes are collected for so many times as long as it took
# But not these: a node that is killed, and starts again while no server can be reached, accepts the tokens
# that it accepted before.
_SAVED_AT_ONCE = frozenset({TokenKey.kind, AuthorityBundle.kind})


class _StoredObject(msgspec.Struct, frozen=True):
    kind: str
    key: str
    value: msgspec.Raw


class NetworkState:
    """All objects, and reports."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        """`path` is the file that the state is kept in."""
        self._path = path
        self._clock = clock or SystemClock()
        self._is_in_session = False
        self._session_ended_at: float | None = None  # monotonic; None: there was none
        self._objects: dict[str, dict[str, NetworkObject]] = {}  # by kind and key
        self._subscribers: dict[str, list[Callable[[Mapping[str, NetworkObject]], None]]] = {}
        self._changed = asyncio.Event()  # since it was last written
        self._is_urgent = asyncio.Event()  # what changed is saved at once
        self._reports: dict[NetworkKey, NetworkObject] = {}
        self._unsent: dict[NetworkKey, None] = {}
        self._has_reports = asyncio.Event()
        self.is_current = False  # a server has sent all objects since this process started
        self._read()

    def all(self, kind: type[T]) -> dict[str, T]:
        """The objects of a kind by key. One that a server sends again as it was stays the same in memory, so
        that users see by identity what has changed."""
        return cast("dict[str, T]", dict(self._objects.get(kind.kind, {})))

    def subscribe(self, kind: type[T], changed: Callable[[Mapping[str, T]], None]) -> None:
        """Call `changed` with all objects of a kind, now and whenever one of them changes."""
        self._subscribers.setdefault(kind.kind, []).append(lambda _: changed(self.all(kind)))
        changed(self.all(kind))

    def apply(self, update: NetworkUpdate) -> None:
        """Take what a server sent."""
        before = self._objects
        after = {} if update.is_full else {kind: dict(objects) for kind, objects in before.items()}
        for each in update.objects:
            kind, key = each.network_key
            known = before.get(kind, {}).get(key)
            after.setdefault(kind, {})[key] = known if known == each and known is not None else each
        for kind, key in update.removed:
            after.get(kind, {}).pop(key, None)
        self._objects = after
        if update.is_full:
            self.is_current = True
            self._is_in_session = True
        kinds = {kind for kind in before.keys() | after.keys() if before.get(kind, {}) != after.get(kind, {})}
        if kinds:
            self._changed.set()
        if kinds & _SAVED_AT_ONCE:
            self._is_urgent.set()
        for kind in kinds:
            for subscriber in self._subscribers.get(kind, ()):
                subscriber({})

    def report(self, value: NetworkObject) -> None:
        """Send this to the server, now and with every session."""
        if self._reports.get(value.network_key) != value:
            self._reports[value.network_key] = value
            self._unsent[value.network_key] = None
            self._has_reports.set()

    @property
    def age_s(self) -> float:
        """For how long nothing could have been received: 0 in a session, infinite before the first."""
        if self._is_in_session:
            return 0.0
        if self._session_ended_at is None:
            return math.inf
        return self._clock.monotonic() - self._session_ended_at

    def end_session(self) -> None:
        """The server sends nothing more; without effect unless it had sent all objects."""
        if self._is_in_session:
            self._is_in_session = False
            self._session_ended_at = self._clock.monotonic()

    def begin_session(self) -> None:
        """Report everything again."""
        self._unsent = dict.fromkeys(self._reports)
        if self._unsent:
            self._has_reports.set()

    async def next_reports(self, most: int) -> tuple[NetworkObject, ...]:
        """What was not sent in this session, as soon as there is something."""
        await self._has_reports.wait()
        keys = list(self._unsent)[:most]
        for key in keys:
            del self._unsent[key]
        if not self._unsent:
            self._has_reports.clear()
        return tuple(self._reports[key] for key in keys)

    async def run(self) -> None:
        """Keep the file up to date, for ever, and when this is cancelled: the next process begins with it."""
        try:
            while True:
                await self._changed.wait()
                begin = self._clock.monotonic()
                await self.save()
                pause_s = _PAUSE_RATIO * (self._clock.monotonic() - begin)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_urgent.wait(), pause_s)
        finally:
            if self._changed.is_set():
                with contextlib.suppress(OSError):  # a server sends it again
                    self._write(self._encoded())

    async def save(self) -> None:
        """Write the file; durable on return."""
        self._changed.clear()
        self._is_urgent.clear()
        try:
            await in_thread(self._write, self._encoded())
        except OSError:
            self._changed.set()
            raise

    def _encoded(self) -> bytes:
        return json_codec.encode(
            [
                _StoredObject(kind, key, msgspec.Raw(network_kinds.encode(value)))
                for kind, objects in self._objects.items()
                for key, value in objects.items()
            ]
        )

    def _write(self, data: bytes) -> None:
        files.write_atomically(self._path, data, files.PRIVATE)

    def _read(self) -> None:
        try:
            stored = json_codec.decode(self._path.read_bytes(), list[_StoredObject])
            values = [network_kinds.decode(each.kind, each.key, bytes(each.value)) for each in stored]
        except FileNotFoundError:
            return
        except (json_codec.InvalidJson, errors.SkerryError) as error:  # a server sends it again
            log.warning("network.state_unreadable", file=str(self._path), error=str(error))
            return
        for each in values:
            if not isinstance(each, UnknownObject):
                self._objects.setdefault(each.kind, {})[each.key] = each
