"""The web console of a whole Skerry in a real browser, while the server restarts: what is open catches up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support import imagery
from tests.support.browser import CHROMIUM, confirm, launched, signed_in
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs chromium, a package of system-packages.txt"),
]


@pytest.fixture
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started


def test_a_page_with_output_survives_a_restart_with_its_session_and_says_what_it_cannot_do_meanwhile(
    browser: Browser, tmp_path: Path
) -> None:
    made = imagery.busybox(command=("sh", "-c", f"echo counting; {imagery.SLEEPS}"))
    image = f"oci-archive:{imagery.write_oci_archive(made, tmp_path / 'image.tar')}"
    with running(tmp_path) as first:
        port = first.ready["http"].rpartition(":")[2]
        body = {"name": "web", "uri": image, "resources": {"cpu": 20, "memory": 16}}
        status, instance = first.call("PUT", "/instance/", body)
        assert status in (200, 201), instance
        path = f"/instance/{instance['id']}"
        eventually_sync(
            lambda: first.call("GET", path)[1]["status"].upper() == "RUNNING", what="the instance runs"
        )
        with signed_in(browser, first) as tab:
            tab.open(f"/console/instances/{instance['id']}?tab=logs")
            state, lines = tab.page.locator("[data-log-state]"), tab.page.locator("[data-log-lines]")
            expect(lines).to_contain_text("counting")
            assert first.stop() == 0
            expect(tab.page.locator("#stale")).to_be_visible()
            expect(state).to_have_text("connection lost; trying again…")
            confirm(tab, "Stop")
            expect(tab.page.locator("dialog[open] .problem")).to_contain_text("The server did not answer")
            tab.page.locator("dialog[open] [data-close]").click()
            with running(tmp_path, "--http", f"127.0.0.1:{port}") as second:
                tab.page.wait_for_selector("body[data-live=yes]")
                expect(tab.page.locator("#stale")).to_be_hidden()
                expect(state).to_have_text("following")
                assert lines.inner_text().count("counting") == 1, "it begins again, and repeats nothing"
                tab.problems.clear()  # the browser notes every request that had no answer
                remove(second, path)


def remove(skerry: Skerry, path: str) -> None:
    skerry.call("DELETE", path)
    eventually_sync(
        lambda: skerry.call("GET", "/instance/")[1]["count"] == 0, what="nothing is left on the machine"
    )
