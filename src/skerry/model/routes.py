"""Routes: a public host name and path, and the service or function that answers there.

`skerry.control.routes` keeps the records and tells edge nodes (`RouteObject`); there HAProxy serves them
(`skerry.node.routes`). The most specific route answers: an exact host before `*.example.org` before `*`, then
the longest path prefix, then one whose headers match. A host belongs to the namespace that first has a route
for it.
"""

from __future__ import annotations

import enum
import hashlib
import math
import re
from typing import ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from skerry.model import errors, function_names, ids
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.network_objects import NetworkObject
from skerry.model.services import check_service_name

MAX_NAME: Final = 128
MAX_PATH: Final = 512
MAX_METHODS: Final = 16
MAX_HEADERS: Final = 8
MAX_ORIGINS: Final = 32
MAX_RATE: Final = 1_000_000
MAX_TIMEOUT_S: Final = 7 * 86_400.0
MIN_PASSWORD: Final = 12
MAX_CREDENTIAL: Final = 256
ANY_HOST: Final = "*"
TO_HTTPS: Final = "https"  # as a redirect: the same address with TLS

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
# What may be in a path as it is sent; no quotes, spaces or control characters, which configurations could
# misread.
_PATH = re.compile(r"/[A-Za-z0-9._~!$&()*+,;=:@%/-]*")
_METHOD = re.compile(r"[A-Z]{1,20}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
# A '-' at the beginning would be an option of HAProxy.
_HEADER_VALUE = re.compile(r"(?!-)[A-Za-z0-9 ._~!$&()*+,;=:@%/?|<>^-]{1,256}")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?")
_RATE = re.compile(r"([0-9]{1,7})/([smh])")
_USER = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
_URL = re.compile(r"https?://[A-Za-z0-9._~!$&()*+,;=:@%/?#\[\]-]{1,1024}")
_TARGET = re.compile(r"(service|fn)/([^:/]{1,128})(?::([0-9]{1,5}))?")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600}


class TargetKind(enum.StrEnum):
    """What answers."""

    SERVICE = "service"
    FUNCTION = "fn"


class RouteTarget(msgspec.Struct, frozen=True, omit_defaults=True):
    """A service or a function of the route's namespace."""

    kind: TargetKind
    name: str
    port: int = 0  # of the service; 0: its only one, or else 80

    def __post_init__(self) -> None:
        if self.kind is TargetKind.SERVICE:
            check_service_name(self.name)
        else:
            ids.check_id(self.name, "to")
        if not 0 <= self.port <= 65_535:
            raise errors.Invalid(f"a port is 1 to 65535, not {self.port}", field="to")

    @classmethod
    def parse(cls, text: str) -> RouteTarget:
        """`service/web`, `service/web:8080` or `fn/hello`."""
        form = _TARGET.fullmatch(text)
        if form is None:
            raise errors.Invalid(
                f"a route goes to service/NAME, service/NAME:PORT or fn/NAME, not {text[:80]!r}", field="to"
            )
        kind, name, port = TargetKind(form[1]), form[2], form[3]
        if port is not None and (kind is TargetKind.FUNCTION or not int(port)):
            raise errors.Invalid("only a service has a port, 1 to 65535", field="to")
        return cls(kind, name, int(port or 0))

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}" + (f":{self.port}" if self.port else "")


class HeaderMatch(msgspec.Struct, frozen=True):
    """A header that requests must have, with this value."""

    name: str  # in lower case
    value: str

    def __post_init__(self) -> None:
        if not _HEADER_NAME.fullmatch(self.name):
            raise errors.Invalid(
                f"header name {self.name[:64]!r} must be 1 to 64 letters, digits or '-'", field="headers"
            )
        if not _HEADER_VALUE.fullmatch(self.value):
            raise errors.Invalid(
                f"the value of header {self.name} must be 1 to 256 printable characters without quotes, "
                "backslashes, brackets or '#', and not begin with '-'",
                field="headers",
            )


class RateLimit(msgspec.Struct, frozen=True):
    """So many requests of one client address in so many seconds."""

    requests: int
    period_s: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.requests <= MAX_RATE or self.period_s not in _UNITS.values():
            raise errors.Invalid(f"a rate is 1 to {MAX_RATE} requests per s, m or h", field="rate")

    @classmethod
    def parse(cls, text: str) -> RateLimit:
        """`10/s`, `100/m` or `1000/h`."""
        if (form := _RATE.fullmatch(text)) is None:
            raise errors.Invalid(f"a rate reads 10/s, 100/m or 1000/h, not {text[:40]!r}", field="rate")
        return cls(int(form[1]), _UNITS[form[2]])

    def __str__(self) -> str:
        unit = next(unit for unit, seconds in _UNITS.items() if seconds == self.period_s)
        return f"{self.requests}/{unit}"


class ProtectionKind(enum.StrEnum):
    """What a request must show."""

    BASIC = "basic"  # a user and a password, which browsers ask for
    TOKEN = "token"  # noqa: S105 - `Authorization: Bearer TOKEN`


class RouteProtection(msgspec.Struct, frozen=True, omit_defaults=True):
    """The credential of a route, as a salted digest: edge nodes compare it for every request, so it is quick
    to compute, and only long credentials are taken."""

    kind: ProtectionKind
    salt: str
    digest: str
    user: str = ""

    @classmethod
    def basic(cls, user: str, password: str, salt: str) -> RouteProtection:
        if not _USER.fullmatch(user):
            raise errors.Invalid(
                "the user is 1 to 64 letters, digits, '.', '_', '@', '+' or '-'", field="basic"
            )
        _check_credential(password, "basic")
        digest = credential_digest(salt, f"{user}:{password}")
        return cls(ProtectionKind.BASIC, salt, digest, user)

    @classmethod
    def token(cls, token: str, salt: str) -> RouteProtection:
        _check_credential(token, "token")
        if not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", token):
            raise errors.Invalid(
                "a token is letters, digits, '.', '_', '~', '+', '/', '=' or '-'", field="token"
            )
        return cls(ProtectionKind.TOKEN, salt, credential_digest(salt, token))


def credential_digest(salt: str, credential: str) -> str:
    return hashlib.sha256(f"{salt}{credential}".encode()).hexdigest().upper()


def _check_credential(text: str, field: str) -> None:
    if not MIN_PASSWORD <= len(text) <= MAX_CREDENTIAL or not text.isascii() or not text.isprintable():
        raise errors.Invalid(
            f"the credential is {MIN_PASSWORD} to {MAX_CREDENTIAL} printable ASCII characters", field=field
        )


class BackendProtocol(enum.StrEnum):
    """What the copies of a service speak."""

    HTTP1 = "http1"
    H2 = "h2"  # without TLS, as gRPC servers do


class RouteSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of a route that people decide."""

    host: str
    path: str = "/"
    target: RouteTarget | None = None  # None: it redirects
    redirect: str = ""  # a URL, which the rest of the path is appended to, or `https`
    methods: tuple[str, ...] = ()  # empty: all
    headers: tuple[HeaderMatch, ...] = ()  # that a request must have to be this route's
    rate: RateLimit | None = None
    cors: tuple[str, ...] = ()  # origins whose scripts may read answers; `*`: all
    protection: RouteProtection | None = None
    is_public: bool = False  # a function may be called without a token of Skerry
    strip_prefix: bool = False  # the target sees paths without the route's own
    timeout_s: float = 60.0  # for the answer to begin, and between its parts
    idle_timeout_s: float = 3600.0  # of a WebSocket
    protocol: BackendProtocol = BackendProtocol.HTTP1
    http_only: bool = False  # not served with TLS, and no certificate is ordered for it

    def __post_init__(self) -> None:
        check_host(self.host)
        check_path(self.path)
        if (self.target is None) != (self.redirect not in ("", TO_HTTPS)):
            raise errors.Invalid(
                "a route goes `to` a service or function, or redirects to a URL; with `https` it does both",
                field="to",
            )
        if self.redirect and self.redirect != TO_HTTPS and not _is_url(self.redirect):
            raise errors.Invalid(
                "a redirect goes to `https`, or to an http(s) URL of at most 1024 characters",
                field="redirect",
            )
        if self.redirect == TO_HTTPS and self.http_only:
            raise errors.Invalid("what is served with http only cannot redirect to https", field="redirect")
        _check_list(self.methods, _METHOD, MAX_METHODS, "methods", "such as GET and POST, in capitals")
        if len(self.headers) > MAX_HEADERS or len({one.name for one in self.headers}) < len(self.headers):
            raise errors.Invalid(f"there are at most {MAX_HEADERS} headers, each once", field="headers")
        if self.cors != (ANY_HOST,):
            _check_list(self.cors, _ORIGIN, MAX_ORIGINS, "cors", "such as https://app.example.org, or only *")
        if self.is_public and (self.target is None or self.target.kind is not TargetKind.FUNCTION):
            raise errors.Invalid("only routes to functions need `public`; others are open", field="public")
        if self.protection is not None and self._is_for_callers:
            raise errors.Invalid(
                "a request shows one credential: that of the route, or a token of Skerry for the function; "
                "make the route `public` to protect it by its own",
                field="public",
            )
        for seconds, field in ((self.timeout_s, "timeout_s"), (self.idle_timeout_s, "idle_timeout_s")):
            if not (math.isfinite(seconds) and 1.0 <= seconds <= MAX_TIMEOUT_S):
                raise errors.Invalid(f"{field} is 1 to {MAX_TIMEOUT_S:g} seconds", field=field)

    @property
    def _is_for_callers(self) -> bool:
        """A function that needs a token of Skerry."""
        return self.target is not None and self.target.kind is TargetKind.FUNCTION and not self.is_public

    @property
    def place(self) -> RoutePlace:
        return RoutePlace(self.host, self.path, self.headers)

    @property
    def wants_certificate(self) -> bool:
        """False: nobody asks for this host with TLS, or nobody could prove to own it."""
        return not self.http_only and self.host != ANY_HOST


class RoutePlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which requests are a route's; no two routes have the same."""

    host: str
    path: str
    headers: tuple[HeaderMatch, ...] = ()

    def __str__(self) -> str:
        return self.host + ("" if self.path == "/" else self.path)


class Route(msgspec.Struct, frozen=True, omit_defaults=True):
    """A route as it is stored; its name is its own in its namespace."""

    id: str
    name: str
    spec: RouteSpec
    created_at: float
    namespace: Namespace = DEFAULT_NAMESPACE
    request_id: str = ""

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        check_route_name(self.name)
        ids.check_namespace(self.namespace)


class DomainRoutes(msgspec.Struct, frozen=True):
    """The places of all routes of one domain, in one record: every change of one writes it, so that no two
    routes get the same place, and no host two namespaces."""

    places: dict[str, RoutePlace]  # by namespace and name, as `shop/web`


class RouteObject(NetworkObject, frozen=True, omit_defaults=True):
    """A route for edge nodes."""

    kind: ClassVar[str] = "route"
    id: str
    name: str
    namespace: Namespace
    spec: RouteSpec
    wakes: bool = False  # its service can have no copies, and is started by a request

    @property
    def key(self) -> str:
        return self.id

    @property
    def function(self) -> str:
        """The key of the function that it goes to; empty: none."""
        target = self.spec.target
        if target is None or target.kind is not TargetKind.FUNCTION:
            return ""
        return function_names.function_key(self.namespace, target.name)


class RouteLoad(NetworkObject, frozen=True, omit_defaults=True):
    """Reported by an edge node: how many requests are under way at a service by its routes."""

    kind: ClassVar[str] = "route-load"
    service: str
    requests: float = 0.0  # above 0, if there were any since the last report

    @property
    def key(self) -> str:
        return self.service


class ServiceWake(NetworkObject, frozen=True, omit_defaults=True):
    """Reported by an edge node: requests wait for a service without copies."""

    kind: ClassVar[str] = "service-wake"
    service: str
    number: int = 0  # another one is another call; 0: none waits any more

    @property
    def key(self) -> str:
        return self.service


def check_route_name(text: str) -> str:
    if len(text) > MAX_NAME or not _NAME.fullmatch(text):
        raise errors.Invalid(
            f"route name {text[:MAX_NAME]!r} must be 1 to {MAX_NAME} lower-case letters, digits, '.' or '-', "
            "and begin and end with a letter or digit",
            field="name",
        )
    return text


def check_host(text: str) -> str:
    """A host name in lower case, `*.example.org`, or `*`."""
    if text == ANY_HOST or (len(text) <= 253 and _HOST.fullmatch(text)):
        return text
    raise errors.Invalid(
        f"host {text[:80]!r} must be a host name in lower case (as punycode, if it has other letters), "
        "*.example.org or *, without a port",
        field="host",
    )


def check_path(text: str) -> str:
    """A path prefix: whole segments, as clients send them."""
    segments = text.split("/")
    if len(text) > MAX_PATH or not _PATH.fullmatch(text) or "//" in text or {".", ".."} & {*segments}:
        raise errors.Invalid(
            f"path {text[:80]!r} must begin with '/', have at most {MAX_PATH} characters of paths, and "
            "neither empty segments nor '..'",
            field="path",
        )
    if text != "/" and text.endswith("/"):
        raise errors.Invalid(f"leave out the '/' at the end of path {text[:80]!r}", field="path")
    return text


def parse_place(text: str) -> tuple[str, str]:
    """The host and path of `shop.example.org/api`; the host is put into lower case."""
    host, slash, path = text.partition("/")
    path = f"/{path}".rstrip("/") or "/"
    return check_host(host.lower().rstrip(".")), check_path(path if slash else "/")


def default_name(host: str, path: str) -> str:
    """The name of a route that got none: `shop.example.org/api` is `shop.example.org-api`."""
    words = re.sub(r"[^a-z0-9.]+", "-", f"{host.replace('*', 'any')}{path}".lower()).strip("-.")
    if len(words) <= MAX_NAME:
        return words
    return f"{words[: MAX_NAME - 9].strip('-.')}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def domain_of(host: str) -> str:
    """The domain whose record a host is in: `example.org` for `shop.example.org` and `*.example.org`."""
    if host == ANY_HOST:
        return ANY_HOST
    first, dot, rest = host.partition(".")
    return rest if dot and (first == "*" or "." in rest) else host


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return bool(_URL.fullmatch(text) and parts.hostname and (parts.port is None or parts.port))
    except ValueError:
        return False


def _check_list(values: tuple[str, ...], pattern: re.Pattern[str], most: int, field: str, form: str) -> None:
    if len(values) > most or len({*values}) < len(values) or not all(map(pattern.fullmatch, values)):
        raise errors.Invalid(f"`{field}` has at most {most} values, each once, {form}", field=field)
