"""What this room needs of the market, so that it can be served and tested without a ledger.

`skerry.market.provider.ledger.ledger` and `skerry.market.terms.request_proofs` keep these promises, and for
what is lent `skerry.control.instances.registry`, `skerry.transport.tunnels.router` and
`skerry.market.provider.heartbeats`. A change is durable when it returns. Reads come from memory and wait for
nothing. Who may do what to which hold is the ledger's word; this room only tells it who is asking.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from skerry.control.instance_index import InstanceListener
from skerry.market.buyer.borrowed_node_session import ContractTunnelStream
from skerry.market.provider.ledger.changelog import OfferChangeLog
from skerry.market.provider.ledger.records import ContractRecord, OfferRecord
from skerry.model.ids import CloudId, ContractId, HoldId, InstanceId, NodeId, OfferId
from skerry.model.market import NO_CONTACT, Contact, Hold, Offer
from skerry.model.resources import Resources
from skerry.model.streams import StreamRequest
from skerry.model.workloads import Instance


class RearLedgerPort(Protocol):
    """Flavors, holds on them, and contracts."""

    @property
    def changes(self) -> OfferChangeLog: ...

    async def publish(self, flavor: Offer, *, actor: str) -> OfferRecord:
        """Raises `AlreadyExists` if the id is that of another."""
        ...

    async def withdraw(
        self, id: OfferId, *, actor: str, reason: str = "", reclaim: bool = False
    ) -> OfferRecord: ...

    async def reserve(
        self,
        buyer: CloudId,
        flavor: OfferId,
        *,
        room: Resources | None = None,
        count: int | None = None,
        duration_s: float | None = None,
        wait_s: float = 0.0,
        idempotency_key: str | None = None,
        contact: Contact = NO_CONTACT,
    ) -> Hold:
        """Without `room`: all that is free. `ResourcesExhausted`, `NotFound`, `Expired`, `Unprocessable`,
        `Conflict`."""
        ...

    async def purchase(self, id: HoldId, buyer: CloudId) -> ContractRecord:
        """Once; again, it is the same sale."""
        ...

    async def cancel(self, id: HoldId, buyer: CloudId) -> Hold: ...

    async def release(self, id: ContractId, buyer: CloudId) -> ContractRecord: ...

    async def renew(self, id: ContractId, buyer: CloudId, until: float) -> ContractRecord: ...

    async def countersign(
        self, id: ContractId, buyer: CloudId, document: bytes, *, over: bytes
    ) -> ContractRecord:
        """Keep what the buyer signed, which this room has verified to be a signature `over` that document."""
        ...

    def check_access(self, buyer: CloudId, *, is_read: bool, is_own: bool = False) -> None:
        """Raise `Forbidden` unless the buyer may see what is offered, or buy; what `is_own` to it, whoever
        has holds or contracts here may always see and change."""
        ...

    def flavors(self) -> Sequence[OfferRecord]:
        """All that is offered, in the order of ids."""
        ...

    def flavor(self, id: OfferId) -> OfferRecord: ...

    def contract(self, id: ContractId) -> ContractRecord: ...

    def holds(self, buyer: CloudId | None = None) -> Sequence[Hold]: ...

    def contracts(self, buyer: CloudId | None = None) -> Sequence[ContractRecord]: ...

    async def find_hold(self, id: HoldId) -> Hold:
        """Live or ended, also if another server has only just made it; raises `NotFound`."""
        ...

    async def find_contract(self, id: ContractId) -> ContractRecord:
        """Live or ended, also if another server has only just made it; raises `NotFound`."""
        ...

    def now(self) -> float:
        """The time that deadlines are judged by."""
        ...

    def listen(self, moved: Callable[[Collection[OfferId]], None]) -> Callable[[], None]:
        """Call `moved` with the flavors of which anything has changed; the result ends that."""
        ...


class ContractCellsPort(Protocol):
    """What is lent, as instances."""

    def get(self, id: str) -> Instance: ...

    def listen(self, changed: InstanceListener) -> Callable[[], None]: ...


class TunnelDialer(Protocol):
    """The way to cells, wherever their nodes are connected."""

    def open_tunnel(
        self, node: NodeId, instance: InstanceId, ask: StreamRequest
    ) -> AbstractAsyncContextManager[ContractTunnelStream]: ...


class BuyerHeartbeatsPort(Protocol):
    """Who is at the door of its contract."""

    def visit(self, id: ContractId) -> AbstractAsyncContextManager[None]: ...

    async def arrive(self, id: ContractId) -> None:
        """The contract's buyer has come, whether or not it can be let in yet; durable."""
        ...


class ProofVerifierPort(Protocol):
    """Requests that a buyer signed with its key."""

    async def check(
        self,
        authorization: str,
        *,
        method: str,
        target: str,
        body: bytes,
        is_read: bool,
        admit: Callable[[CloudId], None],
    ) -> CloudId:
        """Whose request this is; `Unauthenticated` says why it is nobody's. Whom `admit` raises on costs no
        write."""
        ...
