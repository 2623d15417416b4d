"""The desk of one flavor: who asked and was not decided on yet, and who waits in line for room.

Bounded by who calls; whoever gave up is passed over. Knows nothing of the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice

from skerry.market.decisions import Answer, Decision
from skerry.market.requests import Request, Reserve
from skerry.model import errors


class Asked:
    """A request and who waits for its answer."""

    __slots__ = ("answer", "request")

    def __init__(self, request: Request, answer: asyncio.Future[Answer]) -> None:
        self.request = request
        self.answer = answer


class Desk:
    """Requests in the order in which they came."""

    def __init__(self) -> None:
        self.asked: deque[Asked] = deque()
        self.line: deque[Asked] = deque()
        self.is_busy = False
        self.rests_until = 0.0  # something failed: what is due is not tried again before
        self.is_woken = False  # something has happened that was not decided on yet

    @property
    def waits_until(self) -> float | None:
        """When the first in line has waited long enough, whoever that is."""
        waits = [one.request.wait_until for one in self.line if isinstance(one.request, Reserve)]
        return min((until for until in waits if until is not None), default=None)

    def next(self, limit: int) -> tuple[list[Reserve], list[Request]]:
        """Who waits and who asks, without those who gave up; not more than one decision can take."""
        self.asked = _still_there(self.asked)
        self.line = _still_there(self.line)
        line = [one.request for one in self.line if isinstance(one.request, Reserve)]
        return line, [one.request for one in islice(self.asked, limit)]

    def settle(self, decision: Decision) -> list[tuple[Asked, Answer]]:
        """Take out whoever is answered, with the answers; who joined the line goes there."""
        line, served = list(self.line), decision.line_answers
        answered: list[tuple[Asked, Answer]] = [(line[place], answer) for place, answer in served.items()]
        if served:
            self.line = deque(one for place, one in enumerate(line) if place not in served)
        joined = set(decision.joined)
        for number, answer in enumerate(decision.answers):
            one = self.asked.popleft()
            if number in joined:
                self.line.append(one)
            else:
                answered.append((one, answer))
        return answered


def tell(answered: Sequence[tuple[Asked, Answer]]) -> None:
    """Answer everybody."""
    for one, answer in answered:
        if one.answer.done():
            continue  # gave up in the meantime
        if isinstance(answer, errors.SkerryError):
            one.answer.set_exception(answer)
        else:
            one.answer.set_result(answer)


def _still_there(queue: deque[Asked]) -> deque[Asked]:
    if any(one.answer.done() for one in queue):
        return deque(one for one in queue if not one.answer.done())
    return queue
