"""Callers of functions that do not exist: what they call, where and when, drawn by a seed.

Calls come to every node of an edge by chance, some nodes more than others, and now and then in bursts. Most
runs are short and a few are very long. What is drawn does not depend on who serves it, so that two policies
can be compared call by call.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from msgspec import Struct

from skerry.functions.qos import parse_classes
from skerry.model.functions import Function
from skerry.model.ids import Digest, FunctionName, NodeId
from skerry.model.resources import Megabytes, Millicores

CLASSES = parse_classes(("background:1:10:1", "standard:4:2:4", "urgent:16:0.5:10"))

_CODE = Digest("sha256:" + "0" * 64)
_CALM_S = 8.0  # how long a node is called at its usual rate
_BURST_S = 2.0  # and how long at a higher one
_BURST = 4.0  # so many times the rate of calm
_PARAMS_BYTES = (200, 2_000, 50_000)


class FunctionProfile(Struct, frozen=True):
    """A function and how it behaves: logarithms of its run times are normal."""

    function: Function
    median_s: float
    tail: float  # the standard deviation of the logarithm
    start_s: float
    qos_class: int
    share: float  # of all calls

    @property
    def mean_s(self) -> float:
        return self.median_s * math.exp(self.tail**2 / 2)


class SimulatedCall(Struct, frozen=True):
    """One call."""

    at_s: float
    node: NodeId  # that it comes to
    program: FunctionProfile
    run_s: float
    params_bytes: int


def function_profiles() -> tuple[FunctionProfile, ...]:
    """What there is to call: short and urgent, longer and less so, and long work that nobody waits for."""
    return (
        _program("detect", 256, 1000, median_s=0.06, tail=0.4, start_s=0.35, qos_class=2, share=0.25),
        _program("alarm", 128, 500, median_s=0.02, tail=0.6, start_s=0.15, qos_class=2, share=0.20),
        _program("page", 128, 500, median_s=0.05, tail=0.8, start_s=0.2, qos_class=1, share=0.25),
        _program("resize", 256, 1000, median_s=0.20, tail=1.0, start_s=0.4, qos_class=1, share=0.15),
        _program("report", 512, 1000, median_s=0.40, tail=1.2, start_s=0.8, qos_class=0, share=0.10),
        _program("train", 512, 1000, median_s=1.00, tail=1.0, start_s=0.8, qos_class=0, share=0.05),
    )


def draw_calls(
    shares: Sequence[tuple[NodeId, float]], cores: float, *, load: float, for_s: float, chance: random.Random
) -> list[SimulatedCall]:
    """Calls for so long, in order, that would keep `load` times `cores` busy.

    Each node gets its share of them.
    """
    known = function_profiles()
    work = sum(p.share * p.mean_s * (p.function.cpu or 0) / 1000 for p in known)  # core-seconds of a call
    rate = load * cores / work
    whole = sum(share for _, share in shares)
    calls = [
        _draw(at_s, node, known, chance)
        for node, share in shares
        for at_s in _moments(rate * share / whole, for_s, chance)
    ]
    calls.sort(key=lambda call: call.at_s)
    return calls


def _moments(rate: float, for_s: float, chance: random.Random) -> list[float]:
    """When calls come to one node: by chance, calm and bursts in turns."""
    calm = rate * (_CALM_S + _BURST_S) / (_CALM_S + _BURST * _BURST_S)
    moments = []
    begin, is_burst = 0.0, chance.random() < _BURST_S / (_CALM_S + _BURST_S)
    while begin < for_s:
        end = min(for_s, begin + chance.expovariate(1.0 / (_BURST_S if is_burst else _CALM_S)))
        now_rate = calm * _BURST if is_burst else calm
        at_s = begin + chance.expovariate(now_rate)
        while at_s < end:
            moments.append(at_s)
            at_s += chance.expovariate(now_rate)
        begin, is_burst = end, not is_burst
    return moments


def _draw(
    at_s: float, node: NodeId, known: Sequence[FunctionProfile], chance: random.Random
) -> SimulatedCall:
    program = chance.choices(known, [one.share for one in known])[0]
    run_s = program.median_s * math.exp(chance.gauss(0.0, program.tail))
    return SimulatedCall(at_s, node, program, run_s, chance.choice(_PARAMS_BYTES))


def _program(
    name: str,
    memory: int,
    cpu: int,
    *,
    median_s: float,
    tail: float,
    start_s: float,
    qos_class: int,
    share: float,
) -> FunctionProfile:
    function = Function(
        FunctionName(name),
        "python",
        Megabytes(memory),
        0.0,
        cpu=Millicores(cpu),
        handler="simulated.handler",
        code=_CODE,
    )
    return FunctionProfile(function, median_s, tail, start_s, qos_class, share)
