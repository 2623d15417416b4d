"""The registry of functions: what is registered is in the store, and its code is on this node's disk.

A function is the key `function/<name in lower case>`: `Hello` and `hello` are one function, which is shown as
it was written first. Code is unpacked and on disk before the store names it (`skerry.functions.code`), so no
registered function is without its code; what the store does not name is garbage. Reads are of memory.
Neither runs nor knows workers: who does tells which code they still use, and checks a function before it is
registered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Protocol

import msgspec

from skerry.kit.clock import Clock
from skerry.model.containers import NetworkMode
from skerry.model.functions import Function
from skerry.model.ids import Digest
from skerry.model.room import Millicores
from skerry.model.settings import FunctionSettings
from skerry.store.protocol import Put, Store


class NewFunction(msgspec.Struct, frozen=True):
    """What somebody wants to register; `code` is the archive as it came."""

    name: str
    runtime: str
    memory: int  # MB of each worker
    cpu: Millicores | None = None  # of each worker; None: no cap
    max_concurrency: int = 1
    handler: str = ""
    code: bytes = b""
    image: str = ""
    environment: tuple[str, ...] = ()
    network: NetworkMode = NetworkMode.BRIDGE
    timeout_s: float | None = None


class EventWriter(Protocol):
    """The operation that writes an event, for the transaction of the change it tells of."""

    def put(self, kind: str, subject: str, *, actor: str, reason: str = "", **data: str) -> Put: ...


# Loads a function once before it is registered, such as `Invoker.validate`; raises what the caller shall see.
Check = Callable[[Function, Path | None], Awaitable[object]]


class Functions:
    """`await Functions.open(...)`, then `run` for ever; `ready` waits until there is something to read."""

    @classmethod
    async def open(
        cls,
        store: Store,
        folder: Path,
        clock: Clock,
        settings: FunctionSettings,
        events: EventWriter,
        *,
        memory_mb: int,
        cpus: float,
        reached: Callable[[str], None] = lambda step: None,
    ) -> Functions:
        """The registry with its code in `folder`; what a crash left there is removed.

        `memory_mb` and `cpus` are what all workers may have together: a function that asks for more is
        refused. `reached` is told each step that is done, so that tests can end the process there.
        """
        raise NotImplementedError

    async def run(self, in_use: Callable[[], Collection[Digest]]) -> None:
        """Follow the store and remove code that is neither registered nor `in_use`, for ever.

        `in_use` names the code of every worker that is alive, is being made, or is about to be.
        """
        raise NotImplementedError

    async def ready(self) -> None:
        raise NotImplementedError

    async def create(self, new: NewFunction, *, actor: str, check: Check | None = None) -> Function:
        """Register it, durably. Raises `AlreadyExists`, `NotFound` for the runtime, `Unprocessable`, ..."""
        raise NotImplementedError

    async def update(self, new: NewFunction, *, actor: str, check: Check | None = None) -> Function:
        """The next version of it, or the first if there is none."""
        raise NotImplementedError

    async def delete(self, name: str, *, actor: str) -> Function:
        """Forget it; what it was. Raises `NotFound`. Its code goes when no worker uses it."""
        raise NotImplementedError

    def get(self, name: str) -> Function | None:
        """From memory, in whatever case it is written."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """All, in order."""
        raise NotImplementedError

    def code_folder(self, function: Function) -> Path | None:
        """Where its code is unpacked; None if it has none, or none on this node."""
        raise NotImplementedError
