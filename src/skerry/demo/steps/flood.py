"""Step: more calls arrive at one edge site than it can run; others help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from skerry.demo.load import function_call
from skerry.demo.narration import Assertion
from skerry.demo.sites import CLOUD, EDGES
from skerry.demo.stage import FUNCTION, ObservedLoad, Stage, nothing_lost

TITLE: Final = "One edge site is flooded"
_CLIENTS: Final = 16
REASON: Final = (
    f"{EDGES[0].name} can run 2 calls at a time. Now {_CLIENTS} clients call there, without a pause. "
    "Each node decides for each call where it would be answered soonest: here, on a neighbour, or in the "
    "cloud."
)


def show(stage: Stage) -> Iterator[Assertion]:
    flooded, *neighbours = EDGES
    stage.narrator.command(
        [
            "skerry",
            "demo",
            "exec",
            flooded.name,
            "skerry",
            "fn",
            "invoke",
            FUNCTION,
            "-p",
            "user:=7",
            "-o",
            "json",
        ]
    )
    load = ObservedLoad(stage)
    load.calls.start(flooded.name, function_call(FUNCTION, {"user": 7}), clients=_CLIENTS, pause_s=0.0)
    try:
        load.observe()
    finally:
        calls, pages = load.stop()
    yield nothing_lost(calls, pages)
    near = calls.share(*(site.name for site in neighbours))
    far = calls.share(CLOUD.name)
    yield Assertion(
        f"{flooded.name} ran {calls.share(flooded.name):.0%} of the calls, its neighbours {near:.0%}, the "
        f"cloud {far:.0%}",
        near > 0 and far > 0,
    )
