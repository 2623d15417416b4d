"""Signals by name and by number, as images and people write them: `SIGTERM`, `term`, `15`, `RTMIN+3`."""

from __future__ import annotations


def number_of(text: str) -> int:
    """The number of the signal that `text` names. Raises Invalid if there is none."""
    raise NotImplementedError


def name_of(number: int) -> str:
    """Its full name, such as `SIGTERM` or `SIGRTMIN+3`; the number as text if it has none."""
    raise NotImplementedError
