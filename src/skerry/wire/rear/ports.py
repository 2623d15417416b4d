"""What contract tunnels need of those who run the cells, so that they can be tested without any.

`skerry.control.instances.registry` and `skerry.market.provider.heartbeats` keep these promises.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from skerry.control.instance_index import InstanceListener
from skerry.model.ids import ContractId
from skerry.model.workloads import Instance


class ContractCellsPort(Protocol):
    """What is lent, as instances."""

    def get(self, id: str) -> Instance: ...

    def listen(self, changed: InstanceListener) -> Callable[[], None]: ...


class BuyerHeartbeatsPort(Protocol):
    """Who is at the door of its contract."""

    def visit(self, id: ContractId) -> AbstractAsyncContextManager[None]: ...

    async def arrive(self, id: ContractId) -> None:
        """The contract's buyer has come, whether or not it can be let in yet; durable."""
        ...
