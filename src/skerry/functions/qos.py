"""Classes of calls: their share of a queue, when they are late, and what it is worth that they are not.

A call names its class by number; settings list the classes from 0 on, each as one line of text. What the
numbers are used for is the business of queues and policies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from skerry.model import errors

_FORM = "name:weight:deadline_s:utility"


class QosClass(Struct, frozen=True, gc=False):
    """One class of calls."""

    name: str
    weight: int  # its share of the turns, while calls wait
    deadline_s: float  # an answer after this is worth nothing
    utility: float  # what an answer in time is worth

    def __str__(self) -> str:
        """As settings have it."""
        return f"{self.name}:{self.weight}:{self.deadline_s!r}:{self.utility!r}"


def class_of_call(classes: Sequence[QosClass], qos_class: int) -> QosClass:
    """Those beyond the last class count as the last."""
    return classes[min(qos_class, len(classes) - 1)]


def parse_classes(lines: Sequence[str]) -> tuple[QosClass, ...]:
    """Classes from 0 on, each written as `name:weight:deadline_s:utility`."""
    if not lines:
        raise _bad(f"there must be at least one class, written as {_FORM}")
    classes = tuple(_parse(line) for line in lines)
    names = [one.name for one in classes]
    for name in names:
        if names.count(name) > 1:
            raise _bad(f"two classes are called {name!r}; give each a name of its own")
    return classes


def _parse(line: str) -> QosClass:
    parts = [part.strip() for part in line.split(":")]
    if len(parts) != 4:
        raise _bad(f"class {line!r} has {len(parts)} parts; write {_FORM}, such as `urgent:16:0.5:10`")
    name, weight, deadline_s, utility = parts
    if not name.isidentifier():
        raise _bad(f"class {line!r}: {name!r} is no name; begin with a letter and use letters, digits and _")
    return QosClass(
        name,
        _whole(line, weight),
        _positive(line, "deadline_s", deadline_s),
        _positive(line, "utility", utility),
    )


def _whole(line: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise _bad(f"class {line!r}: weight must be a whole number above 0, not {text!r}")
    return int(text)


def _positive(line: str, what: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise _bad(f"class {line!r}: {what} must be a number above 0, not {text!r}")
    return number


def _bad(message: str) -> errors.Invalid:
    return errors.Invalid(message, field="classes")


DEFAULT_CLASSES = parse_classes(("background:1:60:1", "standard:4:5:4", "urgent:16:1:16"))
