"""`/market/buyers`: the allowlist over HTTP."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skerry.model.callers import Role
from tests.wire.own.market.conftest import Shop
from tests.wire.own.market.fakes import START


async def test_buyers_are_added_listed_and_removed(shop: Shop) -> None:
    added = await shop.ask("PUT", "/market/buyers/key.home", {"note": "home"})
    assert (added.status, added.json) == (200, {"id": "key.home", "note": "home", "added_at": START})
    assert (await shop.ask("PUT", "/market/buyers/key.home")).json["note"] == ""
    assert [(one["id"], one["added_at"]) for one in (await shop.get("/market/buyers"))["buyers"]] == [
        ("key.named", None),
        ("key.home", START),
    ]
    assert (await shop.ask("DELETE", "/market/buyers/key.home")).status == 204
    assert (await shop.ask("DELETE", "/market/buyers/key.home")).status == 404
    assert (await shop.ask("PUT", "/market/buyers/no%20name")).status == 400


@pytest.mark.parametrize("role", [Role.VIEWER, Role.DEPLOYER])
async def test_only_admins_change_who_may_buy(shop: Shop, role: Role) -> None:
    other = replace(shop, headers=await shop.site.bearer(role))
    assert (await other.ask("GET", "/market/buyers")).status == 200
    assert (await other.ask("PUT", "/market/buyers/key.mine", {})).status == 403
    assert (await other.ask("DELETE", "/market/buyers/key.named")).status == 403
