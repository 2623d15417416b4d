"""Contract cells at the provider: one instance per live contract.

`ContractCellController` carries out the plan of `skerry.market.provider.contract_cells` on a
(`CellProvisioner`), on the server that leads: it waits until the ledger or a leased cell changes, and
tries again what did not work. It acts on ends that are written, never on the clock alone: a contract may have
been made longer by another server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Protocol

import structlog

from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances.registry import InstanceRegistry
from skerry.kit.clock import Clock
from skerry.market.provider import contract_cells
from skerry.market.provider.ledger.ledger import Ledger
from skerry.model import errors
from skerry.model.callers import MARKET
from skerry.model.ids import ContractId
from skerry.model.market import Contract
from skerry.model.statuses import TERMINAL, DesiredStatus
from skerry.model.workloads import WorkloadKind
from skerry.store.protocol import Expect

log = structlog.get_logger(__name__)

# A cell that came to its end stays for so long, for people and buyers to see why, before it is made again.
_AGAIN_S: Final = 10.0
# How long after an action the state is checked again.
_RETRY_S: Final = 2.0
_UNKNOWN: Final = (
    "its cell keeps running, with the buyer's instances; to end it: skerry delete instance -n market {cell}"
)
# After a turn it rests for so many times as long as that took, so that most of the time is left for selling.
_PAUSE_RATIO: Final = 4


class CellProvisioner(Protocol):
    """Creates and removes contract cells."""

    def leased(self) -> Mapping[ContractId, bool]:
        """The contracts that have a cell which is not being removed, and whether its spec is right."""
        ...

    async def ensure(self, contract: Contract, fence: Expect | None) -> None:
        """Take the next step to create the contract's cell; idempotent."""
        ...

    async def remove(self, id: ContractId, fence: Expect | None) -> None:
        """Remove the contract's cell with all that is in it; returns when that is certain to happen."""
        ...

    def is_adopted(self, id: ContractId) -> bool:
        """True if the cell was recovered from its node after a restore of the store."""
        ...

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever a leased cell has changed; the result unsubscribes."""
        ...


class ContractCells:
    """The cells of contracts among the instances: `CellProvisioner`."""

    def __init__(self, instances: InstanceRegistry, instance_table: InstanceTable, clock: Clock) -> None:
        self._instances = instances
        self._instance_table = instance_table
        self._clock = clock

    def leased(self) -> Mapping[ContractId, bool]:
        cells = [known.value for known in self._instance_table.index.after(None, contract_cells.NAMESPACE)]
        found = [
            (contract_cells.contract_id_for(cell.id), cell)
            for cell in cells
            if cell.spec.kind is WorkloadKind.CELL
        ]
        return {
            id: cell.desired is DesiredStatus.RUNNING and cell.observed.status not in TERMINAL
            for id, cell in found
            if id is not None and cell.desired is not DesiredStatus.DESTROYED
        }

    async def ensure(self, contract: Contract, fence: Expect | None) -> None:
        id = contract_cells.cell_id_for(contract.id)
        known = self._instance_table.index.get(id)
        if known is None:
            await self._instances.create(
                contract_cells.cell_spec_for(contract),
                actor=MARKET,
                namespace=contract_cells.NAMESPACE,
                id=id,
                fence=fence,
            )
            log.info("contract.lent", contract=contract.id, node=contract.flavor.worker)
            return
        cell = known.value
        if cell.desired is DesiredStatus.DESTROYED:
            return  # once it is removed it is created again
        if cell.observed.status not in TERMINAL:
            await self._instances.start(id, actor=MARKET, fence=fence)
        elif self._clock.now() - cell.observed.since >= _AGAIN_S:
            await self._instances.destroy(id, actor=MARKET, fence=fence)

    async def remove(self, id: ContractId, fence: Expect | None) -> None:
        with suppress(errors.NotFound):
            await self._instances.destroy(contract_cells.cell_id_for(id), actor=MARKET, fence=fence)

    def is_adopted(self, id: ContractId) -> bool:
        known = self._instance_table.index.get(contract_cells.cell_id_for(id))
        return known is not None and known.value.is_adopted

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        def instance_changed(before: InstanceRecord | None, after: InstanceRecord | None) -> None:
            known = after or before
            if known is not None and known.value.namespace == contract_cells.NAMESPACE:
                changed()

        return self._instance_table.listen(instance_changed)


class ContractCellController:
    """`run` while this server leads."""

    def __init__(self, ledger: Ledger, cells: CellProvisioner) -> None:
        self._ledger = ledger
        self._cells = cells
        self._moved = asyncio.Event()
        self._unknown: set[ContractId] = (
            set()
        )  # contracts of leased cells that stay although the ledger does not have them

    async def run(self, fence: Expect) -> None:
        """Lease a cell to every live contract, and to no other."""
        stops = (
            self._ledger.listen(lambda _: self._moved.set()),
            self._cells.listen(self._moved.set),
        )
        try:
            while True:
                self._moved.clear()
                begun = asyncio.get_running_loop().time()
                is_done = await self.reconcile(fence)
                # A pass examines all contracts: with many of them, changes wait a little.
                await asyncio.sleep(_PAUSE_RATIO * (asyncio.get_running_loop().time() - begun))
                try:
                    async with asyncio.timeout(None if is_done else _RETRY_S):
                        await self._moved.wait()
                except TimeoutError:
                    pass
        finally:
            for stop in stops:
                stop()

    async def reconcile(self, fence: Expect | None = None) -> bool:
        """Do what is to be done now; True if there was nothing."""
        leased = {id: is_well for id, is_well in self._cells.leased().items() if id not in self._unknown}
        todo = contract_cells.plan(self._ledger.live_contracts(), leased, self._ledger.now())
        steps = [self._cells.ensure(contract, fence) for contract in todo.create]
        steps += [self._remove(id, fence) for id in todo.remove]
        for failure in await asyncio.gather(*steps, return_exceptions=True):
            if isinstance(failure, errors.SkerryError):
                log.warning("contract.not_lent", error=failure.message, detail=failure.detail)
            elif isinstance(failure, BaseException):
                raise failure
        return todo.is_nothing

    async def _remove(self, id: ContractId, fence: Expect | None) -> None:
        try:
            # The cell may be known before its contract, both from another server.
            sale = await self._ledger.find_contract(id)
        except errors.NotFound:
            if self._cells.is_adopted(id):
                # The ledger was restored from a backup of before it was sold. The buyer has paid for it.
                self._unknown.add(id)
                log.warning(
                    "contract.unknown", contract=id, hint=_UNKNOWN.format(cell=contract_cells.cell_id_for(id))
                )
                return
        else:
            if sale.contract.ended_at is None:
                return
        await self._cells.remove(id, fence)
        log.info("contract.taken_back", contract=id)
