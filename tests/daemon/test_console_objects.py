"""Pages of functions, jobs, schedules, tokens, certificates, the market, nodes, the map, volumes, secrets,
routes, workloads and events, in a real browser with a whole Skerry: every page is drawn, every action does
what it says, roles hold, and what others wrote is text. `tests/console/test_pages_in_browser.py` looks at how
they look."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support import functions, imagery
from tests.support.browser import CHROMIUM, Tab, confirm, does, launched, reused, signed_in
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs chromium, a package of system-packages.txt"),
]

MARKUP = "<b id=injected>bold</b><script>document.title='injected'</script>"
HELLO = f'''
def handler(params, context):
    """{MARKUP}"""
    print("said {MARKUP}")
    if params.get("fail"):
        raise ValueError("{MARKUP}")
    return {{"greeting": "Hello, " + params.get("name", "world")}}
'''
PAGES = (
    "/console/functions",
    "/console/functions/hello",
    "/console/functions/hello/code",
    "/console/functions/hello?tab=versions",
    "/console/jobs",
    "/console/jobs/sums",
    "/console/jobs/sums?tab=events",
    "/console/schedules",
    "/console/schedules/often",
    "/console/market",
    "/console/market/contracts",
    "/console/market/holds",
    "/console/market/ledger",
    "/console/market/peers",
    "/console/tokens",
    "/console/certificates",
    "/console/nodes",
    "/console/map",
    "/console/volumes",
    "/console/volumes/data",
    "/console/secrets",
    "/console/secrets/secret/password",
    "/console/secrets/config/motd?tab=versions",
    "/console/routes",
    "/console/routes/shop",
    "/console/events",
    "/console/workloads",
    "/console/workloads/worker",
    "/console/workloads/worker?tab=events",
)
SECRET = "hunter2-of-the-console"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skerry]:
    """With a function that was called, a job that has ended, a schedule, a token and an offer."""
    folder = tmp_path_factory.mktemp("image")
    made = imagery.busybox(command=("sh", "-c", f'echo "{MARKUP}"'))
    image = f"oci-archive:{imagery.write_oci_archive(made, folder / 'i.tar')}"
    lasting = imagery.busybox(command=("sh", "-c", imagery.SLEEPS))
    sleeper = f"oci-archive:{imagery.write_oci_archive(lasting, folder / 's.tar')}"
    with running(tmp_path_factory.mktemp("skerry")) as started:
        functions.create(started, "hello", HELLO)
        functions.invoke(started, "hello", {"name": MARKUP})
        job = {"name": "sums", "image": image, "resources": {"cpu": 20, "memory": 16}}
        assert started.call("PUT", "/job/", job)[0] == 201
        worker = {"name": "worker", "uri": sleeper, "resources": {"cpu": 20, "memory": 16}}
        assert started.call("PUT", "/workload/", worker)[0] == 201
        often = {"name": "often", "cron": "0 0 1 1 *", "function": {"name": "hello"}}
        assert started.call("PUT", "/schedule/", often)[0] == 201
        sold = started.cli(
            "market", "sell", "--cpu", "1", "--memory", "256", "--price", "1", "--currency", "EUR"
        )
        assert sold.returncode == 0, sold.stderr
        assert started.call("POST", "/token/", {"role": "viewer", "note": MARKUP})[0] == 201
        assert started.call("PUT", "/volume/", {"name": "data", "size": 1})[0] == 201
        assert started.call("PUT", "/secret/password", {"text": SECRET})[0] == 201
        assert started.call("PUT", "/config/motd", {"text": MARKUP})[0] == 201
        route = {"name": "shop", "host": "shop.example.org", "to": "fn/hello", "public": True}
        assert started.call("PUT", "/route/", route)[0] == 201
        eventually_sync(
            lambda: started.call("GET", "/job/sums")[1]["status"] == "SUCCEEDED", what="the job has ended"
        )
        yield started
        started.call("DELETE", "/job/sums")
        started.call("DELETE", "/route/shop")
        started.call("DELETE", "/workload/tank")
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


def test_every_page_works_and_what_others_wrote_is_text(tab: Tab) -> None:
    for path in PAGES:
        tab.open(path)
        assert tab.page.locator("#injected").count() == 0, path


@does("POST /console/functions/{name}/call")
def test_a_function_is_tried_and_the_call_and_its_worker_appear(tab: Tab, skerry: Skerry) -> None:
    tab.open("/console/functions/hello")
    tab.page.fill("#parameters", '{"name": "<i>you</i>"}')
    before = tab.page.locator("table.calls tbody tr").count()
    tab.page.get_by_role("button", name="Call", exact=True).click()
    expect(tab.page.locator("#call-result pre").first).to_contain_text('"greeting": "Hello, <i>you</i>"')
    expect(tab.page.locator("#call-result")).to_contain_text(f"said {MARKUP}")
    expect(tab.page.locator("#call-result .command code")).to_contain_text("skerry fn invoke hello --json")
    expect(tab.page.locator("table.calls tbody tr")).to_have_count(before + 1)
    expect(tab.page.locator("table.calls tbody tr").first).to_contain_text("queue")
    tab.open(f"/console/nodes/{node_id(skerry)}?tab=cells")
    tab.page.locator(".tree .leaf").get_by_role("link", name="hello").first.click()
    tab.page.wait_for_url("**/console/functions/hello*")


def test_a_call_that_fails_or_is_refused_says_why(tab: Tab) -> None:
    tab.open("/console/functions/hello")
    tab.page.fill("#parameters", '{"fail": 1}')
    tab.page.get_by_role("button", name="Call", exact=True).click()
    expect(tab.page.locator("#call-result")).to_contain_text("HandlerError")
    expect(tab.page.locator("#call-result")).to_contain_text(f"ValueError: {MARKUP}")
    tab.page.fill("#parameters", "no JSON")
    tab.page.get_by_role("button", name="Call", exact=True).click()
    expect(tab.page.locator("#call-result")).to_contain_text("parameters are a JSON object")


def test_the_code_and_the_output_of_a_function_are_text(tab: Tab) -> None:
    tab.open("/console/functions/hello/code")
    expect(tab.page.locator(".source pre").first).to_contain_text(MARKUP)
    tab.open("/console/functions/hello?tab=logs")
    expect(tab.page.locator("[data-log-lines]")).to_contain_text(f"said {MARKUP}")


@does("POST /console/functions/{name}/delete")
def test_functions_that_come_and_go_are_seen_without_reloading(tab: Tab, skerry: Skerry) -> None:
    tab.open("/console/functions")
    functions.create(skerry, "passing", HELLO)
    expect(tab.page.locator("#listing")).to_contain_text("passing")
    tab.open("/console/functions/passing")
    confirm(tab, "Delete")
    tab.page.wait_for_url("**/console/functions")
    expect(tab.page.locator("#listing")).not_to_contain_text("passing")
    assert skerry.call("GET", "/function/passing")[0] == 404


def test_a_job_shows_its_tries_and_their_output(tab: Tab) -> None:
    tab.open("/console/jobs/sums")
    expect(tab.page.locator("#summary")).to_contain_text("1 of 1 succeeded")
    expect(tab.page.locator("#part")).to_contain_text("TERMINATED")
    tab.open("/console/jobs/sums?tab=logs")
    expect(tab.page.locator("[data-log-lines]")).to_contain_text(MARKUP)


@does("POST /console/jobs/{name}/cancel", "POST /console/jobs/{name}/delete")
def test_a_job_is_cancelled_and_deleted_with_its_tries(tab: Tab, skerry: Skerry) -> None:
    image = skerry.call("GET", "/workload/worker")[1]["uri"]
    job = {"name": "endless", "image": image, "resources": {"cpu": 20, "memory": 16}}
    assert skerry.call("PUT", "/job/", job)[0] == 201
    tab.open("/console/jobs/endless")
    expect(tab.page.locator("#part tbody tr")).to_contain_text("RUNNING")
    confirm(tab, "Cancel job")
    expect(tab.page.locator("#summary h1")).to_contain_text("CANCELLED")
    confirm(tab, "Delete")
    tab.page.wait_for_url("**/console/jobs")
    expect(tab.page.locator("#listing")).not_to_contain_text("endless")
    assert skerry.call("GET", "/job/endless")[0] == 404


@does(
    "POST /console/schedules/{name}/run",
    "POST /console/schedules/{name}/pause",
    "POST /console/schedules/{name}/resume",
    "POST /console/schedules/{name}/delete",
)
def test_a_schedule_is_run_now_paused_resumed_and_deleted(tab: Tab, skerry: Skerry) -> None:
    rare = {"name": "rare", "cron": "0 0 1 1 *", "function": {"name": "hello"}}
    assert skerry.call("PUT", "/schedule/", rare)[0] == 201
    tab.open("/console/schedules/rare")
    confirm(tab, "Run now")
    expect(tab.page.locator("#part")).to_contain_text("SUCCEEDED")
    confirm(tab, "Pause")
    expect(tab.page.locator("#summary")).to_contain_text("PAUSED")
    confirm(tab, "Resume")
    expect(tab.page.locator("#summary")).to_contain_text("ACTIVE")
    confirm(tab, "Delete")
    tab.page.wait_for_url("**/console/schedules")
    assert skerry.call("GET", "/schedule/rare")[0] == 404


@does("POST /console/tokens/create", "POST /console/tokens/{id}/revoke")
def test_the_text_of_a_new_token_is_shown_once_and_it_is_revoked_after_a_question(
    tab: Tab, skerry: Skerry
) -> None:
    tab.open("/console/tokens")
    tab.page.get_by_role("button", name="Create token").click()
    dialog = tab.page.locator("dialog[open]")
    dialog.get_by_label("Role").select_option("viewer")
    dialog.get_by_label(re.compile("Note")).fill("made here")
    dialog.locator(".buttons button:last-child").click()
    text = tab.page.locator("#answer .command code").first.inner_text()
    bearer = {"Authorization": f"Bearer {text}"}
    assert skerry.call("GET", "/about", headers=bearer)[0] == 200
    row = tab.page.locator("#listing tr", has_text="made here")
    expect(row).to_contain_text("VALID")
    tab.open("/console/tokens")
    assert text not in tab.page.content()
    row.get_by_role("button", name="Revoke").click()
    expect(tab.page.locator("dialog[open] h2")).to_contain_text("made here")
    tab.page.locator("dialog[open] button.destructive").click()
    expect(row).to_have_count(0)
    assert skerry.call("GET", "/about", headers=bearer)[0] == 401


def test_certificates_of_the_ca_and_the_node_have_the_days_that_are_left(tab: Tab) -> None:
    tab.open("/console/certificates")
    expect(tab.page.locator("#listing")).to_contain_text("CA of this cloud")
    expect(tab.page.locator("#listing tr", has_text="node").first.locator("time")).to_have_text(
        re.compile(r"^\d+[dhm]$")
    )


@does("POST /console/certificates/{serial}/revoke")
def test_a_certificate_of_a_client_is_revoked_after_a_question(
    tab: Tab, skerry: Skerry, tmp_path: Path
) -> None:
    made = skerry.cli("certificate", "create", "ann", "--role", "viewer", "--out", str(tmp_path))
    assert made.returncode == 0, made.stderr
    tab.open("/console/certificates?q=ann")
    row = tab.page.locator("#listing tr", has_text="role viewer")
    expect(row).to_contain_text("VALID")
    row.get_by_role("button", name="Revoke").click()
    expect(tab.page.locator("dialog[open]")).to_contain_text("Revoke the client certificate of ann?")
    tab.page.locator("dialog[open] button.destructive").click()
    expect(row).to_contain_text("REVOKED")
    expect(row.get_by_role("button", name="Revoke")).to_have_count(0)


def test_the_market_without_peers_says_how_to_add_one_and_shows_what_is_offered(tab: Tab) -> None:
    tab.open("/console/market")
    expect(tab.page.locator("#listing")).to_contain_text("this cloud")
    tab.open("/console/market/ledger")
    expect(tab.page.locator("#listing")).to_contain_text("BALANCED")
    tab.open("/console/market/peers")
    expect(tab.page.locator("#listing")).to_contain_text("skerry market peers add")
    confirm(tab, "Add peer")
    assert tab.page.locator("dialog[open]").count() == 1  # its fields are required


def test_a_bound_viewer_sees_neither_the_market_nor_tokens_nor_code(browser: Browser, skerry: Skerry) -> None:
    made = skerry.call("POST", "/token/", {"role": "viewer", "namespaces": ["default"]})[1]
    bearer = {"Authorization": f"Bearer {made['token']}"}
    link = skerry.call("POST", "/console/link", headers=bearer)[1]["path"]
    with signed_in(browser, skerry, link=skerry.ready["http"] + link) as tab:
        tab.open("/console/functions/hello")
        assert tab.page.locator(".try, main button.destructive").count() == 0
        assert tab.page.locator(".tabs >> text=Code").count() == 0
        assert tab.page.locator("nav#navigation >> text=Market").count() == 0
        tab.open("/console/certificates")
        expect(tab.page.locator("#listing")).not_to_contain_text("CA of this cloud")
        cells = f"/console/nodes/{node_id(skerry)}?tab=cells"
        for path in ("/console/market", "/console/tokens", "/console/functions/hello/code", cells):
            reply = tab.page.request.get(tab.url + path)
            assert reply.status == 403, path
        assert skerry.call("GET", f"/node/{node_id(skerry)}/cells", headers=bearer)[0] == 403
        tab.problems.clear()  # the browser notes each of them


def node_id(skerry: Skerry) -> str:
    found: str = skerry.call("GET", "/node/")[1]["nodes"][0]["id"]
    return found


@does("POST /console/nodes/{id}/cordon", "POST /console/nodes/{id}/uncordon")
def test_a_node_is_cordoned_with_a_reason_and_uncordoned(tab: Tab, skerry: Skerry) -> None:
    id = node_id(skerry)
    tab.open(f"/console/nodes/{id}")
    tab.page.get_by_role("button", name="Cordon", exact=True).click()
    dialog = tab.page.locator("dialog[open]")
    expect(dialog).to_contain_text("skerry node cordon")
    dialog.get_by_label("Reason").fill("new disk")
    expect(dialog.locator(".command code")).to_contain_text("--reason 'new disk'")
    dialog.get_by_label("Reason").fill(MARKUP)
    dialog.locator(".buttons button:last-child").click()
    expect(tab.page.locator("h1")).to_contain_text("CLOSED")
    expect(tab.page.locator("#summary")).to_contain_text("It takes nothing new: it is cordoned.")
    assert skerry.call("GET", f"/node/{id}")[1]["is_cordoned"] is True
    tab.open(f"/console/nodes/{id}?tab=events")
    expect(tab.page.locator("#part")).to_contain_text(MARKUP)
    assert tab.page.locator("#injected").count() == 0
    confirm(tab, "Uncordon")
    expect(tab.page.locator("h1")).to_contain_text("READY")


@does("POST /console/nodes/{id}/drain", "POST /console/nodes/{id}/uncordon")
def test_a_node_is_drained_and_takes_instances_again(tab: Tab, skerry: Skerry) -> None:
    id = node_id(skerry)
    tab.open(f"/console/nodes/{id}")
    tab.page.get_by_role("button", name="Drain", exact=True).click()
    dialog = tab.page.locator("dialog[open]")
    dialog.get_by_label("Seconds").fill("90")
    expect(dialog.locator(".command code")).to_contain_text("--within 90s")
    dialog.locator(".buttons button:last-child").click()
    expect(tab.page.locator("h1")).to_contain_text(re.compile("DRAIN"))
    assert skerry.call("GET", f"/node/{id}")[1]["drain_by"] is not None
    confirm(tab, "Uncordon")
    expect(tab.page.locator("h1")).to_contain_text("READY")


@does("POST /console/workloads/{name}/add", "POST /console/workloads/{name}/delete")
def test_a_workload_gets_an_instance_whose_cell_is_in_the_tree_of_its_node_and_is_deleted(
    tab: Tab, skerry: Skerry
) -> None:
    image = skerry.call("GET", "/workload/worker")[1]["uri"]
    body = {"name": "tank", "uri": image, "resources": {"cpu": 20, "memory": 16}}
    skerry.call("DELETE", "/workload/tank")  # of a try before
    assert skerry.call("PUT", "/workload/", body)[0] == 201
    tab.open("/console/workloads/tank")
    expect(tab.page.locator("#part")).to_contain_text("nothing runs until an instance is made from it")
    tab.page.get_by_role("button", name="Add instance").click()
    expect(tab.page.locator("dialog[open]")).to_contain_text("| skerry apply -f -")
    tab.page.locator("dialog[open] .buttons button:last-child").click()
    expect(tab.page.locator("#part tbody tr")).to_contain_text("RUNNING")
    expect(tab.page.locator("#summary")).to_contain_text("1 of 1 instance")

    id = node_id(skerry)
    tab.open(f"/console/nodes/{id}?tab=cells")
    leaf = tab.page.locator(".tree .leaf", has_text="tank")
    expect(leaf).to_contain_text("of 16 MB")
    assert tab.find_violations() == []
    leaf.get_by_role("link", name="tank").click()
    expect(tab.page.locator("#summary")).to_contain_text("workload tank")
    status, listed = skerry.call("GET", f"/node/{id}/cells")
    assert status == 200
    [made] = skerry.call("GET", "/instance/?name=tank")[1]["instances"]
    [cell] = [one for one in listed["cells"] if one["instance_id"] == made["id"]]
    assert (cell["owner"], cell["memory_limit"]) == ("container", 16)
    shown = skerry.cli("node", "cells", id)
    assert "of 16MB" in shown.stdout, shown.stderr

    tab.open("/console/workloads/tank")
    tab.page.get_by_role("button", name="Delete", exact=True).click()
    tab.page.get_by_label("Refuse if it has instances").check()
    expect(tab.page.locator("dialog[open] .command code")).to_have_text(
        "skerry delete workload tank --keep-instances"
    )
    tab.page.locator("dialog[open] .buttons button:last-child").click()
    expect(tab.page.locator("dialog[open] [role=alert]")).to_contain_text("delete them first")
    tab.problems.clear()  # the browser notes the refusal
    tab.page.get_by_label("Refuse if it has instances").uncheck()
    tab.page.locator("dialog[open] .buttons button:last-child").click()
    tab.page.wait_for_url("**/console/workloads")
    assert skerry.call("GET", "/workload/tank")[0] == 404


def test_the_page_of_what_somebody_else_deletes_is_left_for_the_list(tab: Tab, skerry: Skerry) -> None:
    body = {"name": "fleeting", "uri": skerry.call("GET", "/workload/worker")[1]["uri"]}
    skerry.call("DELETE", "/workload/fleeting")  # of a try before
    assert skerry.call("PUT", "/workload/", body)[0] == 201
    tab.open("/console/workloads/fleeting")
    assert skerry.call("DELETE", "/workload/fleeting")[0] in (200, 204)
    # Several parts of the page may leave it at once, and the last of them wins.
    expect(tab.page).to_have_url(f"{tab.url}/console/workloads")


def test_the_tabs_of_a_node_have_its_namespaces_and_events(tab: Tab, skerry: Skerry) -> None:
    tab.open(f"/console/nodes/{node_id(skerry)}?tab=events")
    expect(tab.page.locator("#part")).to_contain_text("node.registered")
    tab.open(f"/console/nodes/{node_id(skerry)}?tab=tree")


def test_the_map_leads_to_the_node(tab: Tab, skerry: Skerry) -> None:
    tab.open("/console/map")
    expect(tab.page.locator("#map")).to_contain_text("1 node in 1 area")
    tab.page.locator(".map a .dot").first.click()
    tab.page.wait_for_url(f"**/console/nodes/{node_id(skerry)}")


@does("POST /console/secrets/{kind}/{name}/delete")
def test_no_page_has_the_value_of_a_secret_and_one_is_deleted_after_a_question(
    tab: Tab, skerry: Skerry
) -> None:
    assert skerry.call("PUT", "/secret/spare", {"text": SECRET})[0] == 201
    for path in ("/console/secrets", "/console/secrets/secret/spare", "/console/events"):
        tab.open(path)
        assert SECRET not in tab.page.content(), path
    tab.open("/console/secrets/secret/spare")
    confirm(tab, "Delete")
    tab.page.wait_for_url("**/console/secrets")
    assert skerry.call("GET", "/secret/spare")[0] == 404


@does("POST /console/volumes/{name}/delete")
def test_volumes_appear_without_reloading_and_are_deleted_after_a_question(tab: Tab, skerry: Skerry) -> None:
    tab.open("/console/volumes")
    assert skerry.call("PUT", "/volume/", {"name": "later", "size": 1})[0] == 201
    expect(tab.page.locator("#listing")).to_contain_text("later")
    tab.open("/console/volumes/later")
    confirm(tab, "Delete")
    tab.page.wait_for_url("**/console/volumes")
    expect(tab.page.locator("#listing")).not_to_contain_text("later")
    tab.open("/console/events?q=volume/default/later")
    expect(tab.page.locator("#listing")).to_contain_text("volume.created")
    expect(tab.page.locator("#listing")).to_contain_text("volume.deleted")


@does("POST /console/routes/{name}/delete")
def test_a_route_says_where_it_leads_and_is_deleted_after_a_question(tab: Tab, skerry: Skerry) -> None:
    body = {"name": "old", "host": "old.example.org", "redirect": "https://new.example.org"}
    assert skerry.call("PUT", "/route/", body)[0] == 201
    tab.open("/console/routes/old")
    expect(tab.page.locator("#summary")).to_contain_text("redirect to https://new.example.org")
    confirm(tab, "Delete")
    tab.page.wait_for_url("**/console/routes")
    assert skerry.call("GET", "/route/old")[0] == 404
