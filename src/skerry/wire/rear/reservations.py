"""Holds and contracts in the document's dialect: reserve, purchase, release, renew, sign.

Translation only: `dialect` identifies the buyer, and the ledger decides.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta, field

from skerry.kit.tasks import map_in_turns
from skerry.market.provider.ledger.records import ContractRecord
from skerry.market.terms import signatures
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, HoldId, OfferId
from skerry.model.market import Contact, Contract, Hold
from skerry.transport.http.endpoints import RequestContext, endpoint
from skerry.wire.market_inputs import MarketIdPath
from skerry.wire.rear import documents, kubernetes_names
from skerry.wire.rear.context import RearContext
from skerry.wire.rear.dialect import buyer_of, run_until_disconnect
from skerry.wire.rear.documents import (
    ContractDocument,
    ContractStateDocument,
    CredentialsDocument,
    IdentityDocument,
    PurchaseBody,
    ReservationBody,
    TransactionDocument,
)

IDEMPOTENCY_HEADER_TEXT = "Chosen by you: a repeated request with the same key is done once"

RESERVE_ERRORS = (
    errors.Invalid,
    errors.Forbidden,
    errors.NotFound,
    errors.Conflict,
    errors.Expired,
    errors.Unprocessable,
    errors.Overloaded,
    errors.Unavailable,
)
CHANGE_ERRORS = (
    errors.Invalid,
    errors.Forbidden,
    errors.NotFound,
    errors.Conflict,
    errors.Expired,
    errors.Unprocessable,
    errors.Unavailable,
)
_READING = (errors.Invalid, errors.Forbidden, errors.NotFound, errors.Unavailable)


class RenewBody(msgspec.Struct, frozen=True):
    """By how much, or until when: only the latter can be repeated without effect."""

    duration: Annotated[str, Meta(max_length=40, description="Beyond its end, ISO 8601: `PT2H`")] = field(
        default="", name="Duration"
    )
    expiration_time: Annotated[str, Meta(max_length=40, description="Its new end, ISO 8601")] = field(
        default="", name="ExpirationTime"
    )

    def until(self, end: float) -> float:
        if bool(self.duration) == bool(self.expiration_time):
            raise errors.Invalid(
                "say either how much longer (Duration) or until when (ExpirationTime)", field="Duration"
            )
        if self.duration:
            return end + documents.parse_duration(self.duration)
        return documents.parse_time(self.expiration_time, "ExpirationTime")


class SignatureBody(msgspec.Struct, frozen=True):
    """The contract as its buyer signed it."""

    document: Annotated[str, Meta(min_length=1, description="A compact JWS around that of the seller")] = (
        field(name="Document")
    )


class TransactionList(msgspec.Struct, frozen=True):
    """Holds, live ones and those that ended recently."""

    items: tuple[TransactionDocument, ...] = field(name="Items")


class ContractList(msgspec.Struct, frozen=True):
    """Contracts, live ones and those that ended recently."""

    items: tuple[ContractStateDocument, ...] = field(name="Items")


def resolve_flavor(rear: RearContext, name: str) -> OfferId:
    """The flavor that clients of the public program know by this name."""
    return kubernetes_names.find_flavor_id(name, (account.flavor.id for account in rear.ledger.flavors()))


@endpoint(
    "POST",
    "/api/reserveflavor",
    summary="Reserve a flavor, or a part of it",
    raises=RESERVE_ERRORS,
    headers={"Idempotency-Key": IDEMPOTENCY_HEADER_TEXT},
    streams=True,  # `Wait` is its time limit
)
async def reserve(rear: RearContext, call: RequestContext, body: ReservationBody) -> TransactionDocument:
    """RESERVE_FLAVOR, bare or as `{"Reservation": {...}}`: a hold, which no other buyer can have until it
    expires.

    Not free is 409; with `Wait` only after waiting in the queue, which a disconnect leaves. A part that the
    policy of the flavor does not allow is 422, a withdrawn flavor 410.
    """
    buyer = buyer_of(call).named(body.buyer.node_id)
    part = body.partition
    reserving = rear.ledger.reserve(
        buyer,
        OfferId(body.flavor_id),
        resources=None if part is None else part.resources(),
        count=None if part is None else part.count,
        duration_s=body.duration_s(),
        wait_s=body.wait,
        idempotency_key=call.idempotency_key,
    )
    hold = await (run_until_disconnect(call, reserving) if body.wait else reserving)
    return documents.transaction_document(hold, rear.ledger.now(), body.buyer.domain, body.buyer.ip)


@endpoint("POST", "/api/purchaseflavor", summary="Purchase a hold", raises=CHANGE_ERRORS)
async def purchase(rear: RearContext, call: RequestContext, body: PurchaseBody) -> ContractDocument:
    """PURCHASE_FLAVOR, bare or as `{"Purchase": {...}}`: the contract, signed by the seller.

    Sent again it is the same contract, to the byte. A hold that was cancelled or has expired is 410.
    """
    return documents.contract_document(*(await buy(rear, call, body.transaction_id))[:4])


async def buy(
    rear: RearContext, call: RequestContext, id: str
) -> tuple[Contract, bytes, IdentityDocument, CredentialsDocument | None, Contact]:
    """Turn a hold into its contract: the terms at that time, also for a repeated request, the signed
    document, the seller, the credentials, and the buyer's contact."""
    sale = await rear.ledger.purchase(*await _held(rear, call, id))
    terms = signatures.verify(sale.document).contract if sale.amended else sale.contract
    return terms, sale.document, rear.owner, rear.credentials_of(sale.contract.id), sale.contact


async def _held(rear: RearContext, call: RequestContext, id: str) -> tuple[HoldId, CloudId]:
    """A hold and its buyer, if the request is from that buyer."""
    hold = await rear.ledger.find_hold(HoldId(id))
    return hold.id, buyer_of(call).of(hold.buyer, "hold")


async def _readable(rear: RearContext, call: RequestContext, id: str) -> Hold:
    hold = await rear.ledger.find_hold(HoldId(id))
    buyer_of(call).check_reads(hold.buyer, "hold")
    return hold


@endpoint("GET", "/api/reservations", summary="Your holds", raises=(errors.Unavailable,))
async def list_reservations(rear: RearContext, call: RequestContext) -> TransactionList:
    """Those of the caller; an admin or a viewer gets those of all buyers."""
    buyer, now = buyer_of(call), rear.ledger.now()
    holds = rear.ledger.holds(None if buyer.sees_all else buyer.cloud)
    items = await map_in_turns(lambda hold: documents.transaction_document(hold, now), holds)
    return TransactionList(items)


@endpoint("GET", "/api/reservations/{id}", summary="A hold", raises=_READING)
async def show_reservation(
    rear: RearContext, call: RequestContext, path: MarketIdPath
) -> TransactionDocument:
    """By the `TransactionID` of its reservation."""
    return documents.transaction_document(await _readable(rear, call, path.id), rear.ledger.now())


@endpoint("GET", "/api/transactions/{id}", summary="Show a hold, as a transaction", raises=_READING)
async def show_transaction(
    rear: RearContext, call: RequestContext, path: MarketIdPath
) -> TransactionDocument:
    """The same as `/api/reservations/{id}`: the document calls a hold a transaction."""
    return documents.transaction_document(await _readable(rear, call, path.id), rear.ledger.now())


@endpoint("DELETE", "/api/reservations/{id}", summary="Cancel a hold", raises=CHANGE_ERRORS)
async def cancel(rear: RearContext, call: RequestContext, path: MarketIdPath) -> TransactionDocument:
    """Its capacity is free at once. A purchased hold is 409: release its contract."""
    hold = await rear.ledger.cancel(*await _held(rear, call, path.id))
    return documents.transaction_document(hold, rear.ledger.now())


@endpoint("GET", "/api/contracts", summary="Your contracts", raises=(errors.Unavailable,))
async def list_contracts(rear: RearContext, call: RequestContext) -> ContractList:
    """Those of the caller; an admin or a viewer gets those of all buyers."""
    buyer = buyer_of(call)
    sales = rear.ledger.contracts(None if buyer.sees_all else buyer.cloud)
    return ContractList(await map_in_turns(partial(_state, rear, call), sales))


@endpoint("GET", "/api/contracts/{id}", summary="Show a contract", raises=_READING)
async def show_contract(rear: RearContext, call: RequestContext, path: MarketIdPath) -> ContractStateDocument:
    """With the signed document of its present terms."""
    sale = await rear.ledger.find_contract(ContractId(path.id))
    buyer_of(call).check_reads(sale.contract.buyer, "contract")
    return _state(rear, call, sale)


@endpoint("POST", "/api/contracts/{id}/release", summary="Release a contract", raises=CHANGE_ERRORS)
async def release(rear: RearContext, call: RequestContext, path: MarketIdPath) -> ContractStateDocument:
    """Its capacity is free at once."""
    sale, buyer = await _bought(rear, call, path.id)
    return _state(rear, call, await rear.ledger.release(sale.contract.id, buyer))


@endpoint("POST", "/api/contracts/{id}/renew", summary="Renew a contract", raises=CHANGE_ERRORS)
async def renew(
    rear: RearContext, call: RequestContext, path: MarketIdPath, body: RenewBody
) -> ContractStateDocument:
    """At the present price for the added time; the document is signed again."""
    sale, buyer = await _bought(rear, call, path.id)
    until = body.until(sale.contract.ends_at)
    return _state(rear, call, await rear.ledger.renew(sale.contract.id, buyer, until))


@endpoint(
    "POST",
    "/api/contracts/{id}/signature",
    summary="Sign a contract as its buyer",
    raises=(*CHANGE_ERRORS, errors.FailedPrecondition, errors.TooLarge),
)
async def sign(
    rear: RearContext, call: RequestContext, path: MarketIdPath, body: SignatureBody
) -> ContractStateDocument:
    """SEND_CONTRACT: the buyer's signature around the seller's, over the present terms."""
    sale, buyer = await _bought(rear, call, path.id)
    text = body.document.encode("ascii", "replace")
    signatures.check_countersigned(text, sale.current)
    after = await rear.ledger.countersign(sale.contract.id, buyer, text, over=sale.current)
    return _state(rear, call, after)


def _state(rear: RearContext, call: RequestContext, sale: ContractRecord) -> ContractStateDocument:
    """The contract as the caller may see it: only its buyer gets the credentials."""
    contract, now = sale.contract, rear.ledger.now()
    is_theirs = buyer_of(call).acts_for(contract.buyer) and contract.is_live(now)
    credentials = rear.credentials_of(contract.id) if is_theirs else None
    return documents.contract_state(sale, rear.owner, now, credentials)


async def _bought(rear: RearContext, call: RequestContext, id: str) -> tuple[ContractRecord, CloudId]:
    """A contract and its buyer, if the request is from that buyer."""
    sale = await rear.ledger.find_contract(ContractId(id))
    return sale, buyer_of(call).of(sale.contract.buyer, "contract")
