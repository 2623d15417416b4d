"""Which nodes the market may sell: those that run without root never."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from skerry.control.nodes.conditions import NodeCondition
from skerry.market.provider import node_capacity
from skerry.model.enforcement import Isolation, LimitMeans, Limits, NodeEnforcement
from skerry.model.ids import NodeId
from skerry.model.resources import Megabytes, Millicores, Resources
from skerry.schedule.requests import NodeView

BIG = Resources(Millicores(8000), Megabytes(16384))
STRONGEST = NodeEnforcement(
    Isolation.USER_NAMESPACE,
    Limits(LimitMeans.CGROUP, LimitMeans.CGROUP, LimitMeans.CGROUP),
    user_ids=65536,
)
ROOT = NodeCondition(NodeView(NodeId("server"), BIG), machine=BIG)
ROOTLESS = NodeCondition(
    NodeView(NodeId("laptop"), BIG, weaker=STRONGEST, devices=("a.com/gpu=0",)), machine=BIG
)
BORROWED = NodeCondition(NodeView(NodeId("borrowed-1"), BIG, is_borrowed=True), machine=BIG)


class Conditions:
    """Nodes that do not change."""

    def __init__(self, *conditions: NodeCondition) -> None:
        self._conditions = conditions

    def conditions(self) -> Iterable[NodeCondition]:
        return self._conditions

    def condition(self, node: NodeId) -> NodeCondition | None:
        return next((one for one in self._conditions if one.view.id == node), None)

    async def ready(self) -> None:
        return

    def listen(self, changed: Callable[[NodeId], None]) -> Callable[[], None]:
        return lambda: None


def test_a_node_without_root_delivers_nothing_however_strong_its_limits_are() -> None:
    assert node_capacity.can_have_cells(ROOT)
    assert not node_capacity.can_have_cells(ROOTLESS)
    assert not node_capacity.can_have_cells(BORROWED)
    both = Conditions(ROOT, ROOTLESS, BORROWED)
    assert node_capacity.node_resources(both) == [BIG]
    assert node_capacity.node_gpus(both) == [0]


@pytest.mark.parametrize("more", [(), (BORROWED,), (replace(BORROWED, is_foreign=True),)])
def test_a_cloud_of_nodes_without_root_is_told_why_it_cannot_sell(more: tuple[NodeCondition, ...]) -> None:
    refusal = node_capacity.sale_refusal(Conditions(ROOTLESS, *more))
    assert "all nodes of this cloud run without root" in refusal
    assert "skerry token create --role node" in refusal


def test_a_cloud_with_a_node_as_root_or_with_none_yet_may_sell() -> None:
    assert node_capacity.sale_refusal(Conditions(ROOTLESS, ROOT)) == ""
    assert node_capacity.sale_refusal(Conditions()) == ""
