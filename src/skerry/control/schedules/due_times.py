"""When a cron expression is due in a time zone. Pure, but for the zone's rules, which are read once.

The expression is that of Debian's cron, in five fields, by cronsim. Where clocks are put forward, a run at a
fixed time that does not exist is due right after the gap, once; where they are put back, it is due once, at
the first of the two times. An expression that begins with `*` in its minutes or hours is due by elapsed
time instead: in every hour that there really is.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from skerry.model import errors

_FIELDS = 5
_MAX_KNOWN = 10_000


def check(cron: str, timezone: str, now: float) -> None:
    """Raise `Invalid` unless the expression can be read and is due some day, in a zone that exists."""
    zone(timezone)
    if len(cron.split()) != _FIELDS:
        raise errors.Invalid(
            f"a cron expression has five fields: minute, hour, day of month, month, day of week, such as "
            f"`30 3 * * *`; {cron[:40]!r} has {len(cron.split())}",
            field="cron",
        )
    try:
        following = next(after(cron, timezone, now), None)
    except CronSimError as error:
        raise errors.Invalid(
            f"{cron[:40]!r} is never due: there is no such day in that month"
            if _is_right_in_other_months(cron)
            else f"{cron[:40]!r} is no cron expression ({str(error).lower()}); write `30 3 * * *` for every "
            "day at half past three",
            field="cron",
        ) from None
    if following is None:
        raise errors.Invalid(
            f"{cron[:40]!r} is never due: no day is like that; check day, month and day of week", field="cron"
        )


def after(cron: str, timezone: str, time: float) -> Iterator[float]:
    """Due times after `time`, in order, as seconds since the epoch; none if there is none in fifty years."""
    last = time
    for due in CronSim(cron, datetime.fromtimestamp(time, zone(timezone))):
        # Where clocks are put back, the second of two equal times would lead to the first again; where they
        # are put forward, several times are the one behind the gap.
        if (at := due.timestamp()) > last:
            last = at
            yield at


def upcoming(cron: str, timezone: str, time: float, count: int) -> list[float]:
    """The next `count` due times."""
    return list(islice(after(cron, timezone, time), count))


class UpcomingTimes:
    """Remembers `upcoming` of each expression until the first of its times is over: those of a yearly one
    take a millisecond to find."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._known: dict[
            tuple[str, str], tuple[float, list[float]]
        ] = {}  # with the time that they are after

    def after(self, cron: str, timezone: str, time: float) -> list[float]:
        """The next due times."""
        since, times = self._known.get((cron, timezone), (0.0, []))
        if times and since <= time < times[0]:
            return times
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        times = upcoming(cron, timezone, time, self._count)
        self._known[cron, timezone] = (time, times)
        return times


def display(time: float, timezone: str) -> str:
    """A time for people, such as `2026-11-17 03:00 CET`."""
    return f"{datetime.fromtimestamp(time, zone(timezone)):%Y-%m-%d %H:%M %Z}"


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    """The time zone of that name; `Invalid` if there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise errors.Invalid(
            f"there is no time zone {name[:64]!r}; write one such as `Europe/Berlin`, or `UTC`",
            field="timezone",
        ) from None


def _is_right_in_other_months(cron: str) -> bool:
    minute, hour, day, _, weekday = cron.split()
    try:
        CronSim(f"{minute} {hour} {day} * {weekday}", datetime.fromtimestamp(0.0, UTC))
    except CronSimError:
        return False
    return True
