"""`GET /mesh/` on the real control plane: every pair of nodes with its path, and who may see it."""

from __future__ import annotations

import pytest

from skerry.model.callers import Role
from skerry.model.ids import NodeId
from skerry.model.mesh import MeshLink, MeshLinks, MeshNode
from tests.support.waiting import eventually
from tests.wire.kudo.rest_client import Rest

KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="


def links(node: str, **round_trips: float | None) -> MeshLinks:
    """Links that are up, with their round trips; None: down."""
    return MeshLinks(
        NodeId(node),
        tuple(
            MeshLink(NodeId(other), number is not None, round_trip_ms=number, handshake_at=1.0, sent=7)
            for other, number in round_trips.items()
        ),
    )


async def join(rest: Rest, *nodes: str) -> None:
    for name in nodes:
        await rest.site.control.join(name)
        node = MeshNode(NodeId(name), KEY, 51825, ("192.168.1.7",))
        await rest.site.control.mesh.node_reported(NodeId(name), [node])


async def test_pairs_are_direct_relayed_tried_or_without_a_path(rest: Rest) -> None:
    await join(rest, "a", "b", "r", "x")
    await rest.site.control.join("silent")
    mesh = rest.site.control.mesh
    for report in (links("a", b=None, r=2.0), links("b", a=None, r=3.5), links("r", a=2.5, b=3.0, x=None)):
        await mesh.links_reported(report.node, [report])

    async def paths() -> dict[str, tuple[str, list[str], float | None]]:
        pairs = (await rest.get("/mesh/"))["pairs"]
        return {
            f"{pair['from']} {pair['to']}": (pair["path"], pair["relays"], pair["round_trip_ms"])
            for pair in pairs
        }

    expected: dict[str, tuple[str, list[str], float | None]] = {
        "machine-a machine-b": ("relayed", ["machine-r"], 5.0),
        "machine-a machine-r": ("direct", [], 2.0),
        "machine-a machine-x": ("trying", [], None),
        "machine-b machine-r": ("direct", [], 3.0),
        "machine-b machine-x": ("trying", [], None),
        "machine-r machine-x": ("none", [], None),
    }

    async def is_so() -> bool:
        return await paths() == expected

    await eventually(is_so)
    found = await rest.get("/mesh/")
    assert [node["name"] for node in found["nodes"]] == [f"machine-{name}" for name in "abrx"]
    assert all(node["behind_nat"] for node in found["nodes"])
    assert found["absent"] == ["machine-silent"]
    assert found["encryption"] == "wireguard"


@pytest.mark.parametrize(("role", "status"), [(Role.VIEWER, 200), (Role.DEPLOYER, 200), (Role.INVOKER, 403)])
async def test_readers_of_the_cluster_see_it(rest: Rest, role: Role, status: int) -> None:
    session = await rest.site.session(headers=await rest.site.bearer(role))
    async with session.get("/mesh/") as reply:
        assert reply.status == status
