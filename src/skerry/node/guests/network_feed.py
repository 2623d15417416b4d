"""Network objects between a guest's network and the session with its buyer.

The buyer is untrusted: only kinds that a guest needs are taken, each is checked (`policy.check_object`), and
their number and size are limited. Of the reports only those of the mesh are sent.
"""

from __future__ import annotations

import asyncio
from typing import Final

from skerry.model import errors, network_kinds
from skerry.model.network_objects import NetworkKey, NetworkObject
from skerry.model.node_messages import NetworkUpdate
from skerry.node.guest_networks.networks import GuestNetwork
from skerry.node.guests import policy

MAX_OBJECTS: Final = 20_000
MAX_BYTES: Final = 16 * 1024 * 1024


class GuestNetworkFeed:
    """A `skerry.node.agent.ports.NetworkFeed` for one session of a guest. Before `use` it is not in the
    mesh."""

    def __init__(self) -> None:
        self._network: GuestNetwork | None = None
        self._sizes: dict[NetworkKey, int] = {}
        self._reports: dict[NetworkKey, NetworkObject] = {}
        self._unsent: dict[NetworkKey, None] = {}
        self._has_reports = asyncio.Event()

    def use(self, network: GuestNetwork) -> None:
        """Give it what the buyer sends, and report what it has."""
        self._network = network
        network.reports = self._reported

    def apply(self, update: NetworkUpdate) -> None:
        """Raises Invalid, TooLarge, Unavailable: the session ends."""
        taken = tuple(each for each in update.objects if policy.is_for_guests(each))
        sizes = {} if update.is_full else dict(self._sizes)
        for each in taken:
            policy.check_object(each)
            sizes[each.network_key] = len(network_kinds.encode(each))
        for key in update.removed:
            sizes.pop(key, None)
        if len(sizes) > MAX_OBJECTS or sum(sizes.values()) > MAX_BYTES:
            raise errors.TooLarge(
                f"the network of a guest has at most {MAX_OBJECTS} objects of {MAX_BYTES} bytes together"
            )
        self._sizes = sizes
        if self._network is None:
            raise errors.FailedPrecondition("this node does not take part in the mesh, and gets no network")
        self._network.apply(NetworkUpdate(update.is_full, taken, update.removed))

    def begin_session(self) -> None:
        self._unsent = dict.fromkeys(self._reports)
        if self._unsent:
            self._has_reports.set()

    def end_session(self) -> None:
        if self._network is not None:
            self._network.end_session()

    async def next_reports(self, most: int) -> tuple[NetworkObject, ...]:
        await self._has_reports.wait()
        keys = list(self._unsent)[:most]
        for key in keys:
            del self._unsent[key]
        if not self._unsent:
            self._has_reports.clear()
        return tuple(self._reports[key] for key in keys)

    def _reported(self, objects: tuple[NetworkObject, ...]) -> None:
        for each in objects:
            self._reports[each.network_key] = each
            self._unsent[each.network_key] = None
        if self._unsent:
            self._has_reports.set()
