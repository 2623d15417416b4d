"""Which namespace may have a route where. Pure.

A host belongs to the namespace of its first route, and a wildcard such as `*.example.org` covers hosts of its
own namespace alone; only the default namespace may have wider ones. A refusal names routes of the caller's
own namespace, and says nothing of others.
"""

from __future__ import annotations

from collections.abc import Mapping

from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.routes import ANY_HOST, RoutePlace


def check_place(places: Mapping[str, RoutePlace], key: str, place: RoutePlace, namespace: Namespace) -> None:
    """Raise unless the route `key` of a namespace may be at `place`, beside the `places` of other routes of
    the domain, by their keys."""
    if is_for_everybody(place.host) and namespace != DEFAULT_NAMESPACE:
        raise errors.FailedPrecondition(
            f"only the namespace {DEFAULT_NAMESPACE!r} may have routes for all hosts, or all of a top-level "
            "domain; name a host"
        )
    for other_key, other in places.items():
        owner, _, name = other_key.partition("/")
        if other_key == key:
            continue
        if owner == namespace:
            if other == place:
                raise errors.AlreadyExists(
                    f"route {name!r} is at {place} already; change that, or choose another path or header"
                )
        elif overlaps(place.host, other.host):
            raise errors.AlreadyExists(f"the host {place.host} is not free; choose another")


def is_for_everybody(host: str) -> bool:
    """True for `*` and `*.org`, which may cover hosts of any namespace; routes of those come first."""
    return host == ANY_HOST or (host.startswith("*.") and "." not in host[2:])


def overlaps(host: str, other: str) -> bool:
    """True if requests for one host could be the other's; both are of one domain."""
    if host == other:
        return True
    for wildcard, exact in ((host, other), (other, host)):
        if wildcard.startswith("*.") and exact.partition(".")[2] == wildcard[2:]:
            return True
    return False
