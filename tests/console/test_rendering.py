"""Pages escape what they show, refuse what is undefined, and are confined by their headers."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from skerry.console import routes
from skerry.console.asset_catalog import AssetCatalog
from skerry.console.components import Action, Cell, Chart, EmptyState, Fact, Field, Finding, Tone
from skerry.console.pages.overview import OverviewView
from skerry.console.rendering import NAVIGATION, PageHead, Renderer
from skerry.console.tables import ListQuery, TableColumn, TableShape, build_table
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.transport.access.console_rules import CONSOLE_RULES, DECIDED_BY
from skerry.transport.access.rules import HTTP_RULES
from skerry.transport.http.endpoints import RawBody, RequestContext

HOSTILE = "\"><script>alert(1)</script>{{ 7 * 7 }}'"
ADMIN = Caller(origin=AuthMethod.TOKEN, name=HOSTILE, role=Role.ADMIN)
VIEWER = Caller(origin=AuthMethod.TOKEN, name="v", role=Role.INVOKER)
HEAD = PageHead("Things", "GET /console/services", (), HOSTILE)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(AssetCatalog(), str)


def call(caller: Caller = ADMIN, **headers: str) -> RequestContext:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return RequestContext(caller=caller, request_id="r", address="", headers=named)


def listing(renderer: Renderer, request: RequestContext, text: str = HOSTILE) -> str:
    shape = TableShape(
        "x",
        text,
        "/console/services",
        (TableColumn(text, "name", str),),
        str,
        lambda one: (Cell(one, note=one),),
        EmptyState(text, text, text),
    )
    table = build_table(shape, [text], ListQuery())
    reply = renderer.page(
        request, "list.html", HEAD, table=table, query=ListQuery(q=text), path="/console/services"
    )
    assert isinstance(reply.value, RawBody)
    return reply.value.content.decode()


def test_what_is_shown_is_text_whatever_it_holds(renderer: Renderer) -> None:
    page = listing(renderer, call())
    assert "<script>alert" not in page
    assert "49" not in page
    assert page.count("&lt;script&gt;alert(1)") >= 5


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("service/web", ["service/web"]),
        ("shop.example.org/v2", ["shop.", "example.", "org/", "v2"]),
        ("registry.example.org/a..b//c", ["registry.", "example.", "org/", "a..", "b//", "c"]),
        ("one-word-that-is-long", ["one-word-that-is-long"]),
    ],
)
def test_a_long_host_or_path_may_be_broken_after_its_parts(
    renderer: Renderer, text: str, parts: list[str]
) -> None:
    assert renderer.macro("cell", Cell(text)).strip() == "<wbr>".join(parts)


def test_components_of_actions_and_findings_escape_too(renderer: Renderer) -> None:
    view = OverviewView(
        (Finding(Tone.BAD, HOSTILE, HOSTILE, "/console", HOSTILE),),
        0,
        (),
        (),
        (Chart(HOSTILE, (1.0,), ((HOSTILE, (1.0,)),), HOSTILE),),
        (),
        (),
        (),
        EmptyState(HOSTILE, HOSTILE),
    )
    reply = renderer.page(call(), "overview.html", HEAD, view=view)
    assert b"<script>alert" not in reply.value.content
    action = Action("a", HOSTILE, "/x", HOSTILE, HOSTILE, False, (Field("n", HOSTILE, HOSTILE),))
    drawn = renderer.macro("actions", (action,)) + renderer.macro("facts", (Fact(HOSTILE, Cell(HOSTILE)),))
    assert "<script>alert" not in drawn
    assert "&lt;script&gt;" in drawn


def test_an_error_page_escapes_its_message(renderer: Renderer) -> None:
    page = renderer.plain("error.html", status=404, code="x", message=HOSTILE, request_id="r")
    assert "<script>alert" not in page


def test_htmx_gets_the_block_that_it_asks_for_alone(renderer: Renderer) -> None:
    part = listing(renderer, call(hx_request="true", hx_target="listing"))
    assert part.strip().startswith('<section id="listing"')
    assert "<html" not in part
    assert "<html" in listing(renderer, call(hx_request="true", hx_target="other"))


def test_a_name_that_is_not_given_is_an_error(renderer: Renderer) -> None:
    with pytest.raises(jinja2.UndefinedError):
        renderer.page(call(), "overview.html", HEAD)


def test_pages_have_neither_inline_scripts_nor_inline_styles(renderer: Renderer) -> None:
    for template in (Path(routes.__file__).parent / "templates").glob("*.html"):
        text = template.read_text()
        assert " style=" not in text, template
        assert "<style" not in text, template
        assert "onclick" not in text, template
        assert all("src=" in part.partition(">")[0] for part in text.split("<script")[1:]), template


def test_every_page_is_confined(renderer: Renderer) -> None:
    view = OverviewView((), 0, None, (), (), None, None, None, None)
    headers = dict(renderer.page(call(), "overview.html", HEAD, view=view).headers)
    policy = headers[b"content-security-policy"]
    assert policy.startswith(b"default-src 'none'; script-src 'self';")
    assert b"unsafe" not in policy
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"referrer-policy"] == b"no-referrer"


def test_the_navigation_has_only_pages_that_the_caller_may_open(renderer: Renderer) -> None:
    assert 'href="/console/instances"' in listing(renderer, call(), "x")
    assert 'href="/console/instances"' not in listing(renderer, call(VIEWER), "x")


def test_every_endpoint_of_the_console_has_a_rule_and_every_rule_an_endpoint() -> None:
    assert sorted(one.name for one in routes.ENDPOINTS) == sorted(CONSOLE_RULES)
    assert all(item.page in CONSOLE_RULES for item in NAVIGATION)


def test_pages_and_actions_are_for_sessions_with_the_roles_of_the_api() -> None:
    for page, api in DECIDED_BY.items():
        row = CONSOLE_RULES[page]
        assert row.session, page
        assert (row.roles, row.scope) == (HTTP_RULES[api].roles, HTTP_RULES[api].scope), page
        assert page.startswith("GET") or not api.startswith("GET") or page == "POST /console/logout"


def test_a_missing_folder_of_third_party_files_gives_a_page_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "console.css").write_text("x")
    page = listing(Renderer(AssetCatalog(tmp_path), str), call(), "x")
    assert "scripts/assets" in page
    assert "htmx.js" in page


def test_an_asset_is_served_under_the_hash_of_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "console.css").write_text("a")
    first = AssetCatalog(tmp_path)
    hash = first.assets["console.css"].hash
    assert first.get("console.css", hash) is not None
    assert first.get("console.css", "other") is None
    (tmp_path / "console.css").write_text("b")
    assert AssetCatalog(tmp_path).get("console.css", hash) is None
