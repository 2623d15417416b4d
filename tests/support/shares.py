"""What each test has for itself of a machine that others use at the same time: ports and subnets."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# Each process that runs tests has a share of its own. Which, is known when a test runs: modules may have been
# imported by the process that this one is a fork of.
_SHARES = 16
_PORTS = 1200  # in each


@cache
def _share() -> int:
    return int("".join(filter(str.isdigit, os.environ.get("PYTEST_XDIST_WORKER", ""))) or 0) % _SHARES


@cache
def _ports() -> Iterator[int]:
    """Below those that the kernel gives to whoever asks for any: one of those may be taken at any moment."""
    first = 12000 + _PORTS * _share()
    return itertools.cycle(random.sample(range(first, first + _PORTS), _PORTS))


@cache
def _free_subnets() -> Iterator[str]:
    own = [f"10.{128 + 6 * _share() + second}.{third}.0/24" for second in range(6) for third in range(256)]
    return itertools.cycle(random.sample(own, len(own)))


_subnets: dict[Path, str] = {}


def free_port() -> int:
    """A TCP port that nobody listens on, and that no other test is given soon."""
    for port in itertools.islice(_ports(), _PORTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"none of {_PORTS} ports is free")


def subnet_of(folder: Path) -> str:
    """The subnet of the Skerry that lives in `folder`: the same whenever it starts again there."""
    if folder not in _subnets:
        _subnets[folder] = next(_free_subnets())
    return _subnets[folder]
