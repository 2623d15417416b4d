"""What the reader of a numbered stream gets for the numbers it missed, instead of silence."""

from __future__ import annotations

import msgspec


class SequenceGap(msgspec.Struct, frozen=True):
    """The items `first` to `last` cannot be had any more, or were never kept."""

    first: int
    last: int
