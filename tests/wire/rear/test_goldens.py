"""What each dialect writes, to the byte: the files in `golden/` are the contract.

A change of them is a change of what clients read. With `REAR_GOLDEN=write` they are written anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skerry.kit import json_codec
from skerry.market.provider.ledger.changelog import OfferChange
from skerry.market.provider.ledger.records import ContractRecord, OfferWithdrawal
from skerry.wire.rear import change_messages, documents, documents_v1, documents_v2, messages, messages_xml
from tests.wire.rear.nouns import (
    ACCOUNT,
    CONTACT,
    CONTRACT,
    CREDENTIALS,
    DOCUMENT,
    FLAVOR,
    HOLD,
    OFFER,
    OWNER,
    START,
    resources,
)

FOLDER = Path(__file__).parent / "golden"
WHOLE = msgspec.structs.replace(
    FLAVOR, partition=None, aggregation=None, gpus=0, expires_at=None, location=""
)
CHEAPER = msgspec.structs.replace(
    ACCOUNT,
    flavor=msgspec.structs.replace(
        FLAVOR, version=4, price=msgspec.structs.replace(FLAVOR.price, currency="NOK")
    ),
    held=resources(0, 0),
)
GONE = msgspec.structs.replace(CHEAPER, withdrawn=OfferWithdrawal(START + 90, "repairs", reclaims=True))

DOCUMENTS: dict[str, Callable[[], Any]] = {
    "document-flavor": lambda: documents.flavor_document(OFFER, OWNER),
    "document-flavor-whole": lambda: documents.flavor_document(
        msgspec.structs.replace(OFFER, flavor=WHOLE, free=WHOLE.whole), OWNER
    ),
    "document-transaction": lambda: documents.transaction_document(HOLD, START, "south.example", "192.0.2.9"),
    "document-contract": lambda: documents.contract_document(CONTRACT, DOCUMENT, OWNER, CREDENTIALS),
    "document-contract-state": lambda: documents.contract_state(
        ContractRecord(CONTRACT, DOCUMENT, countersigned=DOCUMENT), OWNER, START + 60
    ),
    "v1-flavour": lambda: documents_v1.flavour_v1(OFFER, OWNER),
    "v1-transaction": lambda: documents_v1.transaction_v1(HOLD),
    "v1-purchased": lambda: documents_v1.purchase_result_v1(CONTRACT, DOCUMENT, OWNER, CREDENTIALS, CONTACT),
    "v2-flavor": lambda: documents_v2.flavor_v2(OFFER, OWNER),
    "v2-flavor-whole": lambda: documents_v2.flavor_v2(
        msgspec.structs.replace(OFFER, flavor=WHOLE, free=WHOLE.whole), OWNER
    ),
    "v2-transaction": lambda: documents_v2.transaction_v2(HOLD),
    "v2-contract": lambda: documents_v2.contract_v2(CONTRACT, DOCUMENT, OWNER, CREDENTIALS, CONTACT),
}
MESSAGES: dict[str, Callable[[], messages.ServerSubscriptionMessage | None]] = {
    "subscribed": lambda: messages.SubscribedMessage("mine", 41, False, 1),
    "unsubscribed": lambda: messages.UnsubscribedMessage("mine"),
    "snapshot": lambda: change_messages.snapshot_message(OWNER, ACCOUNT, 41),
    "refresh": lambda: change_messages.change_message(OWNER, 42, OfferChange(ACCOUNT, CHEAPER)),
    "withdraw": lambda: change_messages.change_message(OWNER, 43, OfferChange(CHEAPER, GONE)),
    "reset": lambda: messages.ResetMessage("too slow", 44, 0),
    "heartbeat": lambda: messages.HeartbeatMessage(45),
    "error": lambda: messages.ErrorMessage("invalid", "<that> & this"),
}


def check(name: str, data: bytes) -> None:
    path = FOLDER / name
    if os.environ.get("REAR_GOLDEN") == "write":
        path.write_bytes(data)
    assert data == path.read_bytes(), f"{name} is written otherwise than its golden file says"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_written_as_their_golden_files(name: str) -> None:
    written = msgspec.json.format(json_codec.encode(DOCUMENTS[name]()), indent=2)
    check(f"{name}.json", written + b"\n")


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_written_as_their_golden_files(name: str) -> None:
    message = MESSAGES[name]()
    assert message is not None
    check(f"message-{name}.json", msgspec.json.format(messages.encode(message), indent=2) + b"\n")
    check(f"message-{name}.xml", messages_xml.encode(message) + b"\n")


def test_there_is_no_golden_file_that_nobody_checks() -> None:
    wanted = {f"{name}.json" for name in DOCUMENTS}
    wanted |= {f"message-{name}.{kind}" for name in MESSAGES for kind in ("json", "xml")}
    assert {path.name for path in FOLDER.iterdir()} == wanted
