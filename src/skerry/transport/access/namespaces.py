"""Namespaces of requests: what a caller that is bound to namespaces names, and what it gets without a name.

`skerry.transport.http.runner` and `skerry.transport.grpc.dispatcher` call this before a handler runs, for
every row of `skerry.transport.access.rules` with the scope NAMESPACED, so no handler can forget it. After
that the request of a bound caller has a namespace, and only ones of its scope. Nothing here looks at objects:
the answer for a namespace of others is the same whether that exists or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import Namespace
from skerry.model.namespace_scope import NamespaceScope

EVERY = "*"  # in `?namespace=` of a list: all that the caller may see
SEPARATOR = ","  # between several
METADATA = "skerry-namespace"  # of a gRPC call

_FIELD = "namespace"


def is_enforceable(inputs: Mapping[str, type[msgspec.Struct]]) -> bool:
    """Whether an endpoint with these inputs has its namespace where `confine` finds it."""
    return any(_FIELD in inputs[part].__struct_fields__ for part in ("path", "query") if part in inputs)


def confine(scope: NamespaceScope, inputs: dict[str, Any]) -> None:
    """Replace the namespace in the query of a bound caller's request by what the caller may see.

    Raises `NotFound` for a namespace in the path, the query or the body that is not of `scope`.
    """
    path, query, body = inputs.get("path"), inputs.get("query"), inputs.get("body")
    if isinstance(query, errors.SkerryError):
        raise query
    in_path, in_query, in_body = (_named(part) for part in (path, query, body))
    for one in filter(None, (in_path, in_body)):
        scope.check(one)
    if query is None or not hasattr(query, _FIELD):
        return
    if in_query and getattr(query, "lists_namespaces", False):
        allowed = scope.namespaces or ()
        named = allowed if in_query == EVERY else tuple(map(scope.check, in_query.split(SEPARATOR)))
        resolved = SEPARATOR.join(named) or scope.default
    else:
        resolved = scope.check(in_query or in_path or in_body or scope.default)
    inputs["query"] = msgspec.structs.replace(query, namespace=resolved)


def grpc_namespace(scope: NamespaceScope, named: Sequence[object]) -> Namespace | None:
    """The namespace of a call with these values of the metadata `skerry-namespace`.

    None is that of an unbound caller that names none.
    """
    if len(named) > 1:
        raise errors.Invalid(f"the metadata {METADATA} is given more than once; name one namespace")
    if not named:
        return scope.default if scope.is_bound else None
    text = named[0]
    assert isinstance(text, str), "values of metadata without -bin are text"
    return scope.check(text) if scope.is_bound else ids.check_namespace(text)


def _named(part: Any) -> str:
    """The namespace that a part of a request names, empty if it names none."""
    named = getattr(part, _FIELD, "")
    return named if isinstance(named, str) else ""
