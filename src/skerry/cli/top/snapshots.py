"""Snapshots of a cloud: nodes, instances, services and functions, with their usage at one moment.

Read by a handful of cheap requests. Usage of instances is what their nodes last reported; calls of functions
are those of all members of the cloud, counted between two snapshots.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from skerry.cli import object_kinds
from skerry.cli.object_kinds import INSTANCE, NODE, SERVICE, ObjectKind
from skerry.client.api import ApiClient, JsonObject
from skerry.client.errors import ApiError

_FORBIDDEN: Final = (403, 404)


class FunctionCounters(NamedTuple):
    """Of one function in the whole cloud. Numbers only grow."""

    calls: float = 0.0
    failures: float = 0.0
    cold_starts: float = 0.0
    run_s: float = 0.0


class CallCounters(NamedTuple):
    """Counters by name of function, at the time of the server; members that it did not reach are missing."""

    at: float
    functions: Mapping[str, FunctionCounters]
    missing: tuple[str, ...] = ()


class FunctionUsage(NamedTuple):
    """Of one function, between two snapshots; None where there is only one."""

    name: str
    calls: int
    calls_per_s: float | None = None
    failures_per_s: float | None = None
    cold_per_s: float | None = None
    run_ms: float | None = None  # on average


class CloudSnapshot(NamedTuple):
    """A cloud at one moment; a part that the caller may not see is None."""

    at: float
    about: JsonObject
    nodes: list[JsonObject] | None
    instances: list[JsonObject]
    services: list[JsonObject]
    functions: list[FunctionUsage] | None
    counters: CallCounters | None


def read(server: ApiClient, namespace: str, before: CloudSnapshot | None) -> CloudSnapshot:
    """A snapshot now. Raises the errors of the client if the server does not answer."""
    about = server.get("about")
    nodes = _allowed(server, NODE)
    instances = _allowed(server, INSTANCE, namespace=namespace) or []
    services = _allowed(server, SERVICE, namespace=namespace) or []
    counters = _counters(server)
    at = time.time()
    functions = None
    if before is not None and counters == before.counters:
        functions = before.functions  # a reading that the server has shared
    elif counters is not None:
        functions = usage(counters, None if before is None else before.counters)
    return CloudSnapshot(at, about, nodes, instances, services, functions, counters)


def _allowed(server: ApiClient, kind: ObjectKind, **filters: str) -> list[JsonObject] | None:
    try:
        return object_kinds.everything(server, kind, **filters)
    except ApiError as error:
        if error.status not in _FORBIDDEN:
            raise
        return None


def _counters(server: ApiClient) -> CallCounters | None:
    try:
        return parse_counters(server.get("function-calls"))
    except ApiError as error:
        if error.status not in _FORBIDDEN:
            raise
        return None


def parse_counters(document: JsonObject) -> CallCounters:
    """The counters of a server's document."""
    functions = {
        f"{one['Namespace']}:{one['Name']}": FunctionCounters(
            one["Calls"], one["Failed"], one["ColdStarts"], one["RunSeconds"]
        )
        for one in document["Functions"]
    }
    return CallCounters(document["Time"], functions, tuple(document["Missing"]))


def usage(now: CallCounters, before: CallCounters | None) -> list[FunctionUsage]:
    """What happened between two readings of counters."""
    elapsed_s = 0.0 if before is None else now.at - before.at
    earlier = {} if before is None else before.functions
    return [
        _usage(name, after, earlier.get(name, FunctionCounters()), elapsed_s)
        for name, after in now.functions.items()
    ]


def _usage(name: str, after: FunctionCounters, before: FunctionCounters, elapsed_s: float) -> FunctionUsage:
    calls = after.calls - before.calls
    if elapsed_s <= 0 or calls < 0:  # the first reading, or another server answered
        return FunctionUsage(name, int(after.calls))
    return FunctionUsage(
        name,
        int(after.calls),
        calls / elapsed_s,
        (after.failures - before.failures) / elapsed_s,
        (after.cold_starts - before.cold_starts) / elapsed_s,
        (after.run_s - before.run_s) / calls * 1000 if calls else None,
    )


def details(server: ApiClient, kind: str, id: str, namespace: str | None) -> Any:
    """One object as the server has it, with its newest events."""
    if kind == "function":
        return {"object": server.get("function", id, namespace=namespace), "events": []}
    one = server.get(kind, id, namespace=None if kind == "node" else namespace)
    events = []
    if kind != "node":
        events = server.get(kind, id, "events", limit="20", namespace=namespace)["events"]
    return {"object": one, "events": events}
