"""How much may be done at a time: a bucket of tokens, on times that are given.

Pure: a bucket is a value, taking from it gives the next one.
"""

from __future__ import annotations

from typing import NamedTuple


class TokenBucket(NamedTuple):
    """`per_s` tokens drip in each second, up to `most`; `level` is what it held at `at`."""

    per_s: float
    most: float
    level: float
    at: float

    @classmethod
    def full(cls, per_s: float, *, at: float) -> TokenBucket:
        """One that holds what a second brings, and at least one token."""
        most = max(1.0, per_s)
        return cls(per_s, most, most, at)

    def filled(self, now: float) -> TokenBucket:
        """The same at `now`; a clock that was set back brings nothing and takes nothing."""
        level = min(self.most, self.level + max(0.0, now - self.at) * self.per_s)
        return self._replace(level=level, at=now)

    def take(self) -> TokenBucket | None:
        """What is left after one token, None if there is none."""
        # A token that is whole but for the rounding of times is whole.
        return self._replace(level=max(0.0, self.level - 1.0)) if self.level >= 1.0 - 1e-6 else None

    def next_at(self) -> float:
        """When there is a token."""
        return self.at + max(0.0, 1.0 - self.level) / self.per_s
