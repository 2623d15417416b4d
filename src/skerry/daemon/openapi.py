"""The OpenAPI 3.1 document, made from the endpoints' declarations and the access table.

Served at `/openapi.json` and kept in `docs/openapi.json`. Only the text at the top is written by hand, so the
rest always matches what is served.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import msgspec

from skerry import __version__
from skerry.kit import json_codec
from skerry.model import errors
from skerry.transport import error_codes
from skerry.transport.access import rules
from skerry.transport.http import responses as http_responses
from skerry.transport.http.endpoints import Endpoint, RawBody, StreamResponse, WebSocketResponse
from skerry.transport.http.responses import Problem
from skerry.wire.kudo import routes as kudo_routes
from skerry.wire.own import backups
from skerry.wire.own import routes as own_routes
from skerry.wire.own.alerts import endpoints as alert_endpoints
from skerry.wire.own.http_routes import routes as http_route_routes
from skerry.wire.own.jobs import routes as job_routes
from skerry.wire.own.market import routes as market_routes
from skerry.wire.own.mesh import endpoints as mesh_endpoints
from skerry.wire.own.namespaces import endpoints as namespace_endpoints
from skerry.wire.own.secrets import routes as secret_routes
from skerry.wire.own.services import routes as service_routes
from skerry.wire.own.snapshots import routes as snapshot_routes
from skerry.wire.own.telemetry import endpoints as telemetry_endpoints
from skerry.wire.own.tls import routes as tls_routes
from skerry.wire.own.volumes import routes as volume_routes
from skerry.wire.own.web_functions import endpoints as web_function_endpoints
from skerry.wire.rear import routes as rear_routes
from skerry.wire.serverledge import routes as serverledge_routes

_DESCRIPTION = """\
Skerry's own routes. Errors have one shape (`Problem`), with a `code` for programs and a sentence for \
people. Every answer carries `X-Request-Id`; send your own to find the request in the log. Paths are the \
same with and without a slash at the end. On loopback the user who runs Skerry, and root, need no token: \
the kernel identifies the caller."""

_NO_CONTENT = 204
_SECURITY_SCHEMES = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "An access token of `skerry token create`.",
    },
    "certificate": {"type": "mutualTLS", "description": "A certificate of this cloud's own CA."},
    "proof": {
        "type": "http",
        "scheme": "skerry-proof",
        "description": "A signature of the request by a buyer's key, made for each request.",
    },
}
# What operation ids begin with is the name of the handler's module, or the name that it had when the ids were
# published: generated clients call their methods by them.
_GROUPS: Final = {
    "skerry.wire.own.join": "joining",
    "skerry.wire.kudo.rest_logs_exec": "rest_tunnels",
    "skerry.wire.kudo.rest_diagnostics": "rest_reasons",
    "skerry.wire.serverledge.invocations": "calls",
    "skerry.wire.rear.flavors": "offers",
    "skerry.wire.rear.reservations": "deals",
    "skerry.wire.rear.contract_tunnels": "doors",
    "skerry.wire.rear.subscriptions": "subscribing",
    "skerry.wire.rear.routes_v1": "rest_v1",
    "skerry.wire.rear.routes_v2": "rest_v2",
    "skerry.wire.own.market.quotes": "buying",
    "skerry.wire.own.market.borrowed_contracts": "borrowed",
    "skerry.wire.own.market.offers": "selling",
    "skerry.wire.own.market.sold_contracts": "sold",
    "skerry.wire.own.services.endpoints": "services",
    "skerry.wire.own.jobs.job_endpoints": "jobs",
    "skerry.wire.own.jobs.schedule_endpoints": "schedules",
    "skerry.wire.own.namespaces.endpoints": "namespaces",
    "skerry.wire.own.secrets.endpoints": "secrets",
    "skerry.wire.own.tls.endpoints": "tls",
    "skerry.wire.own.volumes.endpoints": "volumes",
    "skerry.wire.own.snapshots.endpoints": "snapshots",
    "skerry.wire.own.web_functions.endpoints": "web_functions",
    "skerry.wire.own.mesh.endpoints": "mesh",
    "skerry.wire.own.telemetry.endpoints": "metrics",
    "skerry.wire.own.alerts.endpoints": "alerts",
    "skerry.wire.own.http_routes.endpoints": "routes",
}
_SECURED: list[dict[str, list[str]]] = [{"token": []}, {"certificate": []}]
_SIGNED: dict[str, list[str]] = {"proof": []}


def openapi_document() -> dict[str, Any]:
    """The document for everything that this version serves."""
    return describe(
        [
            *own_routes.ENDPOINTS,
            *namespace_endpoints.ENDPOINTS,
            *kudo_routes.ENDPOINTS,
            *service_routes.ENDPOINTS,
            *job_routes.ENDPOINTS,
            *secret_routes.ENDPOINTS,
            *tls_routes.ENDPOINTS,
            *volume_routes.ENDPOINTS,
            *snapshot_routes.ENDPOINTS,
            *backups.ENDPOINTS,
            *mesh_endpoints.ENDPOINTS,
            *telemetry_endpoints.ENDPOINTS,
            *alert_endpoints.ENDPOINTS,
            *http_route_routes.ENDPOINTS,
            *serverledge_routes.ENDPOINTS,
            *web_function_endpoints.ENDPOINTS,
            *rear_routes.ENDPOINTS,
            *market_routes.ENDPOINTS,
        ]
    )


@cache
def openapi_bytes() -> bytes:
    """The document as bytes. Generated at the first request: it takes a tenth as long as a start."""
    return json_codec.encode(openapi_document())


def describe(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    listed = list(endpoints)
    structs: dict[type, None] = {Problem: None}
    for endpoint in listed:
        structs.update(dict.fromkeys(endpoint.inputs.values()))
        if _is_described(endpoint.reply):
            structs[endpoint.reply] = None
        structs.update(
            dict.fromkeys(
                (
                    *endpoint.other_media.values(),
                    *endpoint.alternatives,
                    endpoint.problem,
                    *endpoint.other_problems.values(),
                )
            )
        )
    schemas, components = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(structs, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in listed:
        operation = _operation(endpoint, schema_of, components)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    parameters = {
        schema_of[kind]["$ref"].rpartition("/")[2]
        for endpoint in listed
        for part, kind in endpoint.inputs.items()
        if part != "body"
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Skerry",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {name: value for name, value in components.items() if name not in parameters},
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }


def _is_described(reply: Any) -> bool:
    return reply not in (type(None), RawBody, StreamResponse, WebSocketResponse)


def _group(module: str) -> str:
    return _GROUPS.get(module) or module.rpartition(".")[2]


def _operation(endpoint: Endpoint, schema_of: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    row = rules.HTTP_RULES[endpoint.name]
    operation: dict[str, Any] = {
        "operationId": f"{_group(endpoint.handle.__module__)}.{endpoint.operation}",
        "summary": endpoint.summary,
        "description": endpoint.description,
        "security": [] if row.anybody else [*_SECURED, *([_SIGNED] if row.buyers else [])],
        "x-skerry-roles": ["anybody"] if row.anybody else sorted(row.roles),
    }
    parameters = [
        parameter
        for part in ("path", "query")
        if part in endpoint.inputs
        for parameter in _parameters(part, _resolved(schema_of[endpoint.inputs[part]], components))
    ]
    parameters += [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in endpoint.headers.items()
    ]
    if parameters:
        operation["parameters"] = parameters
    if "body" in endpoint.inputs:
        operation["requestBody"] = {
            "required": not endpoint.may_lack_body,
            "content": {http_responses.JSON: {"schema": schema_of[endpoint.inputs["body"]]}},
        }
    operation["responses"] = _responses(endpoint, schema_of)
    return operation


def _parameters(part: str, schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name, value in schema["properties"].items():
        described = dict(value)
        parameter = {"name": name, "in": part, "required": part == "path" or name in schema["required"]}
        if "description" in described:
            parameter["description"] = described.pop("description")
        found.append({**parameter, "schema": described})
    return found


def _responses(endpoint: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    usual: dict[str, Any] = {"description": "Done."}
    if endpoint.reply is StreamResponse:
        usual["content"] = {endpoint.media: {}}  # OpenAPI 3.1 cannot describe streams
    elif endpoint.reply is RawBody:
        shape = "object" if endpoint.media == http_responses.JSON else "string"
        usual["content"] = {endpoint.media: {"schema": {"type": shape}}}
    elif _is_described(endpoint.reply):
        shapes = [schema_of[reply] for reply in (endpoint.reply, *endpoint.alternatives)]
        usual["content"] = {endpoint.media: {"schema": {"anyOf": shapes} if len(shapes) > 1 else shapes[0]}}
    for media, shape in endpoint.other_media.items():
        usual["content"][media] = {"schema": schema_of[shape]}
    responses = {str(endpoint.status): usual}
    for status, text in endpoint.extra_statuses.items():
        responses[str(status)] = {**({} if status == _NO_CONTENT else usual), "description": text}
    problem = {http_responses.JSON: {"schema": schema_of[endpoint.problem]}}
    problem |= {media: {"schema": schema_of[shape]} for media, shape in endpoint.other_problems.items()}
    causes: dict[int, list[str]] = {}
    closed = () if rules.HTTP_RULES[endpoint.name].anybody else (errors.Unauthenticated, errors.Forbidden)
    for kind in (*endpoint.raises, *closed):
        causes.setdefault(error_codes.HTTP_STATUS[kind], []).append(f"`{kind.slug}`: {_first_sentence(kind)}")
    for status, texts in sorted(causes.items()):
        responses[str(status)] = {"description": " ".join(texts), "content": problem}
    for status, text in sorted(endpoint.text_statuses.items()):
        response = responses.get(str(status), {"description": "", "content": {}})
        responses[str(status)] = {
            "description": f"{response['description']} {text}".strip(),
            "content": {**response["content"], "text/plain": {"schema": {"type": "string"}}},
        }
    responses["default"] = {"description": "Any other error; see `code`.", "content": problem}
    return responses


def _first_sentence(kind: type) -> str:
    return (kind.__doc__ or "").strip().split("\n")[0]


def _resolved(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = components[schema["$ref"].rpartition("/")[2]]
    return found
