"""What a benchmark reports: a figure with what it was measured against, and whether its promise holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One number. With `at_least` or `at_most` it is a promise; without, it is only told."""

    name: str
    value: float
    unit: str  # "x raw sqlite3 commits", "transactions/s", "MB" ...
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""
    # What another program, or the least code that does the same, did in the same run.
    peer: float | None = None
    peer_unit: str = ""
    peer_name: str = ""

    @property
    def is_promise(self) -> bool:
        return self.at_least is not None or self.at_most is not None

    @property
    def holds(self) -> bool:
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def promise(self) -> str:
        """The bound, as it is printed."""
        bounds = ((">=", self.at_least), ("<=", self.at_most))
        return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)

    @property
    def beside(self) -> str:
        """The peer with its figure, as they are printed."""
        if self.peer is None:
            return ""
        return f"{self.peer_name} {number(self.peer)} {self.peer_unit}".strip()


def number(value: float) -> str:
    return f"{value:,.2f}"
