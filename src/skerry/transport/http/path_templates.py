"""Templates of paths: which paths a route is at, and the values of the names in it.

A server has hundreds of templates and is called at a few: matching compares segments, so that building one
compiles no pattern.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_NAME: Final = re.compile(r"\{(\w+)\}")


class PathTemplate:
    """`/token/{id}`: a name in braces is one whole segment, of any text but none."""

    __slots__ = ("_texts", "names")

    def __init__(self, template: str) -> None:
        self._texts: list[tuple[int, str]] = []
        self.names: list[tuple[int, str]] = []
        for index, segment in enumerate(template.split("/")):
            if (named := _NAME.fullmatch(segment)) is not None:
                self.names.append((index, named[1]))
            elif "{" in segment:
                raise ValueError(f"{template}: a name is a whole segment")
            else:
                self._texts.append((index, segment))

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        """The values of the names in a path with as many segments as the template; None: it is another."""
        for index, text in self._texts:
            if segments[index] != text:
                return None
        values = {}
        for index, name in self.names:
            if not segments[index]:
                return None
            values[name] = segments[index]
        return values
