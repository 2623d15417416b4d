"""Keys change what is shown."""

from __future__ import annotations

import pytest

from skerry.cli.top import state as top_state
from skerry.cli.top.keys import KeyDecoder
from skerry.cli.top.state import TopMode, TopState
from tests.cli.top.clouds import cloud, instance

CLOUD = cloud()


def press(*keys: str, state: TopState | None = None, page: int = 10) -> TopState:
    state = state or TopState()
    for key in keys:
        state = top_state.press(state, key, top_state.rows(state, CLOUD), page)
    return state


def selected(state: TopState) -> str:
    shown = top_state.rows(state, CLOUD)
    return str(shown[top_state.position(state, shown)].cells["name"])


@pytest.mark.parametrize("key", ["q", "ctrl-c", "f10"])
@pytest.mark.parametrize("before", [(), ("?",), ("enter",)])
def test_it_can_be_left_from_everywhere(key: str, before: tuple[str, ...]) -> None:
    assert press(*before, key).mode is TopMode.QUIT


def test_a_q_in_the_filter_is_a_letter_and_ctrl_c_still_ends() -> None:
    typed = press("/", "q")
    assert (typed.mode, typed.filter) == (TopMode.FILTER, "q")
    assert press("/", "q", "ctrl-c").mode is TopMode.QUIT


def test_the_filter_is_typed_kept_and_cleared() -> None:
    kept = press("/", *"webx", "backspace", "enter")
    assert (kept.mode, kept.filter) == (TopMode.LIST, "web")
    assert [row.cells["name"] for row in top_state.rows(kept, CLOUD)] == ["web-0", "web-1"]
    assert press("escape", state=kept).filter == ""
    assert press("/", *"web", "escape").filter == ""


def test_arrows_select_and_stop_at_the_ends() -> None:
    assert selected(press()) == "db"
    assert selected(press("down")) == "web-0"
    assert selected(press("down", "j", "up", "k", "k")) == "db"
    assert selected(press("end")) == "job"
    assert selected(press("page-down", page=2)) == "web-1"
    assert selected(press("end", "down", "home")) == "db"


def test_the_selection_stays_with_its_row_when_the_order_changes() -> None:
    state = press("down")
    assert selected(state) == "web-0"
    assert selected(press("n", state=state)) == "web-0"
    assert selected(press("r", state=state)) == "web-0"


def test_a_selected_row_that_is_gone_selects_the_first() -> None:
    state = press("end")
    left = cloud(instances=[instance("other")])
    assert top_state.position(state, top_state.rows(state, left)) == 0


@pytest.mark.parametrize(
    ("keys", "tab"),
    [(("2",), 1), (("tab",), 1), (("right", "right"), 2), (("left",), 3), (("4", "tab"), 0), (("9",), 0)],
)
def test_tabs_go_round(keys: tuple[str, ...], tab: int) -> None:
    assert press(*keys).tab == tab


def test_each_tab_keeps_its_order() -> None:
    state = press("n", "2", "m", "1")
    assert (state.sort, state.sorts[1]) == ("name", "memory_mb")


def test_sorting_by_what_a_tab_does_not_have_changes_nothing() -> None:
    assert press("3", "m").sort == "calls_per_s"
    assert press("3", "n", "c").sort == "calls_per_s"


def test_the_column_beside_is_sorted_by() -> None:
    assert press(">").sort == "memory_mb"
    assert press("<").sort == "node"
    assert press(*[">"] * 9).sort == "cpu_millicores"


def test_details_are_of_the_selected_row_and_are_left_again() -> None:
    state = press("down", "enter")
    assert (state.mode, state.selected) == (TopMode.DETAILS, ("id-web-0", "default"))
    assert press("down", "down", "up", state=state).offset == 1
    assert press("escape", state=state).mode is TopMode.LIST


def test_nothing_is_selected_in_an_empty_table() -> None:
    state = TopState()
    for key in ("enter", "down", "end"):
        assert top_state.press(state, key, [], 5) == state


def test_pause_and_help() -> None:
    assert press("p").is_paused
    assert not press("p", "p").is_paused
    assert press("?").mode is TopMode.HELP
    assert press("?", "?").mode is TopMode.LIST


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1bOB\x1b[C\x1b[D", ["up", "down", "right", "left"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["page-up", "page-down", "home", "end"]),
        (b"\r\n\t\x7f\x03", ["enter", "enter", "tab", "backspace", "ctrl-c"]),
        (b"\x1b[Z\x1bOP", ["back-tab", "f1"]),
        ("ä".encode(), ["ä"]),
        (b"\x1b[1;5Aq", ["q"]),  # a sequence that means nothing here
        (b"\x1b[200~x", ["x"]),
        (b"\xff\x00\x01a", ["a"]),
    ],
)
def test_bytes_of_a_terminal_are_keys(data: bytes, keys: list[str]) -> None:
    assert KeyDecoder().feed(data) == keys


def test_a_key_may_come_in_pieces_and_escape_alone_is_a_key() -> None:
    decoder = KeyDecoder()
    assert decoder.feed(b"\x1b") == []
    assert decoder.is_waiting
    assert decoder.feed(b"[") == []
    assert decoder.feed(b"A") == ["up"]
    decoder.feed(b"\x1b")
    assert decoder.flush() == ["escape"]
    assert decoder.flush() == []
    first, rest = "ä".encode()[:1], "ä".encode()[1:]
    assert decoder.feed(first) + decoder.feed(rest) == ["ä"]
