"""Tables of nftables that one Skerry owns: written as a whole, changed in part, and checked for alterations.

Used by `skerry.node.network.firewall` and `skerry.node.network.isolation`, which write the rules. Everything
blocks but `check_forever`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from skerry.kit import json_codec
from skerry.model import errors
from skerry.node.network.commands import NetworkCommands

log = structlog.get_logger(__name__)

_CHECK_S = 30.0
_Listing = dict[str, list[dict[str, dict[str, object]]]]


class NftTables:
    """The tables called `name`, one in each of `families`."""

    def __init__(self, programs: NetworkCommands, name: str, families: Sequence[str]) -> None:
        self.programs = programs
        self._name = name
        self.families = families
        self._written: list[str] = []  # the tables as nft lists them, without set elements

    def write(self, text: str) -> None:
        """Write whole tables, in one transaction. Raises Unavailable."""
        self.programs.nft(text)
        self._written = self._list()

    def change(self, text: str, rewrite: Callable[[], None]) -> None:
        """Change elements, in one transaction; if that fails, the tables are not as expected: `rewrite`."""
        try:
            self.programs.nft(text)
        except errors.Unavailable as error:
            log.warning("network.rules_lost", table=self._name, error=error.message)
            rewrite()

    def remove(self, text: str) -> None:
        self.programs.nft(text)

    def is_altered(self) -> bool:
        """True if somebody removed the tables or changed their rules; logged."""
        is_altered = self._list() != self._written
        if is_altered:
            log.warning("network.rules_lost", table=self._name)
        return is_altered

    def exist(self) -> bool:
        """True if there is a table of that name in any family."""
        return any(table.get("name") == self._name for table in list_objects(self.programs, "table"))

    def _list(self) -> list[str]:
        try:
            return [self.programs.nft_list("table", family, self._name) for family in self.families]
        except errors.Unavailable:
            return []  # they are gone, or cannot be read


def list_objects(programs: NetworkCommands, kind: str) -> list[dict[str, object]]:
    """All tables or chains of the machine. Raises Unavailable, `json_codec.InvalidJson`."""
    listing = json_codec.decode(programs.nft_list(f"{kind}s"), _Listing)
    return [entry[kind] for entry in listing.get("nftables", []) if kind in entry]


async def check_forever(check: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(_CHECK_S)
        await check()
