"""Changes of offers as messages, each written once for all who are told of it.

A change is a REFRESH or a WITHDRAW, never both, and after a WITHDRAW nothing more is said of a flavor until
it is offered again.
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
    """What was told last, as it was written."""

    def __init__(self, owner: IdentityDocument) -> None:
        self._owner = owner
        self._kept: dict[tuple[bool, int, int], tuple[OfferChange, bytes | None]] = {}

    def written(self, revision: int, changed: OfferChange, *, is_xml: bool) -> bytes | None:
        """The message that tells of a change; None if there is nothing to tell."""
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
        self._kept[key] = (changed, data)  # kept, so that no other change gets its id
        return data


def change_message(
    owner: IdentityDocument, revision: int, changed: OfferChange
) -> RefreshMessage | WithdrawMessage | None:
    """What a change means to who knew the flavor as it was."""
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
    """A flavor as it is, to who did not know it."""
    return RefreshMessage(_shown(owner, account), [], account.flavor.version, revision)


def _shown(
    owner: IdentityDocument, account: OfferRecord, *, is_offered: bool = True
) -> documents.FlavorDocument:
    return documents.flavor_document(
        OfferSnapshot(account.flavor, account.free), owner, is_offered=is_offered
    )
