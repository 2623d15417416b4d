"""The tunnel server: lets buyers into the tunnels of their contracts, and knows who is there.

It looks at the credential and at the contract, finds the contract's cell among the instances, and rings for
whoever is at a door when something of the contract or its cell has changed. What is said at a door is
`skerry.wire.rear.contract_tunnels`'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace

from skerry.control.instance_index import InstanceRecord
from skerry.market.provider import contract_cells
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms import contract_credentials
from skerry.market.terms.contract_credentials import ContractCredentials
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, InstanceId, NodeId, OfferId
from skerry.model.market import Contract, EndReason
from skerry.transport.limits import ConcurrencyLimit
from skerry.transport.links.nodes.tunnel_router import TunnelDialer
from skerry.wire.rear import documents
from skerry.wire.rear.contract_status import ContractStatusMessage
from skerry.wire.rear.ports import BuyerHeartbeatsPort, ContractCellsPort

MAX_TUNNELS: Final = 16  # to the instances in one contract's cell at once
_BEING_MADE: Final = ("scheduling", "its cell is being made")


class ContractTunnelServer:
    """One for all doors of a server; `url` is where buyers reach it."""

    def __init__(
        self,
        ledger: Ledger,
        credentials: ContractCredentials,
        cells: ContractCellsPort,
        dialer: TunnelDialer,
        heartbeats: BuyerHeartbeatsPort,
        *,
        provider: CloudId,
        name: str,
        url: str,
    ) -> None:
        self.dialer = dialer
        self.heartbeats = heartbeats
        self._ledger = ledger
        self._credentials = credentials
        self._cells = cells
        self._provider = provider
        self._name = name
        self._url = url
        self._newest: dict[ContractId, asyncio.Event] = {}
        self._tunnels: dict[ContractId, ConcurrencyLimit] = {}
        self._bells: dict[OfferId | InstanceId, set[asyncio.Event]] = {}
        ledger.listen(self._flavors_moved)
        cells.listen(self._cell_changed)

    def credentials_of(self, id: ContractId) -> documents.CredentialsDocument:
        """What the buyer of a contract shows, and where."""
        endpoint = f"{self._url}/api/contracts/{id}/door"
        return documents.CredentialsDocument(self._provider, self._name, self._credentials.of(id), endpoint)

    async def admit(self, id: str, authorization: bytes | None) -> Contract:
        """The contract, if what is shown opens it; `Unauthenticated` or `Expired` if it does not."""
        text = contract_credentials.parse_authorization(
            "" if authorization is None else authorization.decode("latin-1")
        )
        if self._credentials.check(text) != id:
            raise errors.Unauthenticated("this credential is that of another contract; each has its own")
        try:
            contract = (await self._ledger.find_contract(ContractId(id))).contract
        except errors.NotFound:
            raise errors.Expired("this contract is over, and forgotten; reserve and purchase anew") from None
        if (ending := contract.ending_by(self._ledger.now())) is not None:
            reason = f": {contract.reason}" if contract.reason else ""
            raise errors.Expired(f"this contract has {_ENDED[ending]}{reason}; reserve and purchase anew")
        return contract

    def whereabouts(self, id: ContractId) -> tuple[NodeId, InstanceId]:
        """The node and the instance behind a contract; `Unavailable` says what it is waiting for."""
        cell = contract_cells.cell_id_for(id)
        try:
            instance = self._cells.get(cell)
        except errors.NotFound:
            raise errors.Unavailable(
                "the cell of this contract is being made; try again in a moment"
            ) from None
        if instance.node is None:
            seen = instance.observed
            raise errors.Unavailable(
                f"the cell of this contract is {seen.status} ({seen.reason}); try again in a moment"
            )
        return instance.node, cell

    def contract_state(self, contract: Contract) -> ContractStatusMessage:
        """The contract, last known as this, and its cell as they are now."""
        now = self._ledger.now()
        try:
            contract = self._ledger.contract(contract.id).contract
        except errors.NotFound:  # over, and forgotten at once
            contract = replace(contract, ending=contract.ending_by(now) or EndReason.RELEASED)
        try:
            seen = self._cells.get(contract_cells.cell_id_for(contract.id)).observed
        except errors.NotFound:
            return ContractStatusMessage.of(contract, *_BEING_MADE, now)
        return ContractStatusMessage.of(contract, seen.status.lower(), seen.reason, now)

    def until_due(self, contract: Contract) -> float:
        """Seconds until the contract ends by itself, as it is now."""
        try:
            due_at = self._ledger.contract(contract.id).contract.due_at
        except errors.NotFound:
            return 0.0
        return max(0.0, due_at - self._ledger.now())

    @contextmanager
    def connected(self, id: ContractId) -> Iterator[asyncio.Event]:
        """The place at a contract's door, of which there is one: who comes gets it, and who had it hears of
        that by the event."""
        if (before := self._newest.get(id)) is not None:
            before.set()
        mine = self._newest[id] = asyncio.Event()
        try:
            yield mine
        finally:
            if self._newest.get(id) is mine:
                del self._newest[id]

    @contextmanager
    def at_tunnel(self, id: ContractId) -> Iterator[None]:
        """One of the tunnels that a contract may have at once; `Overloaded` if there are no more."""
        slots = self._tunnels.setdefault(id, ConcurrencyLimit(MAX_TUNNELS, "tunnels to one contract"))
        try:
            with slots.take():
                yield
        finally:
            if not slots.taken:
                self._tunnels.pop(id, None)

    @contextmanager
    def ringing(self, contract: Contract) -> Iterator[asyncio.Event]:
        """An event that is set whenever something of the contract or its cell has changed."""
        bell = asyncio.Event()
        strings = (contract.flavor.id, contract_cells.cell_id_for(contract.id))
        for string in strings:
            self._bells.setdefault(string, set()).add(bell)
        try:
            yield bell
        finally:
            for string in strings:
                self._bells[string].discard(bell)
                if not self._bells[string]:
                    del self._bells[string]

    def _flavors_moved(self, flavors: Collection[OfferId]) -> None:
        for flavor in flavors if self._bells else ():
            self._ring(flavor)

    def _cell_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        known = after or before
        if self._bells and known is not None:
            self._ring(known.value.id)

    def _ring(self, string: OfferId | InstanceId) -> None:
        for bell in self._bells.get(string, ()):
            bell.set()


_ENDED: Final = {
    EndReason.EXPIRED: "expired",
    EndReason.RELEASED: "been released",
    EndReason.WITHDRAWN: "been taken back",
}
