"""The market in a real browser, with two clouds: a peer is added, capacity is bought, renewed, given back
and reclaimed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import expect

from tests.support.browser import CHROMIUM, Tab, actions_of, confirm, does, launched, signed_in
from tests.support.skerry import Skerry, running

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs chromium, a package of system-packages.txt"),
]


QUICK = ("--set", "market.drain_s=1", "--set", "market.notice_s=2")


@dataclass(frozen=True)
class Tabs:
    """One of a cloud that buys, one of the seller's, and where and who that is."""

    buying: Tab
    selling: Tab
    seller: str
    cloud: str


def done(skerry: Skerry, *words: str) -> None:
    made = skerry.cli("market", *words)
    assert made.returncode == 0, made.stderr


@pytest.fixture
def tabs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Tabs]:
    """Of a cloud that sells, and of one that has it as its peer."""
    with (
        running(tmp_path_factory.mktemp("seller"), *QUICK) as seller,
        running(tmp_path_factory.mktemp("buyer"), *QUICK) as buyer,
        launched() as browser,
    ):
        parts = ("--cpu-min", "1", "--cpu-step", "1", "--memory-min", "128", "--memory-step", "128")
        done(seller, "sell", "--cpu", "2", "--memory", "1024", "--price", "0.10", "--currency", "EUR", *parts)
        done(seller, "buyers", "add", buyer.call("GET", "/market")[1]["cloud"])
        cloud = seller.call("GET", "/market")[1]["cloud"]
        with signed_in(browser, buyer) as buying, signed_in(browser, seller) as selling:
            yield Tabs(buying, selling, seller.ready["http"], cloud)
            assert buying.actions | selling.actions >= set(actions_of(request.function))


@does(
    "POST /console/market/peers/add",
    "POST /console/market/buy",
    "POST /console/market/contracts/{id}/renew",
    "POST /console/market/contracts/{id}/release",
    "POST /console/market/contracts/{id}/reclaim",
    "POST /console/market/peers/{name}/remove",
    "POST /console/nodes/{id}/remove",
)
def test_capacity_is_bought_renewed_given_back_and_reclaimed_each_after_a_question(tabs: Tabs) -> None:
    add_peer(tabs)
    buy(tabs.buying)
    page = tabs.buying.page
    expect(page.locator("#summary")).to_contain_text("OPEN")
    expect(page.locator("pre.text")).to_contain_text('"')
    assert page.locator("pre.text").inner_text().startswith("{")
    assert tabs.buying.find_violations() == []
    total = page.locator("dt:has-text('Total') + dd")
    expect(total).to_contain_text("0.075 EUR")
    page.get_by_role("button", name="Renew", exact=True).click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_label("More hours").fill("2")
    expect(dialog.locator(".command code")).to_contain_text("--for 2h")
    dialog.locator(".buttons button:last-child").click()
    expect(total).to_contain_text("0.15 EUR")
    confirm(tabs.buying, "Release")
    expect(page.locator("#summary h1")).to_contain_text("ENDED")

    buy(tabs.buying)
    expect(page.locator("#summary")).to_contain_text("OPEN")
    reclaim(tabs.selling)
    expect(page.locator("#summary h1")).to_contain_text("ENDED")
    tabs.buying.open("/console/market/peers")
    confirm(tabs.buying, "Remove")
    expect(page.locator("#listing")).to_contain_text("skerry market peers add")

    tabs.selling.open("/console/nodes")
    tabs.selling.page.locator("#listing tbody a").first.click()
    confirm(tabs.selling, "Remove")
    tabs.selling.page.wait_for_url("**/console/nodes")
    expect(tabs.selling.page.locator(".notice", has_text="is removed")).to_be_visible()
    # Its machine runs on, and so registers again.
    expect(tabs.selling.page.locator("#listing tbody tr")).to_contain_text("READY")


def add_peer(tabs: Tabs) -> None:
    tabs.buying.open("/console/market/peers")
    tabs.buying.page.get_by_role("button", name="Add peer").click()
    dialog = tabs.buying.page.locator("dialog[open]")
    dialog.get_by_label("Name").fill("south")
    dialog.get_by_label("Address").fill(tabs.seller)
    dialog.get_by_label("Its id").fill(tabs.cloud)
    expect(dialog.locator(".command code")).to_have_text(
        f"skerry market peers add south {tabs.seller} --cloud {tabs.cloud}"
    )
    dialog.locator(".buttons button:last-child").click()
    expect(tabs.buying.page.locator("#listing tr", has_text="south")).to_contain_text("ANSWERS")


def buy(tab: Tab) -> None:
    """One core for two hours; then the page of its contract is open."""
    page = tab.page
    tab.open("/console/market?cpu=1&memory=256")
    page.locator("#listing").get_by_role("button", name="Buy").click()
    dialog = page.locator("dialog[open]")
    expect(dialog.locator("h2")).to_have_text("Buy 1 core, 256 MB from south for 0.0375 EUR per hour?")
    dialog.get_by_label("For hours").fill("2")
    expect(dialog.locator(".command code")).to_contain_text("--for 2h")
    dialog.locator(".buttons button:last-child").click()
    expect(page.locator("#answer")).to_contain_text("bought")
    expect(page.locator("#money")).to_contain_text("1 live contract bought")
    page.get_by_role("link", name="To the contract").click()


def reclaim(tab: Tab) -> None:
    """What was sold last."""
    tab.open("/console/market/contracts")
    tab.page.locator("#listing tr", has=tab.page.locator("time[data-until]")).get_by_role("link").click()
    tab.page.get_by_role("button", name="Reclaim", exact=True).click()
    dialog = tab.page.locator("dialog[open]")
    dialog.get_by_label("Reason").fill("needed at home")
    expect(dialog.locator(".command code")).to_contain_text("--reason 'needed at home'")
    dialog.locator(".buttons button:last-child").click()
    expect(tab.page.locator("#summary h1")).to_contain_text(re.compile("RECLAIMED|RELEASED"))
