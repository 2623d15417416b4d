"""Room: how much cpu, memory and disk there is, is asked for, or is used.

The currency of the scheduler, the node and the market. Each quantity has its unit as its type; a Room is
never negative, and its arithmetic goes part by part, so that neither a debt nor a mix of units can be
written down. Knows nothing of who owns the room.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NewType

import msgspec

from skerry.model import errors

Millicores = NewType("Millicores", int)  # 1000 are one core
Megabytes = NewType("Megabytes", int)
Gigabytes = NewType("Gigabytes", int)

# The contracts count in signed 32-bit numbers; what does not fit there is refused rather than cut off.
MOST = 2**31 - 1


class Room(msgspec.Struct, frozen=True, gc=False):
    """An amount of each resource, of one machine or less; `NOTHING` is none of any."""

    cpu: Millicores = Millicores(0)
    memory: Megabytes = Megabytes(0)
    disk: Gigabytes = Gigabytes(0)

    def __post_init__(self) -> None:
        cpu, memory, disk = self.cpu, self.memory, self.disk
        if (
            (type(cpu) is int and type(memory) is int and type(disk) is int)
            and (0 <= cpu <= MOST and 0 <= memory <= MOST and 0 <= disk <= MOST)
        ):  # fmt: skip
            return  # as nearly all are, and there are very many
        for name, unit, amount in self.parts():
            if type(amount) is not int:
                raise errors.Invalid(f"{name} must be a whole number of {unit}", field=name)
            if not 0 <= amount <= MOST:
                raise errors.Invalid(f"{name} must be 0 to {MOST} {unit}, not {amount}", field=name)

    def __add__(self, other: Room) -> Room:
        return Room(
            Millicores(self.cpu + other.cpu),
            Megabytes(self.memory + other.memory),
            Gigabytes(self.disk + other.disk),
        )

    def __sub__(self, other: Room) -> Room:
        """What is left; raises `NoRoom` if that would be less than nothing."""
        if not self.fits(other):
            raise errors.NoRoom(f"not enough room: {self.shortfall(other)}")
        return Room(
            Millicores(self.cpu - other.cpu),
            Megabytes(self.memory - other.memory),
            Gigabytes(self.disk - other.disk),
        )

    def __mul__(self, count: int) -> Room:
        """So many of this."""
        return Room(
            Millicores(self.cpu * count), Megabytes(self.memory * count), Gigabytes(self.disk * count)
        )

    def fits(self, ask: Room) -> bool:
        """True if `ask` can be taken out of this."""
        return ask.cpu <= self.cpu and ask.memory <= self.memory and ask.disk <= self.disk

    def lack(self, ask: Room) -> Room:
        """What would have to be added for `ask` to fit; `NOTHING` if it does."""
        return Room(
            Millicores(max(0, ask.cpu - self.cpu)),
            Megabytes(max(0, ask.memory - self.memory)),
            Gigabytes(max(0, ask.disk - self.disk)),
        )

    def shortfall(self, ask: Room) -> str:
        """`lack` in words, such as `lacks 500 milli-cores of cpu, 64 MB of memory`; empty if it fits."""
        missing = [f"{amount} {unit} of {name}" for name, unit, amount in self.lack(ask).parts() if amount]
        return f"lacks {', '.join(missing)}" if missing else ""

    def parts(self) -> tuple[tuple[str, str, int], ...]:
        """Each resource as name, unit and amount."""
        return (
            ("cpu", "milli-cores", self.cpu),
            ("memory", "MB", self.memory),
            ("disk", "GB", self.disk),
        )


NOTHING = Room()


def total(rooms: Iterable[Room]) -> Room:
    """All of them together."""
    return sum(rooms, start=NOTHING)
