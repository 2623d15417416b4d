"""What both ends of a contract's door must know: what is spoken there, and how the texts tell of a contract.

The provider writes them (`skerry.wire.rear.contract_tunnels`), and the buyer reads them
(`skerry.wire.rear.client_documents`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from skerry.kit.clock import iso
from skerry.model.market import Contract

PROTOCOL: Final = "skerry.door.v1"  # the WebSocket's subprotocol


class ContractStatusMessage(msgspec.Struct, frozen=True):
    """A contract and its cell, as its buyer is told of them."""

    contract: str
    ends: str  # ISO 8601
    reclaim: str | None = None  # the provider takes it back then
    reason: str = ""  # why it does
    ended: str | None = None  # how: `expired`, `released` or `withdrawn`
    cell: str = ""  # what its cell is doing, in the words for instances
    cell_reason: str = ""

    @classmethod
    def of(cls, contract: Contract, cell: str, cell_reason: str, now: float) -> ContractStatusMessage:
        return cls(
            contract.id,
            iso(contract.ends_at),
            None if contract.reclaim_at is None else iso(contract.reclaim_at),
            contract.reason,
            contract.ending_by(now),
            cell,
            cell_reason,
        )
