"""The map of the cloud: where areas and nodes are drawn, and the links between them. Pure.

Areas are placed by the measured coordinates of their nodes (`skerry.functions.coordinates`), so that what is
far away in milliseconds is far away on the map; areas that nobody has measured are placed on a circle. The
nodes of an area stand around its centre: within an area they are too near to each other to be told apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median

import msgspec

from skerry.console.components import Tone

WIDTH = 1000.0
HEIGHT = 520.0
MAX_LINKS = 300  # more between nodes are drawn between areas only
MAX_DOTS = 40  # of one area
MAX_NAMES = 12  # in a larger area, nodes have neither names nor calls beside them
_MARGIN_X = 150.0
_MARGIN_Y = 90.0
_LEAST_SPREAD_S = 0.0005  # coordinates that are nearer than this say nothing of where areas are
_LEAST_GAP = 240.0  # between the centres of areas on the map
_ROUNDS = 60


class MapNode(msgspec.Struct, frozen=True):
    """A node: `vector` is its measured coordinate in seconds, None if there is none."""

    id: str
    name: str
    area: str
    status: str
    tone: Tone
    is_borrowed: bool = False
    vector: tuple[float, float, float] | None = None
    calls: int = 0  # that this server sent there


class MapLink(msgspec.Struct, frozen=True):
    """A pair of nodes of the mesh, by id."""

    source: str
    target: str
    path: str
    relays: tuple[str, ...] = ()
    round_trip_ms: float | None = None
    bytes: int = 0
    handshake_age_s: float | None = None


class NetworkMap(msgspec.Struct, frozen=True):
    """What is drawn, without places."""

    nodes: tuple[MapNode, ...] = ()
    links: tuple[MapLink, ...] = ()
    encryption: str = ""


class Dot(msgspec.Struct, frozen=True):
    """A node on the map."""

    node: MapNode
    x: float
    y: float
    shows_name: bool


class Line(msgspec.Struct, frozen=True):
    """A link on the map, with its text in the middle."""

    x1: float
    y1: float
    x2: float
    y2: float
    path: str
    text: str

    @property
    def middle(self) -> tuple[float, float]:
        return (self.x1 + self.x2) / 2, (self.y1 + self.y2) / 2


class AreaCircle(msgspec.Struct, frozen=True):
    """An area on the map."""

    name: str
    x: float
    y: float
    radius: float
    text: str


class MapDrawing(msgspec.Struct, frozen=True):
    """Everything with its place."""

    areas: tuple[AreaCircle, ...]
    lines: tuple[Line, ...]
    dots: tuple[Dot, ...]


def draw(network: NetworkMap) -> MapDrawing:
    """Places for all of it."""
    members: dict[str, list[MapNode]] = defaultdict(list)
    for node in sorted(network.nodes, key=_order):
        members[node.area].append(node)
    centres = place_areas({area: _centre(nodes) for area, nodes in members.items()})
    radii = {area: _radius(len(nodes)) for area, nodes in members.items()}
    places: dict[str, tuple[float, float]] = {}
    dots = []
    for area, nodes in members.items():
        x, y = centres[area]
        shown = sorted(sorted(nodes, key=_importance)[:MAX_DOTS], key=_order)
        for index, node in enumerate(shown):
            angle = 2 * math.pi * index / len(shown) - math.pi / 2
            distance = 0.0 if len(shown) == 1 else radii[area] * 0.68
            place = x + distance * math.cos(angle), y + distance * math.sin(angle)
            places[node.id] = place
            dots.append(Dot(node, *place, shows_name=len(nodes) <= MAX_NAMES))
        places |= {node.id: (x, y) for node in nodes if node.id not in places}
    area_of = {node.id: node.area for node in network.nodes}
    known = [link for link in network.links if link.source in places and link.target in places]
    if len(known) <= MAX_LINKS:
        timed = _quickest(known, area_of)
        lines = [
            Line(
                *places[one.source],
                *places[one.target],
                one.path,
                _milliseconds(one.round_trip_ms) if one in timed else "",
            )
            for one in known
        ]
    else:
        lines = _area_lines(known, area_of, centres)
    circles = [
        AreaCircle(_title(area, nodes), *centres[area], radii[area], _describe(nodes))
        for area, nodes in members.items()
    ]
    return MapDrawing(tuple(circles), tuple(lines), tuple(dots))


def place_areas(
    centres: Mapping[str, tuple[float, float, float] | None],
) -> Mapping[str, tuple[float, float]]:
    """A place on the map for each area, by where it was measured to be."""
    measured = {area: vector for area, vector in centres.items() if vector is not None}
    if len(centres) == 1:
        return dict.fromkeys(centres, (WIDTH / 2, HEIGHT / 2))
    flat = _flatten(measured) if len(measured) == len(centres) else None
    if flat is None:
        return _on_circle(list(centres))
    return _spread(_fit(flat))


def _centre(nodes: Sequence[MapNode]) -> tuple[float, float, float] | None:
    vectors = [node.vector for node in nodes if node.vector is not None]
    if not vectors:
        return None
    x, y, z = (fmean(axis) for axis in zip(*vectors, strict=True))
    return x, y, z


def _flatten(vectors: Mapping[str, tuple[float, float, float]]) -> dict[str, tuple[float, float]] | None:
    """The two dimensions in which they differ most; None if they do not differ."""
    axes = list(zip(*vectors.values(), strict=True))
    spreads = sorted(((max(axis) - min(axis), index) for index, axis in enumerate(axes)), reverse=True)
    if spreads[0][0] < _LEAST_SPREAD_S:
        return None
    first, second = spreads[0][1], spreads[1][1]
    return {area: (vector[first], vector[second]) for area, vector in vectors.items()}


def _fit(flat: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Scaled to the map, equally in both dimensions."""
    xs, ys = zip(*flat.values(), strict=True)
    width, height = max(xs) - min(xs), max(ys) - min(ys)
    scale = min(
        (WIDTH - 2 * _MARGIN_X) / width if width else math.inf,
        (HEIGHT - 2 * _MARGIN_Y) / height if height else math.inf,
    )
    middle_x, middle_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return {
        area: (WIDTH / 2 + (x - middle_x) * scale, HEIGHT / 2 + (y - middle_y) * scale)
        for area, (x, y) in flat.items()
    }


def _spread(places: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Areas that would cover each other are moved apart, and stay on the map."""
    names = sorted(places)
    for _ in range(_ROUNDS):
        moved = False
        for index, one in enumerate(names):
            for other in names[index + 1 :]:
                (x1, y1), (x2, y2) = places[one], places[other]
                gap = math.dist((x1, y1), (x2, y2))
                if gap >= _LEAST_GAP:
                    continue
                moved = True
                angle = math.atan2(y2 - y1, x2 - x1) if gap else 2 * math.pi * index / len(names)
                step = (_LEAST_GAP - gap) / 2 + 1
                dx, dy = step * math.cos(angle), step * math.sin(angle)
                places[one], places[other] = _inside(x1 - dx, y1 - dy), _inside(x2 + dx, y2 + dy)
        if not moved:
            break
    return places


def _inside(x: float, y: float) -> tuple[float, float]:
    return min(max(x, _MARGIN_X), WIDTH - _MARGIN_X), min(max(y, _MARGIN_Y), HEIGHT - _MARGIN_Y)


def _on_circle(areas: Sequence[str]) -> dict[str, tuple[float, float]]:
    return {
        area: (
            WIDTH / 2 + (WIDTH / 2 - _MARGIN_X) * math.cos(2 * math.pi * index / len(areas) - math.pi),
            HEIGHT / 2 + (HEIGHT / 2 - _MARGIN_Y) * math.sin(2 * math.pi * index / len(areas) - math.pi),
        )
        for index, area in enumerate(areas)
    }


def _radius(nodes: int) -> float:
    return 34.0 if nodes == 1 else min(70.0, 44.0 + 2.0 * nodes)


def _order(node: MapNode) -> tuple[str, str, str]:
    return node.area, node.name, node.id


def _importance(node: MapNode) -> tuple[bool, int]:
    """By which the nodes of a large area are drawn: those in trouble, and those that get calls."""
    return node.tone is Tone.GOOD, -node.calls


def _quickest(links: Sequence[MapLink], area_of: Mapping[str, str]) -> set[MapLink]:
    """The link between each two areas that has its time on the map: more would cover each other."""
    found: dict[frozenset[str], MapLink] = {}
    for link in links:
        pair = frozenset((area_of[link.source], area_of[link.target]))
        best = found.get(pair)
        if link.round_trip_ms is None or len(pair) < 2:
            continue
        if best is None or (best.round_trip_ms or 0.0) > link.round_trip_ms:
            found[pair] = link
    return set(found.values())


def _title(area: str, nodes: Sequence[MapNode]) -> str:
    return area or ("borrowed" if all(node.is_borrowed for node in nodes) else "no area")


def _area_lines(
    links: Sequence[MapLink], area_of: Mapping[str, str], centres: Mapping[str, tuple[float, float]]
) -> list[Line]:
    found: dict[tuple[str, str], list[MapLink]] = defaultdict(list)
    for link in links:
        one, other = sorted((area_of[link.source], area_of[link.target]))
        if one != other:
            found[one, other].append(link)
    lines = []
    for (one, other), between in found.items():
        times = [link.round_trip_ms for link in between if link.round_trip_ms is not None]
        paths = {link.path for link in between}
        path = "direct" if "direct" in paths else min(paths)
        text = _milliseconds(median(times) if times else None)
        lines.append(Line(*centres[one], *centres[other], path, text))
    return lines


def _milliseconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _describe(nodes: Sequence[MapNode]) -> str:
    """How many there are, and the calls that are not written beside each."""
    text = f"{len(nodes):,} node" if len(nodes) == 1 else f"{len(nodes):,} nodes"
    calls = sum(node.calls for node in nodes) if len(nodes) > MAX_NAMES else 0
    return f"{text}, {calls:,} calls" if calls else text
