"""Every page of the console in a real browser, with nothing, a little and a thousand of everything: it fits
the window of a desk and of a phone, both themes can be read, and a thousand objects are as light as fifty.

With `SKERRY_PICTURES=FOLDER` every page is also drawn there, in both themes and widths; `make pictures` draws
those of the documentation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from skerry.model.callers import AuthMethod, Caller, Role
from tests.support import pictures
from tests.support.browser import CHROMIUM, DESKTOP, PHONE, Tab, launched, tab_at
from tests.support.console_records import LITTLE, MANY
from tests.support.console_site import ConsoleSite, console_of

pytestmark = pytest.mark.skipif(
    not CHROMIUM.exists(), reason="needs chromium, a package of system-packages.txt"
)

MAX_ELEMENTS = 2500  # of a page
PAPER = (1200, 820)  # of pictures in the documentation
VIEWS = ((DESKTOP, "light"), (PHONE, "dark"))
PICTURES = os.environ.get("SKERRY_PICTURES", "")
DOCS = os.environ.get("SKERRY_DOCS_PICTURES", "")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started


@pytest.fixture(params=[0, LITTLE, MANY], ids=["nothing", "little", "thousand"], scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleSite]:
    with console_of(request.param, tmp_path_factory.mktemp("site")) as served:
        yield served


def test_every_page_fits_is_light_and_can_be_read(browser: Browser, site: ConsoleSite) -> None:
    with tab_at(browser, site.url, site.link()) as tab:
        for name, path in site.paths().items():
            tab.page.goto(site.url + path)
            if name.endswith("not-found"):
                tab.problems.clear()  # the browser notes the answer
            assert tab.page.evaluate("document.querySelectorAll('*').length") <= MAX_ELEMENTS, name
            for size, theme in VIEWS:
                tab.show(size, theme)
                assert not tab.overflows, (name, size)
                # With a little in both themes; with nothing in one: those pages have no colours of their own.
                if site.amount.number == LITTLE or (not site.amount.has_any and theme == "light"):
                    found = tab.find_violations(has_navigation=name == "overview")
                    assert found == [], (name, size, theme)
            if PICTURES:
                draw(tab, name, site.amount.number, Path(PICTURES))


def draw(tab: Tab, name: str, number: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for size in (DESKTOP, PHONE):
        for theme in ("light", "dark"):
            tab.show(size, theme)
            file = folder / f"{number}-{name.replace('/', '_')}-{size[0]}-{theme}.png"
            tab.page.screenshot(path=file, full_page=True, animations="disabled")


def test_a_list_of_a_thousand_is_paged_searched_and_sorted(browser: Browser, site: ConsoleSite) -> None:
    if site.amount.number != MANY:
        pytest.skip("of the thousand alone")
    with tab_at(browser, site.url, site.link()) as tab:
        tab.open("/console/services")
        expect(tab.page.locator("tbody tr")).to_have_count(50)
        expect(tab.page.locator(".summary")).to_have_text("1–50 of 1,000")
        tab.page.get_by_role("link", name="Next").click()
        expect(tab.page.locator(".summary")).to_have_text("51–100 of 1,000")
        tab.page.get_by_role("link", name="Name", exact=True).click()
        expect(tab.page.locator("th[aria-sort=ascending]")).to_have_text("Name")
        tab.page.fill("#search", "checkout-7")
        expect(tab.page.locator("tbody tr")).not_to_have_count(50)
        first = tab.page.locator("tbody tr td:first-child").first
        expect(first).to_have_text("checkout-7")


def replace_part(tab: Tab, part: str, topic: str) -> None:
    """Let a change arrive, and wait until it has replaced the part of the page."""
    tab.page.evaluate("part => document.getElementById(part).classList.add('old')", part)
    tab.page.evaluate("topic => document.body.dispatchEvent(new CustomEvent(`live:${topic}`))", topic)
    expect(tab.page.locator(f"#{part}:not(.old)")).to_have_count(1)


def test_a_change_keeps_the_focus_how_far_a_table_is_scrolled_and_which_branches_are_open(
    browser: Browser, site: ConsoleSite
) -> None:
    if site.amount.number != LITTLE:
        pytest.skip("of a little alone")
    with tab_at(browser, site.url, site.link()) as tab:
        tab.show((500, 600), "light")
        tab.open("/console/instances")
        focused = tab.page.locator("tbody a").nth(2)
        focused.focus()
        address = focused.get_attribute("href")
        tab.page.evaluate(
            """() => {
              const sheet = new CSSStyleSheet();
              sheet.replaceSync(".scroll table { width: 2000px; }");
              document.adoptedStyleSheets = [sheet];
              document.querySelector(".scroll").scrollLeft = 120;
            }"""
        )
        replace_part(tab, "listing", "instances")
        assert tab.page.evaluate("document.activeElement.getAttribute('href')") == address
        assert tab.page.evaluate("document.querySelector('.scroll').scrollLeft") == 120
        tab.open(site.paths()["node-tree"])
        tab.page.locator("#part summary").first.click()
        expect(tab.page.locator("#part details").first).not_to_have_attribute("open", "")
        replace_part(tab, "part", "instances")
        expect(tab.page.locator("#part details").first).not_to_have_attribute("open", "")


def test_what_somebody_selects_is_not_replaced_until_it_is_no_longer_selected(
    browser: Browser, site: ConsoleSite
) -> None:
    if site.amount.number != LITTLE:
        pytest.skip("of a little alone")
    with tab_at(browser, site.url, site.link()) as tab:
        tab.open("/console/services")
        tab.page.locator("#listing").evaluate("part => part.classList.add('old')")
        tab.page.evaluate("getSelection().selectAllChildren(document.querySelector('tbody td:nth-child(3)'))")
        tab.page.evaluate("document.body.dispatchEvent(new CustomEvent('live:services'))")
        assert tab.page.evaluate("getSelection().toString()") != ""
        expect(tab.page.locator("#listing.old")).to_have_count(1)
        tab.page.evaluate("getSelection().removeAllRanges()")
        expect(tab.page.locator("#listing:not(.old)")).to_have_count(1)


def test_output_is_read_again_after_the_connection_was_lost(browser: Browser, site: ConsoleSite) -> None:
    if site.amount.number != LITTLE:
        pytest.skip("of a little alone")
    with tab_at(browser, site.url, site.link()) as tab:
        tab.page.route(re.compile("/instances/[^/]+/logs"), lambda route: route.abort(), times=1)
        tab.page.goto(site.url + site.paths()["instance-logs"])
        expect(tab.page.locator("[data-log-state]")).to_have_text("connection lost; trying again…")
        expect(tab.page.locator("[data-log-lines] span").first).to_be_visible()
        tab.problems.clear()  # the browser notes the request that was cut


def test_without_scripts_pages_are_read_and_say_what_does_not_work(
    browser: Browser, site: ConsoleSite
) -> None:
    if site.amount.number != LITTLE:
        pytest.skip("of a little alone")
    with tab_at(browser, site.url, site.link()) as tab:
        state = tab.page.context.storage_state()
        width, height = PHONE
        with browser.new_context(
            java_script_enabled=False, storage_state=state, viewport={"width": width, "height": height}
        ) as context:
            page = context.new_page()
            page.goto(site.url + "/console/services")
            assert "Without JavaScript" in page.inner_text("main")
            page.get_by_role("link", name="Nodes").click()
            expect(page.locator("tbody tr").first).to_be_visible()
            page.goto(site.url + "/console/login")
            assert "Signing in needs JavaScript" in page.inner_text("main")


def test_who_may_only_call_functions_is_not_told_that_everything_is_well(
    browser: Browser, site: ConsoleSite
) -> None:
    if site.amount.number != LITTLE:
        pytest.skip("of a little alone")
    caller = Caller(AuthMethod.LOOPBACK, "<b>ivo</b>", Role.INVOKER)
    with tab_at(browser, site.url, site.link(caller)) as tab:
        assert "Your role sees nothing of this cloud" in tab.text()
        assert "Everything that should run does" not in tab.text()
        assert tab.page.locator("nav#navigation li").count() == 1
        expect(tab.page.locator(".account strong")).to_have_text("<b>ivo</b>")


@pytest.mark.skipif(not DOCS, reason="`make pictures` draws them")
def test_the_pictures_of_the_documentation(browser: Browser, site: ConsoleSite) -> None:
    if site.amount.number != LITTLE:
        pytest.skip("of a little alone")
    folder, paths = Path(DOCS), site.paths()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = (
        ("overview", "overview", PAPER, "light"),
        ("map", "map", PAPER, "light"),
        ("service", "service-copies", PAPER, "light"),
        ("function", "function", PAPER, "light"),
        ("node-cells", "node-cells", PAPER, "dark"),
        ("phone", "overview", PHONE, "light"),
    )
    blank = browser.new_page()
    with tab_at(browser, site.url, site.link()) as tab:
        for file, name, size, theme in wanted:
            tab.show(size, theme)
            tab.open(paths[name])
            if name == "node-cells":
                expect(tab.page.locator(".tree").first).to_be_visible()
            if tab.page.locator("[data-chart]").count():
                expect(tab.page.locator("[data-chart] canvas").first).to_be_visible()
            picture = pictures.shrink(blank, tab.page.screenshot(animations="disabled"))
            (folder / f"console-{file}.png").write_bytes(picture)
    blank.close()
