"""Namespaces over HTTP: `?namespace=`, `namespace` in a body, and every route once more in a namespace.

A route under `/namespace/{namespace}` is the same endpoint as without it, with what the path says laid into
its query; there is no second handler. Ids are the cloud's, names are a namespace's: what is asked for without
a namespace is found by its id wherever it is, and by its name in the default one. Who names a namespace gets
nothing of another.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import UNSET, Meta, UnsetType

from skerry.model import errors, ids
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.transport.http.endpoints import Endpoint, RequestContext
from skerry.wire.rest_conventions import Cursor, Limit, Offset, page_size

PREFIX = "/namespace/{namespace}"
EVERY = "*"

_InPath = Annotated[
    str,
    Meta(
        description="Lower-case letters, digits and `-`; begins with a letter",
        # Only told: what does not fit is refused in our own words.
        extra_json_schema={
            "minLength": 1,
            "maxLength": ids.MAX_NAMESPACE,
            "pattern": f"^{ids.NAMESPACE_PATTERN}$",
        },
    ),
]


class NamespaceQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where to look."""

    namespace: Annotated[
        str,
        Meta(
            description=f"What is meant is there, or is 404. Without it an id is found wherever it is, and "
            f"a name in `{DEFAULT_NAMESPACE}`"
        ),
    ] = ""


class NamespaceTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where to make something."""

    namespace: Annotated[str, Meta(description=f"Without it: `{DEFAULT_NAMESPACE}`")] = ""


class NamespaceFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of which namespace a list is."""

    namespace: Annotated[
        str, Meta(description=f"Without it: `{DEFAULT_NAMESPACE}`; `{EVERY}`: all there are")
    ] = ""


class PageArguments(TypedDict):
    """Which part of a list, as those take it who have the list."""

    limit: int
    offset: int
    cursor: str | None
    namespace: Namespace | None


class PageQuery(NamespaceFilter, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which part of a list of what is in namespaces."""

    limit: Limit = 100
    offset: Offset = 0
    cursor: Cursor = ""

    def arguments(self) -> PageArguments:
        return PageArguments(
            limit=page_size(self.limit),
            offset=self.offset,
            cursor=self.cursor or None,
            namespace=listed_namespace(self),
        )


class NamespacePath(msgspec.Struct, frozen=True):
    namespace: _InPath


def requested_namespace(scope: NamespaceQuery) -> Namespace | None:
    """The namespace that is named, if one is."""
    return ids.check_namespace(scope.namespace) if scope.namespace else None


def listed_namespace(spaces: NamespaceFilter) -> Namespace | None:
    """The namespace that a list is of; None: all."""
    if spaces.namespace == EVERY:
        return None
    return ids.check_namespace(spaces.namespace or DEFAULT_NAMESPACE)


def target_namespace(place: NamespaceTarget, told: str | UnsetType) -> Namespace:
    """The namespace to make something in, of which the body may tell, too."""
    if told is UNSET:
        return ids.check_namespace(place.namespace or DEFAULT_NAMESPACE)
    _check_agrees(place.namespace, told, "body")
    return ids.check_namespace(told)


def check_namespace_unchanged(
    noun: str, scope: NamespaceQuery, told: str | UnsetType, present: Namespace
) -> None:
    """Raise if the body tells of another namespace than that which something is in."""
    if told is UNSET:
        return
    _check_agrees(scope.namespace, told, "body")
    if told != present:
        raise errors.Invalid(
            f"the namespace of {noun} cannot change; make another in {told[: ids.MAX_NAMESPACE]!r}",
            field="namespace",
        )


def in_namespace(declared: Endpoint) -> Endpoint:
    """The same endpoint under `/namespace/{namespace}`."""

    @functools.wraps(declared.handle)
    async def handle(context: Any, call: RequestContext, *, path: Any, query: Any, **rest: Any) -> Any:
        namespace = ids.check_namespace(path.namespace)
        _check_agrees(namespace, query.namespace or namespace, "query")
        if "path" in declared.inputs:
            rest["path"] = path
        return await declared.handle(
            context, call, query=msgspec.structs.replace(query, namespace=namespace), **rest
        )

    return replace(
        declared,
        path=PREFIX + declared.path,
        summary=f"{declared.summary}, in a namespace",
        operation=f"{declared.operation}_in_namespace",
        handle=handle,
        inputs={**declared.inputs, "path": _path_within(declared.inputs.get("path"))},
        raises=tuple(dict.fromkeys([*declared.raises, errors.Unprocessable])),
    )


@functools.cache
def _path_within(path: type[msgspec.Struct] | None) -> type[msgspec.Struct]:
    """The struct of a path that has the namespace, too."""
    if path is None:
        return NamespacePath
    return msgspec.defstruct(
        f"{path.__name__}InNamespace", [("namespace", _InPath)], bases=(path,), frozen=True, module=__name__
    )


def _check_agrees(named: str, told: str, part: str) -> None:
    if named and told != named:
        raise errors.Unprocessable(
            f"the {part} says the namespace {told[: ids.MAX_NAMESPACE]!r}, and the address "
            f"{named[: ids.MAX_NAMESPACE]!r}; say the same, or say it once"
        )
