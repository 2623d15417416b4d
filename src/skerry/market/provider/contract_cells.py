"""Which contract cells there must be: every live contract has one, and there are no others.

`plan` compares the live contracts of the ledger with the leased cells, and reads nothing else. A contract
cell is an instance of its own kind, in its own namespace; its name and spec are defined here.
`skerry.market.provider.contract_cell_controller` carries the plan out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from skerry.model.devices import DeviceRequest
from skerry.model.ids import MARKET_NAMESPACE, ContractId, InstanceId
from skerry.model.market import Contract
from skerry.model.workloads import InstanceSpec, RestartMode, RestartPolicy, WorkloadKind

NAMESPACE: Final = MARKET_NAMESPACE
GPU: Final = "gpu"  # the class of devices that offers call so, of any vendor
_CELL: Final = "contract-"
_FOR_EVER: Final = 1_000_000  # restarts; a contract has an end of its own


def cell_id_for(id: ContractId) -> InstanceId:
    """The instance that is the cell of a contract."""
    return InstanceId(_CELL + id)


def contract_id_for(cell: InstanceId) -> ContractId | None:
    """The contract of a cell, which is an instance of our namespace."""
    return ContractId(cell.removeprefix(_CELL)) if cell.startswith(_CELL) else None


def cell_spec_for(contract: Contract) -> InstanceSpec:
    """The spec of a contract's cell: all that was bought."""
    return InstanceSpec(
        name=cell_id_for(contract.id),
        uri=f"contract:{contract.id}",
        kind=WorkloadKind.CELL,
        resources=contract.taken,
        restart=RestartPolicy(RestartMode.ALWAYS, _FOR_EVER),
        architecture=contract.flavor.architecture,
        devices=(DeviceRequest(GPU, contract.gpus),) if contract.gpus else (),
    )


class ContractCellPlan(msgspec.Struct, frozen=True):
    """Which contract cells to create and which to remove."""

    create: Sequence[Contract]
    remove: Sequence[ContractId]

    @property
    def is_nothing(self) -> bool:
        return not self.create and not self.remove


def plan(sold: Iterable[Contract], leased: Mapping[ContractId, bool], now: float) -> ContractCellPlan:
    """Which cells to create and which to take back; `leased` is as `CellProvisioner` has it."""
    live = {contract.id: contract for contract in sold if contract.ended_at is None}
    return ContractCellPlan(
        # What is due by now is about to end, though that is not written yet.
        create=[one for id, one in live.items() if not leased.get(id) and now < one.due_at],
        remove=[id for id in leased if id not in live],
    )
