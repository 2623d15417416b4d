"""Which route a request is for, as maps of HAProxy. Pure.

A map has keys such as `shop.example.org/api/`, and HAProxy looks up the longest that a request's host and
path begin with: first with the host itself, then with `*.example.org`, then with `*`. The value is a backend,
or, where routes differ by headers, a group: then rules of the frontend choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from skerry.model.routes import ANY_HOST, RouteObject

BACKEND_PREFIX = "r_"  # groups begin otherwise


class HeaderGroup(msgspec.Struct, frozen=True):
    """Routes of one host and path that differ by headers; the first that matches is meant."""

    name: str
    routes: tuple[RouteObject, ...]
    otherwise: str = ""  # the backend of requests that match none; empty: there is none


class RouteMatches(msgspec.Struct, frozen=True):
    """The map, and the groups in it."""

    entries: tuple[tuple[str, str], ...]
    groups: tuple[HeaderGroup, ...]

    def text(self) -> str:
        return "".join(f"{key} {value}\n" for key, value in self.entries)


def backend_name(route: RouteObject) -> str:
    return f"{BACKEND_PREFIX}{route.id}"


def match_routes(routes: Iterable[RouteObject]) -> RouteMatches:
    """The map of all routes."""
    places: dict[tuple[str, str], list[RouteObject]] = {}
    for route in sorted(routes, key=lambda one: one.id):
        places.setdefault((route.spec.host, route.spec.path), []).append(route)
    plain = {
        place: backend_name(one) for place, some in places.items() for one in some if not one.spec.headers
    }
    entries: list[tuple[str, str]] = []
    groups: list[HeaderGroup] = []
    for place, some in sorted(places.items()):
        with_headers = sorted(
            (one for one in some if one.spec.headers), key=lambda one: (-len(one.spec.headers), one.id)
        )
        value = plain.get(place, "")
        if with_headers:
            otherwise = value or _fallback(plain, *place)
            value = f"g_{with_headers[0].id}"
            groups.append(HeaderGroup(value, tuple(with_headers), otherwise))
        entries.append((map_key(*place), value))
    return RouteMatches(tuple(entries), tuple(groups))


def map_key(host: str, path: str) -> str:
    """As a request's host, path and a slash begin."""
    return f"{host}{path}" if path == "/" else f"{host}{path}/"


def _fallback(plain: dict[tuple[str, str], str], host: str, path: str) -> str:
    """The backend of a request that none of the routes with headers at this place matches."""
    for candidate in _hosts(host):
        for prefix in _prefixes(path):
            if found := plain.get((candidate, prefix)):
                return found
    return ""


def _hosts(host: str) -> Sequence[str]:
    """A host, and the wildcards that cover it."""
    if host == ANY_HOST:
        return (ANY_HOST,)
    if host.startswith("*."):
        return (host, ANY_HOST)
    return (host, f"*.{host.partition('.')[2]}", ANY_HOST)


def _prefixes(path: str) -> list[str]:
    """A path and all its shorter prefixes, the longest first."""
    parts = path.rstrip("/").split("/")
    return ["/".join(parts[:count]) or "/" for count in range(len(parts), 0, -1)]
