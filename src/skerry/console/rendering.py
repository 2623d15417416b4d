"""Renders pages: Jinja templates with the layout around them, and the headers that confine what a page may
do.

Templates escape everything that is not markup of their own, and refuse undefined names. Jinja is imported and
the templates are compiled with the first page, not when the server starts. A request of htmx for an element
by its id (`HX-Target`) gets the block of that name alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
import structlog

from skerry import __version__
from skerry.console import asset_catalog
from skerry.console.asset_catalog import AssetCatalog
from skerry.console.hub import Topic
from skerry.model.callers import Caller
from skerry.transport.access import sessions
from skerry.transport.access.console_rules import may
from skerry.transport.access.namespaces import EVERY
from skerry.transport.http.endpoints import RawBody, RequestContext, Response

if TYPE_CHECKING:
    from jinja2 import Environment, Template

log = structlog.get_logger(__name__)

HTML = "text/html; charset=utf-8"
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_WHOLE = 14  # a text that is no longer is not broken
_PARTS = re.compile(r"[^/.]*[/.]+|[^/.]+")
_TEMPLATES = Path(__file__).parent / "templates"


class NavItem(msgspec.Struct, frozen=True):
    """An entry of the navigation; `keys` are typed to go there."""

    text: str
    page: str  # its name in the access rules
    keys: str
    icon: str

    @property
    def href(self) -> str:
        return self.page.partition(" ")[2]


NAVIGATION: tuple[NavItem, ...] = (
    NavItem("Overview", "GET /console", "g o", "overview"),
    NavItem("Map", "GET /console/map", "g a", "map"),
    NavItem("Services", "GET /console/services", "g s", "services"),
    NavItem("Instances", "GET /console/instances", "g i", "instances"),
    NavItem("Workloads", "GET /console/workloads", "g w", "workloads"),
    NavItem("Functions", "GET /console/functions", "g f", "functions"),
    NavItem("Jobs", "GET /console/jobs", "g j", "jobs"),
    NavItem("Schedules", "GET /console/schedules", "g h", "schedules"),
    NavItem("Volumes", "GET /console/volumes", "g v", "volumes"),
    NavItem("Secrets", "GET /console/secrets", "g k", "secrets"),
    NavItem("Routes", "GET /console/routes", "g r", "routes"),
    NavItem("Nodes", "GET /console/nodes", "g n", "nodes"),
    NavItem("Market", "GET /console/market", "g m", "market"),
    NavItem("Events", "GET /console/events", "g e", "events"),
    NavItem("Tokens", "GET /console/tokens", "g t", "tokens"),
    NavItem("Certificates", "GET /console/certificates", "g c", "certificates"),
)


class PageHead(msgspec.Struct, frozen=True):
    """What the layout needs of a page."""

    title: str
    page: str  # the entry of the navigation that it belongs to, by its name in the access rules
    topics: Collection[Topic] = ()
    command: str = ""  # the CLI line that shows the same


class Renderer:
    """Makes responses of templates."""

    def __init__(self, assets: AssetCatalog, position: Callable[[float], str]) -> None:
        self.assets = assets
        self._position = position  # in the stream of changes, of what was read from a time on

    @cached_property
    def _environment(self) -> Environment:
        import jinja2

        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["parts"] = parts_of
        environment.globals.update(asset=self.assets.href, version=__version__, url=url)
        # Here, not imported in each template: a block that is rendered alone has it, too.
        environment.globals["ui"] = environment.get_template("components.html").module
        if missing := self.assets.missing:
            log.error("console.assets_missing", files=missing, remedy=asset_catalog.REMEDY)
        return environment

    def page(
        self, call: RequestContext, template: str, head: PageHead, *, status: int | None = None, **view: Any
    ) -> Response:
        """The page, or the block of it that htmx asks for."""
        compiled = self._environment.get_template(template)
        session = sessions.session_text(call.headers)
        text = self._render(
            compiled,
            call.headers.get(b"hx-target", b"").decode("latin-1") if b"hx-request" in call.headers else "",
            head=head,
            position=self._position(call.started_s),
            caller=call.caller,
            scope=namespaces_text(call.caller),
            navigation=[item for item in NAVIGATION if may(call.caller, item.page)],
            csrf=sessions.csrf_token(session) if session else "",
            missing=self.assets.missing,
            remedy=asset_catalog.REMEDY,
            may=lambda action: may(call.caller, action),
            **view,
        )
        return html(text, status=status)

    def fragment(self, template: str, triggers: Mapping[str, str], **view: Any) -> Response:
        """A part of a page that no page has until an action gives it, with headers for htmx."""
        text = self._environment.get_template(template).render(view)
        extra = tuple((name.encode(), value.encode()) for name, value in triggers.items())
        return Response(RawBody(text.encode()), headers=(*extra, *SECURITY_HEADERS))

    def plain(self, template: str, **view: Any) -> str:
        """A page without a session: signing in, and errors."""
        return self._environment.get_template(template).render(
            missing=self.assets.missing, remedy=asset_catalog.REMEDY, **view
        )

    def macro(self, name: str, *arguments: Any) -> str:
        """One component by itself."""
        return str(getattr(self._environment.globals["ui"], name)(*arguments))

    def _render(self, template: Template, block: str, **view: Any) -> str:
        if block in template.blocks:
            context = template.new_context(view)
            return "".join(template.blocks[block](context))
        return template.render(view)


def parts_of(text: str) -> list[str]:
    """The parts of a long host, path or image, between which a line may be broken."""
    return [text] if len(text) <= _WHOLE else _PARTS.findall(text)


def html(text: str, *, status: int | None = None) -> Response:
    return Response(RawBody(text.encode()), status=status, headers=SECURITY_HEADERS)


def namespaces_text(caller: Caller) -> str:
    """The namespaces that a caller sees, for people."""
    return ", ".join(caller.namespaces) if caller.namespaces is not None else "all namespaces"


def url(path: str, **query: str) -> str:
    """An address of ours; parts of the query that are empty, or that mean all, are left out."""
    given = {name: value for name, value in query.items() if value not in ("", EVERY)}
    return f"{path}?{urlencode(given)}" if given else path
