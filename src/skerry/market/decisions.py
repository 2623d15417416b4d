"""What becomes of requests about one flavor: no I/O, and no clock or chance but what comes in.

`decide` answers as many of the requests as fit into one transaction, on top of the flavor's book, and says
what that transaction writes; the book is not touched. First comes what is due, so a hold is over at its
deadline whoever asks and whenever; then who waits in line; then the requests in the order in which they came.
Nobody overtakes the line: who would have to wait and does not want to is refused while others wait.

Each answer is a value or an error of the model. A decision that writes nothing needs no transaction.
`skerry.market.ledger` makes decisions durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from skerry.market import contracting, holding, offering
from skerry.market.accounts import Account, Sale
from skerry.market.books import Books
from skerry.market.drafts import Draft, Means, Told
from skerry.market.requests import (
    Cancel,
    Countersign,
    Look,
    Publish,
    Purchase,
    Reclaim,
    Release,
    Renew,
    Request,
    Reserve,
    Update,
    Withdraw,
)
from skerry.model import errors
from skerry.model.ids import ContractId, FlavorId, HoldId
from skerry.model.market import Hold

Answer = Account | Hold | Sale | errors.SkerryError | None


class Decision(msgspec.Struct):
    """What is to be written, and what is to be answered once it is."""

    account: Account | None
    holds: dict[HoldId, Hold]  # those that changed
    sales: dict[ContractId, Sale]
    events: list[Told]
    line_answers: dict[int, Answer]  # by place in the line; the others go on waiting
    answers: list[Answer]  # of the first requests; what `joined` is not answered yet
    joined: list[int]  # requests that wait in line now, behind those that did before
    is_all: bool  # False: more is to be decided than one transaction holds

    @property
    def is_change(self) -> bool:
        """True if there is something to write."""
        return bool(self.holds or self.sales or self.events)


def decide(
    books: Books,
    flavor: FlavorId,
    line: Sequence[Reserve],
    requests: Sequence[Request],
    now: float,
    means: Means,
) -> Decision:
    """What becomes of `line`, who waits already, and of `requests`, at the time `now`."""
    draft = Draft(books, books.book(flavor), now, means)
    old = deque(enumerate(line))
    line_answers: dict[int, Answer] = {}
    answers: list[Answer] = []
    joined: deque[int] = deque()

    def serve() -> None:
        """Answer who waits, from the front, until somebody has to go on waiting."""
        while (old or joined) and draft.has_budget:
            waiting = old[0][1] if old else requests[joined[0]]
            assert isinstance(waiting, Reserve)
            answer = _try_waiting(draft, waiting)
            if answer is None:
                return
            if old:
                line_answers[old.popleft()[0]] = answer
            else:
                answers[joined.popleft()] = answer

    is_tidy = draft.tidy()
    if is_tidy:
        serve()
        for number, request in enumerate(requests):
            if not draft.has_budget:
                break
            if isinstance(request, Reserve):
                answer = _try_reserve(draft, request, line_length=len(old) + len(joined))
                if answer is None:
                    joined.append(number)
                answers.append(answer)
            else:
                answers.append(_answer(draft, request))
                serve()
    if draft.has_budget:
        for place, behind in old:
            if gone := _gives_up(draft, behind, "others wait for this offer"):
                line_answers[place] = gone
    account = draft.final_account
    return Decision(
        account=account,
        holds=draft.holds,
        sales=draft.sales,
        events=draft.events,
        line_answers=line_answers,
        # Who changed an offer is shown it as it is written.
        answers=[account if isinstance(answer, Account) else answer for answer in answers],
        joined=list(joined),
        is_all=is_tidy and draft.has_budget and len(answers) == len(requests),
    )


def _answer(draft: Draft, request: Request) -> Answer:
    """What a request comes to; one that comes to an error has changed nothing."""
    try:
        match request:
            case Reserve():
                return holding.reserve(draft, request)
            case Purchase():
                return holding.purchase(draft, request)
            case Cancel():
                return holding.cancel(draft, request)
            case Release():
                return contracting.release(draft, request)
            case Renew():
                return contracting.renew(draft, request)
            case Countersign():
                return contracting.countersign(draft, request)
            case Reclaim():
                return contracting.take_back(draft, request)
            case Publish():
                return offering.publish(draft, request)
            case Update():
                return offering.update(draft, request)
            case Withdraw():
                return offering.withdraw(draft, request)
            case Look():
                return None
    except errors.SkerryError as error:
        return error


def _try_reserve(draft: Draft, request: Reserve, *, line_length: int) -> Answer:
    """The hold or why there is none; None if the buyer is to wait behind `line_length` others."""
    answer = _before_the_line(draft, request) if line_length else _answer(draft, request)
    if not isinstance(answer, errors.NoRoom) or request.wait_until is None:
        return answer
    if never := holding.refusal(draft, request):
        return never
    if not holding.may_come(draft, request):
        return errors.NoRoom(f"{answer.message}; what is missing is sold, so there is nothing to wait for")
    if line_length >= draft.means.settings.max_waiting:
        return errors.Overloaded("too many wait for this offer; come back later, or choose another")
    return None


def _before_the_line(draft: Draft, request: Reserve) -> Answer:
    """What is said to a buyer while others wait, who would be refused anyway or has been served already."""
    try:
        if again := holding.replay(draft, request):
            return again
        holding.check_buyer(draft, request.buyer)
    except errors.SkerryError as error:
        return error
    return errors.NoRoom("others wait for this offer; wait as well, or choose another")


def _try_waiting(draft: Draft, request: Reserve) -> Answer:
    """The same for one that waits in front of all others; None if it is to go on waiting."""
    answer = _answer(draft, request)
    return _gives_up(draft, request, answer.message) if isinstance(answer, errors.NoRoom) else answer


def _gives_up(draft: Draft, request: Reserve, why: str) -> errors.NoRoom | None:
    """What is said to one that waits, wherever in line, if that is of no use any more."""
    if request.wait_until is None or draft.now >= request.wait_until:
        return errors.NoRoom(f"{why}; nobody gave it up while you waited")
    if not holding.may_come(draft, request):
        return errors.NoRoom(f"{why}; it was sold while you waited")
    return None
