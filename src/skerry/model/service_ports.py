"""Ports of the virtual address of a service, as people write them: `80`, `80:8080`, `53/udp`, `80:8080=http`.

`parse` takes every text and either returns a port or raises `Invalid`; `write` is the one spelling that we
show, and `parse` reads it back to the same port. Not to be confused with published ports of nodes
(`skerry.model.ports`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from skerry.model import errors
from skerry.model.network_objects import ServicePort
from skerry.model.ports import Protocol

MAX_PORTS = 100
MAX_AFFINITY_S = 86_400
FIELD = "service_ports"
_FORM = re.compile(r"([1-9][0-9]{0,4})(?::([1-9][0-9]{0,4}))?(?:/(tcp|udp))?(?:=([a-z0-9-]{1,15}))?")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")  # as in RFC 6335, of services in SRV records


def parse(text: str) -> ServicePort:
    """A port of the address, the port of the copies, the protocol and a name."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise errors.Invalid(
            f"{text[:60]!r} is no port of a service; write PORT[:TARGET][/tcp|udp][=NAME], such as `80`, "
            "`80:8080`, `53/udp` or `80:8080=http`",
            field=FIELD,
        )
    port, target, protocol, name = form.groups()
    number, goal = int(port), int(target or 0)
    # The same port is written in one way.
    return check(ServicePort(number, 0 if goal == number else goal, Protocol(protocol or "tcp"), name or ""))


def write(port: ServicePort) -> str:
    target = f":{port.target}" if port.target else ""
    protocol = "" if port.protocol is Protocol.TCP else f"/{port.protocol}"
    return f"{port.port}{target}{protocol}{f'={port.name}' if port.name else ''}"


def check(port: ServicePort) -> ServicePort:
    for number in (port.port, port.target_port):
        if not 1 <= number <= 65535:
            raise errors.Invalid(f"a port is 1 to 65535, not {number}", field=FIELD)
    if port.name and not (_NAME.fullmatch(port.name) and any(map(str.isalpha, port.name))):
        raise errors.Invalid(
            f"{port.name!r} is no name of a port; write at most 15 lower-case letters, digits and '-', "
            "with a letter among them",
            field=FIELD,
        )
    return port


def check_all(ports: Sequence[ServicePort]) -> None:
    """Raise unless they do not conflict on one address."""
    if len(ports) > MAX_PORTS:
        raise errors.Invalid(f"{len(ports)} ports are too many; at most {MAX_PORTS}", field=FIELD)
    taken: set[object] = set()
    for port in ports:
        check(port)
        for mark, what in (
            ((port.port, port.protocol), f"port {port.port}/{port.protocol}"),
            ((port.name, port.protocol), f"name {port.name!r}"),
        ):
            if mark in taken:
                raise errors.Invalid(f"{what} is given twice; each is one port of the service", field=FIELD)
            if mark[0]:
                taken.add(mark)


def check_affinity(seconds: int) -> None:
    if not 0 <= seconds <= MAX_AFFINITY_S:
        raise errors.Invalid(f"affinity_s is 0 (none) to {MAX_AFFINITY_S} seconds", field="affinity_s")
