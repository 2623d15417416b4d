"""The map: areas and nodes by their measured distances, the links of the mesh, and calls that went elsewhere.

What the picture shows is below it as a table, too.
"""

from __future__ import annotations

from skerry.console import formats, network_map
from skerry.console.components import Badge, Cell, EmptyState, Table, Tone
from skerry.console.context import ConsoleContext
from skerry.console.hub import Topic
from skerry.console.network_map import MapLink, NetworkMap
from skerry.console.rendering import HTML, PageHead
from skerry.console.tables import ListQuery, TableColumn, TableShape, build_table
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

PATH = "/console/map"
RULE = "GET /console/map"
_PATHS = {
    "direct": Tone.GOOD,
    "local": Tone.GOOD,
    "relayed": Tone.BUSY,
    "trying": Tone.WARNING,
    "none": Tone.BAD,
}


@endpoint("GET", PATH, summary="Map", media=HTML)
async def show(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """The cloud as a picture."""
    network = await context.network_map()
    head = PageHead("Map", RULE, (Topic.NODES, Topic.MESH), "skerry mesh status")
    return context.renderer.page(
        call,
        "map.html",
        head,
        drawing=network_map.draw(network),
        table=link_table(network, query),
        summary=describe(network),
        href=query.href(PATH),
        size=(network_map.WIDTH, network_map.HEIGHT),
    )


def describe(network: NetworkMap) -> str:
    """The picture in a sentence, for those who do not see it, too."""
    areas = len({node.area for node in network.nodes})
    borrowed = sum(node.is_borrowed for node in network.nodes)
    parts = [
        f"{formats.count(len(network.nodes), 'node')} in {formats.count(areas, 'area')}",
        f"{borrowed} borrowed" if borrowed else "",
        f"{formats.count(len(network.links), 'link')} of the mesh" if network.links else "no mesh yet",
        f"encrypted by {network.encryption}" if network.links and network.encryption else "",
    ]
    return ", ".join(filter(None, parts)) + "."


def link_table(network: NetworkMap, query: ListQuery) -> Table:
    """The links as rows."""
    names = {node.id: node.name for node in network.nodes}
    columns = (
        TableColumn("From", "from", lambda one: names.get(one.source, one.source)),
        TableColumn("To", "to", lambda one: names.get(one.target, one.target)),
        TableColumn("Path", "path", lambda one: one.path),
        TableColumn("Round trip", "round-trip", lambda one: one.round_trip_ms or 0.0, number=True),
        TableColumn(
            "Handshake", "handshake", lambda one: one.handshake_age_s or 0.0, number=True, minor=True
        ),
        TableColumn("Traffic", "traffic", lambda one: one.bytes, number=True, minor=True),
    )

    def cells(link: MapLink) -> tuple[Cell, ...]:
        relays = ", ".join(names.get(one, one) for one in link.relays)
        seconds = None if link.round_trip_ms is None else link.round_trip_ms / 1000
        age = link.handshake_age_s
        return (
            Cell(names.get(link.source, link.source)),
            Cell(names.get(link.target, link.target)),
            Cell(
                badge=Badge(link.path, _PATHS.get(link.path, Tone.QUIET)),
                note=f"by {relays}" if relays else "",
            ),
            Cell(formats.latency(seconds)),
            Cell("–" if age is None else f"{formats.duration(age)} ago"),
            Cell(formats.megabytes(link.bytes // 1_048_576)),
        )

    shape = TableShape(
        "links",
        "Links of the mesh",
        PATH,
        columns,
        lambda one: f"{names.get(one.source, '')} {names.get(one.target, '')} {one.path}",
        cells,
        EmptyState(
            "No links yet",
            "The mesh connects the containers of all nodes; it begins with the second node.",
            "skerry token create --role node",
        ),
    )
    return build_table(shape, network.links, query)


ENDPOINTS = (show,)
