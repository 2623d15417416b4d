"""Server slots: the copies of a service in a backend of HAProxy. Pure.

A backend has more slots than copies, so that copies come and go by commands (`set server`), and open
connections notice nothing. A copy keeps its slot while it is there; a backend without a free slot gets twice
as many, which needs a new configuration.

Slots are given out in turn, so that the one that has just become free comes last: a request under way when a
slot changes hands leaves its connection to the copy of before among the idle ones, and HAProxy would send the
requests of the next copy there for as long as they keep it busy. In a slot without requests it closes them
after some seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from skerry.model.ids import NodeId
from skerry.model.network_objects import EndpointState, ServiceAddress
from skerry.model.ports import Protocol

_FEWEST = 8
_SPARE = 2  # free slots, so that the first copies of an update need no new configuration
DEFAULT_PORT = 80


class Copy(msgspec.Struct, frozen=True):
    """Where a copy takes requests."""

    instance: str
    address: str
    port: int
    state: EndpointState = EndpointState.READY

    @property
    def location(self) -> tuple[str, int]:
        return self.address, self.port


class Slots(msgspec.Struct, frozen=True):
    """The slots of one backend; None is a free one."""

    copies: tuple[Copy | None, ...] = (None,) * _FEWEST
    last: int = -1  # the number of the slot that was given out last

    @property
    def ready(self) -> int:
        return sum(1 for one in self.copies if one is not None and one.state is EndpointState.READY)


def copies_of(
    service: ServiceAddress | None, port: int, unreachable: frozenset[NodeId] = frozenset()
) -> list[Copy]:
    """The copies that take requests, or still have some; `port` is the route's, 0 if it names none. Those on
    `unreachable` nodes, to which no packet gets, take none while there are others."""
    if service is None:
        return []
    target = target_port(service, port)
    found = [one for one in service.endpoints if one.state is not EndpointState.NOT_READY and one.address]
    has_others = any(one.state is EndpointState.READY and one.node not in unreachable for one in found)
    away = unreachable if has_others else frozenset()
    return [
        Copy(one.instance, one.address, target, EndpointState.DRAINING if one.node in away else one.state)
        for one in found
    ]


def target_port(service: ServiceAddress, port: int) -> int:
    """The port of the copies: of the service's ports the one that the route names, else its first one."""
    ports = [one for one in service.ports if one.protocol is Protocol.TCP]
    if not port:
        return ports[0].target_port if ports else DEFAULT_PORT
    return next((one.target_port for one in ports if one.port == port), port)


def assign(before: Slots, copies: Sequence[Copy]) -> Slots:
    """The slots with exactly these copies."""
    by_instance = {one.instance: one for one in copies}
    slots = [None if one is None else by_instance.pop(one.instance, None) for one in before.copies]
    size = len(slots)
    while size < len(copies) + (_SPARE if len(copies) > size else 0):
        size *= 2
    slots.extend([None] * (size - len(slots)))
    last = before.last
    for copy in by_instance.values():
        last = next(at for turn in range(1, size + 1) if slots[at := (last + turn) % size] is None)
        slots[last] = copy
    return Slots(tuple(slots), last)


def commands(backend: str, before: Slots | None, after: Slots) -> Iterator[str]:
    """What tells a running HAProxy; without `before`, whatever it has now."""
    for number, copy in enumerate(after.copies):
        old = before.copies[number] if before is not None else None
        if before is not None and old == copy:
            continue
        server = f"{backend}/c{number + 1}"
        if copy is None:
            yield f"set server {server} state maint"
            continue
        if old is None or (old.address, old.port) != (copy.address, copy.port):
            if old is not None:
                yield f"set server {server} state maint"
            yield f"set server {server} addr {copy.address} port {copy.port}"
        state = "ready" if copy.state is EndpointState.READY else "drain"
        yield f"set server {server} state {state}"


def by_service(services: Mapping[str, ServiceAddress]) -> dict[tuple[str, str], ServiceAddress]:
    """Services by namespace and name."""
    return {(one.namespace, one.name): one for one in services.values()}
