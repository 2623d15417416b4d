"""The web console of a whole Skerry in a real browser: signing in, roles, live updates, actions,
accessibility."""

from __future__ import annotations

import http.client
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from skerry.transport.access.console_rules import CONSOLE_RULES
from tests.support import imagery
from tests.support.browser import (
    CHROMIUM,
    Tab,
    command_link,
    confirm,
    does,
    launched,
    new_link,
    reused,
    signed_in,
)
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs chromium, a package of system-packages.txt"),
]

MARKUP = "<b id=injected>bold</b><script>document.title='injected'</script>"
COUNTS = 'trap "exit 0" TERM; n=0; while true; do echo odd $n; echo even $n; n=$((n+1)); sleep 0.2; done'
# A stream beside that of the page; both are told of a change at the same time.
WATCH = """new Promise(resolve => {
    const source = new EventSource('/console/stream?topics=instances');
    source.onopen = resolve;
    source.addEventListener('instances', () => { source.close(); document.body.dataset.changed = "yes"; });
})"""
SMALL = {"cpu": 20, "memory": 16}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skerry]:
    with running(tmp_path_factory.mktemp("skerry")) as started:
        yield started
        for service in started.call("GET", "/service/")[1]["services"]:
            started.call("DELETE", f"/service/{service['name']}")
        for one in started.call("GET", "/instance/")[1]["instances"]:
            started.call("DELETE", f"/instance/{one['id']}")
        eventually_sync(
            lambda: started.call("GET", "/instance/")[1]["count"] == 0, what="nothing is left on the machine"
        )


@pytest.fixture(scope="module")
def admins_tab(browser: Browser, skerry: Skerry) -> Iterator[Tab]:
    with signed_in(browser, skerry) as opened:
        yield opened


@pytest.fixture
def tab(admins_tab: Tab, request: pytest.FixtureRequest) -> Iterator[Tab]:
    yield from reused(admins_tab, request.function)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = imagery.busybox(command=("sh", "-c", f'echo "{MARKUP}"; echo ready; {imagery.SLEEPS}'))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'i.tar')}"


@pytest.fixture(scope="module")
def web(skerry: Skerry, image: str) -> dict[str, Any]:
    """A service with one copy, ready; and its copy."""
    body = {"name": "web", "image": image, "replicas": 1, "resources": SMALL, "update": {"min_ready_s": 0.2}}
    assert skerry.call("PUT", "/service/", body)[0] == 201
    service: dict[str, Any] = eventually_sync(
        lambda: (found := skerry.call("GET", "/service/web")[1])["status"] == "HEALTHY" and found,
        what="the service is healthy",
    )
    return service


def token(skerry: Skerry, role: str, *namespaces: str) -> str:
    status, made = skerry.call("POST", "/token/", {"role": role, "namespaces": namespaces})
    assert status == 201, made
    text: str = made["token"]
    return text


def pages(web: dict[str, Any]) -> list[str]:
    copy = web["copies"][0]["instance_id"]
    return [
        "/console",
        "/console/services",
        "/console/services/web",
        "/console/services/web?tab=revisions",
        "/console/services/web?tab=events",
        "/console/instances",
        f"/console/instances/{copy}",
        f"/console/instances/{copy}?tab=terminal",
        f"/console/instances/{copy}?tab=metrics",
        f"/console/instances/{copy}?tab=events",
        f"/console/instances/{copy}?tab=explain",
    ]


def test_every_page_works_and_axe_finds_nothing_serious_in_the_terminal(
    tab: Tab, web: dict[str, Any]
) -> None:
    for path in pages(web):
        tab.open(path)
        if "terminal" in path:
            assert tab.find_violations() == []


def test_a_link_works_once(browser: Browser, skerry: Skerry) -> None:
    link = command_link(skerry)
    with signed_in(browser, skerry, link=link):
        context = browser.new_context()
        page = context.new_page()
        page.goto(link)
        page.wait_for_function(
            "document.getElementById('login-message').textContent.includes('used already')"
        )
        context.close()


def test_a_change_arrives_by_itself(tab: Tab, skerry: Skerry, image: str) -> None:
    tab.open("/console/instances")
    assert "arrival" not in tab.text()
    status, made = skerry.call("PUT", "/instance/", {"name": "arrival", "uri": image, "resources": SMALL})
    assert status == 201, made
    tab.page.wait_for_selector("tr:has-text('arrival'):has-text('RUNNING')")
    skerry.call("DELETE", f"/instance/{made['id']}")
    tab.page.wait_for_selector("tr:has-text('arrival')", state="detached")


def hold(tab: Tab, pattern: str) -> list[Route]:
    """The first request of an address waits until the test lets it go on."""
    held: list[Route] = []

    def handle(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    tab.page.route(pattern, handle)
    return held


def until_held(tab: Tab, held: list[Route]) -> Route:
    eventually_sync(lambda: tab.page.wait_for_timeout(10) or held, what="the page sends the request")
    return held[0]


def test_a_change_before_the_stream_of_a_page_is_open_arrives(tab: Tab, skerry: Skerry, image: str) -> None:
    held = hold(tab, "**/console/stream?*")
    tab.page.goto(f"{tab.url}/console/instances")
    stream = until_held(tab, held)
    made = skerry.call("PUT", "/instance/", {"name": "early", "uri": image, "resources": SMALL})[1]
    eventually_sync(
        lambda: skerry.call("GET", f"/instance/{made['id']}")[1]["status"] == "RUNNING",
        what="the instance is running, so nothing about it changes any more",
    )
    stream.continue_()
    tab.page.wait_for_selector("tr:has-text('early'):has-text('RUNNING')")
    tab.page.unroute("**/console/stream?*")
    skerry.call("DELETE", f"/instance/{made['id']}")


def test_a_change_while_a_page_loads_another_arrives(tab: Tab, skerry: Skerry, image: str) -> None:
    tab.open("/console/instances")
    held = hold(tab, "**/console/instances")
    first = skerry.call("PUT", "/instance/", {"name": "first", "uri": image, "resources": SMALL})[1]
    load = until_held(tab, held)
    answer = load.fetch()  # without what comes now
    assert "second" not in answer.text()
    tab.page.evaluate(WATCH)
    second = skerry.call("PUT", "/instance/", {"name": "second", "uri": image, "resources": SMALL})[1]
    tab.page.wait_for_selector("body[data-changed=yes]")
    load.fulfill(response=answer)
    tab.page.wait_for_selector("tr:has-text('second')")
    tab.page.unroute("**/console/instances")
    for made in (first, second):
        skerry.call("DELETE", f"/instance/{made['id']}")


def test_markup_in_output_and_searches_is_text(tab: Tab, skerry: Skerry, web: dict[str, Any]) -> None:
    tab.open(f"/console/instances/{web['copies'][0]['instance_id']}")
    tab.page.wait_for_function(
        "document.querySelector('[data-log-lines]').textContent.includes('<b id=injected>')"
    )
    tab.open("/console/services?q=%3Cb%20id%3Dinjected%3E")
    assert "<b id=injected>" in tab.text()
    assert tab.page.query_selector("#injected") is None
    assert "injected" not in tab.page.title()


def test_a_terminal_runs_what_is_typed(tab: Tab, skerry: Skerry, web: dict[str, Any]) -> None:
    copy = web["copies"][0]["instance_id"]
    tab.open(f"/console/instances/{copy}?tab=terminal")
    tab.page.wait_for_selector("[data-terminal-state]:text-is('connected')")
    tab.page.keyboard.type("echo sum $((20 + 22)); printf '\\033[38;2;255;0;0mred\\033[0m\\n'; stty size\n")
    tab.page.wait_for_selector(".xterm-rows:has-text('sum 42')")
    tab.page.wait_for_selector(".xterm-rows span[style*='color: rgb(255, 0, 0)']")
    tab.page.keyboard.type("exit 3\n")
    tab.page.wait_for_selector("[data-terminal-state]:has-text('exit code 3')")
    tab.page.click("button:has-text('Open again')")
    tab.page.wait_for_selector("[data-terminal-state]:text-is('connected')")


@does("POST /console/services/{name}/scale", "POST /console/services/{name}/delete")
def test_an_action_shows_its_command_asks_first_and_does_what_the_api_does(
    tab: Tab, skerry: Skerry, image: str
) -> None:
    body = {"name": "scaled", "image": image, "replicas": 1, "resources": SMALL}
    assert skerry.call("PUT", "/service/", body)[0] == 201
    tab.open("/console/services/scaled")
    tab.page.click("button:has-text('Scale')")
    assert "skerry service scale scaled 1" in tab.text("#dialog-scale")
    tab.page.fill("#dialog-scale input[name=replicas]", "2")
    assert "skerry service scale scaled 2" in tab.text("#dialog-scale")
    tab.page.click("#dialog-scale button:has-text('Scale')")
    tab.page.wait_for_selector(".notice:has-text('scaled to 2 copies')")
    tab.page.wait_for_selector("dt:has-text('Ready') + dd:has-text('of 2')")
    assert skerry.call("GET", "/service/scaled")[1]["replicas"] == 2
    tab.page.click("button:has-text('Delete')")
    assert "Delete service scaled" in tab.text("#dialog-delete")
    assert skerry.call("GET", "/service/scaled")[1]["status"] != "DELETING"
    tab.page.click("#dialog-delete button:has-text('Delete')")
    tab.page.wait_for_url("**/console/services")
    tab.page.wait_for_selector(".notice:has-text('is being deleted')")
    tab.page.wait_for_selector("tr:has-text('scaled')", state="detached")


@does(
    "POST /console/services/{name}/pause",
    "POST /console/services/{name}/resume",
    "POST /console/services/{name}/promote",
    "POST /console/services/{name}/rollback",
)
def test_an_update_is_paused_resumed_promoted_and_rolled_back(tab: Tab, skerry: Skerry, image: str) -> None:
    update = {"min_ready_s": 0.2, "drain_s": 0, "canary": 1}
    body = {"name": "rolled", "image": image, "replicas": 2, "resources": SMALL, "update": update}
    assert skerry.call("PUT", "/service/", body)[0] == 201
    tab.open("/console/services/rolled")
    summary = tab.page.locator("#summary")
    expect(summary.locator("h1")).to_contain_text("HEALTHY")
    changed = {"environment": ["RELEASE=2"]}
    assert skerry.call("PATCH", "/service/rolled", changed)[0] == 200
    expect(summary).to_contain_text("1 of 1 canaries of revision 2 are good.")
    confirm(tab, "Pause")
    expect(summary.locator("h1")).to_contain_text("PAUSED")
    confirm(tab, "Resume")
    expect(summary.locator("h1")).to_contain_text("CANARY")
    confirm(tab, "Promote")
    expect(summary.locator("h1")).to_contain_text("HEALTHY")
    tab.page.get_by_role("button", name="Roll back").click()
    dialog = tab.page.locator("dialog[open]")
    dialog.get_by_label("Revision").fill("1")
    expect(dialog.locator(".command code")).to_have_text("skerry service rollback rolled --to 1")
    dialog.locator(".buttons button:last-child").click()
    expect(tab.page.locator("dt:has-text('Revision') + dd")).to_contain_text("1")
    expect(summary.locator("h1")).to_contain_text("HEALTHY")
    tab.open("/console/services/rolled?tab=revisions")
    expect(tab.page.locator("#part tbody tr", has_text="wanted now, last good")).to_contain_text("1")
    assert skerry.call("GET", "/service/rolled")[1]["revision"] == 1


@does(
    "POST /console/instances/{id}/stop",
    "POST /console/instances/{id}/start",
    "POST /console/instances/{id}/delete",
)
def test_an_instance_is_stopped_started_and_deleted(tab: Tab, skerry: Skerry, image: str) -> None:
    status, made = skerry.call("PUT", "/instance/", {"name": "solo", "uri": image, "resources": SMALL})
    assert status == 201, made
    tab.open(f"/console/instances/{made['id']}")
    heading = tab.page.locator("#summary h1")
    expect(heading).to_contain_text("RUNNING")
    confirm(tab, "Stop")
    expect(heading).to_contain_text("STOPPED")
    confirm(tab, "Start")
    expect(heading).to_contain_text("RUNNING")
    confirm(tab, "Delete")
    tab.page.wait_for_url("**/console/instances")
    tab.page.wait_for_selector("tr:has-text('solo')", state="detached")


def test_output_is_searched_while_it_is_followed(tab: Tab, skerry: Skerry) -> None:
    counting = imagery.busybox(command=("sh", "-c", COUNTS))
    with tempfile.TemporaryDirectory() as folder:
        archive = f"oci-archive:{imagery.write_oci_archive(counting, Path(folder) / 'i.tar')}"
        body = {"name": "counter", "uri": archive, "resources": SMALL}
        status, made = skerry.call("PUT", "/instance/", body)
        assert status == 201, made
        instance = f"/instance/{made['id']}"
        eventually_sync(lambda: skerry.call("GET", instance)[1]["status"] == "RUNNING")
        tab.open(f"/console/instances/{made['id']}")
        lines = tab.page.locator("[data-log-lines] span:visible")
        expect(lines.filter(has_text="odd")).not_to_have_count(0)
        tab.page.get_by_label("Find in the output").fill("EVEN")
        expect(lines.filter(has_text="odd")).to_have_count(0)
        seen = lines.count()
        expect(lines.nth(seen + 1)).to_contain_text("even")  # lines that come later are searched too
        assert lines.filter(has_text="odd").count() == 0
    skerry.call("DELETE", f"/instance/{made['id']}")


def test_what_an_action_is_refused_for_is_said_in_its_dialog(
    tab: Tab, skerry: Skerry, web: dict[str, Any]
) -> None:
    tab.open("/console/services/web")
    tab.page.click("button:has-text('Scale')")
    tab.page.evaluate("document.querySelector('#dialog-scale form').noValidate = true")
    tab.page.fill("#dialog-scale input[name=replicas]", "99999999")
    tab.page.click("#dialog-scale button:has-text('Scale')")
    tab.page.wait_for_selector("#dialog-scale [role=alert]:has-text('10000')")
    tab.problems.clear()  # the browser notes every answer that is an error


def test_a_viewer_sees_no_actions_and_may_do_none(
    browser: Browser, skerry: Skerry, web: dict[str, Any]
) -> None:
    with signed_in(browser, skerry, link=new_link(skerry, token(skerry, "viewer"))) as tab:
        tab.open("/console/services/web")
        assert "HEALTHY" in tab.text()
        assert tab.page.query_selector("button:has-text('Scale')") is None
        copy = f"/console/instances/{web['copies'][0]['instance_id']}"
        tab.open(copy + "?tab=terminal")
        assert tab.page.query_selector("[data-terminal]") is None
        assert tab.page.evaluate("async path => (await fetch(path)).status", copy + "/terminal") == 403
        status = tab.page.evaluate(
            """async () => (await fetch('/console/services/web/scale', {method: 'POST', body: 'replicas=3',
            headers: {'content-type': 'application/x-www-form-urlencoded',
            ...JSON.parse(document.body.getAttribute('hx-headers'))}})).status"""
        )
        assert status == 403
        tab.problems.clear()
    assert skerry.call("GET", "/service/web")[1]["replicas"] == 1


def test_a_bound_caller_sees_its_namespaces_alone(
    browser: Browser, skerry: Skerry, web: dict[str, Any]
) -> None:
    copy = web["copies"][0]["instance_id"]
    with signed_in(browser, skerry, link=new_link(skerry, token(skerry, "deployer", "shop"))) as tab:
        tab.open("/console")
        assert "Nodes" not in tab.text()
        for path in ("/console/services", "/console/instances", "/console/services?namespace=*"):
            tab.open(path)
            assert tab.page.query_selector("#listing tr:has-text('web')") is None, path
        for path in (f"/console/instances/{copy}", "/console/services/web?namespace=default"):
            reply = tab.page.goto(tab.url + path)
            assert reply is not None
            assert reply.status == 404, path
        tab.problems.clear()


def test_a_session_ends_with_its_token_and_its_stream_too(browser: Browser, skerry: Skerry) -> None:
    text = token(skerry, "viewer")
    with signed_in(browser, skerry, link=new_link(skerry, text)) as tab:
        tab.open("/console")
        id = text.split("_")[1]
        assert skerry.call("DELETE", f"/token/{id}")[0] == 204
        tab.page.wait_for_selector("body[data-live=no]")
        reply = tab.page.goto(tab.url + "/console")
        assert reply is not None
        assert reply.status == 401
        assert "skerry console" in tab.text()
        tab.problems.clear()


@does("POST /console/logout")
def test_signing_out_ends_the_session(browser: Browser, skerry: Skerry) -> None:
    with signed_in(browser, skerry) as tab:
        tab.open("/console")
        tab.page.click("button:has-text('Sign out')")
        tab.page.wait_for_url("**/console/login")
        assert "POST /console/logout" in tab.actions
        reply = tab.page.goto(tab.url + "/console")
        assert reply is not None
        assert reply.status == 401
        tab.problems.clear()


def test_keys_lead_through_the_console(tab: Tab, skerry: Skerry, web: dict[str, Any]) -> None:
    tab.open("/console")
    tab.page.keyboard.press("g")
    tab.page.keyboard.press("s")
    tab.page.wait_for_url("**/console/services")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("nothing like it")
    tab.page.wait_for_selector("text=Nothing found")
    tab.page.wait_for_url("**/console/services?q=nothing*")
    tab.page.keyboard.press("Escape")
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.keyboard.press("?")
    tab.page.wait_for_selector("#help[open]")


def request(skerry: Skerry, verb: str, path: str, **headers: str) -> http.client.HTTPResponse:
    with closing(skerry.connect()) as connection:
        connection.request(
            verb, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        response = connection.getresponse()
        response.read()
        return response


def test_neither_local_trust_nor_a_token_opens_a_page(skerry: Skerry) -> None:
    bearer = f"Bearer {token(skerry, 'admin')}"
    rules = [name.split(" ") for name, row in CONSOLE_RULES.items() if row.session]
    assert rules
    for verb, template in rules:
        path = template.replace("{", "").replace("}", "")
        assert request(skerry, verb, path).status == 401, path
        assert request(skerry, verb, path, Authorization=bearer).status == 401, path


def test_other_names_and_origins_are_refused(skerry: Skerry) -> None:
    assert request(skerry, "GET", "/console/login", Host="evil.example").status == 403
    assert request(skerry, "POST", "/console/link", Origin="http://evil.example").status == 403
    assert request(skerry, "POST", "/console/login", Origin="null").status == 403


def test_the_root_leads_browsers_to_the_console_and_says_nothing_to_programs(skerry: Skerry) -> None:
    reply = request(skerry, "GET", "/", Accept="text/html,application/xhtml+xml")
    assert (reply.status, reply.headers["location"]) == (303, "/console")
    for verb in ("GET", "POST", "PUT"):
        status, problem = skerry.call(verb, "/")
        assert (status, problem["code"]) == (404, "not-found")
