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

from skerry.kit import jsonio
from skerry.market.accounts import Sale, Withdrawal
from skerry.market.changes import Changed
from skerry.wire.rear import documents, documents_v1, documents_v2, messages, news, xml
from skerry.wire.rear.documents_v2 import AdditionalInformation, IdentityV2
from tests.wire.rear.nouns import (
    ACCOUNT,
    CONTRACT,
    CREDENTIALS,
    DOCUMENT,
    FLAVOR,
    HOLD,
    OFFER,
    OWNER,
    START,
    room,
)

FOLDER = Path(__file__).parent / "golden"
BUYER_V2 = IdentityV2("south", "192.0.2.9:30000", "south.example", AdditionalInformation("cool-firefly"))
WHOLE = msgspec.structs.replace(
    FLAVOR, partition=None, aggregation=None, gpus=0, expires_at=None, location=""
)
CHEAPER = msgspec.structs.replace(
    ACCOUNT,
    flavor=msgspec.structs.replace(
        FLAVOR, version=4, price=msgspec.structs.replace(FLAVOR.price, currency="NOK")
    ),
    held=room(0, 0),
)
GONE = msgspec.structs.replace(CHEAPER, withdrawn=Withdrawal(START + 90, "repairs", reclaims=True))

DOCUMENTS: dict[str, Callable[[], Any]] = {
    "document-flavor": lambda: documents.flavor_document(OFFER, OWNER),
    "document-flavor-whole": lambda: documents.flavor_document(
        msgspec.structs.replace(OFFER, flavor=WHOLE, free=WHOLE.whole), OWNER
    ),
    "document-transaction": lambda: documents.transaction_document(HOLD, START, "south.example", "192.0.2.9"),
    "document-contract": lambda: documents.contract_document(CONTRACT, DOCUMENT, OWNER, CREDENTIALS),
    "document-contract-state": lambda: documents.contract_state(
        Sale(CONTRACT, DOCUMENT, countersigned=DOCUMENT), OWNER, START + 60
    ),
    "v1-flavour": lambda: documents_v1.flavour(OFFER, OWNER),
    "v1-transaction": lambda: documents_v1.transaction(HOLD, "cool-firefly"),
    "v1-purchased": lambda: documents_v1.purchased(CONTRACT, DOCUMENT, OWNER, CREDENTIALS),
    "v2-flavor": lambda: documents_v2.flavor_v2(OFFER, OWNER),
    "v2-flavor-whole": lambda: documents_v2.flavor_v2(
        msgspec.structs.replace(OFFER, flavor=WHOLE, free=WHOLE.whole), OWNER
    ),
    "v2-transaction": lambda: documents_v2.transaction_v2(HOLD, BUYER_V2),
    "v2-contract": lambda: documents_v2.contract_v2(CONTRACT, DOCUMENT, OWNER, CREDENTIALS),
}
MESSAGES: dict[str, Callable[[], messages.FromServer | None]] = {
    "subscribed": lambda: messages.SubscribedMessage("mine", 41, False, 1),
    "unsubscribed": lambda: messages.UnsubscribedMessage("mine"),
    "snapshot": lambda: news.snapshot_of(OWNER, ACCOUNT, 41),
    "refresh": lambda: news.message_of(OWNER, 42, Changed(ACCOUNT, CHEAPER)),
    "withdraw": lambda: news.message_of(OWNER, 43, Changed(CHEAPER, GONE)),
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
    written = msgspec.json.format(jsonio.encode(DOCUMENTS[name]()), indent=2)
    check(f"{name}.json", written + b"\n")


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_written_as_their_golden_files(name: str) -> None:
    message = MESSAGES[name]()
    assert message is not None
    check(f"message-{name}.json", msgspec.json.format(messages.written(message), indent=2) + b"\n")
    check(f"message-{name}.xml", xml.written(message) + b"\n")


def test_there_is_no_golden_file_that_nobody_checks() -> None:
    wanted = {f"{name}.json" for name in DOCUMENTS}
    wanted |= {f"message-{name}.{kind}" for name in MESSAGES for kind in ("json", "xml")}
    assert {path.name for path in FOLDER.iterdir()} == wanted
