"""Orders of places that several policies share."""

from __future__ import annotations

from collections.abc import Iterable

from skerry.functions.continuum.candidates import CallDemand, Candidate
from skerry.functions.continuum.policy import RUN, Offload, RoutingDecision

_TRIED = 4  # places, at most, before a call ends up here: each that is away costs it a time-out


def able(places: Iterable[Candidate], demand: CallDemand) -> list[Candidate]:
    """Those that are up and large enough."""
    return [place for place in places if place.is_up and place.could_ever_run(demand)]


def with_capacity(places: Iterable[Candidate], demand: CallDemand) -> list[Candidate]:
    """Those with capacity now, the best first. A warm worker saves a start, which takes longer than any round
    trip within an area; then the nearest, and among equals the one with the most left.
    """
    return sorted(
        (place for place in places if place.has_room(demand)),
        key=lambda place: (not (place.warm or place.seats), place.rtt_s, -place.memory_free),
    )


def least_crowded(places: Iterable[Candidate]) -> list[Candidate]:
    """Those with the fewest waiting calls per capacity first; then the nearest."""
    return sorted(places, key=lambda place: (place.waiting / max(place.cpus_total, 0.001), place.rtt_s))


def offload(places: list[Candidate], here: Candidate) -> RoutingDecision:
    """To the first of these, then to the next ones, and at last here."""
    names = [place.node for place in places[:_TRIED] if not place.is_here]
    return Offload(names[0], (*names[1:], here.node)) if names else RUN
