"""The tunnel server: admits buyers to the tunnels of their contracts, and knows which are connected.

It checks the credential and the contract, finds the contract's cell among the instances, and notifies
connections when the contract or its cell changes. `skerry.wire.rear.contract_tunnels` has the messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace

from skerry.control.instance_index import InstanceRecord
from skerry.control.sessions.tunnels import NodeTunnels
from skerry.market.provider import contract_cells
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms import contract_credentials
from skerry.market.terms.contract_credentials import ContractCredentials
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, InstanceId, NodeId, OfferId
from skerry.model.market import Contract, EndReason
from skerry.transport.limits import ConcurrencyLimit
from skerry.wire.rear import documents
from skerry.wire.rear.contract_status import ContractStatusMessage
from skerry.wire.rear.ports import BuyerHeartbeatsPort, ContractCellsPort

MAX_TUNNELS: Final = 16  # to the instances in one contract's cell at once
_STARTING: Final = ("scheduling", "its cell is being made")


class ContractTunnelServer:
    """One for all contract tunnels of a server; `url` is its address for buyers."""

    def __init__(
        self,
        ledger: Ledger,
        credentials: ContractCredentials,
        cells: ContractCellsPort,
        dialer: NodeTunnels,
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
        self._watchers: dict[OfferId | InstanceId, set[asyncio.Event]] = {}
        ledger.listen(self._flavors_moved)
        cells.listen(self._cell_changed)

    def credentials_of(self, id: ContractId) -> documents.CredentialsDocument:
        """The credentials of a contract's buyer, with the address of the tunnel."""
        endpoint = f"{self._url}/api/contracts/{id}/door"
        return documents.CredentialsDocument(self._provider, self._name, self._credentials.of(id), endpoint)

    async def admit(self, id: str, authorization: bytes | None) -> Contract:
        """The contract of a credential; `Unauthenticated` or `Expired` if it is not valid."""
        text = contract_credentials.parse_authorization(
            "" if authorization is None else authorization.decode("latin-1")
        )
        if self._credentials.check(text) != id:
            raise errors.Unauthenticated("this credential is that of another contract; each has its own")
        try:
            contract = (await self._ledger.find_contract(ContractId(id))).contract
        except errors.NotFound:
            raise errors.Expired(
                "this contract has ended, and is no longer stored; reserve and purchase again"
            ) from None
        if (ending := contract.ending_by(self._ledger.now())) is not None:
            reason = f": {contract.reason}" if contract.reason else ""
            raise errors.Expired(f"this contract has {_ENDED[ending]}{reason}; reserve and purchase again")
        return contract

    def locate(self, id: ContractId) -> tuple[NodeId, InstanceId]:
        """The node and the instance of a contract's cell; `Unavailable` if it is not ready."""
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
        """The present state of the contract, last known as `contract`, and of its cell."""
        now = self._ledger.now()
        try:
            contract = self._ledger.contract(contract.id).contract
        except errors.NotFound:  # ended, and no longer stored
            contract = replace(contract, ending=contract.ending_by(now) or EndReason.RELEASED)
        try:
            seen = self._cells.get(contract_cells.cell_id_for(contract.id)).observed
        except errors.NotFound:
            return ContractStatusMessage.of(contract, *_STARTING, now)
        return ContractStatusMessage.of(contract, seen.status.lower(), seen.reason, now)

    def until_due(self, contract: Contract) -> float:
        """Seconds until the contract ends by its present terms."""
        try:
            due_at = self._ledger.contract(contract.id).contract.due_at
        except errors.NotFound:
            return 0.0
        return max(0.0, due_at - self._ledger.now())

    @contextmanager
    def connected(self, id: ContractId) -> Iterator[asyncio.Event]:
        """The connection to a contract, of which there is one: a new one replaces the old, whose event is
        then set."""
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
        """One of the concurrent tunnels of a contract; `Overloaded` if there are too many."""
        slots = self._tunnels.setdefault(id, ConcurrencyLimit(MAX_TUNNELS, "tunnels to one contract"))
        try:
            with slots.take():
                yield
        finally:
            if not slots.taken:
                self._tunnels.pop(id, None)

    @contextmanager
    def changes_of(self, contract: Contract) -> Iterator[asyncio.Event]:
        """An event that is set whenever the contract or its cell changes."""
        changed = asyncio.Event()
        strings = (contract.flavor.id, contract_cells.cell_id_for(contract.id))
        for string in strings:
            self._watchers.setdefault(string, set()).add(changed)
        try:
            yield changed
        finally:
            for string in strings:
                self._watchers[string].discard(changed)
                if not self._watchers[string]:
                    del self._watchers[string]

    def _flavors_moved(self, flavors: Collection[OfferId]) -> None:
        for flavor in flavors if self._watchers else ():
            self._notify(flavor)

    def _cell_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        known = after or before
        if self._watchers and known is not None:
            self._notify(known.value.id)

    def _notify(self, string: OfferId | InstanceId) -> None:
        for changed in self._watchers.get(string, ()):
            changed.set()


_ENDED: Final = {
    EndReason.EXPIRED: "expired",
    EndReason.RELEASED: "been released",
    EndReason.WITHDRAWN: "been taken back",
}
