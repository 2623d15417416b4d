"""Every action of the console is done by a test in a real browser, with a whole Skerry."""

from __future__ import annotations

from skerry.transport.access.console_rules import CONSOLE_RULES
from tests.daemon import test_console, test_console_market, test_console_objects
from tests.support.browser import actions_of

MODULES = (test_console, test_console_market, test_console_objects)


def test_there_is_a_test_of_every_action() -> None:
    done = {action for module in MODULES for one in vars(module).values() for action in actions_of(one)}
    actions = {name for name, rule in CONSOLE_RULES.items() if name.startswith("POST ") and rule.session}
    assert done == actions
