"""Signals by name and by number, as in images and options: `SIGTERM`, `term`, `15`, `RTMIN+3`."""

from __future__ import annotations

import re
import signal
from typing import Final

from skerry.model import errors

# As in the C library, which reserves the first two real-time signals of the kernel.
_FIRST_REAL_TIME: Final = 34
_LAST: Final = 64
_REAL_TIME: Final = re.compile(r"RTM(IN|AX)(?:([+-])([0-9]{1,2}))?")
_NUMBERS: Final = {
    **{one.name.removeprefix("SIG"): int(one) for one in signal.Signals if not one.name.startswith("SIGRT")},
    "IOT": int(signal.SIGABRT),
    "CLD": int(signal.SIGCHLD),
    "POLL": int(signal.SIGIO),
}
_NAMES: Final = {int(one): one.name for one in signal.Signals if not one.name.startswith("SIGRT")}


def number_of(text: str) -> int:
    """The number of the signal named `text`. Raises Invalid if there is none."""
    name = text.strip().upper()
    if re.fullmatch(r"[0-9]{1,2}", name):
        number = int(name)
    else:
        name = name.removeprefix("SIG")
        number = _NUMBERS.get(name) or _real_time(name)
    if number in _NAMES or _FIRST_REAL_TIME <= number <= _LAST:
        return number
    raise errors.Invalid(
        f"{text[:40]!r} is not a signal; write one such as SIGTERM or SIGRTMIN+3, or a number up to {_LAST}",
        field="signal",
    )


def name_of(number: int) -> str:
    """Its full name, such as `SIGTERM` or `SIGRTMIN+3`; the number as text if it has none."""
    if _FIRST_REAL_TIME <= number <= _LAST:
        offset = number - _FIRST_REAL_TIME
        return f"SIGRTMIN+{offset}" if offset else "SIGRTMIN"
    return _NAMES.get(number, str(number))


def _real_time(name: str) -> int:
    """The number, which may be out of range; 0 if `name` has another form."""
    form = _REAL_TIME.fullmatch(name)
    if form is None or (form[2] is not None and (form[2] == "+") != (form[1] == "IN")):
        return 0
    base = _FIRST_REAL_TIME if form[1] == "IN" else _LAST
    # Out of range is no signal.
    number = base + int(f"{form[2] or '+'}{form[3] or 0}")
    return number if _FIRST_REAL_TIME <= number <= _LAST else 0
