"""What this room needs of the market, so that it can be served and tested without a ledger.

`skerry.market.ledger` and `skerry.market.proofs` keep these promises, and for what is lent
`skerry.control.instances`, `skerry.wire.nodes.ways` and `skerry.market.visits`. A change is durable when it
returns. Reads come from memory and wait for nothing. Who may do what to which hold is the ledger's word; this
room only tells it who is asking.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from skerry.control.census import Listener
from skerry.market.accounts import Account, Sale
from skerry.market.changes import Changes
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, FlavorId, HoldId, InstanceId, NodeId
from skerry.model.market import Flavor, Hold
from skerry.model.room import Room
from skerry.model.tunnels import Ask
from skerry.model.workloads import Instance


class Ledger(Protocol):
    """Flavors, holds on them, and contracts."""

    @property
    def changes(self) -> Changes: ...

    async def publish(self, flavor: Flavor, *, actor: str) -> Account:
        """Raises `AlreadyExists` if the id is that of another."""
        ...

    async def withdraw(
        self, id: FlavorId, *, actor: str, reason: str = "", reclaim: bool = False
    ) -> Account: ...

    async def reserve(
        self,
        buyer: CloudId,
        flavor: FlavorId,
        *,
        room: Room | None = None,
        count: int = 1,
        duration_s: float | None = None,
        wait_s: float = 0.0,
        idempotency_key: str | None = None,
    ) -> Hold:
        """Without `room`: all that is free. `NoRoom`, `NotFound`, `Expired`, `Unprocessable`, `Conflict`."""
        ...

    async def purchase(self, id: HoldId, buyer: CloudId) -> Sale:
        """Once; again, it is the same sale."""
        ...

    async def cancel(self, id: HoldId, buyer: CloudId) -> Hold: ...

    async def release(self, id: ContractId, buyer: CloudId) -> Sale: ...

    async def renew(self, id: ContractId, buyer: CloudId, until: float) -> Sale: ...

    async def countersign(self, id: ContractId, buyer: CloudId, document: bytes, *, over: bytes) -> Sale:
        """Keep what the buyer signed, which this room has verified to be a signature `over` that document."""
        ...

    def flavors(self) -> Sequence[Account]:
        """All that is offered, in the order of ids."""
        ...

    def flavor(self, id: FlavorId) -> Account: ...

    def contract(self, id: ContractId) -> Sale: ...

    def holds(self, buyer: CloudId | None = None) -> Sequence[Hold]: ...

    def contracts(self, buyer: CloudId | None = None) -> Sequence[Sale]: ...

    async def find_hold(self, id: HoldId) -> Hold:
        """Live or ended, also if another server has only just made it; raises `NotFound`."""
        ...

    async def find_contract(self, id: ContractId) -> Sale:
        """Live or ended, also if another server has only just made it; raises `NotFound`."""
        ...

    def now(self) -> float:
        """The time that deadlines are judged by."""
        ...

    def listen(self, moved: Callable[[Collection[FlavorId]], None]) -> Callable[[], None]:
        """Call `moved` with the flavors of which anything has changed; the result ends that."""
        ...


class Cells(Protocol):
    """What is lent, as instances."""

    def get(self, id: str) -> Instance: ...

    def listen(self, changed: Listener) -> Callable[[], None]: ...


class Tunnel(Protocol):
    """Our end of a way to a node, or to what is in it."""

    async def receive(self) -> bytes | None: ...

    async def send(self, frame: bytes) -> None: ...

    async def end(self) -> None: ...

    async def fail(self, error: errors.SkerryError) -> None: ...


class Ways(Protocol):
    """The way to cells, wherever their nodes are connected."""

    def open_tunnel(
        self, node: NodeId, instance: InstanceId, ask: Ask
    ) -> AbstractAsyncContextManager[Tunnel]: ...


class Visits(Protocol):
    """Who is at the door of its contract."""

    def visit(self, id: ContractId) -> AbstractAsyncContextManager[None]: ...


class Proofs(Protocol):
    """Requests that a buyer signed with its key."""

    async def check(
        self, authorization: str, *, method: str, target: str, body: bytes, is_read: bool
    ) -> CloudId:
        """Whose request this is; `Unauthenticated` says why it is nobody's."""
        ...
