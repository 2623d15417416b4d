"""What a real server sells without a node, and once it has one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.daemon.test_node import join_token
from tests.support.played_nodes import played_node
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually

FLAVOR = "by-hand"
PART = {"FlavorID": FLAVOR, "Partition": {"Cpu": 2, "Memory": 1024}, "Buyer": {"NodeID": "ann"}}
LACK = "no node of this provider has 2 cores of cpu, 1024 MB of memory free now, as it has no node"


def sell(skerry: Skerry) -> str:
    """What the seller is told."""
    parts = ("--cpu-min", "1", "--cpu-step", "1", "--memory-min", "512", "--memory-step", "512")
    price = ("--price", "0.80", "--currency", "EUR")
    sold = skerry.cli("market", "sell", "--id", FLAVOR, "--cpu", "8", "--memory", "8192", *price, *parts)
    assert sold.returncode == 0, sold.stderr
    return sold.stderr


async def test_a_cloud_without_a_node_warns_its_seller_and_refuses_its_buyers_at_once(
    tmp_path: Path,
) -> None:
    with running(tmp_path, role="server") as skerry:
        warned = await asyncio.to_thread(sell, skerry)
        assert "Warning: no node has 1 core of cpu, 512 MB of memory" in warned

        def ask(path: str, body: dict[str, Any]) -> tuple[int, Any]:
            return skerry.call("POST", path, body)

        status, refused = ask("/api/reserveflavor", PART)
        assert (status, refused["code"]) == (409, "no-room")
        assert refused["error"].startswith(LACK)
        data = {"cpu": "2", "memory": "1024Mi"}
        body = {
            "flavorID": FLAVOR,
            "buyerID": {"ID": "ann"},
            "configuration": {"type": "k8slice", "data": data},
        }
        assert ask("/api/v2/reservations", body)[0] == 409

        async with played_node(tmp_path / "node", skerry.ready["http"], join_token(skerry)):
            await eventually(lambda: ask("/api/reserveflavor", PART)[0] == 200)
            status, held = ask("/api/reserveflavor", PART)
            assert status == 200, held
            status, contract = ask("/api/purchaseflavor", {"TransactionID": held["TransactionID"]})
            assert status == 200, contract


def test_who_buys_of_a_cloud_without_a_node_is_told_why_at_once(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("north", "home")]
    for folder in folders:
        folder.mkdir()
    with running(folders[0], role="server") as north, running(folders[1], role="server") as home:
        sell(north)
        id, own = (one.call("GET", "/market")[1]["cloud"] for one in (north, home))
        assert north.call("PUT", f"/market/buyers/{own}", {})[0] == 200
        added = home.cli("market", "peers", "add", "north", north.ready["http"], "--cloud", id)
        assert added.returncode == 0, added.stderr
        bought = home.cli("market", "buy", "--cpu", "2", "--memory", "1024")
        assert bought.returncode != 0
        assert LACK in bought.stderr
        assert home.call("GET", "/market/borrowed")[1]["borrowed"] == []
