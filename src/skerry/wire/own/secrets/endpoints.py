"""`/secret/`, `/config/` and `/registry/`: values with a name in a namespace.

The value of a secret or of a login is in no response. Translation only: `skerry.control.secrets` seals and
delivers them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.kit.tasks import map_in_turns
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.secrets import Secret, SecretKind
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import namespaces, rest_conventions
from skerry.wire.namespaces import NamespaceQuery, NamespaceTarget, PageQuery
from skerry.wire.own.secrets import documents
from skerry.wire.own.secrets.context import SecretContext
from skerry.wire.own.secrets.documents import (
    MAX_BODY,
    ConfigData,
    ConfigList,
    LoginDocument,
    LoginInput,
    LoginList,
    RotateInput,
    RotationDocument,
    SecretDetails,
    SecretDocument,
    SecretList,
    ValueInput,
)

_SET_ERRORS = (
    errors.Invalid,
    errors.Unprocessable,
    errors.TooLarge,
    errors.FailedPrecondition,
    errors.Unavailable,
)
_DELETE_ERRORS = (errors.Invalid, errors.NotFound, errors.Conflict, errors.Unavailable)
_SAME = {200: "It has this value already; there is no new version."}


class SecretPath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]


class RegistryPath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128, description="`docker.io`, `example.org:5000`")]


@endpoint("GET", "/secret/", summary="List secrets", raises=(errors.Invalid, errors.Unprocessable))
async def list_secrets(context: SecretContext, call: RequestContext, query: PageQuery) -> SecretList:
    """Names and versions; values are never shown."""
    page = context.secrets.list(SecretKind.SECRET, **query.arguments())
    items = await map_in_turns(documents.secret_document, page.items)
    return SecretList(page.total, items, page.cursor)


@endpoint("GET", "/secret/{name}", summary="Show a secret", raises=(errors.Invalid, errors.NotFound))
async def show_secret(
    context: SecretContext, call: RequestContext, path: SecretPath, query: NamespaceQuery
) -> SecretDetails:
    """Its versions, and what uses it; its value is never shown."""
    return await _details(context, SecretKind.SECRET, path.name, query)


@endpoint(
    "PUT",
    "/secret/{name}",
    summary="Set a secret",
    status=201,
    extra_statuses=_SAME,
    raises=_SET_ERRORS,
    max_body_bytes=MAX_BODY,
)
async def set_secret(
    context: SecretContext, call: RequestContext, path: SecretPath, query: NamespaceTarget, body: ValueInput
) -> SecretDocument | Response:
    """A new version, which its users follow."""
    return await _set(context, call, SecretKind.SECRET, path.name, query, body)


@endpoint("DELETE", "/secret/{name}", summary="Delete a secret", raises=_DELETE_ERRORS)
async def delete_secret(
    context: SecretContext, call: RequestContext, path: SecretPath, query: NamespaceQuery
) -> SecretDocument:
    """With all its versions; refused while something uses it."""
    return documents.secret_document(await _delete(context, call, SecretKind.SECRET, path.name, query))


@endpoint("GET", "/config/", summary="List configs", raises=(errors.Invalid, errors.Unprocessable))
async def list_configs(context: SecretContext, call: RequestContext, query: PageQuery) -> ConfigList:
    """Names and versions."""
    page = context.secrets.list(SecretKind.CONFIG, **query.arguments())
    items = await map_in_turns(documents.secret_document, page.items)
    return ConfigList(page.total, items, page.cursor)


@endpoint("GET", "/config/{name}", summary="Show a config", raises=(errors.Invalid, errors.NotFound))
async def show_config(
    context: SecretContext, call: RequestContext, path: SecretPath, query: NamespaceQuery
) -> SecretDetails:
    """Its versions, and what uses it."""
    return await _details(context, SecretKind.CONFIG, path.name, query)


class ConfigQuery(NamespaceQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which version."""

    version: Annotated[int, Meta(ge=0, le=2**31 - 1, description="0: the newest")] = 0


@endpoint(
    "GET",
    "/config/{name}/data",
    summary="Read a config",
    raises=(errors.Invalid, errors.NotFound, errors.FailedPrecondition, errors.Unavailable),
)
async def read_config(
    context: SecretContext, call: RequestContext, path: SecretPath, query: ConfigQuery
) -> ConfigData:
    """The file itself: a config is no secret."""
    config = await context.secrets.find(SecretKind.CONFIG, path.name, namespaces.requested_namespace(query))
    ref = config.ref(query.version or None)
    if ref.version not in {version.number for version in config.versions}:
        raise errors.NotFound(
            f"config {config.name} has no version {ref.version}; `skerry config versions {config.name}` "
            "lists those that are stored"
        )
    return ConfigData(config.name, config.namespace, ref.version, await context.secrets.value(ref))


@endpoint(
    "PUT",
    "/config/{name}",
    summary="Set a config",
    status=201,
    extra_statuses=_SAME,
    raises=_SET_ERRORS,
    max_body_bytes=MAX_BODY,
)
async def set_config(
    context: SecretContext, call: RequestContext, path: SecretPath, query: NamespaceTarget, body: ValueInput
) -> SecretDocument | Response:
    """A new version, which its users follow."""
    return await _set(context, call, SecretKind.CONFIG, path.name, query, body)


@endpoint("DELETE", "/config/{name}", summary="Delete a config", raises=_DELETE_ERRORS)
async def delete_config(
    context: SecretContext, call: RequestContext, path: SecretPath, query: NamespaceQuery
) -> SecretDocument:
    """With all its versions; refused while something uses it."""
    return documents.secret_document(await _delete(context, call, SecretKind.CONFIG, path.name, query))


@endpoint(
    "GET", "/registry/", summary="List logins of registries", raises=(errors.Invalid, errors.Unprocessable)
)
async def list_registries(context: SecretContext, call: RequestContext, query: PageQuery) -> LoginList:
    """Without their passwords."""
    page = context.secrets.list(SecretKind.REGISTRY, **query.arguments())
    items = await map_in_turns(documents.login_document, page.items)
    return LoginList(page.total, items, page.cursor)


@endpoint(
    "PUT",
    "/registry/{name}",
    summary="Set the login for a registry",
    status=201,
    extra_statuses=_SAME,
    raises=_SET_ERRORS,
)
async def set_registry(
    context: SecretContext, call: RequestContext, path: RegistryPath, query: NamespaceTarget, body: LoginInput
) -> LoginDocument | Response:
    """Used for images of this namespace alone, on every node, from the next pull on."""
    namespace = namespaces.target_namespace(query, body.namespace)
    login, is_new = await context.secrets.set_login(
        path.name.lower(), body.login(), actor=call.caller.name, namespace=namespace
    )
    return rest_conventions.respond(documents.login_document(login), 201 if is_new else 200)


@endpoint("DELETE", "/registry/{name}", summary="Delete the login for a registry", raises=_DELETE_ERRORS)
async def delete_registry(
    context: SecretContext, call: RequestContext, path: RegistryPath, query: NamespaceQuery
) -> LoginDocument:
    """Images that were pulled with it stay with what runs from them; new pulls have no login."""
    name = path.name.lower()
    return documents.login_document(await _delete(context, call, SecretKind.REGISTRY, name, query))


@endpoint(
    "POST",
    "/secret-key/rotate",
    summary="Rotate the key that seals secrets",
    raises=(errors.FailedPrecondition, errors.Unavailable),
)
async def rotate_key(context: SecretContext, call: RequestContext, body: RotateInput) -> RotationDocument:
    """Every value is sealed anew under a new key on return. A rotation that is interrupted goes on at the
    next start of the server."""
    discarded = 0
    if body.discard_lost:
        if context.other_servers():
            raise errors.FailedPrecondition(
                "other servers share this store, and may have the keys: copy pki/secrets.key of one of them "
                "to this server, or stop them first"
            )
        discarded = await context.rotation.discard_lost(actor=call.caller.name)
    if body.prepare:
        report = await context.rotation.prepare(actor=call.caller.name)
    else:
        others = context.other_servers()
        if others and not body.is_copied:
            raise errors.FailedPrecondition(
                f"{others} other servers share this store and would not have the new key: make it with "
                "--prepare, copy pki/secrets.key of this server to theirs, and rotate with --copied"
            )
        report = await context.rotation.rotate(actor=call.caller.name)
    return RotationDocument(report.key, report.sealed, report.is_prepared, discarded)


async def _details(
    context: SecretContext, kind: SecretKind, name: str, query: NamespaceQuery
) -> SecretDetails:
    secret = await context.secrets.find(kind, name, namespaces.requested_namespace(query))
    return documents.secret_details(secret, context.secrets.users(secret))


async def _set(
    context: SecretContext,
    call: RequestContext,
    kind: SecretKind,
    name: str,
    query: NamespaceTarget,
    body: ValueInput,
) -> Response:
    namespace = namespaces.target_namespace(query, body.namespace)
    secret, is_new = await context.secrets.set(
        kind, name, body.value(), actor=call.caller.name, namespace=namespace
    )
    return rest_conventions.respond(documents.secret_document(secret), 201 if is_new else 200)


async def _delete(
    context: SecretContext, call: RequestContext, kind: SecretKind, name: str, query: NamespaceQuery
) -> Secret:
    return await context.secrets.delete(kind, name, actor=call.caller.name, namespace=_namespace_of(query))


def _namespace_of(query: NamespaceQuery) -> Namespace:
    return namespaces.requested_namespace(query) or DEFAULT_NAMESPACE
