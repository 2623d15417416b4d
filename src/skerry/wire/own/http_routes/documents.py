"""Routes as JSON: documents that the endpoints return, and the input that they take. Pure.

A change is a merge patch (RFC 7396): fields that are not given stay, null resets one to its default. The
credential of a route is in no document.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from skerry.model import errors
from skerry.model.routes import (
    BackendProtocol,
    HeaderMatch,
    ProtectionKind,
    RateLimit,
    Route,
    RouteProtection,
    RouteSpec,
    RouteTarget,
    check_host,
    check_path,
    check_route_name,
    default_name,
)
from skerry.wire.option_documents import OptionalField

_SALT_BYTES = 12


class ProtectionDocument(msgspec.Struct, frozen=True):
    """What requests must show."""

    kind: ProtectionKind
    user: str


class RouteDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A route."""

    id: str
    name: str
    namespace: str
    host: str
    path: str
    to: Annotated[str, Meta(description="`service/web:80` or `fn/hello`; empty: it redirects")]
    redirect: str
    methods: tuple[str, ...]
    headers: dict[str, str]
    rate: Annotated[str, Meta(description="Of each client address, such as `10/s`; empty: no limit")]
    cors: tuple[str, ...]
    protection: ProtectionDocument | None
    public: bool
    strip_prefix: bool
    timeout_s: float
    idle_timeout_s: float
    protocol: BackendProtocol
    http_only: bool
    created_at: Annotated[float, Meta(description="Seconds since the epoch")]
    problem: Annotated[str, Meta(description="Why its target does not answer; empty: nothing is known")]


class BasicInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user and a password that browsers ask for."""

    user: str
    password: str


class RouteInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A route; a new one needs `host`, and `to` or `redirect`."""

    name: Annotated[str, Meta(description="Without it, made of host and path")] | UnsetType = UNSET
    kind: Annotated[Literal["route"], Meta(description="For clients that write it")] | UnsetType = UNSET
    namespace: (
        Annotated[
            str,
            Meta(description="Namespace in which it is created, unless the path names it; it cannot change"),
        ]
        | UnsetType
    ) = UNSET
    host: Annotated[str, Meta(description="`shop.example.org`, `*.example.org` or `*`")] | UnsetType = UNSET
    path: OptionalField[Annotated[str, Meta(description="A prefix of whole segments")]] = UNSET
    to: OptionalField[Annotated[str, Meta(description="`service/NAME[:PORT]` or `fn/NAME`")]] = UNSET
    redirect: OptionalField[Annotated[str, Meta(description="A URL, or `https`")]] = UNSET
    methods: OptionalField[Annotated[list[str], Meta(description="Others get 405")]] = UNSET
    headers: OptionalField[
        Annotated[dict[str, str], Meta(description="Only requests with these headers are this route's")]
    ] = UNSET
    rate: OptionalField[Annotated[str, Meta(description="Of each client address: `10/s`, `100/m`")]] = UNSET
    cors: OptionalField[
        Annotated[list[str], Meta(description="Origins whose scripts may read answers, or only `*`")]
    ] = UNSET
    basic: OptionalField[BasicInput] = UNSET
    token: OptionalField[
        Annotated[str, Meta(description="Requests need `Authorization: Bearer` and this")]
    ] = UNSET
    public: OptionalField[
        Annotated[bool, Meta(description="A function can be called without a token of Skerry")]
    ] = UNSET
    strip_prefix: OptionalField[Annotated[bool, Meta(description="Send paths without `path`")]] = UNSET
    timeout_s: OptionalField[float] = UNSET
    idle_timeout_s: OptionalField[Annotated[float, Meta(description="Of a WebSocket")]] = UNSET
    protocol: OptionalField[
        Annotated[BackendProtocol, Meta(description="`h2` for copies that speak gRPC")]
    ] = UNSET
    http_only: OptionalField[bool] = UNSET

    def route(self) -> tuple[str, RouteSpec]:
        """The name and spec of a new route; raises `Invalid`."""
        if not isinstance(self.host, str):
            raise errors.Invalid("`host` is needed", field="host")
        spec = self._spec({}, check_host(self.host))
        name = self.name if isinstance(self.name, str) else default_name(spec.host, spec.path)
        return check_route_name(name), spec

    def changed(self, base: RouteSpec) -> RouteSpec:
        """`base` with this input; raises `Invalid`."""
        host = check_host(self.host) if isinstance(self.host, str) else base.host
        return self._spec(msgspec.structs.asdict(base), host)

    def _spec(self, base: dict[str, Any], host: str) -> RouteSpec:
        fields = dict(base) | {"host": host}
        for name, value in self._given():
            fields.pop(name, None)
            if value is not None:
                fields[name] = value
        return RouteSpec(**fields)

    def _given(self) -> list[tuple[str, Any]]:
        """The fields of the spec that are given, None for their defaults."""
        given: list[tuple[str, Any]] = [
            (name, value)
            for name in ("strip_prefix", "timeout_s", "idle_timeout_s", "protocol", "http_only", "redirect")
            if (value := getattr(self, name)) is not UNSET
        ]
        if self.path is not UNSET:
            given.append(("path", None if self.path is None else check_path(self.path)))
        if self.to is not UNSET:
            given.append(("target", RouteTarget.parse(self.to) if self.to else None))
        if self.methods is not UNSET:
            given.append(("methods", None if self.methods is None else tuple(self.methods)))
        if self.cors is not UNSET:
            given.append(("cors", None if self.cors is None else tuple(self.cors)))
        if self.headers is not UNSET:
            headers = sorted((name.lower(), value) for name, value in (self.headers or {}).items())
            given.append(("headers", tuple(HeaderMatch(*one) for one in headers)))
        if self.rate is not UNSET:
            given.append(("rate", RateLimit.parse(self.rate) if self.rate else None))
        if self.public is not UNSET:
            given.append(("is_public", self.public))
        if self.basic is not UNSET or self.token is not UNSET:
            given.append(("protection", self._protection()))
        return given

    def _protection(self) -> RouteProtection | None:
        salt = secrets.token_hex(_SALT_BYTES)
        if isinstance(self.basic, BasicInput):
            if isinstance(self.token, str):
                raise errors.Invalid("a route has `basic` or `token`, not both", field="basic")
            return RouteProtection.basic(self.basic.user, self.basic.password, salt)
        return RouteProtection.token(self.token, salt) if isinstance(self.token, str) else None


def route_document(route: Route, problem: str = "") -> RouteDocument:
    spec = route.spec
    shown = spec.protection
    return RouteDocument(
        id=route.id,
        name=route.name,
        namespace=route.namespace,
        host=spec.host,
        path=spec.path,
        to="" if spec.target is None else str(spec.target),
        redirect=spec.redirect,
        methods=spec.methods,
        headers={one.name: one.value for one in spec.headers},
        rate="" if spec.rate is None else str(spec.rate),
        cors=spec.cors,
        protection=None if shown is None else ProtectionDocument(shown.kind, shown.user),
        public=spec.is_public,
        strip_prefix=spec.strip_prefix,
        timeout_s=spec.timeout_s,
        idle_timeout_s=spec.idle_timeout_s,
        protocol=spec.protocol,
        http_only=spec.http_only,
        created_at=route.created_at,
        problem=problem,
    )
