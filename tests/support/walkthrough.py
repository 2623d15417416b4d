"""The commands of a page of the docs, as somebody who reads it would type them, machine by machine.

A command is a line of a fenced `sh` block. The comment before it says where it is typed: `# on the server's
machine` or `# in another terminal`, up to a comma, a semicolon or a colon. Nothing is run here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[2] / "docs"
_SECTION = re.compile(r"^## (?P<title>.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```sh\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_PLACE = re.compile(r"# (?:on|in) (?P<place>[^,;:]*)")


class Step(NamedTuple):
    """Something to type."""

    place: str  # "the new machine"
    command: str


def steps(page: str, title: str) -> list[Step]:
    """The commands of a section, in order. Fails if there are none, or if one is nowhere."""
    parts = _SECTION.split((DOCS / page).read_text())
    section = dict(zip(parts[1::2], parts[2::2], strict=True)).get(title)
    assert section is not None, f"{page} has no section {title!r}"
    found: list[Step] = []
    for block in _BLOCK.finditer(section):
        place = ""
        for line in block["body"].splitlines():
            if match := _PLACE.match(line):
                place = match["place"].strip()
            elif line.strip() and not line.startswith("#"):
                assert place, f"{page}, {title}: it is not said where {line!r} is typed"
                found.append(Step(place, line.strip()))
    assert found, f"{page}, {title}: there is no command"
    return found
