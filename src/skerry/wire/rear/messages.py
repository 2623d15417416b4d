"""Messages on the WebSocket, as values and as JSON; `messages_xml` writes and reads the same ones as XML.

A message is an object with one name, that of the XML element. REFRESH and WITHDRAW have the document's shape;
the others fill what it leaves open: subscribing, versions, resuming, heartbeats, errors. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta, field

from skerry.kit import json_codec
from skerry.kit.clock import iso
from skerry.market.provider.ledger.records import OfferWithdrawal
from skerry.market.terms.selectors import OfferSelector
from skerry.model import errors
from skerry.wire.market_inputs import Text
from skerry.wire.rear import lenient_json
from skerry.wire.rear.documents import FlavorDocument, SelectorBody

JSON: Final = "rear.v1.json"
XML: Final = "rear.v1.xml"


class SubscribeMessage(msgspec.Struct, frozen=True):
    """A subscription: to one flavor, all of a type, all that match a selector, or everything."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {
        "FlavorID": ("flavourID",),
        "FlavorType": ("flavourType",),
    }

    subscription_id: Annotated[Text, Meta(description="Chosen by you")] = field(
        default="", name="SubscriptionID"
    )
    flavor_id: Text = field(default="", name="FlavorID")
    flavor_type: Text = field(default="", name="FlavorType")
    selector: SelectorBody | None = field(default=None, name="Selector")
    all: bool = field(default=False, name="All")
    resume: Annotated[int, Meta(ge=0)] | None = field(default=None, name="Resume")

    def scope(self) -> SubscriptionScope:
        named = [bool(self.flavor_id), bool(self.flavor_type), self.selector is not None, self.all]
        if sum(named) != 1:
            raise errors.Invalid(
                "subscribe to one of FlavorID, FlavorType, Selector and All", field="SubscribeMessage"
            )
        selector = None if self.selector is None else self.selector.selector()
        if self.selector is not None and _listing(self.selector) != _listing(SelectorBody()):
            raise errors.Invalid(
                "a subscription has no order and no pages; leave Sort, Limit and Continue out",
                field="Selector",
            )
        return SubscriptionScope(self.subscription_id, self.flavor_id, self.flavor_type, selector)


class SubscriptionScope(msgspec.Struct, frozen=True):
    """The filter of a subscription; without any field: everything."""

    id: str
    flavor: str = ""
    kind: str = ""
    selector: OfferSelector | None = None


class UnsubscribeMessage(msgspec.Struct, frozen=True):
    """Which subscription to end."""

    subscription_id: Text = field(default="", name="SubscriptionID")


class SubscribedMessage(msgspec.Struct, frozen=True):
    """A subscription has begun. Unless it `Resumed`, so many flavors follow as a snapshot; then changes."""

    subscription_id: str = field(name="SubscriptionID")
    revision: int = field(name="Revision")
    resumed: bool = field(name="Resumed")
    flavors: int = field(name="Flavors")


class UnsubscribedMessage(msgspec.Struct, frozen=True):
    """A subscription has ended."""

    subscription_id: str = field(name="SubscriptionID")


class ModificationDetails(msgspec.Struct, frozen=True):
    """One field that changed."""

    field_modified: str = field(name="FieldModified")
    old_value: str = field(name="OldValue")
    new_value: str = field(name="NewValue")


class RefreshMessage(msgspec.Struct, frozen=True):
    """The present state of a flavor. Without details: it is part of a snapshot, or unchanged."""

    flavor: FlavorDocument = field(name="Flavor")
    modification_details: list[ModificationDetails] = field(name="ModificationDetails")
    version: int = field(name="Version")
    revision: int = field(name="Revision")


class WithdrawReason(msgspec.Struct, frozen=True):
    """The reason, the time, and whether contracts are reclaimed, each after its notice."""

    message: str = field(name="Message")
    time: str | None = field(default=None, name="Time")
    reclaims: bool = field(default=False, name="Reclaims")


class WithdrawMessage(msgspec.Struct, frozen=True):
    """A flavor that is no longer offered, in its last state."""

    flavor: FlavorDocument = field(name="Flavor")
    reason: WithdrawReason = field(name="Reason")
    version: int = field(name="Version")
    revision: int = field(name="Revision")


class ResetMessage(msgspec.Struct, frozen=True):
    """Missed changes are no longer stored: discard your state; so many flavors follow as a snapshot."""

    message: str = field(name="Message")
    revision: int = field(name="Revision")
    flavors: int = field(name="Flavors")


class HeartbeatMessage(msgspec.Struct, frozen=True):
    """Nothing changed; all changes up to this revision were sent."""

    revision: int = field(name="Revision")


class ErrorMessage(msgspec.Struct, frozen=True):
    """A message of the client was invalid or not allowed; existing subscriptions are not affected."""

    code: str = field(name="Code")
    message: str = field(name="Message")


ServerSubscriptionMessage = (
    SubscribedMessage
    | UnsubscribedMessage
    | RefreshMessage
    | WithdrawMessage
    | ResetMessage
    | HeartbeatMessage
    | ErrorMessage
)
ClientSubscriptionMessage = SubscribeMessage | UnsubscribeMessage

_READERS: Final[dict[str, lenient_json.LenientReader[Any]]] = {
    "subscribemessage": lenient_json.LenientReader(SubscribeMessage),
    "unsubscribemessage": lenient_json.LenientReader(UnsubscribeMessage),
}


def encode(message: ServerSubscriptionMessage) -> bytes:
    """The message as JSON."""
    return b'{"%s":%s}' % (type(message).__name__.encode(), json_codec.encode(message))


def decode(data: bytes) -> ClientSubscriptionMessage:
    """A message of a client in JSON; `Invalid` if it is none."""
    return decode_message(lenient_json.parse_json(data))


def decode_message(given: Any, *, strict: bool = True) -> ClientSubscriptionMessage:
    """The message in an object with one name."""
    if not isinstance(given, dict) or len(given) != 1:
        raise errors.Invalid(
            'a message is an object with one name, such as {"SubscribeMessage": {"All": true}}'
        )
    ((name, value),) = given.items()
    reader = _READERS.get(name.lower())
    if reader is None:
        raise errors.Invalid(f"{name[:40]!r} is none of SubscribeMessage and UnsubscribeMessage")
    message, unknown = reader.convert({} if value is None else value, strict=strict)
    if unknown:
        # There is no header to report it in, and a subscription that ignores a filter would go unnoticed.
        raise errors.Invalid(f"{name} has no {unknown[0][:64]!r}; leave it out")
    found: ClientSubscriptionMessage = message
    return found


def _listing(selector: SelectorBody) -> tuple[str, int, str]:
    """The fields of a selector that are about the list and not about the offers."""
    return selector.sort, selector.limit, selector.continue_


def withdraw_reason(withdrawal: OfferWithdrawal | None) -> WithdrawReason:
    if withdrawal is None:
        return WithdrawReason("its time is over")
    return WithdrawReason(
        withdrawal.reason or "withdrawn by the provider", iso(withdrawal.at), withdrawal.reclaims
    )


def differences(before: FlavorDocument, after: FlavorDocument) -> list[ModificationDetails]:
    """Every field that differs, by its path, with its values as texts."""
    old, new = _flat(msgspec.to_builtins(before)), _flat(msgspec.to_builtins(after))
    return [
        ModificationDetails(name, old.get(name, ""), new.get(name, ""))
        for name in dict.fromkeys((*old, *new))
        if name != "Version" and old.get(name) != new.get(name)
    ]


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        # A name that is spelled a second time in lower case (`cpuMin`) has the same value.
        return {
            path: text
            for name, inner in value.items()
            if not name[:1].islower()
            for path, text in _flat(inner, f"{prefix}.{name}" if prefix else name).items()
        }
    return {} if value is None else {prefix: xml_text(value)}


def xml_text(value: Any) -> str:
    """As XML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
