"""Each test of the real network has a machine to itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.network import machines
from tests.node.network.machines import Ground, Machine


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    """A machine that the test is on, and nothing of ours on it when it ends."""
    with machines.machine(tmp_path) as here:
        ground = Ground(tmp_path, here)
        yield ground
        leftovers = ground.leftovers()
        ground.clear()
        assert leftovers == []


@pytest.fixture
def other(ground: Ground) -> Iterator[Machine]:
    """Another machine, 192.0.2.9 and 2001:db8::9, beside the node, which is 192.0.2.1 and 2001:db8::1. It has
    no route to containers."""
    other = Machine(ground.tmp, "other")
    try:
        machines.join(
            ground.machine,
            other,
            node_address="192.0.2.1",
            other_address="192.0.2.9",
            node_address6="2001:db8::1",
            other_address6="2001:db8::9",
        )
        yield other
    finally:
        other.end()
