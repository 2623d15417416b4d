"""The listener for buyers without credentials on a real server: off by default, and what it serves."""

from __future__ import annotations

import contextlib
import http.client
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from skerry.transport import host_identity
from tests.daemon.test_node import join_token
from tests.support.played_nodes import played_node
from tests.support.skerry import Skerry, ask, running
from tests.support.waiting import PATIENCE_S
from tests.wire.rear.conftest import PARTS
from tests.wire.rear.test_fluidos import BUYER, PART

ON = ("--set", "market.plain_listen=127.0.0.1:0", "--set", "market.plain_addresses=127.0.0.1")


def call(
    skerry: Skerry,
    verb: str,
    path: str,
    body: Any = None,
    *,
    at: str = "127.0.0.1",
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """A request to that listener, from an address of this machine."""
    split = urlsplit(skerry.ready["plain"])
    connection = http.client.HTTPConnection(
        split.hostname or "", split.port, timeout=PATIENCE_S, source_address=(at, 0)
    )
    with contextlib.closing(connection):
        return ask(connection, verb, path, body, headers)


def test_there_is_none_unless_it_is_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, role="server") as skerry:
        assert "plain" not in skerry.ready
        assert "http-plain" not in skerry.said()


async def test_it_serves_a_buyers_requests_to_named_addresses_and_nothing_else(tmp_path: Path) -> None:
    with running(tmp_path, *ON, role="server") as skerry:
        async with played_node(tmp_path / "node", skerry.ready["http"], join_token(skerry)):
            buy_and_look_around(skerry)


def buy_and_look_around(skerry: Skerry) -> None:
    assert skerry.call("POST", "/api/flavors", PARTS)[0] == 201
    status, (flavor,) = call(skerry, "GET", "/api/v2/flavors")
    assert (status, flavor["flavorID"]) == (200, "f-1")
    body = {"flavorID": "f-1", "buyerID": BUYER, "configuration": PART}
    status, held = call(skerry, "POST", "/api/v2/reservations", body)
    assert (status, held["buyer"]) == (200, BUYER)
    path = f"/api/v2/transactions/{held['transactionID']}/purchase"
    status, bought = call(skerry, "POST", path, {})
    assert (status, bought["buyerID"]) == (200, BUYER)
    (sold,) = skerry.call("GET", "/market/contracts")[1]["contracts"]
    assert (sold["buyer"], sold["is_unknown"]) == ("plain.127.0.0.1", True)
    too_much = {**body, "configuration": {"type": "k8slice", "data": {"cpu": "3", "memory": "1Gi"}}}
    assert call(skerry, "POST", "/api/v2/reservations", too_much)[0] == 422
    for path in ("/healthz", "/about", "/token/", "/market/buyers", "/api/listflavors", "/api/contracts"):
        assert call(skerry, "GET", path)[0] == 404, path
    with pytest.raises((OSError, http.client.HTTPException)):
        call(skerry, "GET", "/api/v2/flavors", at="127.0.0.2")
    buyers = skerry.call("PUT", "/market/buyers/plain.127.0.0.1", {})
    assert buyers[0] == 400, "it is on no list"


def test_on_all_addresses_it_is_called_by_each_of_them(tmp_path: Path) -> None:
    everywhere = ("--set", "market.plain_listen=0.0.0.0:0", "--set", "market.plain_addresses=127.0.0.0/8")
    with running(tmp_path, *everywhere, role="server") as skerry:
        own = host_identity.read_addresses()
        port = urlsplit(skerry.ready["plain"]).port
        for host in ("127.0.0.1", "localhost", *(one for one in own if ":" not in one)):
            answer = call(skerry, "GET", "/api/v2/flavors", headers={"Host": f"{host}:{port}"})
            assert answer[0] == 204, host
        assert call(skerry, "GET", "/api/v2/flavors", headers={"Host": "evil.example"})[0] == 403


@pytest.mark.parametrize(
    ("addresses", "why"),
    [
        ("", "name them in market.plain_addresses"),
        ("0.0.0.0/0", "is every address"),
        ("somewhere", "is no address and no network"),
    ],
)
def test_who_may_call_must_be_named_before_it_starts(tmp_path: Path, addresses: str, why: str) -> None:
    named = ("--set", f"market.plain_addresses={addresses}") if addresses else ()
    skerry = Skerry(tmp_path, *ON[:2], *named, role="server")
    assert skerry.process.wait(PATIENCE_S) != 0
    assert why in skerry.said()
