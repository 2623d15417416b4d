"""Namespaces over HTTP: `?namespace=`, `namespace` in a body, and every route again below `/namespace/`.

A route under `/namespace/{namespace}` is the same endpoint with the namespace of the path in its query; there
is no second handler. Ids are unique in the cloud, names in their namespace: without a namespace, an id is
found in any, and a name in the default one. A request with a namespace gets nothing of another. A caller that
is bound to namespaces always arrives here with one of its own: `skerry.transport.access.namespaces`.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, ClassVar, TypeAlias, TypedDict

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from skerry.model import errors, ids
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.namespace_scope import MAX_NAMESPACES, ListedNamespaces, NamespaceScope
from skerry.transport.access.namespaces import EVERY, SEPARATOR
from skerry.transport.http.endpoints import Endpoint, RequestContext
from skerry.wire.rest_conventions import Cursor, Limit, Offset, page_size

PREFIX = "/namespace/{namespace}"

_InPath = Annotated[
    str,
    Meta(
        description="Lower-case letters, digits and `-`; begins with a letter",
        # For the description only: the model refuses what does not match, with its own message.
        extra_json_schema={
            "minLength": 1,
            "maxLength": ids.MAX_NAMESPACE,
            "pattern": f"^{ids.NAMESPACE_PATTERN}$",
        },
    ),
]


# Of a new token or certificate.
RequestedNamespaces: TypeAlias = Annotated[
    tuple[str, ...],
    Meta(
        max_length=MAX_NAMESPACES,
        description="Namespaces that it is bound to, the default one first; empty: the whole cloud",
    ),
]
BoundNamespaces: TypeAlias = Annotated[
    tuple[str, ...] | None, Meta(description="Namespaces that it is bound to; null: the whole cloud")
]


class NamespaceQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The namespace of an object."""

    namespace: Annotated[
        str,
        Meta(
            description="An object of another namespace is 404. Without it an id is found in any "
            f"namespace, and a name in `{DEFAULT_NAMESPACE}`"
        ),
    ] = ""


class NamespaceTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The namespace of a new object."""

    namespace: Annotated[str, Meta(description=f"Without it: `{DEFAULT_NAMESPACE}`")] = ""


class NamespaceFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The namespaces of a list."""

    lists_namespaces: ClassVar[bool] = True

    namespace: Annotated[
        str,
        Meta(
            description=f"Without it: `{DEFAULT_NAMESPACE}`; several with commas between; `{EVERY}`: all "
            "that the caller may see"
        ),
    ] = ""


class PageArguments(TypedDict):
    """Which part of a list, as arguments of a registry."""

    limit: int
    offset: int
    cursor: str | None
    namespace: ListedNamespaces


class PageQuery(NamespaceFilter, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which part of a list of objects with namespaces."""

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


def listed_namespace(spaces: NamespaceFilter) -> ListedNamespaces:
    """The namespaces of a list; None: all."""
    if spaces.namespace == EVERY:
        return None
    named = (spaces.namespace or DEFAULT_NAMESPACE).split(SEPARATOR)
    if len(named) == 1:
        return ids.check_namespace(named[0])
    return NamespaceScope(tuple(map(ids.check_namespace, named)))


def one_namespace(spaces: NamespaceFilter) -> Namespace | None:
    """The one namespace of a list that is about a single object, by its name; None: the default one."""
    listed = listed_namespace(spaces)
    if isinstance(listed, NamespaceScope):
        raise errors.Invalid("name one namespace, as names are of one", field="namespace")
    return listed


def target_namespace(query: NamespaceTarget, in_body: str | UnsetType) -> Namespace:
    """The namespace of a new object, which the body may name, too."""
    if in_body is UNSET:
        return ids.check_namespace(query.namespace or DEFAULT_NAMESPACE)
    _check_agrees(query.namespace, in_body, "body")
    return ids.check_namespace(in_body)


def check_namespace_unchanged(
    noun: str, scope: NamespaceQuery, in_body: str | UnsetType, present: Namespace
) -> None:
    """Raise if the body names another namespace than the object's."""
    if in_body is UNSET:
        return
    _check_agrees(scope.namespace, in_body, "body")
    if in_body != present:
        raise errors.Invalid(
            f"the namespace of {noun} cannot change; make another in {in_body[: ids.MAX_NAMESPACE]!r}",
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
    """The struct of a path, with the namespace added."""
    if path is None:
        return NamespacePath
    return msgspec.defstruct(
        f"{path.__name__}InNamespace", [("namespace", _InPath)], bases=(path,), frozen=True, module=__name__
    )


def _check_agrees(named: str, in_body: str, part: str) -> None:
    if named and in_body != named:
        raise errors.Unprocessable(
            f"the {part} says the namespace {in_body[: ids.MAX_NAMESPACE]!r}, and the address "
            f"{named[: ids.MAX_NAMESPACE]!r}; say the same, or say it once"
        )
