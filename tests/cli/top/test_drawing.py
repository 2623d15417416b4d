"""Frames: exactly as large as the screen, whatever is in them."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from skerry.cli.top import drawing
from skerry.cli.top.drawing import TopFrame
from skerry.cli.top.state import TopMode, TopState
from tests.cli.top.clouds import cloud, instance, node

URL = "http://127.0.0.1:1323"


def draw(state: TopState | None = None, width: int = 80, height: int = 24, **more: object) -> list[str]:
    fields = {"snapshot": cloud(), "url": URL, **more}
    frame = TopFrame(state or TopState(), **fields)  # type: ignore[arg-type]
    return [line.plain for line in drawing.draw(frame, width, height)]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 5, 24, 60])
@pytest.mark.parametrize("mode", [TopMode.LIST, TopMode.FILTER, TopMode.DETAILS, TopMode.HELP])
@pytest.mark.parametrize("tab", [0, 3])
def test_a_frame_fills_the_screen_and_no_more(width: int, height: int, mode: TopMode, tab: int) -> None:
    lines = draw(TopState(mode=mode, tab=tab), width, height)
    assert len(lines) == height
    assert {cell_len(line) for line in lines} == {width}


def test_at_80_by_24_the_list_has_nodes_usage_and_instances() -> None:
    text = "\n".join(draw())
    for part in ("edge-1", "CPU[", "140.0%", "300M/8192M", "2 nodes; 4 instances, 3 running", "11.5 calls/s"):
        assert part in text
    for name in ("web-0", "web-1", "db", "job"):
        assert f"\n{name} " in text
    assert "CPU%v" in text


def test_names_with_control_characters_and_wide_ones_break_nothing() -> None:
    hostile = [instance("\x1b[2Jgone\n"), instance("日本語" * 20), instance("\u202eevil")]
    nodes = [node("\x1b]0;owned\x07")]
    for tab in (0, 3):
        lines = draw(TopState(tab=tab), snapshot=cloud(instances=hostile, nodes=nodes))
        assert {cell_len(line) for line in lines} == {80}
        assert not any(control in line for line in lines for control in "\x1b\x07\n\u202e")


def test_a_thousand_instances_are_scrolled_to_the_selected_one() -> None:
    many = cloud(instances=[instance(f"i{number:04}") for number in range(1000)])
    state = TopState(sorts=("name", "name", "name", "name"), selected=("id-i0500", "default"))
    text = "\n".join(draw(state, snapshot=many))
    assert "i0500" in text
    assert "i0000" not in text


def test_with_many_nodes_the_busiest_are_shown_and_the_others_counted() -> None:
    nodes = [node(f"n{number}") for number in range(50)]
    busy = [instance("web", 3900, node_id="id-n33")]
    lines = draw(snapshot=cloud(nodes=nodes, instances=busy))
    assert lines[1].startswith("n33")
    assert any("and 47 nodes more" in line for line in lines)


def test_a_narrow_screen_leaves_out_what_matters_least() -> None:
    heading = next(line for line in draw(width=60) if line.startswith("NAME"))
    assert "CPU%" in heading
    assert "RESTARTS" not in heading


def test_names_are_whole_before_other_columns_are_shown() -> None:
    long = "recommendations-in-oslo-2"
    drawn = draw(width=80, snapshot=cloud(instances=[instance(long, 500)]))
    assert any(line.startswith(long[:24]) for line in drawn)
    heading = next(line for line in drawn if line.startswith("NAME"))
    assert "CPU%" in heading
    assert "RESTARTS" not in heading


def test_an_empty_cloud_says_what_to_do_first() -> None:
    empty = cloud(instances=[], services=[], functions=[], nodes=[])
    hints = ["skerry run", "skerry service create", "skerry fn deploy", "skerry token create --role node"]
    for tab, hint in enumerate(hints):
        assert hint in "\n".join(draw(TopState(tab=tab), snapshot=empty))


def test_what_a_token_does_not_allow_is_said() -> None:
    assert "does not let you see nodes" in "\n".join(draw(TopState(tab=3), snapshot=cloud(nodes=None)))


def test_a_server_that_is_away_is_said_and_the_last_state_stays() -> None:
    text = "\n".join(draw(failure="Nothing answers"))
    assert "No answer: Nothing answers" in text
    assert "web-0" in text
    assert "Nothing answers" in "\n".join(draw(snapshot=None, failure="Nothing answers"))


def test_details_have_the_reason_the_events_and_commands() -> None:
    state = TopState(mode=TopMode.DETAILS, selected=("id-db", "shop"))
    found = {"object": {"reason": "ended with code 3"}, "events": [{"at": 5.0, "kind": "instance.crashed"}]}
    text = "\n".join(draw(state, details=found))
    for part in ("instance db", "ended with code 3", "instance.crashed", "skerry logs -f id-db -n shop"):
        assert part in text
    assert "It is gone" in "\n".join(draw(state._replace(selected=("id-none", None))))
