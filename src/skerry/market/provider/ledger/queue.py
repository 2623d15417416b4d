"""The queue of one flavor: requests that are not decided yet, and those that wait for capacity.

Its callers bound it; cancelled requests are skipped. Knows nothing of the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice

from skerry.market.provider.ledger.decisions import LedgerAnswer, LedgerDecision
from skerry.market.provider.ledger.requests import CreateHold, LedgerRequest
from skerry.model import errors
from skerry.store.protocol import Expect


class PendingRequest:
    """A request and the future of its answer."""

    __slots__ = ("answer", "fence", "request")

    def __init__(
        self, request: LedgerRequest, answer: asyncio.Future[LedgerAnswer], fence: Expect | None = None
    ) -> None:
        """With a `fence`, it is a leader's, and is not to be done once another leads."""
        self.request = request
        self.answer = answer
        self.fence = fence


class OfferQueue:
    """Requests in the order in which they came."""

    def __init__(self) -> None:
        self.requests: deque[PendingRequest] = deque()
        self.line: deque[PendingRequest] = deque()
        self.is_busy = False
        self.paused_until = 0.0  # after a failure, nothing is tried again before
        self.is_woken = False  # something has happened that was not decided on yet

    @property
    def waits_until(self) -> float | None:
        """The earliest end of a wait in the queue."""
        waits = [one.request.wait_until for one in self.line if isinstance(one.request, CreateHold)]
        return min((until for until in waits if until is not None), default=None)

    def next(self, limit: int) -> tuple[list[CreateHold], list[LedgerRequest]]:
        """Waiting and new requests, without cancelled ones; not more than one decision can take."""
        self.requests = _still_there(self.requests)
        self.line = _still_there(self.line)
        line = [one.request for one in self.line if isinstance(one.request, CreateHold)]
        return line, [one.request for one in islice(self.requests, limit)]

    def fences(self, limit: int) -> set[Expect]:
        """The fences for the decision on new requests."""
        return {one.fence for one in islice(self.requests, limit) if one.fence is not None}

    def refuse(self, fence: Expect, reason: Exception) -> None:
        """Fail requests with this fence, whose leader no longer leads."""
        for one in self.requests:
            if one.fence == fence and not one.answer.done():
                one.answer.set_exception(reason)
        self.requests = _still_there(self.requests)

    def apply(self, decision: LedgerDecision) -> list[tuple[PendingRequest, LedgerAnswer]]:
        """Remove answered requests, with their answers; others join the waiting ones."""
        line, served = list(self.line), decision.line_answers
        answered: list[tuple[PendingRequest, LedgerAnswer]] = [
            (line[place], answer) for place, answer in served.items()
        ]
        if served:
            self.line = deque(one for place, one in enumerate(line) if place not in served)
        joined = set(decision.joined)
        for number, answer in enumerate(decision.answers):
            one = self.requests.popleft()
            if number in joined:
                self.line.append(one)
            else:
                answered.append((one, answer))
        return answered


def resolve_requests(answered: Sequence[tuple[PendingRequest, LedgerAnswer]]) -> None:
    """Resolve the futures of all answers."""
    for one, answer in answered:
        if one.answer.done():
            continue  # gave up in the meantime
        if isinstance(answer, errors.SkerryError):
            one.answer.set_exception(answer)
        else:
            one.answer.set_result(answer)


def _still_there(queue: deque[PendingRequest]) -> deque[PendingRequest]:
    if any(one.answer.done() for one in queue):
        return deque(one for one in queue if not one.answer.done())
    return queue
