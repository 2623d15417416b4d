"""Decisions on requests about one flavor: no I/O; time and randomness are arguments.

`decide` answers as many of the requests as fit into one transaction, on top of the offer's account, and
returns what that transaction writes; the account is not changed. First comes what has expired, so a hold ends
at its deadline; then waiting requests; then new requests in their order. The queue is not overtaken: a
request that would have to wait and may not is refused while others wait. Each answer is a value or an error
of the model. A decision that writes nothing needs no transaction. `skerry.market.provider.ledger.ledger`
makes decisions durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from skerry.market.provider.ledger import contract_rules, hold_rules, offer_rules
from skerry.market.provider.ledger.change import LedgerChange, LedgerContext, LedgerEventDraft
from skerry.market.provider.ledger.records import ContractRecord, OfferRecord
from skerry.market.provider.ledger.requests import (
    CancelHold,
    ConvertHold,
    CountersignContract,
    CreateHold,
    EndUnusedContract,
    ExpireDue,
    LedgerRequest,
    MarkContractOpened,
    PublishOffer,
    ReclaimContract,
    ReleaseContract,
    RenewContract,
    UpdateOffer,
    WithdrawOffer,
)
from skerry.market.provider.ledger.state import LedgerState
from skerry.model import errors
from skerry.model.ids import ContractId, HoldId, OfferId
from skerry.model.market import Hold

LedgerAnswer = OfferRecord | Hold | ContractRecord | errors.SkerryError | None


class LedgerDecision(msgspec.Struct):
    """What is to be written, and what is to be answered once it is."""

    account: OfferRecord | None
    holds: dict[HoldId, Hold]  # those that changed
    sales: dict[ContractId, ContractRecord]
    events: list[LedgerEventDraft]
    line_answers: dict[int, LedgerAnswer]  # by place in the line; the others go on waiting
    answers: list[LedgerAnswer]  # of the first requests; what `joined` is not answered yet
    joined: list[int]  # requests that wait in line now, behind those that did before
    is_all: bool  # False: more is to be decided than one transaction holds

    @property
    def is_change(self) -> bool:
        """True if there is something to write."""
        return bool(self.holds or self.sales or self.events)


def decide(
    state: LedgerState,
    flavor: OfferId,
    line: Sequence[CreateHold],
    requests: Sequence[LedgerRequest],
    now: float,
    deps: LedgerContext,
) -> LedgerDecision:
    """Decide about `line`, the waiting requests, and about `requests`, at the time `now`."""
    draft = LedgerChange(state, state.account_of(flavor), now, deps)
    old = deque(enumerate(line))
    line_answers: dict[int, LedgerAnswer] = {}
    answers: list[LedgerAnswer] = []
    joined: deque[int] = deque()

    def serve() -> None:
        """Answer waiting requests from the front, until one must keep waiting."""
        while (old or joined) and draft.has_budget:
            waiting = old[0][1] if old else requests[joined[0]]
            assert isinstance(waiting, CreateHold)
            answer = _try_waiting(draft, waiting)
            if answer is None:
                return
            if old:
                line_answers[old.popleft()[0]] = answer
            else:
                answers[joined.popleft()] = answer

    is_clear = draft.clear_excess()
    if is_clear:
        serve()
        for number, request in enumerate(requests):
            if not draft.has_budget:
                break
            if isinstance(request, CreateHold):
                answer = _try_reserve(draft, request, line_length=len(old) + len(joined))
                if answer is None:
                    joined.append(number)
                answers.append(answer)
            else:
                answers.append(_answer(draft, request))
                serve()
    if draft.has_budget:
        for place, behind in old:
            if gone := _give_up_error(draft, behind, "others wait for this offer"):
                line_answers[place] = gone
    account = draft.final_account
    return LedgerDecision(
        account=account,
        holds=draft.holds,
        sales=draft.sales,
        events=draft.events,
        line_answers=line_answers,
        # Who changed an offer is shown it as it is written.
        answers=[account if isinstance(answer, OfferRecord) else answer for answer in answers],
        joined=list(joined),
        is_all=is_clear and draft.has_budget and len(answers) == len(requests),
    )


def _answer(draft: LedgerChange, request: LedgerRequest) -> LedgerAnswer:
    """The answer to a request; one with an error has changed nothing."""
    try:
        match request:
            case CreateHold():
                return hold_rules.reserve(draft, request)
            case ConvertHold():
                return hold_rules.purchase(draft, request)
            case CancelHold():
                return hold_rules.cancel(draft, request)
            case ReleaseContract():
                return contract_rules.release(draft, request)
            case RenewContract():
                return contract_rules.renew(draft, request)
            case CountersignContract():
                return contract_rules.countersign(draft, request)
            case ReclaimContract():
                return contract_rules.reclaim(draft, request)
            case MarkContractOpened():
                return contract_rules.mark_opened(draft, request)
            case EndUnusedContract():
                return contract_rules.end_unused(draft, request)
            case PublishOffer():
                return offer_rules.publish(draft, request)
            case UpdateOffer():
                return offer_rules.update(draft, request)
            case WithdrawOffer():
                return offer_rules.withdraw(draft, request)
            case ExpireDue():
                return None
    except errors.SkerryError as error:
        return error


def _try_reserve(draft: LedgerChange, request: CreateHold, *, line_length: int) -> LedgerAnswer:
    """The hold or an error; None if the buyer must wait after `line_length` others."""
    answer = _answer_without_waiting(draft, request) if line_length else _answer(draft, request)
    if not isinstance(answer, errors.ResourcesExhausted) or request.wait_until is None:
        return answer
    if not draft.deps.is_known(request.buyer):
        return answer  # a waiting request delays all after it, which unknown buyers may not do
    if never := hold_rules.refusal(draft, request):
        return never
    if not hold_rules.can_become_free(draft, request):
        return errors.ResourcesExhausted(
            f"{answer.message}; what is missing is sold, so there is nothing to wait for"
        )
    if line_length >= draft.deps.settings.max_waiting:
        return errors.Overloaded("too many buyers wait for this offer; try again later, or choose another")
    return None


def _answer_without_waiting(draft: LedgerChange, request: CreateHold) -> LedgerAnswer:
    """The answer to a buyer while others wait, if it would be refused anyway or has its hold already."""
    try:
        if again := hold_rules.find_by_idempotency_key(draft, request):
            return again
        hold_rules.check_buyer(draft, request.buyer)
    except errors.SkerryError as error:
        return error
    return errors.ResourcesExhausted("others wait for this offer; wait as well, or choose another")


def _try_waiting(draft: LedgerChange, request: CreateHold) -> LedgerAnswer:
    """The same for one that waits in front of all others; None if it is to go on waiting."""
    answer = _answer(draft, request)
    return (
        _give_up_error(draft, request, answer.message)
        if isinstance(answer, errors.ResourcesExhausted)
        else answer
    )


def _give_up_error(draft: LedgerChange, request: CreateHold, reason: str) -> errors.ResourcesExhausted | None:
    """The error for a waiting request that can no longer succeed, wherever it is in the queue."""
    if request.wait_until is None or draft.now >= request.wait_until:
        return errors.ResourcesExhausted(f"{reason}; it did not become free while you waited")
    if not hold_rules.can_become_free(draft, request):
        return errors.ResourcesExhausted(f"{reason}; it was sold while you waited")
    return None
