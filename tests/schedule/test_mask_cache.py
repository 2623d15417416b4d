"""Kept answers: right after every change, and no more of them than are worth keeping."""

from __future__ import annotations

from skerry.model.ids import NodeId
from skerry.schedule.allocations import NodeAllocation
from skerry.schedule.mask_cache import MAX_MASKS, MaskCache


class Asked:
    """Answers whether a node's id begins with the question, and counts how often it was asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, question: str, allocation: NodeAllocation) -> bool:
        self.times += 1
        return allocation.node.startswith(question)


def allocations(*names: str) -> list[NodeAllocation]:
    return [NodeAllocation(NodeId(name)) for name in names]


def test_a_question_is_answered_once_per_row_until_a_row_changes() -> None:
    requested, rows = Asked(), allocations("a1", "a2", "b1")
    masks = MaskCache(rows, requested)
    for _ in range(3):
        assert masks.get("a").tolist() == [True, True, False]
    assert requested.times == 3
    rows[1] = NodeAllocation(NodeId("c1"))
    masks.update(1)
    assert masks.get("a").tolist() == [True, False, False]
    assert requested.times == 4


def test_rows_that_come_and_go_keep_the_answers_in_place() -> None:
    rows = allocations("a1", "b1")
    masks = MaskCache(rows, Asked())
    masks.get("a")
    rows.insert(1, NodeAllocation(NodeId("a2")))
    masks.insert(1)
    assert masks.get("a").tolist() == [True, True, False]
    del rows[0]
    masks.delete(0)
    assert masks.get("a").tolist() == [True, False]


def test_only_the_questions_asked_last_are_kept() -> None:
    requested, rows = Asked(), allocations("a1")
    masks = MaskCache(rows, requested)
    masks.get("oldest")
    for number in range(MAX_MASKS - 1):
        masks.get(f"q{number}")
    masks.get("oldest")
    assert requested.times == MAX_MASKS
    masks.get("one more")
    masks.get("oldest")
    assert requested.times == MAX_MASKS + 1
    masks.get("q0")
    assert requested.times == MAX_MASKS + 2
