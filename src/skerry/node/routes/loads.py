"""How many requests each service has under way by routes, from two counts of HAProxy. Pure.

A count of what is under way at one moment misses short requests: where some began since the last count, the
load is above 0, so that a service that is used is never taken for idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from skerry.node.routes.runtime_api import BackendCounts

LITTLE = 0.01  # requests, all of which were short


def service_loads(
    services: Mapping[str, str], before: Mapping[str, int], counts: Iterable[BackendCounts]
) -> dict[str, float]:
    """The load of each service; `services` are by backend, and `before` are the totals of backends at the
    count before."""
    loads: dict[str, float] = dict.fromkeys(services.values(), 0.0)
    for one in counts:
        if (service := services.get(one.name)) is None:
            continue
        loads[service] += one.current
        if not loads[service] and one.total > before.get(one.name, 0):
            loads[service] = LITTLE
    return loads


def totals(counts: Iterable[BackendCounts]) -> dict[str, int]:
    """Requests of each backend since its process began."""
    found: dict[str, int] = {}
    for one in counts:
        found[one.name] = found.get(one.name, 0) + one.total
    return found
