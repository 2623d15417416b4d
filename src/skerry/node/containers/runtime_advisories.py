"""Versions of OCI runtimes with published container escapes. Pure.

By upstream version: a distribution may have patched an older one without a change of its version (Debian's
`1.1.5+ds1-1+deb12u1` reports `1.1.5+ds1`). So this only warns, and the warning mentions that.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-~.]?rc\.?(\d+))?")
_NO_CANDIDATE: Final = 10_000  # a release comes after all its candidates

Version = tuple[int, int, int, int]


class Advisory(NamedTuple):
    """Vulnerabilities that were fixed together: by the last of `fixed`, and by the others in their own
    series."""

    names: tuple[str, ...]
    fixed: tuple[str, ...]  # ascending


_ADVISORIES: Final[dict[str, tuple[Advisory, ...]]] = {
    "runc": (
        Advisory(("CVE-2019-5736", "CVE-2021-30465"), ("1.0.0-rc95",)),
        Advisory(("CVE-2024-21626",), ("1.1.12",)),
        Advisory(("CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"), ("1.2.8", "1.3.3", "1.4.0-rc.3")),
    ),
    "crun": (
        Advisory(("CVE-2019-18837",), ("0.10.5",)),
        Advisory(("CVE-2022-27650",), ("1.4.4",)),
        Advisory(("CVE-2025-24965",), ("1.20",)),
    ),
}


def parse(text: str) -> Version | None:
    """The upstream version, without what a distribution added; None if it is none."""
    found = _VERSION.match(text)
    if found is None:
        return None
    major, minor, patch, candidate = (int(part) if part else 0 for part in found.groups())
    return major, minor, patch, candidate if found[4] else _NO_CANDIDATE


def warning(name: str, version: str) -> str:
    """A warning about a runtime called `name`; empty if nothing is known."""
    parsed = parse(version)
    advisories = _ADVISORIES.get(name)
    if advisories is None:
        return ""
    if parsed is None:
        return f"{name} {version} is not an upstream version, so its vulnerabilities are unknown"
    open_ = [each for each in advisories if not _is_closed(parsed, each)]
    if not open_:
        return ""
    names = ", ".join(name for each in open_ for name in each.names)
    return (
        f"{name} {version} may allow container escapes ({names}), unless your distribution has patched it; "
        f"update it to {' or '.join(open_[-1].fixed)} or later, or see the advisories of your distribution"
    )


def _is_closed(version: Version, advisory: Advisory) -> bool:
    *series, last = filter(None, map(parse, advisory.fixed))
    return version >= last or any(version[:2] == each[:2] and version >= each for each in series)
