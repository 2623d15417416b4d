"""Estimates of a function's times by measurements, and how many workers it needs.

Pure. A call that finds no free worker may wait for one or have one started. Which is faster depends on how
long starts and runs took so far; `workers_needed` decides. Nothing here knows capacity, queues or the time of
day.
"""

from __future__ import annotations

import math

_UNKNOWN_INIT_S = 0.1  # of a runtime of which nothing has been started yet
_SMOOTHING = 0.2  # how much the newest measurement counts
_OUTLIER = 8  # times the average: more does not count
_INSTANT_S = 1e-4  # an average near nothing can still grow
_PATIENCE = 10  # starts that a queue is watched for before it counts as lasting
_HANDLER_SHARE = 0.5  # of the time of calls: with less, they wait for other things than workers


class MovingAverage:
    """A moving average; None before the first measurement.

    An outlier counts as less than it is: the machine was busy with something else.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, measured: float) -> None:
        value = self.value
        if value is None:
            self.value = measured
        else:
            self.value = value + _SMOOTHING * (min(measured, _OUTLIER * value + _INSTANT_S) - value)


def expected_init_s(own: MovingAverage, of_runtime: MovingAverage | None) -> float:
    """How long the start of a worker will take: as those before it, or else as others of its runtime."""
    if own.value is not None:
        return own.value
    if of_runtime is not None and of_runtime.value is not None:
        return of_runtime.value
    return _UNKNOWN_INIT_S


def workers_needed(
    *,
    waiting: int,
    seats: int,
    workers: int,
    starting: int,
    run_s: float | None,
    init_s: float,
    stalled_s: float,
    crowded_s: float,
) -> int:
    """How many workers a function should have, the `workers` of now (with those `starting`) included.

    So many that the last of the `waiting` calls begins before a new worker could be ready. Where runs were
    never measured or are longer than they were (no call of it has begun for `stalled_s`), twice as many;
    where calls have waited for workers for so long without a break (`crowded_s`) that another one would long
    have paid for itself, and longer than they run, one more. Never more than give every waiting call a place.
    """
    init_s = max(init_s, 1e-6)
    wanted = max(1, workers)
    if run_s is not None:
        wanted = max(wanted, math.ceil(waiting * run_s / (seats * init_s)))
    if not starting:
        if stalled_s > init_s:
            wanted = max(wanted, 2 * workers)
        elif crowded_s > _PATIENCE * init_s and waiting > workers * seats:
            wanted = max(wanted, workers + 1)
    return min(wanted, workers - starting + math.ceil(waiting / seats))


def waits_for_workers(*, workers: int, processors: int, run_s: float | None, handler_s: float | None) -> bool:
    """True if calls that wait would begin sooner with another worker.

    If there are workers for all `processors`, and the smaller part of `run_s` is spent in the handler
    (`handler_s`), they wait for the server or for a processor, which another worker would only use as well.
    """
    if workers < processors or run_s is None or handler_s is None:
        return True
    return handler_s >= run_s * _HANDLER_SHARE


def is_overdue(*, waited_s: float, may_wait_s: float, init_s: float) -> bool:
    """True if a call of a function without a busy worker has waited for others for long enough.

    Until then warm workers of other functions serve their own calls first: to evict one for a function that
    is called once, and to start it again, would cost both of them. So at most a tenth of the time goes into
    such changes.
    """
    return waited_s >= min(_PATIENCE * init_s, may_wait_s / 2)


def retry_after_s(*, waiting: int, pace_s: float | None, at_most_s: float) -> float:
    """When a call that is refused may find a place: as soon as those that wait now are through."""
    if pace_s is None:
        return min(1.0, at_most_s)
    return min(max(waiting, 1) * pace_s, at_most_s)
