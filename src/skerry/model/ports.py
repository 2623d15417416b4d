"""Port mappings: which port of the machine leads to which port of an instance.

`parse` takes every text and either returns a mapping or raises `Invalid`; `str()` of a mapping is the one
spelling we write, and `parse` reads it back to the same mapping. Whether a port is free is not known here.
"""

from __future__ import annotations

import enum
import re

import msgspec

from skerry.model import errors

MAX_PORTS = 100
_FORM = re.compile(r"(?:([1-9][0-9]{0,4}):)?([1-9][0-9]{0,4})(?:/(tcp|udp))?")


class Protocol(enum.StrEnum):
    """What travels through the port."""

    TCP = "tcp"
    UDP = "udp"


class PortMapping(msgspec.Struct, frozen=True):
    """`source` on the machine leads to `destination` in the instance."""

    source: int
    destination: int
    protocol: Protocol = Protocol.TCP

    def __post_init__(self) -> None:
        for name, port in (("source", self.source), ("destination", self.destination)):
            if not 1 <= port <= 65535:
                raise errors.Invalid(f"a port is 1 to 65535, not {port}", field=f"ports.{name}")

    def __str__(self) -> str:
        suffix = "" if self.protocol is Protocol.TCP else f"/{self.protocol}"
        return f"{self.source}:{self.destination}{suffix}"


def parse(text: str) -> PortMapping:
    """`80`, `8080:80` or either with `/tcp` or `/udp`; a lone port is the same on both sides."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise errors.Invalid(
            f"{text[:40]!r} is no port mapping; write `80`, `8080:80` or `8080:80/udp`", field="ports"
        )
    source, destination, protocol = form.groups()
    return PortMapping(int(source or destination), int(destination), Protocol(protocol or "tcp"))


def check_all(mappings: tuple[PortMapping, ...]) -> None:
    """Raise unless they do not conflict on one machine."""
    if len(mappings) > MAX_PORTS:
        raise errors.Invalid(f"{len(mappings)} ports are too many; at most {MAX_PORTS}", field="ports")
    taken: set[tuple[int, Protocol]] = set()
    for mapping in mappings:
        door = (mapping.source, mapping.protocol)
        if door in taken:
            raise errors.Invalid(
                f"port {mapping.source}/{mapping.protocol} is mapped twice; use another source port",
                field="ports",
            )
        taken.add(door)
