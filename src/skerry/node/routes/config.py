"""The configuration of HAProxy for all routes. Pure: `skerry.node.routes.edge` writes and applies it.

One frontend finds the route of a request (`skerry.node.routes.matching`); all rules of a route are in its
backend. The `description` is a digest of everything but addresses of copies, which change by commands: from
it Skerry sees which configuration a process has. Texts of users were checked by `skerry.model.routes`, and
are in single quotes, inside which nothing has a meaning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from skerry.model.network_objects import EndpointState
from skerry.model.route_settings import RouteSettings
from skerry.model.routes import TO_HTTPS, BackendProtocol, HeaderMatch, ProtectionKind, RouteObject
from skerry.node.routes.matching import BACKEND_PREFIX, RouteMatches, backend_name, match_routes
from skerry.node.routes.slots import Slots

CHALLENGE_PATH = "/.well-known/acme-challenge/"
PUBLIC_HEADER = "X-Skerry-Public"  # only HAProxy sets it: on routes to functions that need no token
_HTTPS_PORT = "443"
# Only proxies may say these. With underscores they are the same to programs that take headers as variables.
_OUR_HEADERS = "'^(forwarded$|x[-_](forwarded|real|skerry))'"
_OUR_WORDS = "forwarded x-real x_real skerry"  # one is in every such name
_MISSING = "if !{ var(txn.route) -m found }"
_OTHER_SLASHES = """'regsub("(%2[fF]|%5[cC]|\\\\\\\\)",/,g)'"""
_MANY_SLASHES = "regsub(/+,/,g)"
_RATE_ENTRIES = "100k"  # client addresses that are counted at once, for each route with a limit
_MOST_RELOADS = 32  # that a process with open connections survives, else they could fill the memory
# A copy that acknowledges nothing for so long is on a dead node: its connections end. Longer than a change of
# the way through the mesh takes.
_SILENT_S = 10
_BUFFER_BYTES = 32_768  # a request's head at most, and a certificate with its chain in a command


class EdgeFiles(msgspec.Struct, frozen=True):
    """Where everything of HAProxy is: `folder` for root alone, `sockets` also for its own user."""

    folder: Path
    sockets: Path
    web_socket: Path  # of functions

    @property
    def config(self) -> Path:
        return self.folder / "haproxy.cfg"

    @property
    def routes(self) -> Path:
        return self.folder / "routes.map"

    @property
    def challenges(self) -> Path:
        return self.folder / "acme.map"

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    @property
    def certificate_list(self) -> Path:
        return self.folder / "certificates.txt"

    @property
    def wake_script(self) -> Path:
        return self.folder / "wake.lua"

    @property
    def admin_socket(self) -> Path:
        return self.folder / "admin.sock"

    @property
    def master_socket(self) -> Path:
        return self.folder / "master.sock"

    @property
    def pid(self) -> Path:
        return self.folder / "haproxy.pid"

    @property
    def output(self) -> Path:
        return self.folder / "haproxy.log"

    @property
    def wake_socket(self) -> Path:
        return self.sockets / "wake.sock"


class EdgeConfig(msgspec.Struct, frozen=True):
    """What HAProxy reads, and the digest that it shows."""

    text: str
    routes_map: str
    wake_script: str
    digest: str


def render(
    routes: Mapping[str, RouteObject],
    slots: Mapping[str, Slots],
    settings: RouteSettings,
    files: EdgeFiles,
    user: tuple[str, str] | None,
) -> EdgeConfig:
    """The configuration; `slots` are those of routes to services, by id, and `user` is the user and group
    that HAProxy runs as, None: ours."""
    matches = match_routes(routes.values())
    empty = {id: Slots((None,) * len(one.copies)) for id, one in slots.items()}
    script = _wake_script(settings, files)
    ordered = [routes[id] for id in sorted(routes)]
    structure = "\n".join(_lines(ordered, empty, matches, settings, files, user))
    digest = hashlib.sha256(f"{structure}\n{matches.text()}\n{script}".encode()).hexdigest()[:16]
    text = "\n".join(_lines(ordered, slots, matches, settings, files, user))
    return EdgeConfig(text.replace("@DIGEST@", digest) + "\n", matches.text(), script, digest)


def _lines(
    routes: list[RouteObject],
    slots: Mapping[str, Slots],
    matches: RouteMatches,
    settings: RouteSettings,
    files: EdgeFiles,
    user: tuple[str, str] | None,
) -> Iterator[str]:
    yield from _global(settings, files, user)
    yield from _defaults()
    yield from _frontend(matches, settings, files)
    for route in routes:
        yield from _backend(route, slots.get(route.id), settings, files)


def _global(settings: RouteSettings, files: EdgeFiles, user: tuple[str, str] | None) -> Iterator[str]:
    yield "# Written by Skerry; changes are lost."
    yield "global"
    yield "    description @DIGEST@"
    yield f"    stats socket {files.admin_socket} mode 600 level admin expose-fd listeners"
    yield f"    hard-stop-after {settings.drain_s}s"
    yield f"    mworker-max-reloads {_MOST_RELOADS}"
    yield f"    maxconn {settings.max_connections}"
    yield f"    tune.bufsize {_BUFFER_BYTES}"
    yield "    ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets"
    yield "    expose-experimental-directives"
    yield f"    lua-load {files.wake_script}"
    if user is not None:
        yield f"    user {user[0]}"
        yield f"    group {user[1]}"


def _defaults() -> Iterator[str]:
    yield "defaults"
    yield "    mode http"
    # A copy whose node has died does not answer at all: the next attempt goes to another one.
    yield "    timeout connect 1s"
    yield "    timeout client 60s"
    yield "    timeout http-request 10s"
    yield "    timeout http-keep-alive 75s"
    yield "    timeout queue 30s"
    # A process that was replaced answers the next request of a connection before it closes it: a client
    # never sees its connection closed under a request.
    yield "    option idle-close-on-response"
    yield "    option redispatch 1"
    yield "    retries 3"
    yield "    http-error status 400 content-type text/plain string 'the request is not valid HTTP'"
    yield "    http-error status 502 content-type text/plain string 'the copy gave no valid answer'"
    yield "    http-error status 503 content-type text/plain string 'no copy is ready; try again soon'"
    yield "    http-error status 504 content-type text/plain string 'no answer in time'"


def _frontend(matches: RouteMatches, settings: RouteSettings, files: EdgeFiles) -> Iterator[str]:
    """Every request passes here, so the usual one leaves early: its host and path are in the map as they
    are, and `allow` ends the rules."""
    yield "frontend edge"
    if settings.http:
        yield f"    bind {settings.http}"
    if settings.https:
        yield f"    bind {settings.https} ssl crt-list {files.certificate_list} alpn h2,http/1.1"
    # The host and the path are one text below: a host with a slash would be the path of another route.
    yield (
        "    http-request return status 400 content-type text/plain string 'this is no host name' "
        "if { req.fhdr(host) -m sub / , }"
    )
    # Looking at all names at once first is half the work for a request that has none of them.
    yield f"    http-request del-header {_OUR_HEADERS} -m reg if {{ req.hdr_names -m sub {_OUR_WORDS} }}"
    yield "    http-request add-header X-Forwarded-For %[src]"
    yield "    http-request add-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]"
    yield "    http-request add-header X-Forwarded-Host %[req.fhdr(host)]"
    yield "    http-request add-header X-Request-Id %[uuid()] if !{ req.hdr(x-request-id) -m found }"
    yield r"    acl is_unusual path -m sub % // /. '\'"
    yield f"    http-request set-var(txn.route) base,concat(/),map_beg({files.routes}) if !is_unusual"
    yield f"    http-request allow if {{ var(txn.route) -m beg {BACKEND_PREFIX} }}"
    yield from _unusual_paths(files)
    yield "    http-request set-var(txn.host) req.fhdr(host),field(1,:),lower,rtrim(.)"
    for host in _host_forms(matches):
        yield f"    http-request set-var-fmt(txn.place) '{host}%[var(txn.path)]/' {_MISSING}"
        yield f"    http-request set-var(txn.route) var(txn.place),map_beg({files.routes}) {_MISSING}"
    yield from _header_groups(matches)
    yield (
        "    http-request return status 404 content-type text/plain string 'there is no route for this "
        f"host and path' {_MISSING}"
    )
    yield "    use_backend %[var(txn.route)]"


def _unusual_paths(files: EdgeFiles) -> Iterator[str]:
    """`/%61dmin`, `//admin` and `/x/../admin` are `/admin` to many programs, so they are here, too: else a
    protected route could be avoided by its spelling. Answers to ACME are here as well, as their path has
    `/.`."""
    token = f"path,field(4,/),map_str({files.challenges})"
    yield (
        f"    http-request return status 200 content-type text/plain lf-string '%[{token}]' "
        f"if is_unusual {{ path -m beg {CHALLENGE_PATH} }} {{ {token} -m found }}"
    )
    for part in (
        "percent-decode-unreserved strict",
        "path-strip-dot",
        "path-strip-dotdot full",
        "path-merge-slashes",
    ):
        yield f"    http-request normalize-uri {part} if is_unusual"
    # A slash that is written as `%2f` or a backslash is one to some programs. It stays as it is, and counts
    # as a slash in the choice of the route; with it nobody leaves the folder that the route is for.
    yield "    http-request set-var(txn.path) path"
    yield f"    http-request set-var(txn.path) path,{_OTHER_SLASHES},{_MANY_SLASHES} if is_unusual"
    yield (
        "    http-request return status 400 content-type text/plain string 'the path leads elsewhere' "
        "if is_unusual { var(txn.path) -m reg '/[.][.]?(/|$)' }"
    )


def _host_forms(matches: RouteMatches) -> Iterator[str]:
    """What a host is looked up as, one after the other: only forms of which there are routes."""
    yield "%[var(txn.host)]"
    if any(key.startswith("*.") for key, _ in matches.entries):
        yield "%[var(txn.host),regsub(^[^.]+,*)]"
    if any(key.startswith("*/") for key, _ in matches.entries):
        yield "*"


def _header_groups(matches: RouteMatches) -> Iterator[str]:
    for group in matches.groups:
        is_group = f"{{ var(txn.route) -m str {group.name} }}"
        for route in group.routes:
            headers = " ".join(f"{{ {_header(one)} -m str '{one.value}' }}" for one in route.spec.headers)
            yield f"    http-request set-var(txn.route) str({backend_name(route)}) if {is_group} {headers}"
        if group.otherwise:
            yield f"    http-request set-var(txn.route) str({group.otherwise}) if {is_group}"
        else:
            yield f"    http-request unset-var(txn.route) if {is_group}"


def _header(match: HeaderMatch) -> str:
    """What is compared: each of the values that commas separate, unless the wanted one has a comma."""
    return f"req.fhdr({match.name})" if "," in match.value else f"req.hdr({match.name})"


def _backend(
    route: RouteObject, slots: Slots | None, settings: RouteSettings, files: EdgeFiles
) -> Iterator[str]:
    spec = route.spec
    yield f"backend {backend_name(route)}"
    yield "    balance leastconn"
    yield f"    timeout server {round(spec.timeout_s * 1000)}ms"
    yield f"    timeout tunnel {round(spec.idle_timeout_s * 1000)}ms"
    if spec.rate is not None:
        yield (
            f"    stick-table type ipv6 size {_RATE_ENTRIES} expire {spec.rate.period_s * 2}s store "
            f"http_req_rate({spec.rate.period_s}s)"
        )
        # All addresses of an IPv6 network of a client are one.
        yield "    http-request track-sc0 src,ipmask(32,64)"
        yield (
            "    http-request return status 429 content-type text/plain string 'too many requests' "
            f"hdr Retry-After {spec.rate.period_s} if {{ sc_http_req_rate(0) gt {spec.rate.requests} }}"
        )
    if spec.http_only:
        yield "    http-request return status 404 if { ssl_fc }"
    if spec.redirect == TO_HTTPS and settings.https:
        port = settings.https.rpartition(":")[2]
        address = "%[req.fhdr(host),field(1,:),lower,rtrim(.)]" + ("" if port == _HTTPS_PORT else f":{port}")
        yield f"    http-request redirect code 308 location 'https://{address}%[pathq]' if !{{ ssl_fc }}"
    yield from _cors(route)
    if spec.methods:
        methods = " ".join(spec.methods)
        yield (
            "    http-request return status 405 content-type text/plain string 'this method is not allowed'"
            f" hdr Allow '{', '.join(spec.methods)}' if !{{ method {methods} }}"
        )
    yield from _protection(route)
    if spec.strip_prefix and spec.path != "/":
        yield f"    http-request set-header X-Forwarded-Prefix '{spec.path.replace('%', '%%')}'"
        yield f"    http-request set-var(txn.path) path if {{ path -m beg '{spec.path}/' }}"
        yield f"    http-request set-path '/%[var(txn.path),bytes({len(spec.path) + 1})]'"
    if spec.redirect and spec.redirect != TO_HTTPS:
        url = spec.redirect.replace("%", "%%")
        keeps = "?" not in url and "#" not in url
        cut = 0 if spec.path == "/" else len(spec.path)
        rest = f"%[pathq,bytes({cut})]" if keeps else ""
        yield f"    http-request redirect code 308 location '{url.rstrip('/') if keeps else url}{rest}'"
        return
    if route.function:
        yield f"    http-request set-path '/web/{route.function}%[path]'"
        if spec.is_public:
            yield f"    http-request set-header {PUBLIC_HEADER} 1"
        yield f"    server web unix@{files.web_socket}"
        return
    if route.wakes:
        yield f"    http-request lua.wake {route.id} if {{ nbsrv eq 0 }}"
    options = f" tcp-ut {_SILENT_S}s" + (" proto h2" if spec.protocol is BackendProtocol.H2 else "")
    for number, copy in enumerate((slots or Slots()).copies, 1):
        if copy is None:
            yield f"    server c{number} 127.0.0.1:1{options} disabled"
        else:
            # A new process has no connections to keep, so a copy that drains gets none at all.
            off = "" if copy.state is EndpointState.READY else " disabled"
            yield f"    server c{number} {copy.address}:{copy.port}{options}{off}"


def _cors(route: RouteObject) -> Iterator[str]:
    origins = route.spec.cors
    if not origins:
        return
    if origins == ("*",):
        yield "    http-request set-var(txn.origin) str(*) if { req.hdr(origin) -m found }"
    else:
        listed = " ".join(f"'{one}'" for one in origins)
        yield f"    http-request set-var(txn.origin) req.hdr(origin) if {{ req.hdr(origin) -m str {listed} }}"
    methods = ", ".join(route.spec.methods) or "GET, HEAD, POST, PUT, PATCH, DELETE"
    yield (
        "    http-request return status 204 hdr Access-Control-Allow-Methods "
        f"'{methods}' hdr Access-Control-Allow-Headers '%[req.fhdr(access-control-request-headers)]' "
        "hdr Access-Control-Max-Age 600 if METH_OPTIONS { var(txn.origin) -m found } "
        "{ req.hdr(access-control-request-method) -m found }"
    )
    is_allowed = "if { var(txn.origin) -m found }"
    yield f"    http-after-response set-header Access-Control-Allow-Origin '%[var(txn.origin)]' {is_allowed}"
    yield "    http-after-response add-header Vary Origin"


def _protection(route: RouteObject) -> Iterator[str]:
    protection = route.spec.protection
    if protection is None:
        return
    if protection.kind is ProtectionKind.BASIC:
        shown, scheme = "%[http_auth_user]:%[http_auth_pass]", 'Basic realm="protected"'
    else:
        shown, scheme = "%[http_auth_bearer]", "Bearer"
    yield f"    http-request set-var-fmt(txn.credential) '{protection.salt}{shown}'"
    yield (
        "    http-request return status 401 content-type text/plain string 'credentials are needed' "
        f"hdr WWW-Authenticate '{scheme}' "
        f"if !{{ var(txn.credential),sha2(256),hex -m str {protection.digest} }}"
    )
    yield "    http-request unset-var(txn.credential)"
    yield "    http-request del-header Authorization"


def _wake_script(settings: RouteSettings, files: EdgeFiles) -> str:
    """Holds a request until the agent says that a copy is ready; other requests go on meanwhile."""
    return f"""\
core.register_action("wake", {{ "http-req" }}, function(txn, route)
  local agent = core.tcp()
  agent:settimeout({settings.hold_s + 5})
  if agent:connect("unix@{files.wake_socket}") then
    agent:send(route .. "\\n")
    agent:receive("*l")
  end
  agent:close()
end, 1)
"""
