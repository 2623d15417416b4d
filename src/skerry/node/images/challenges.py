"""Parses the `WWW-Authenticate` header of a registry, by RFC 9110.

Pure and total: malformed parts are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_SCHEME = re.compile(rf"[\s,]*({_NAME})(?=\s|,|$)")
# A parameter must be followed by a comma or the end.
_PARAMETER = re.compile(rf'[\s,]*({_NAME})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_NAME}))\s*(?=,|$)', re.DOTALL)
# Some schemes have a token68 instead of parameters.
_TOKEN68 = re.compile(r"\s+[A-Za-z0-9._~+/-]+=*\s*(?=,|$)")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class AuthChallenge(msgspec.Struct, frozen=True):
    """One challenge: its scheme in lower case, and its parameters."""

    scheme: str
    parameters: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.parameters.get(name, "")


def parse(headers: Iterable[str]) -> list[AuthChallenge]:
    """Every challenge in the headers, in order."""
    return [challenge for header in headers for challenge in _in_header(header)]


def _in_header(text: str) -> list[AuthChallenge]:
    found: list[AuthChallenge] = []
    at = 0
    while scheme := _SCHEME.match(text, at):
        at = scheme.end()
        parameters: dict[str, str] = {}
        while parameter := _PARAMETER.match(text, at):
            name, quoted, unquoted = parameter.groups()
            value = unquoted if quoted is None else _ESCAPED.sub(r"\1", quoted)
            parameters.setdefault(name.lower(), value)
            at = parameter.end()
        if not parameters and (token68 := _TOKEN68.match(text, at)):
            at = token68.end()
        found.append(AuthChallenge(scheme[1].lower(), parameters))
    return found
