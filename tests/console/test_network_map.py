"""The map of the cloud: where areas and nodes are drawn."""

from __future__ import annotations

import math

from skerry.console import network_map
from skerry.console.components import Tone
from skerry.console.network_map import HEIGHT, MAX_LINKS, WIDTH, MapLink, MapNode, NetworkMap, draw


def node(name: str, area: str, vector: tuple[float, float, float] | None = None) -> MapNode:
    return MapNode(name, name, area, "READY", Tone.GOOD, vector=vector)


def test_a_single_area_is_in_the_middle() -> None:
    drawing = draw(NetworkMap((node("a", "home"),)))
    assert [(one.x, one.y) for one in drawing.areas] == [(WIDTH / 2, HEIGHT / 2)]
    assert [(one.x, one.y) for one in drawing.dots] == [(WIDTH / 2, HEIGHT / 2)]


def test_areas_that_are_far_apart_in_milliseconds_are_far_apart_on_the_map() -> None:
    places = network_map.place_areas({"a": (0, 0, 0), "b": (0.01, 0, 0), "far": (0.1, 0.02, 0)})
    near, far = math.dist(places["a"], places["b"]), math.dist(places["a"], places["far"])
    assert far > 2 * near


def test_areas_at_the_same_place_do_not_cover_each_other() -> None:
    places = network_map.place_areas({"a": (0, 0, 0), "b": (0, 0, 0), "c": (0.05, 0.05, 0)})
    assert math.dist(places["a"], places["b"]) > 100
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in places.values())


def test_areas_that_nobody_has_measured_are_on_a_circle() -> None:
    places = network_map.place_areas({"a": None, "b": (0.1, 0, 0), "c": None})
    assert len({(round(x), round(y)) for x, y in places.values()}) == 3


def test_a_link_joins_its_nodes_and_has_its_round_trip_as_text() -> None:
    network = NetworkMap(
        (node("a", "home"), node("b", "cloud")), (MapLink("a", "b", "relayed", round_trip_ms=3.21),)
    )
    drawing = draw(network)
    by_name = {dot.node.name: dot for dot in drawing.dots}
    (line,) = drawing.lines
    assert (line.x1, line.y1) == (by_name["a"].x, by_name["a"].y)
    assert (line.x2, line.y2) == (by_name["b"].x, by_name["b"].y)
    assert (line.path, line.text) == ("relayed", "3.2 ms")


def test_a_link_to_a_node_that_is_gone_is_not_drawn() -> None:
    assert draw(NetworkMap((node("a", "home"),), (MapLink("a", "gone", "direct"),))).lines == ()


def test_very_many_links_are_drawn_between_areas_only() -> None:
    nodes = [node(f"{area}{index}", area) for area in ("x", "y") for index in range(20)]
    links = [
        MapLink(one.id, other.id, "direct", round_trip_ms=12.0)
        for index, one in enumerate(nodes)
        for other in nodes[index + 1 :]
    ]
    assert len(links) > MAX_LINKS
    drawing = draw(NetworkMap(tuple(nodes), tuple(links)))
    assert [line.text for line in drawing.lines] == ["12 ms"]
    assert not any(dot.shows_name for dot in drawing.dots)
