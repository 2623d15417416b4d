"""What a registry wants to see: the `WWW-Authenticate` header, read as RFC 9110 has it.

Pure and total: what cannot be read is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_SCHEME = re.compile(rf"[\s,]*({_NAME})(?=\s|,|$)")
# A parameter is followed by a comma or the end; without that, it is no parameter.
_PARAMETER = re.compile(rf'[\s,]*({_NAME})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_NAME}))\s*(?=,|$)', re.DOTALL)
# Some schemes have one word instead of parameters.
_WORD = re.compile(r"\s+[A-Za-z0-9._~+/-]+=*\s*(?=,|$)")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class AuthChallenge(msgspec.Struct, frozen=True):
    """One way to authenticate: its scheme in lower case, and what it says."""

    scheme: str
    parameters: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.parameters.get(name, "")


def parse(headers: Iterable[str]) -> list[AuthChallenge]:
    """Every challenge in the headers, in their order."""
    return [challenge for header in headers for challenge in _in_header(header)]


def _in_header(text: str) -> list[AuthChallenge]:
    found: list[AuthChallenge] = []
    at = 0
    while scheme := _SCHEME.match(text, at):
        at = scheme.end()
        parameters: dict[str, str] = {}
        while parameter := _PARAMETER.match(text, at):
            name, quoted, plain = parameter.groups()
            value = plain if quoted is None else _ESCAPED.sub(r"\1", quoted)
            parameters.setdefault(name.lower(), value)
            at = parameter.end()
        if not parameters and (word := _WORD.match(text, at)):
            at = word.end()
        found.append(AuthChallenge(scheme[1].lower(), parameters))
    return found
