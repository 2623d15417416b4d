"""The decision alone: what goes on, what goes away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skerry.model.cells import Cell, Executable, is_within, parent_of
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.adoption import CellAdoptionPlan, plan
from skerry.node.cells.records import (
    CellRecord,
    ExitRecord,
    InitRecord,
    ProcessRecord,
    StoredCell,
    StoredExecutable,
)

A, B, C = CellName("a"), CellName("a/b"), CellName("a/b/c")


def found(name: CellName, *executables: StoredExecutable, **other: object) -> StoredCell:
    parts: dict[str, object] = {
        "record": CellRecord(Cell(name), 61184, "this", 1.0),
        "init": InitRecord(10, 100, 3),
        "is_freeing": False,
        "executables": executables,
    }
    return StoredCell(name=name, **(parts | other))  # type: ignore[arg-type]


def executable(
    number: int, *, spec: bool = True, started: bool = True, ended: bool = False
) -> StoredExecutable:
    return StoredExecutable(
        number,
        Executable(ExecutableName(f"e{number}"), A, "true") if spec else None,
        ProcessRecord(20 + number, 2.0) if started else None,
        ExitRecord(3.0, code=0) if ended else None,
    )


def stored(decision: CellAdoptionPlan) -> list[CellName]:
    return [each.found.name for each in decision.adopted]


def test_nothing_found_is_nothing_to_do() -> None:
    assert plan([], {}, {}, "this") == CellAdoptionPlan((), ())


def test_a_cell_of_this_boot_with_its_group_goes_on() -> None:
    decision = plan([found(A)], {A: True}, {A: {10: 100}}, "this")
    assert (stored(decision), decision.to_remove) == ([A], ())
    assert decision.adopted[0].has_live_init


def test_a_cell_of_another_boot_goes_away() -> None:
    decision = plan([found(A), found(B)], {}, {}, "another")
    assert (stored(decision), decision.to_remove) == ([], (B, A))


def test_a_group_without_a_record_goes_away_with_all_below_it_children_first() -> None:
    decision = plan([found(B), found(C)], {A: True, B: True, C: True}, {}, "this")
    assert (stored(decision), decision.to_remove) == ([], (C, B, A))


def test_a_record_without_a_group_goes_away() -> None:
    assert plan([found(A)], {}, {}, "this").to_remove == (A,)
    assert plan([found(A)], {A: False}, {}, "this").to_remove == (A,)


def test_a_freeing_that_was_begun_is_finished_with_all_below() -> None:
    decision = plan(
        [found(A), found(B, is_freeing=True), found(C)], dict.fromkeys([A, B, C], True), {}, "this"
    )
    assert (stored(decision), decision.to_remove) == ([A], (C, B))


def test_parents_come_before_children() -> None:
    decision = plan([found(C), found(A), found(B)], dict.fromkeys([A, B, C], True), {}, "this")
    assert stored(decision) == [A, B, C]


def test_an_executable_goes_on_with_a_live_init() -> None:
    cell = found(A, executable(1), executable(2, ended=True))
    (one,) = plan([cell], {A: True}, {A: {10: 100}}, "this").adopted
    assert ([e.number for e in one.running], [e.number for e in one.ended], one.lost) == ([1], [2], ())


def test_an_executable_died_with_its_init() -> None:
    cell = found(A, executable(1), executable(2, ended=True))
    for processes in ({}, {11: 100}, {10: 101}):  # none, another pid, the pid used again
        (one,) = plan([cell], {A: True}, {A: processes}, "this").adopted
        assert not one.has_live_init
        assert ([e.number for e in one.lost], [e.number for e in one.ended], one.running) == ([1], [2], ())


def test_a_start_that_nobody_was_told_of_is_undone() -> None:
    cell = found(A, executable(1, started=False), executable(2, spec=False, started=False), executable(3))
    (one,) = plan([cell], {A: True}, {A: {10: 100}}, "this").adopted
    assert ([e.number for e in one.undone], [e.number for e in one.running]) == ([1, 2], [3])


NAMES = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map(lambda parts: CellName("/".join(parts)))
EXECUTABLES = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=3).map(
    lambda flags: tuple(
        executable(n, spec=spec, started=started, ended=ended)
        for n, (spec, started, ended) in enumerate(flags)
    )
)


@st.composite
def remains(draw: st.DrawFn) -> tuple[list[StoredCell], dict[CellName, bool]]:
    cells = {}
    for name in draw(st.sets(NAMES)):
        record = CellRecord(Cell(name), 1, draw(st.sampled_from(["this", "another"])), 1.0)
        cells[name] = found(
            name,
            *draw(EXECUTABLES),
            record=draw(st.sampled_from([record, record, None])),
            is_freeing=draw(st.sampled_from([False, False, True])),
        )
    return list(cells.values()), draw(st.dictionaries(NAMES, st.booleans()))


@given(remains(), st.booleans())
def test_everything_found_either_goes_on_or_goes_away(
    leftovers: tuple[list[StoredCell], dict[CellName, bool]], alive: bool
) -> None:
    cells, groups = leftovers
    inits = {name: {10: 100} for name in groups} if alive else {}
    decision = plan(cells, groups, inits, "this")
    staying = stored(decision)
    assert sorted([*staying, *decision.to_remove]) == sorted({*groups, *(cell.name for cell in cells)})
    for number, name in enumerate(staying):
        assert parent_of(name) is None or parent_of(name) in staying[:number]
        assert groups[name]
    for number, name in enumerate(decision.to_remove):
        assert not any(is_within(later, name) for later in decision.to_remove[number + 1 :])
        assert not any(is_within(each, name) for each in staying)
    for each in decision.adopted:
        parts = [*each.running, *each.ended, *each.lost, *each.undone]
        assert sorted(e.number for e in parts) == [e.number for e in each.found.executables]
        assert not (each.running and each.lost)
