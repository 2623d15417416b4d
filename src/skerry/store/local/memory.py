"""The store in memory, without durability. For tests and simulations."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

from skerry.kit.clock import Clock
from skerry.store.local.keyspace import KeySpace, WriteSet
from skerry.store.local.store import LocalStore

T = TypeVar("T")


class MemoryStore(LocalStore):
    """`MemoryStore(clock)` is open at once."""

    def __init__(
        self, clock: Clock, *, history: int = 10_000, entropy: Callable[[int], int] = secrets.randbits
    ) -> None:
        super().__init__(KeySpace(history=history), clock, entropy)

    async def _submit(self, step: Callable[[WriteSet], T]) -> T:
        self._require_open()
        draft = WriteSet(self._tree)
        result = step(draft)
        draft.seal()
        self._merge(draft)
        return result
