"""What survives a garbage collection is frozen, and everything is collected when much was frozen since."""

from __future__ import annotations

import subprocess
import sys

from skerry.kit.collector import CollectorTuning


class FakeCollector:
    """Counts objects: new ones, and those that are frozen, of which some are garbage."""

    def __init__(self) -> None:
        self.new = self.frozen = self.garbage = 0
        self.looked_at: list[int] = []

    def make(self, count: int) -> None:
        self.new += count

    def freeze(self) -> None:
        self.frozen += self.new
        self.new = 0

    def unfreeze(self) -> None:
        self.new += self.frozen
        self.frozen = 0

    def collect(self) -> int:
        self.looked_at.append(self.new)
        self.new -= self.garbage
        self.garbage = 0
        return 0

    def blocks(self) -> int:
        return self.new + self.frozen


def started(count: int) -> tuple[FakeCollector, CollectorTuning]:
    collector = FakeCollector()
    collector.make(count)
    tuning = CollectorTuning(collector, collector.blocks)
    tuning.start()
    return collector, tuning


def test_a_collection_looks_only_at_what_was_made_since_the_last_one() -> None:
    collector, tuning = started(100_000)
    for _ in range(3):
        collector.make(1_000)
        collector.collect()
        tuning.collected()
    assert collector.looked_at == [0, 1_000, 1_000, 1_000]
    assert collector.frozen == 103_000


def test_a_loop_at_rest_collects_everything_once_there_is_half_as_much_more() -> None:
    collector, tuning = started(1_000)
    collector.make(500)
    tuning.collected()
    assert not tuning.collect_frozen(is_at_rest=True)
    collector.make(1)
    tuning.collected()
    collector.garbage = 400
    assert not tuning.collect_frozen(is_at_rest=False)
    assert tuning.collect_frozen(is_at_rest=True)
    assert collector.frozen == 1_101
    assert not tuning.collect_frozen(is_at_rest=True)  # what is left is the new measure


def test_a_loop_that_never_rests_collects_everything_once_there_is_four_times_as_much() -> None:
    collector, tuning = started(1_000)
    collector.make(3_001)
    tuning.collected()
    assert tuning.collect_frozen(is_at_rest=False)
    assert collector.looked_at[-2:] == [4_001, 0]


def test_what_was_freed_since_is_no_reason_to_collect_everything() -> None:
    collector, tuning = started(1_000)
    collector.make(600)
    tuning.collected()
    collector.frozen -= 600
    assert not tuning.collect_frozen(is_at_rest=True)
    assert collector.looked_at == [0]


def test_cycles_that_were_frozen_are_freed_by_the_collection_of_everything() -> None:
    program = """
import gc, sys, weakref
from skerry.kit.collector import CollectorTuning

class Node: pass

tuning = CollectorTuning()
tuning.start()
nodes = [Node() for _ in range(sys.getallocatedblocks())]
node = nodes[0]
node.itself = node
seen = weakref.ref(node)
tuning.collected()
nodes[0] = node = None
gc.collect()
assert seen() is not None, "it was not frozen"
assert tuning.collect_frozen(is_at_rest=True)
assert seen() is None, "it is still there"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
