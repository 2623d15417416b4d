"""The settings file of an installed Skerry: dotted keys, one a line, changed in place.

Pure. What the operator has written stays as it is, comments included; only the lines of given keys change.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from skerry.cli.settings import flatten
from skerry.kit import json_codec

HEADER: Final = (
    "# Settings of this machine's Skerry; docs/settings.md lists all of them.\n"
    "# Written by 'skerry install', which changes only the keys of its options. After changes of\n"
    "# your own restart the service; addresses (http.listen, grpc.listen, node.http) need 'skerry install'.\n"
)


class SetElsewhere(Exception):
    """A key is set in a way that is not changed automatically; the message says where."""


def update(text: str, values: Mapping[str, Any]) -> str:
    """`text` with `values` by dotted key; `SetElsewhere` for one that is in a table."""
    present = dict(flatten(tomllib.loads(text)))
    lines = (text or HEADER).split("\n")
    added = []
    for key, value in values.items():
        line = f"{key} = {literal(value)}"
        number = _line_of(key, lines)
        if number is not None:
            lines[number] = line
        elif key not in present:
            added.append(line)
        elif present[key] != value:
            raise SetElsewhere(
                f"'{key}' is set inside a table of the settings file; change it there, or write it as "
                f"'{line}' before the first table"
            )
    place = next((n for n, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    while place and not lines[place - 1].strip():
        place -= 1
    made = "\n".join([*lines[:place], *added, *lines[place:]]).rstrip("\n") + "\n"
    tomllib.loads(made)
    return made


def literal(value: Any) -> str:
    """A value as TOML has it: for text, numbers, booleans and lists of them this is JSON."""
    return json_codec.encode(list(value) if isinstance(value, tuple) else value).decode()


def _line_of(key: str, lines: list[str]) -> int | None:
    pattern = re.compile(rf"\s*{re.escape(key)}\s*=")
    for number, line in enumerate(lines):
        if line.lstrip().startswith("["):
            return None  # a table has begun: the same words mean another key there
        if pattern.match(line):
            return number
    return None
