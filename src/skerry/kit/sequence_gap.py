"""A gap in a numbered stream: what a reader gets for the numbers it missed."""

from __future__ import annotations

import msgspec


class SequenceGap(msgspec.Struct, frozen=True):
    """The items `first` to `last` cannot be had any more, or were never kept."""

    first: int
    last: int
