"""The change hub: says to open pages which of their topics have changed, at most once a second.

The daemon connects it to the tables that pages read (`skerry.daemon.console`). A message names topics and
holds no data: the page fetches again what shows them, with its caller's own access. Nothing is collected
while no page is open.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Callable, Collection

from skerry.model.namespace_scope import NamespaceScope
from skerry.transport.http import sse

_INTERVAL_S = 1.0
_FIRST_S = 0.05  # changes come in groups, so the first waits a little for the others
_GREETING = b"retry: 2000\n: watching\n\n"


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


class ChangeHub:
    """Collects changes, and delivers them to the pages that are open."""

    def __init__(self) -> None:
        self._subscriptions: set[_Subscription] = set()
        self._changed: set[tuple[Topic, str | None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._delivered_at = 0.0
        self.changes = 0  # so many were notified while a page was open

    @property
    def is_idle(self) -> bool:
        """True if no page is open."""
        return not self._subscriptions

    def notify(self, topic: Topic, namespace: str | None = None) -> None:
        """Something of `topic` has changed, in a namespace if it is of one."""
        if not self._subscriptions:
            return
        self.changes += 1
        self._changed.add((topic, namespace))
        if topic not in _WITHOUT_EVENTS:
            self._changed.add((Topic.EVENTS, namespace))
        if self._timer is None:
            loop = asyncio.get_running_loop()
            wait_s = max(_FIRST_S, self._delivered_at + _INTERVAL_S - loop.time())
            self._timer = loop.call_later(wait_s, self._deliver, loop)

    def notifier(self, topic: Topic) -> Callable[..., None]:
        """A callback for sources that say nothing but that they have changed."""
        return lambda *_, **__: self.notify(topic)

    async def stream(self, topics: Collection[Topic], scope: NamespaceScope) -> AsyncGenerator[bytes, None]:
        """Server-sent events, one for each topic that has changed."""
        subscription = _Subscription(frozenset(topics), scope)
        self._subscriptions.add(subscription)
        try:
            yield _GREETING
            while True:
                await subscription.waiting.wait()
                subscription.waiting.clear()
                changed, subscription.changed = subscription.changed, set()
                yield b"".join(sse.frame(b"changed", event=topic) for topic in sorted(changed))
        finally:
            self._subscriptions.discard(subscription)

    def _deliver(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._delivered_at = loop.time()
        changed, self._changed = self._changed, set()
        for subscription in self._subscriptions:
            own = {
                topic
                for topic, namespace in changed
                if topic in subscription.topics and subscription.scope.admits(namespace)
            }
            if own:
                subscription.changed |= own
                subscription.waiting.set()
