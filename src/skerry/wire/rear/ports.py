"""Interfaces that contract tunnels use, for which tests have fakes.

`skerry.control.instances.registry` and `skerry.market.provider.heartbeats` implement them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from skerry.control.instance_index import InstanceListener
from skerry.model.ids import ContractId
from skerry.model.workloads import Instance


class ContractCellsPort(Protocol):
    """Contract cells, as instances."""

    def get(self, id: str) -> Instance: ...

    def listen(self, changed: InstanceListener) -> Callable[[], None]: ...


class BuyerHeartbeatsPort(Protocol):
    """Which buyers are connected to their contracts."""

    def connected(self, id: ContractId) -> AbstractAsyncContextManager[None]: ...

    async def mark_connected(self, id: ContractId) -> None:
        """Record durably that the contract's buyer has connected, whether or not its cell is ready."""
        ...
