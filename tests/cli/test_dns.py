"""`skerry dns lookup`, of a name server on loopback."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner, Result

from skerry.cli.main import cli
from skerry.client import name_lookup
from skerry.client.errors import InvalidTarget, ServerUnreachable
from skerry.kit.clock import SystemClock
from tests.node.network.dns import resolvers
from tests.node.network.dns.objects import endpoint, put, service
from tests.node.network.dns.resolvers import LOCAL, serving


async def test_records_are_shown_and_missing_ones_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = resolvers.make(clock=SystemClock())
    put(parts.zone, service("web", *(endpoint(f"10.64.1.{number}", number) for number in range(60))))
    parts.is_confirmed = False
    async with serving(parts) as listener:
        look_up = name_lookup.look_up
        monkeypatch.setattr(name_lookup, "look_up", lambda *asked: look_up(*asked, port=listener.port))

        def lookup(*arguments: str) -> Result:
            return CliRunner().invoke(cli, ["dns", "lookup", "--server", LOCAL, *arguments])

        one = await asyncio.to_thread(lookup, "3.web.shop.skerry")
        assert (one.exit_code, one.output.split()[-4:]) == (0, ["3.web.shop.skerry.", "A", "5", "10.64.1.3"])
        # More than a datagram has.
        many = await asyncio.to_thread(lookup, "web.instances.shop.skerry", "-o", "json")
        assert len(json.loads(many.output)["records"]) == 60
        none = await asyncio.to_thread(lookup, "nope.shop.skerry")
        assert (none.exit_code, none.output) == (1, "nope.shop.skerry: SERVFAIL, no A record\n")


def test_what_cannot_be_looked_up_is_said() -> None:
    for name, type in (("web", "NONSENSE"), ("x" * 70, "A")):
        with pytest.raises(InvalidTarget, match="cannot be looked up"):
            name_lookup.look_up(name, type, LOCAL)
    with pytest.raises(ServerUnreachable, match="does not answer"):
        name_lookup.look_up("web.shop.skerry", "A", LOCAL, port=1)
