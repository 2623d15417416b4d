"""The protocol of contract tunnels that both ends share: its name, and the status messages.

The provider sends them (`skerry.wire.rear.contract_tunnels`), and the buyer decodes them
(`skerry.wire.rear.client_documents`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from skerry.kit.clock import iso
from skerry.model.market import Contract

PROTOCOL: Final = "skerry.door.v1"  # the WebSocket's subprotocol


class ContractStatusMessage(msgspec.Struct, frozen=True):
    """The status of a contract and of its cell, for its buyer."""

    contract: str
    ends: str  # ISO 8601
    reclaim: str | None = None  # when the provider reclaims it
    reason: str = ""  # why it does
    ended: str | None = None  # how: `expired`, `released` or `withdrawn`
    cell: str = ""  # the status of its cell, an `InstanceStatus`
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
