"""From an HTTP request to the call of a web function: its key, and the head that the handler gets. Pure.

A function never gets what is of the connection to this server or of the cloud alone: tokens that this server
has checked, and headers by which proxies and this server talk. Who the client is says the connection, or on
the socket for routes the proxy, and nobody else.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final
from urllib.parse import unquote

from skerry.model import errors, ids
from skerry.model.callers import Caller
from skerry.model.function_names import SEPARATOR, function_key
from skerry.model.ids import FunctionName
from skerry.model.web_calls import WebRequestHead, end_to_end

PREFIX: Final = "/web/"
PUBLIC: Final = b"x-skerry-public"
_OWN: Final = "x-skerry-"
_FORWARDED_FOR: Final = b"x-forwarded-for"
_FORWARDED_PROTO: Final = b"x-forwarded-proto"
_FORWARDED_PREFIX: Final = b"x-forwarded-prefix"
_EXPECT: Final = frozenset({"expect"})  # this server has answered it
# What only a proxy that this server knows may say.
_OF_PROXIES: Final = frozenset(
    {
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-forwarded-proto",
        "x-real-ip",
    }
)
_UNKNOWN: Final = "there is no web function of this name"


class WebTarget:
    """The parts of a path `/web/KEY/REST`, as it was sent."""

    __slots__ = ("key", "path", "root_path")

    def __init__(self, raw_path: bytes) -> None:
        """Raises `NotFound` if it has no key."""
        text = raw_path.decode("latin-1")
        if not text.startswith(PREFIX):
            raise unknown_function()
        key, slash, rest = text.removeprefix(PREFIX).partition("/")
        self.key = unquote(key, errors="replace")
        self.path = slash + rest or "/"
        self.root_path = PREFIX + key
        if not self.key:
            raise unknown_function()


def unknown_function() -> errors.NotFound:
    """The same for whatever is no web function, and for those of others."""
    return errors.NotFound(_UNKNOWN)


def key_for(caller: Caller, named: str) -> FunctionName:
    """The key of the function that `caller` means: `NAME`, in the first namespace of a caller that is bound
    to some, or `NAMESPACE:NAME`. Raises `NotFound` outside of the caller's namespaces."""
    scope = caller.scope
    namespace, separator, name = named.partition(SEPARATOR)
    if not separator:
        return function_key(scope.default, named)
    return _checked_key(caller, namespace, name)


def exact_key(caller: Caller | None, named: str) -> FunctionName:
    """The key as a route has it: `NAME` is of the default namespace. Without a `caller` it is public."""
    namespace, separator, name = named.partition(SEPARATOR)
    if not separator:
        namespace, name = ids.DEFAULT_NAMESPACE, named
    return _checked_key(caller, namespace, name)


def _checked_key(caller: Caller | None, namespace: str, name: str) -> FunctionName:
    if caller is not None and not caller.scope.admits(namespace):
        raise unknown_function()
    return function_key(namespace, name)


def is_public(headers: dict[bytes, bytes]) -> bool:
    """Whether the proxy at the socket for routes says that its route is open to anybody."""
    return headers.get(PUBLIC) == b"1"


def forwarded_client(headers: dict[bytes, bytes]) -> str:
    """The address that the proxy at the socket for routes has seen: the last one; empty if it is none."""
    last = headers.get(_FORWARDED_FOR, b"").decode("latin-1").rpartition(",")[2].strip()
    try:
        return str(ipaddress.ip_address(last))
    except ValueError:
        return ""


def request_head(scope: Any, target: WebTarget, caller: Caller) -> WebRequestHead:
    """The request as the handler gets it, from a client that calls this server itself."""
    return WebRequestHead(
        scope["method"],
        target.path,
        scope["query_string"].decode("latin-1"),
        _headers(scope, without=_EXPECT | _OF_PROXIES | {"authorization"}),
        client=scope["client"][0] if scope["client"] else "",
        scheme=scope["scheme"],
        root_path=target.root_path,
        caller=caller.name,
    )


def routed_head(
    scope: Any, headers: dict[bytes, bytes], target: WebTarget, caller: Caller | None
) -> WebRequestHead:
    """The same from a client of the proxy; without a `caller` credentials are the function's to check."""
    prefix = headers.get(_FORWARDED_PREFIX, b"").decode("latin-1")
    return WebRequestHead(
        scope["method"],
        target.path,
        scope["query_string"].decode("latin-1"),
        _headers(scope, without=_EXPECT if caller is None else _EXPECT | {"authorization"}),
        client=forwarded_client(headers),
        scheme="https" if headers.get(_FORWARDED_PROTO) == b"https" else "http",
        root_path=prefix.rstrip("/") if prefix.startswith("/") else "",
        caller="" if caller is None else caller.name,
    )


def _headers(scope: Any, *, without: frozenset[str]) -> tuple[tuple[str, str], ...]:
    listed = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
    return tuple(
        (name, value) for name, value in end_to_end(listed, without=without) if not name.startswith(_OWN)
    )
