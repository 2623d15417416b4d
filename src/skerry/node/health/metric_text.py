"""One metric out of a page in Prometheus' text format. Pure.

The page is written by the program in an instance: whatever it holds, the answer is a number or None.
"""

from __future__ import annotations

import math
import re

# Possessive, and never beyond a line: no page makes this slow.
_LABELS = rb'\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*+")*+\}'
_BEFORE_VALUE = rb"(?:[ \t]*+" + _LABELS + rb"[ \t]*+|[ \t]++)"


def read_metric(page: bytes, name: str) -> float | None:
    """The sum of all series of `name` that are finite numbers; None if there are none."""
    series = re.finditer(
        rb"^[ \t]*+" + re.escape(name.encode()) + _BEFORE_VALUE + rb"([^\s#]++)",
        page,
        re.MULTILINE,
    )
    values = [value for match in series if (value := _number(match[1])) is not None]
    total = sum(values)
    return total if values and math.isfinite(total) else None


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
