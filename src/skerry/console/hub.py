"""The change hub: says to open pages which of their topics have changed, at most once a second.

The daemon connects it to the tables that pages read (`skerry.daemon.console`). A message names topics and
holds no data: the page fetches again what shows them, with its caller's own access.

A page names the position at which it was read, so it misses nothing that changed before its stream was open.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import AsyncGenerator, Callable, Collection, Iterable

from skerry.kit import ulid
from skerry.kit.clock import Clock
from skerry.model.namespace_scope import NamespaceScope
from skerry.transport.http import sse

_INTERVAL_S = 1.0
_FIRST_S = 0.05  # changes come in groups, so the first waits a little for the others
_MAX_TIMES = 10_000  # times of changes that are remembered, by topic and namespace


class Topic(enum.StrEnum):
    """What a page shows, as far as it changes by itself."""

    NODES = "nodes"
    INSTANCES = "instances"
    WORKLOADS = "workloads"
    SERVICES = "services"
    FUNCTIONS = "functions"
    CALLS = "calls"  # of functions, on this server
    JOBS = "jobs"
    SCHEDULES = "schedules"
    IDENTITY = "identity"  # tokens and certificates
    MARKET = "market"
    EVENTS = "events"
    VOLUMES = "volumes"
    SECRETS = "secrets"
    ROUTES = "routes"
    MESH = "mesh"


_WITHOUT_EVENTS = frozenset((Topic.CALLS, Topic.MESH))  # all other changes have their events


class _Subscription:
    """An open page: its topics, its caller's namespaces, and what has changed since the last message."""

    __slots__ = ("changed", "scope", "topics", "waiting")

    def __init__(self, topics: frozenset[Topic], scope: NamespaceScope) -> None:
        self.topics = topics
        self.scope = scope
        self.changed: set[Topic] = set()
        self.waiting = asyncio.Event()

    def add(self, changed: Iterable[tuple[Topic, str | None]]) -> None:
        """What this page shows of it is sent with the next message."""
        for topic, namespace in changed:
            if topic in self.topics and self.scope.admits(namespace):
                self.changed.add(topic)
        if self.changed:
            self.waiting.set()


class ChangeHub:
    """Collects changes, and delivers them to the pages that are open."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._id = ulid.new_id(clock.now())  # positions of another hub mean nothing here
        self._known_since = clock.monotonic()  # what changed before is not known any more
        self._times: dict[tuple[Topic, str | None], float] = {}  # of the last change
        self._subscriptions: set[_Subscription] = set()
        self._changed: set[tuple[Topic, str | None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._delivered_at = -_INTERVAL_S
        self.changes = 0  # so many were notified

    def position(self, at_s: float) -> str:
        """The state that is read from `at_s` on, a monotonic time, for `stream`."""
        return f"{self._id}-{at_s:.6f}"

    def notify(self, topic: Topic, namespace: str | None = None) -> None:
        """Something of `topic` has changed, in a namespace if it is of one."""
        self.changes += 1
        now = self._clock.monotonic()
        # All other changes have their events.
        for changed in (topic,) if topic in _WITHOUT_EVENTS else (topic, Topic.EVENTS):
            self._times[changed, namespace] = now
            if self._subscriptions:
                self._changed.add((changed, namespace))
        if len(self._times) > _MAX_TIMES:
            self._times.clear()
            self._known_since = now
        if self._changed and self._timer is None:
            wait_s = max(_FIRST_S, self._delivered_at + _INTERVAL_S - now)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._deliver)

    def notifier(self, topic: Topic) -> Callable[..., None]:
        """A callback for sources that say nothing but that they have changed."""
        return lambda *_, **__: self.notify(topic)

    async def stream(
        self, topics: Collection[Topic], scope: NamespaceScope, since: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events, one for each topic that has changed since the position `since`; their ids are
        positions. Of an unknown position, everything has changed; without one, nothing has."""
        subscription = _Subscription(frozenset(topics), scope)
        self._subscriptions.add(subscription)
        position = self.position(self._clock.monotonic())
        if since:
            self._add_missed(subscription, since)
        try:
            yield b"retry: 2000\nid: " + position.encode() + b"\n\n"
            while True:
                await subscription.waiting.wait()
                subscription.waiting.clear()
                changed, subscription.changed = subscription.changed, set()
                position = self.position(max(self._delivered_at, self._known_since))
                yield b"".join(
                    sse.frame(b"changed", event=topic, event_id=position) for topic in sorted(changed)
                )
        finally:
            self._subscriptions.discard(subscription)

    def _add_missed(self, subscription: _Subscription, since: str) -> None:
        hub, _, at = since.partition("-")
        try:
            at_s = float(at)
        except ValueError:
            at_s = math.nan
        if hub == self._id and at_s >= self._known_since:
            subscription.add(changed for changed, changed_at in self._times.items() if changed_at >= at_s)
        else:
            subscription.changed.update(subscription.topics)
            subscription.waiting.set()

    def _deliver(self) -> None:
        self._timer = None
        self._delivered_at = self._clock.monotonic()
        changed, self._changed = self._changed, set()
        for subscription in self._subscriptions:
            subscription.add(changed)
