"""Messages about changes of offers, each encoded once for all subscribers.

A change is a REFRESH or a WITHDRAW, never both; after a WITHDRAW no message about a flavor follows until it
is offered again.
"""

from __future__ import annotations

from typing import Final

from skerry.market.provider.ledger.changelog import OfferChange
from skerry.market.provider.ledger.records import OfferRecord
from skerry.market.terms.selectors import OfferSnapshot
from skerry.wire.rear import documents, messages, messages_xml
from skerry.wire.rear.documents import IdentityDocument
from skerry.wire.rear.messages import RefreshMessage, WithdrawMessage

_MOST_KEPT: Final = 1024


class EncodedChangeCache:
    """The latest messages, encoded."""

    def __init__(self, owner: IdentityDocument) -> None:
        self._owner = owner
        self._kept: dict[tuple[bool, int, int], tuple[OfferChange, bytes | None]] = {}

    def written(self, revision: int, changed: OfferChange, *, is_xml: bool) -> bytes | None:
        """The encoded message about a change; None if there is none."""
        key = (is_xml, revision, id(changed))
        kept = self._kept.get(key)
        if kept is not None:
            return kept[1]
        message = change_message(self._owner, revision, changed)
        data = None
        if message is not None:
            data = messages_xml.encode(message) if is_xml else messages.encode(message)
        if len(self._kept) >= _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (changed, data)  # kept alive, so that no other change gets its id
        return data


def change_message(
    owner: IdentityDocument, revision: int, changed: OfferChange
) -> RefreshMessage | WithdrawMessage | None:
    """The message about a change for a subscriber that knew the flavor before."""
    before, after = changed.before, changed.after
    was_offered = before is not None and before.withdrawn is None
    if after is not None and after.withdrawn is None:
        shown = _shown(owner, after)
        details = messages.differences(_shown(owner, before), shown) if was_offered and before else []
        return RefreshMessage(shown, details, after.flavor.version, revision)
    gone = after or before
    if not was_offered or gone is None:
        return None
    withdrawal = None if after is None else after.withdrawn
    shown = _shown(owner, gone, is_offered=False)
    return WithdrawMessage(shown, messages.withdraw_reason(withdrawal), gone.flavor.version, revision)


def snapshot_message(owner: IdentityDocument, account: OfferRecord, revision: int) -> RefreshMessage:
    """The message about a flavor for a subscriber that did not know it."""
    return RefreshMessage(_shown(owner, account), [], account.flavor.version, revision)


def _shown(
    owner: IdentityDocument, account: OfferRecord, *, is_offered: bool = True
) -> documents.FlavorDocument:
    return documents.flavor_document(
        OfferSnapshot(account.flavor, account.free), owner, is_offered=is_offered
    )
