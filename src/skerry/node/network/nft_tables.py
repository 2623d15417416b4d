"""Tables of nftables that one Skerry owns: written as a whole, changed in part, and checked for alterations.

Used by `skerry.node.network.firewall` and `skerry.node.network.isolation`, which write the rules. Everything
blocks but `check_forever`.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Sequence

import structlog

from skerry.kit import json_codec
from skerry.model import errors
from skerry.node.network import nft_elements
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.nft_elements import ElementChange
from skerry.node.network.rule_families import table_families

log = structlog.get_logger(__name__)

_CHECK_S = 30.0
# The words of nft for a table that does not exist, and for a family that the kernel does not have.
_MISSING = tuple(map(os.strerror, (errno.ENOENT, errno.EAFNOSUPPORT, errno.EOPNOTSUPP)))
_ALL_FAMILIES = (*table_families(has_ipv6=True), "inet")
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

    def change_elements(self, changes: Sequence[ElementChange], rewrite: Callable[[], None]) -> None:
        """The same without nft, for changes that a start waits for."""
        try:
            self.programs.namespace.run(lambda: nft_elements.apply(self._name, changes))
        except OSError as error:
            log.warning("network.rules_lost", table=self._name, error=str(error))
            rewrite()

    def remove(self, text: str) -> None:
        self.programs.nft(text)

    def delete(self, *families: str) -> None:
        """Remove those that exist, of these families or of all."""
        # `add` first, so that it is no error if there is none: one transaction, in which nothing is listed.
        texts = {
            family: f"add table {family} {self._name}\ndelete table {family} {self._name}\n"
            for family in families or _ALL_FAMILIES
        }
        try:
            self.programs.nft("".join(texts.values()))
        except errors.Unavailable:  # the kernel may not have all of them
            for family, text in texts.items():
                if self._exists(family):
                    self.programs.nft(text)

    def is_altered(self) -> bool:
        """True if somebody removed the tables or changed their rules; logged."""
        is_altered = self._list() != self._written
        if is_altered:
            log.warning("network.rules_lost", table=self._name)
        return is_altered

    def exist(self) -> bool:
        """True if there is one of them. Raises Unavailable."""
        # Each by its name: for a list of all tables nft reads all rules of the machine.
        return any(self._exists(family) for family in self.families)

    def _exists(self, family: str) -> bool:
        try:
            self.programs.nft_list("table", family, self._name)
        except errors.Unavailable as error:
            if any(words in error.message for words in _MISSING):
                return False
            raise
        return True

    def _list(self) -> list[str]:
        try:
            return [self.programs.nft_list("table", family, self._name) for family in self.families]
        except errors.Unavailable:
            return []  # they are gone, or cannot be read


def list_chains(programs: NetworkCommands) -> list[dict[str, object]]:
    """All chains of the machine. Raises Unavailable, `json_codec.InvalidJson`."""
    listing = json_codec.decode(programs.nft_list("chains"), _Listing)
    return [entry["chain"] for entry in listing.get("nftables", []) if "chain" in entry]


async def check_forever(check: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(_CHECK_S)
        await check()
