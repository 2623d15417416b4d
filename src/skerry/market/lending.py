"""Lending: every live contract has its cell, and no other cell is lent.

`plan` compares what the ledger has sold with what is lent, and looks at nothing else. `Lender` carries that
out on whatever lends (`Estate`), on the one server that leads: it rests until the ledger or the estate moves,
and tries again what did not work. It acts on ends that are written, never on the clock alone: a contract may
have been made longer by another server.

A cell is an instance of a kind of its own, in a namespace of its own: how it is called and what it asks for
is said here; `skerry.daemon.lending` makes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec
import structlog

from skerry.market.ledger import Ledger
from skerry.model import errors
from skerry.model.ids import ContractId, InstanceId, Namespace
from skerry.model.market import Contract
from skerry.model.workloads import Kind, Restart, RestartPolicy, Spec

log = structlog.get_logger(__name__)

NAMESPACE: Final = Namespace("market")
_CELL: Final = "contract-"
_FOR_EVER: Final = 1_000_000  # restarts; a contract has an end of its own
# How long after something was to be done, or another server led, it is looked again.
_RETRY_S: Final = 2.0
# After a turn it rests for so many times as long as that took, so that most of the time is left for selling.
_EASE: Final = 4


def cell_of(id: ContractId) -> InstanceId:
    """The instance that is the cell of a contract."""
    return InstanceId(_CELL + id)


def contract_of(cell: InstanceId) -> ContractId | None:
    """The contract whose cell an instance of our namespace is."""
    return ContractId(cell.removeprefix(_CELL)) if cell.startswith(_CELL) else None


def spec_of(contract: Contract) -> Spec:
    """What the cell of a contract asks for: all that was bought."""
    return Spec(
        name=cell_of(contract.id),
        uri=f"contract:{contract.id}",
        kind=Kind.CELL,
        room=contract.taken,
        restart=RestartPolicy(Restart.ALWAYS, _FOR_EVER),
        architecture=contract.flavor.architecture,
    )


class Estate(Protocol):
    """What is lent from."""

    def lent(self) -> Mapping[ContractId, bool]:
        """The contracts that have a cell which nobody removes, and whether that is as it should be."""
        ...

    async def lend(self, contract: Contract) -> None:
        """Bring the contract's cell nearer to being there; asked again, it does no more than is left."""
        ...

    async def take_back(self, id: ContractId) -> None:
        """Remove the contract's cell with all that is in it; returns when that is certain to happen."""
        ...

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever a cell that is lent has changed; the result ends that."""
        ...


class Plan(msgspec.Struct, frozen=True):
    """What is to be done so that exactly what is sold is lent."""

    lend: Sequence[Contract]
    take_back: Sequence[ContractId]

    @property
    def is_nothing(self) -> bool:
        return not self.lend and not self.take_back


def plan(sold: Iterable[Contract], lent: Mapping[ContractId, bool], now: float) -> Plan:
    """What to lend and what to take back; `lent` is as `Estate` has it."""
    owed = {contract.id: contract for contract in sold if contract.ended_at is None}
    return Plan(
        # What is due by now is about to end, though that is not written yet.
        lend=[one for id, one in owed.items() if not lent.get(id) and now < one.due_at],
        take_back=[id for id in lent if id not in owed],
    )


class Lender:
    """`run` for ever; of several servers, one `is_leading`."""

    def __init__(self, ledger: Ledger, estate: Estate, *, is_leading: Callable[[], bool]) -> None:
        self._ledger = ledger
        self._estate = estate
        self._is_leading = is_leading
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Keep what is lent in line with what is sold."""
        stops = (
            self._ledger.listen(lambda _: self._moved.set()),
            self._estate.listen(self._moved.set),
        )
        try:
            while True:
                self._moved.clear()
                begun = asyncio.get_running_loop().time()
                is_done = self._is_leading() and await self.turn()
                # A turn looks at all that is sold: where that is much, what moves meanwhile waits a little.
                await asyncio.sleep(_EASE * (asyncio.get_running_loop().time() - begun))
                try:
                    async with asyncio.timeout(None if is_done else _RETRY_S):
                        await self._moved.wait()
                except TimeoutError:
                    pass
        finally:
            for stop in stops:
                stop()

    async def turn(self) -> bool:
        """Do what is to be done now; True if there was nothing."""
        todo = plan(self._ledger.live_contracts(), self._estate.lent(), self._ledger.now())
        steps = [self._estate.lend(contract) for contract in todo.lend]
        steps += [self._take_back(id) for id in todo.take_back]
        for failure in await asyncio.gather(*steps, return_exceptions=True):
            if isinstance(failure, errors.SkerryError):
                log.warning("contract.not-lent", error=failure.message, detail=failure.detail)
            elif isinstance(failure, BaseException):
                raise failure
        return todo.is_nothing

    async def _take_back(self, id: ContractId) -> None:
        try:
            # The cell may have been heard of before its contract, both from another server.
            sale = await self._ledger.find_contract(id)
        except errors.NotFound:
            pass
        else:
            if sale.contract.ended_at is None:
                return
        await self._estate.take_back(id)
        log.info("contract.taken-back", contract=id)
