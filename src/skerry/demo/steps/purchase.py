"""Step: the cloud has no capacity left, and buys some from a neighbour cloud."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from skerry.demo.narration import Assertion
from skerry.demo.sites import CLOUD, EDGES, NEIGHBOUR
from skerry.demo.stage import GOOD, Stage, image

TITLE: Final = "Capacity is bought from a neighbour"
REASON: Final = (
    f"{NEIGHBOUR.name} is another cloud, with a CA and an operator of its own. It sells what it does not "
    "use. The copies of a new service need more than half of a machine each: one per machine, and one is "
    "left over."
)
_SERVICE: Final = "transcode"
_MEMORY_MB: Final = 128
_SHARE: Final = 0.6


def show(stage: Stage) -> Iterator[Assertion]:
    nodes = [stage.get("node", site.name) for site in (CLOUD, *EDGES)]
    cpu = int(min(node["resources"]["cpu"] for node in nodes) * _SHARE)
    cores = math.ceil(cpu / 1000)
    stage.run(
        *("service", "create", _SERVICE, "--replicas", str(len(nodes) + 1), "--no-wait"),
        *("--cpu", str(cpu), "--memory", str(_MEMORY_MB), "--check", "http:80/health,interval=1s"),
        *("--min-ready", "1s", image(GOOD)),
    )
    tight = stage.wait_for_service(
        _SERVICE,
        lambda found: found["ready"] == len(nodes) and bool(_waiting(found)),
        f"{len(nodes)} copies are ready, and one has no machine",
    )
    (copy,) = _waiting(tight)
    stage.run("explain", copy["instance_id"])
    yield Assertion(f"one copy waits: {copy['reason']}", "cpu" in copy["reason"])

    stage.sites.wait_ready(NEIGHBOUR)
    stage.narrator.say(f"{NEIGHBOUR.name} offers capacity, and allows our key to buy.")
    own, other = stage.get("market")["cloud"], stage.get("market", site=NEIGHBOUR)["cloud"]
    stage.run(
        *("market", "sell", "--cpu", str(cores), "--memory", "1024", "--price", "0.40", "--currency", "EUR"),
        *("--cpu-min", "1", "--cpu-step", "1", "--memory-min", "128", "--memory-step", "128"),
        site=NEIGHBOUR,
    )
    stage.run("market", "buyers", "add", str(own), "--note", "the demo", site=NEIGHBOUR)
    authority = stage.sites.machines[NEIGHBOUR.name].disk / "skerry" / "pki" / "ca.crt"
    stage.run(
        *("market", "peers", "add", NEIGHBOUR.name, f"https://{NEIGHBOUR.address}:1323"),
        *("--cloud", str(other), "--ca", str(authority)),
    )
    stage.run("market", "buy", "--cpu", str(cores), "--memory", "512", "--for", "1h", "--max-price", "0.50")
    whole = stage.wait_for_service(
        _SERVICE, lambda found: found["ready"] == len(nodes) + 1, f"all copies of {_SERVICE} are ready"
    )
    own_nodes = {node["id"] for node in nodes}
    abroad = [copy for copy in whole["copies"] if copy["node_id"] not in own_nodes]
    yield Assertion(
        f"{len(abroad)} copy runs at {NEIGHBOUR.name}, on a node that was bought", len(abroad) == 1
    )
    stage.run("market", "contracts")
    ledger = stage.run("market", "ledger", site=NEIGHBOUR)
    yield Assertion(f"the ledger of {NEIGHBOUR.name} is balanced", "Balanced" in ledger)


def _waiting(service: dict[str, Any]) -> list[dict[str, Any]]:
    return [copy for copy in service["copies"] if copy["status"] == "SCHEDULING" and copy["reason"]]
