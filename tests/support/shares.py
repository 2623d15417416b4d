"""What each test has for itself of a machine that others use at the same time: ports and subnets."""

from __future__ import annotations

import itertools
import os
import random
import socket
from pathlib import Path

# Each process that runs tests has a share of its own.
_SHARES = 16
_SHARE = int("".join(filter(str.isdigit, os.environ.get("PYTEST_XDIST_WORKER", ""))) or 0) % _SHARES

# Below those that the kernel gives to whoever asks for any port: one of those may be taken at any moment.
_PORTS = range(12000 + 1200 * _SHARE, 12000 + 1200 * (_SHARE + 1))
_next_ports = itertools.cycle(random.sample(_PORTS, len(_PORTS)))

_SUBNETS = [f"10.{128 + 6 * _SHARE + second}.{third}.0/24" for second in range(6) for third in range(256)]
_next_subnets = itertools.cycle(random.sample(_SUBNETS, len(_SUBNETS)))
_subnets: dict[Path, str] = {}


def free_port() -> int:
    """A TCP port that nobody listens on, and that no other test is given soon."""
    for port in itertools.islice(_next_ports, len(_PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"none of {_PORTS} is free")


def subnet_of(folder: Path) -> str:
    """The subnet of the Skerry that lives in `folder`: the same whenever it starts again there."""
    if folder not in _subnets:
        _subnets[folder] = next(_next_subnets)
    return _subnets[folder]
