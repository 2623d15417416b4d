"""Resources: amounts of cpu, memory and disk that a machine has, an instance requests, or is in use.

The currency of the scheduler, the node and the market. Each quantity has its unit as its type; `Resources`
are never negative, and their arithmetic goes part by part, so that neither a negative amount nor a mix of
units can be expressed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NewType

import msgspec

from skerry.model import errors

Millicores = NewType("Millicores", int)  # 1000 are one core
Megabytes = NewType("Megabytes", int)
Gigabytes = NewType("Gigabytes", int)

# Cpu, memory and disk of many together, which may be more than `Resources` can hold.
Amounts = tuple[int, int, int]

# The contracts count in signed 32-bit numbers; what does not fit there is refused rather than cut off.
MAX_AMOUNT = 2**31 - 1


class Resources(msgspec.Struct, frozen=True, gc=False):
    """An amount of each resource, of one machine or less."""

    cpu: Millicores = Millicores(0)
    memory: Megabytes = Megabytes(0)
    disk: Gigabytes = Gigabytes(0)

    def __post_init__(self) -> None:
        cpu, memory, disk = self.cpu, self.memory, self.disk
        if (
            (type(cpu) is int and type(memory) is int and type(disk) is int)
            and (0 <= cpu <= MAX_AMOUNT and 0 <= memory <= MAX_AMOUNT and 0 <= disk <= MAX_AMOUNT)
        ):  # fmt: skip
            return  # as nearly all are, and there are very many
        for name, unit, amount in self.parts():
            if type(amount) is not int:
                raise errors.Invalid(f"{name} must be a whole number of {unit}", field=name)
            if not 0 <= amount <= MAX_AMOUNT:
                raise errors.Invalid(f"{name} must be 0 to {MAX_AMOUNT} {unit}, not {amount}", field=name)

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            Millicores(self.cpu + other.cpu),
            Megabytes(self.memory + other.memory),
            Gigabytes(self.disk + other.disk),
        )

    def __sub__(self, other: Resources) -> Resources:
        """What is left; raises `ResourcesExhausted` if that would be less than nothing."""
        if not self.fits(other):
            raise errors.ResourcesExhausted(f"not enough resources: {self.shortfall(other)}")
        return Resources(
            Millicores(self.cpu - other.cpu),
            Megabytes(self.memory - other.memory),
            Gigabytes(self.disk - other.disk),
        )

    def __mul__(self, count: int) -> Resources:
        """So many of this."""
        return Resources(
            Millicores(self.cpu * count), Megabytes(self.memory * count), Gigabytes(self.disk * count)
        )

    def __floordiv__(self, count: int) -> Resources:
        """The largest that is in this so many times."""
        return Resources(
            Millicores(self.cpu // count), Megabytes(self.memory // count), Gigabytes(self.disk // count)
        )

    def fits(self, requested: Resources) -> bool:
        """True if `requested` can be taken out of this."""
        return requested.cpu <= self.cpu and requested.memory <= self.memory and requested.disk <= self.disk

    def lack(self, requested: Resources) -> Resources:
        """What would have to be added for `requested` to fit; `NO_RESOURCES` if it does."""
        return Resources(
            Millicores(max(0, requested.cpu - self.cpu)),
            Megabytes(max(0, requested.memory - self.memory)),
            Gigabytes(max(0, requested.disk - self.disk)),
        )

    def shortfall(self, requested: Resources) -> str:
        """`lack` as text, such as `lacks 500 milli-cores of cpu, 64 MB of memory`; empty if it fits."""
        missing = [
            f"{amount} {unit} of {name}" for name, unit, amount in self.lack(requested).parts() if amount
        ]
        return f"lacks {', '.join(missing)}" if missing else ""

    def parts(self) -> tuple[tuple[str, str, int], ...]:
        """Each resource as name, unit and amount."""
        return (
            ("cpu", "milli-cores", self.cpu),
            ("memory", "MB", self.memory),
            ("disk", "GB", self.disk),
        )


NO_RESOURCES = Resources()
NO_AMOUNTS: Amounts = (0, 0, 0)


def total(amounts: Iterable[Resources]) -> Resources:
    """All of them together."""
    return sum(amounts, start=NO_RESOURCES)


def add_amounts(amounts: Iterable[Resources], start: Amounts = NO_AMOUNTS, *, times: int = 1) -> Amounts:
    """`start` and all of them, each so many times, however much or little that is."""
    cpu, memory, disk = start
    for resources in amounts:
        cpu += resources.cpu * times
        memory += resources.memory * times
        disk += resources.disk * times
    return cpu, memory, disk


def capped(amounts: Amounts) -> Resources:
    """`amounts`, limited to the range of `Resources`."""
    cpu, memory, disk = (max(0, min(amount, MAX_AMOUNT)) for amount in amounts)
    return Resources(Millicores(cpu), Megabytes(memory), Gigabytes(disk))
