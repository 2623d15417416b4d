"""Which copies of a service that starts accept connections: a program listens a little after it has started.

HAProxy waits a second before it tries a copy again that has refused a connection. So `edge` gives it a copy
for which requests are held only when that copy has accepted a connection of this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set

from skerry.kit.tasks import cancel_and_wait

_CONNECT_S = 1.0
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.1

Address = tuple[str, int]


class ConnectProbes:
    """One probe for each address that is waited for."""

    def __init__(self, on_accepted: Callable[[], None]) -> None:
        """`on_accepted` is called when another address has accepted a connection."""
        self._on_accepted = on_accepted
        self._probes: dict[Address, asyncio.Task[None]] = {}

    def accepting(self, addresses: Set[Address]) -> frozenset[Address]:
        """Those that have accepted a connection; the others are tried from now on, and only they."""
        for address in self._probes.keys() - addresses:
            self._probes.pop(address).cancel()
        for address in addresses - self._probes.keys():
            self._probes[address] = asyncio.create_task(self._probe(address))
        return frozenset(address for address, probe in self._probes.items() if probe.done())

    async def close(self) -> None:
        await cancel_and_wait(list(self._probes.values()))
        self._probes.clear()

    async def _probe(self, address: Address) -> None:
        pause_s = _FIRST_PAUSE_S
        while not await _accepts(address):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        # This task is done, which `accepting` looks at, before the callback runs.
        asyncio.get_running_loop().call_soon(self._on_accepted)


async def _accepts(address: Address) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(*address)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
