"""Step: an edge site loses its power; nothing that was accepted is lost, and the service is whole again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from skerry.client.errors import ApiError
from skerry.demo.load import begin_call
from skerry.demo.narration import Assertion
from skerry.demo.sites import EDGES, Site
from skerry.demo.stage import COPIES, FUNCTION, SHOP, Stage, nothing_lost

TITLE: Final = "A machine loses its power"
REASON: Final = (
    "Everything on it stops at once. Its clients go to the next site, its copy of the service is replaced on "
    "another machine, and results of asynchronous calls are on a second machine already."
)
_CALLS: Final = 8


def show(stage: Stage) -> Iterator[Assertion]:
    site, node = _site_with_copy(stage)
    ids = [_call_later(stage, site) for _ in range(_CALLS)]
    stage.narrator.say(f"{site.name} has accepted {_CALLS} asynchronous calls, such as:")
    stage.narrator.command(
        ["skerry", "demo", "exec", site.name, "skerry", "fn", "invoke", FUNCTION, "--async", "-p", "user:=7"]
    )
    for id in ids:
        stage.wait(partial(_poll, stage, id), _is_done, f"{id} is done")
    with stage.load() as load:
        load.observe(stage.pace.report_s)
        stage.narrator.command(["kill", "-9", str(stage.sites.machines[site.name].power_pid)])
        stage.sites.cut_power(site)
        service = load.observe_service(
            SHOP,
            lambda service: service["ready"] == COPIES and node not in _nodes(service),
            f"{SHOP} has {COPIES} ready copies elsewhere",
        )
        load.observe()
        calls, pages = load.stop()
    yield nothing_lost(calls, pages)
    yield Assertion(
        f"{service['ready']} copies of {SHOP} are ready, none of them on {site.name}",
        node not in _nodes(service),
    )
    done = [id for id in ids if _is_done(_poll(stage, id))]
    yield Assertion(
        f"the results of {len(done)} of {len(ids)} asynchronous calls of {site.name} are there: "
        f"skerry fn poll {ids[0]}",
        len(done) == len(ids),
    )
    stage.narrator.say(f"{site.name} is switched on again, and joins with what is on its disk.")
    stage.sites.boot(site)
    stage.sites.start_node(site, stage.sites.join_url())
    stage.sites.wait_ready(site)
    back = stage.wait(
        lambda: stage.get("node", site.name),
        lambda found: found.get("liveness") == "live",
        f"{site.name} is live",
    )
    stage.run("node", "list")
    yield Assertion(f"{site.name} is live again", back["liveness"] == "live")


def _site_with_copy(stage: Stage) -> tuple[Site, str]:
    """An edge site with a copy of the service, and the id of its node."""
    nodes = _nodes(stage.service(SHOP))
    for site in reversed(EDGES):
        if (node := stage.get("node", site.name)["id"]) in nodes:
            return site, str(node)
    raise AssertionError("three copies are on four machines, of which one is no edge site")


def _nodes(service: dict[str, Any]) -> set[str]:
    return {copy["node_id"] for copy in service["copies"] if not copy["retiring"]}


def _call_later(stage: Stage, site: Site) -> str:
    """Begin an asynchronous call at a site; its id."""
    return begin_call(stage.sites.machines[site.name], FUNCTION, {"user": 7})


def _is_done(report: dict[str, Any]) -> bool:
    return report.get("State") == "done"


def _poll(stage: Stage, id: str) -> dict[str, Any]:
    try:
        return stage.get("poll", id)
    except ApiError:  # not done yet, or its member does not answer
        return {}
