"""A browser for tests of the web console: Debian's chromium, driven by playwright.

One for each module that uses it: playwright's loop is bound to the thread while it is open, so tests of
asyncio could not run beside it. Every test has a context of its own, with its own cookies, and what went
wrong in the browser.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import axe_playwright_python
from playwright.sync_api import Browser, ConsoleMessage, Page, Response, expect, sync_playwright

from skerry.transport.access.console_rules import CONSOLE_RULES
from tests.support.skerry import Skerry
from tests.support.waiting import PATIENCE_S

TestFunction = TypeVar("TestFunction", bound=Callable[..., None])
CHROMIUM = Path("/usr/bin/chromium")
DESKTOP, PHONE = (1440, 900), (390, 844)
expect.set_options(timeout=PATIENCE_S * 1000)
# Of each action, where it is sent.
_ACTIONS = {
    name: re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(name.removeprefix("POST "))))
    for name, rule in CONSOLE_RULES.items()
    if name.startswith("POST ") and rule.session
}
_NOT_STARTED = "412 (Precondition Failed)"
_INTERRUPTED = "ERR_NETWORK_CHANGED"
_AXE_OPTIONS = {"resultTypes": ["violations"], "preload": False, "elementRef": False}
_AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"


@dataclass
class Tab:
    """A page of the console, signed in, and what the browser complained about."""

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)
    actions: set[str] = field(default_factory=set)  # that were done, as `CONSOLE_RULES` names them

    def open(self, path: str) -> None:
        """Go there, and wait until it listens for changes."""
        self.page.goto(self.url + path)
        self.page.wait_for_selector("body[data-live=yes]")

    def text(self, selector: str = "main") -> str:
        return self.page.inner_text(selector)

    def show(self, size: tuple[int, int], theme: Any) -> None:
        """The same page at another size and in another theme."""
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
        self.page.emulate_media(color_scheme=theme)

    @property
    def overflows(self) -> bool:
        """True if the page is wider than the window."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))

    def find_violations(self, *, has_navigation: bool = True) -> list[str]:
        """What axe-core finds that is serious, as texts. The navigation is the same on every page, and costs
        as much as the rest: it can be left out."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(_AXE.read_text())
        found = self.page.evaluate(
            "([context, options]) => axe.run(context, options).then(result => result.violations)",
            [{"exclude": [] if has_navigation else ["#navigation"]}, _AXE_OPTIONS],
        )
        return [
            f"{one['impact']} {one['id']}: {[node['html'][:200] for node in one['nodes'][:3]]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]


def does(*actions: str) -> Callable[[TestFunction], TestFunction]:
    """For a test: the actions of the console that it does. `reused` asserts that it did, and
    `tests/console/test_actions.py` that there is a test of every action."""
    assert set(actions) <= _ACTIONS.keys(), "an action of `CONSOLE_RULES`"

    def mark(test: TestFunction) -> TestFunction:
        vars(test)["console_actions"] = actions
        return test

    return mark


def actions_of(test: Any) -> tuple[str, ...]:
    found: tuple[str, ...] = getattr(test, "console_actions", ())
    return found


def _action_at(address: str) -> str:
    path = address.partition("?")[0]
    return next((name for name, pattern in _ACTIONS.items() if pattern.fullmatch(path)), address)


@contextmanager
def launched(network: str = "") -> Iterator[Browser]:
    """A browser, in the network namespace whose file is `network` if that is given."""
    with tempfile.TemporaryDirectory(prefix="skerry-browser-") as folder, sync_playwright() as playwright:
        program = CHROMIUM
        if network:
            program = Path(folder, "chromium")
            program.write_text(f'#!/bin/sh\nexec nsenter --net={network} -- {CHROMIUM} "$@"\n')
            program.chmod(0o700)
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], env={**os.environ, "XDG_CONFIG_HOME": folder}
        )
        try:
            yield browser
        finally:
            browser.close()


def command_link(skerry: Skerry) -> str:
    """A link that `skerry console` prints."""
    made = skerry.cli("console", "--no-open", "--output", "json")
    assert made.returncode == 0, made.stderr
    link: str = json.loads(made.stdout)["url"]
    return link


def new_link(skerry: Skerry, token: str = "") -> str:
    """A link for the local user or the holder of this token, without the cost of a command."""
    status, made = skerry.call(
        "POST", "/console/link", headers={"Authorization": f"Bearer {token}"} if token else {}
    )
    assert status == 201, made
    return str(skerry.ready["http"]) + str(made["path"])


@contextmanager
def signed_in(
    browser: Browser,
    skerry: Skerry,
    *,
    size: tuple[int, int] = DESKTOP,
    theme: Any = "light",
    link: str = "",
) -> Iterator[Tab]:
    """A tab with a session; what goes wrong in it is an error at the end."""
    url = str(skerry.ready["http"])
    with tab_at(browser, url, link or new_link(skerry), size=size, theme=theme) as tab:
        yield tab


def confirm(tab: Tab, button: str) -> None:
    """Press the button, and the one of the dialog that it opens."""
    tab.page.get_by_role("button", name=button, exact=True).first.click()
    tab.page.locator("dialog[open] .buttons button:last-child").click()


def reused(tab: Tab, test: Any) -> Iterator[Tab]:
    """A tab of a module, for one test: as a fixture of that test yields it. Signing in costs more than most
    tests do."""
    tab.problems.clear()
    tab.actions.clear()
    tab.show(DESKTOP, "light")
    yield tab
    assert tab.problems == [], tab.problems
    assert tab.actions >= set(actions_of(test))


@contextmanager
def tab_at(
    browser: Browser, url: str, link: str, *, size: tuple[int, int] = DESKTOP, theme: Any = "light"
) -> Iterator[Tab]:
    """As `signed_in`, of the console at `url`."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
    context.set_default_timeout(PATIENCE_S * 1000)
    try:
        page = context.new_page()
        tab = Tab(page, url)
        page.on("pageerror", lambda error: tab.problems.append(str(error)))

        def said(message: ConsoleMessage) -> None:
            # Whoever makes a network device on this machine interrupts what the browser loads; and the output
            # of what has not started yet is asked for again.
            expected = any(text in message.text for text in (_INTERRUPTED, _NOT_STARTED))
            if message.type in ("error", "warning") and not expected:
                tab.problems.append(message.text)

        def answered(response: Response) -> None:
            if not response.url.startswith(tab.url):
                tab.problems.append(f"it asked another site: {response.url}")
            elif response.request.method == "POST" and response.ok:
                tab.actions.add(_action_at(response.url.removeprefix(tab.url)))

        page.on("console", said)
        page.on("response", answered)
        page.goto(link)
        page.wait_for_url("**/console")
        yield tab
        assert tab.problems == [], tab.problems
    finally:
        context.close()
