"""The page of nodes: what it says of a node that is full, closed or borrowed."""

from __future__ import annotations

from msgspec.structs import replace

from skerry.console.components import Tone
from skerry.console.pages.nodes import (
    NodeLoad,
    NodeRow,
    describe_fullness,
    namespace_tree,
    node_actions,
    node_table,
    node_view,
)
from skerry.console.tables import ListQuery
from skerry.control.nodes.conditions import NodeCondition
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.enforcement import AS_ROOT, Isolation, LimitMeans, Limits, NodeEnforcement
from skerry.model.ids import InstanceId, Namespace, NodeId
from skerry.model.nodes import Node, NodeFacts
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources, add_amounts
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec, ObservedState
from skerry.schedule.requests import NodeView

WHOLE = Resources(Millicores(2000), Megabytes(1000), Gigabytes(10))
NODE = Node(NodeId("n1"), "pi", 100.0, 100.0, resources=WHOLE)
ADMIN = Caller(AuthMethod.TOKEN, "root", Role.ADMIN)
VIEWER = Caller(AuthMethod.TOKEN, "eve", Role.VIEWER)


def condition(**changes: object) -> NodeCondition:
    view = NodeView(NODE.id, WHOLE, name="pi")
    return NodeCondition(replace(view, **changes))


def instance(name: str, memory: int, namespace: str = "default") -> Instance:
    spec = InstanceSpec(name, "rootfs:/x", resources=Resources(Millicores(100), Megabytes(memory)))
    observed = ObservedState(InstanceStatus.RUNNING, 1.0)
    return Instance(
        InstanceId(f"i-{name}"), spec, 1.0, observed, node=NODE.id, namespace=Namespace(namespace)
    )


def row(*instances: Instance, node: Node = NODE, **changes: object) -> NodeRow:
    reserved = add_amounts(one.spec.resources for one in instances)
    return NodeRow(node, condition(**changes), NodeLoad(instances, reserved))


def test_a_node_with_room_says_nothing_of_it() -> None:
    assert describe_fullness(row(instance("web", 200))) == ""


def test_a_full_node_names_what_takes_the_most() -> None:
    text = describe_fullness(row(instance("small", 50), instance("db", 900)))
    assert text.startswith("95% of its memory is reserved, most of it by db, small.")


def test_a_closed_node_says_why_and_warnings_are_in_its_note() -> None:
    node = replace(NODE, facts=NodeFacts(warnings=("runc is old",)))
    view = node_view(
        row(node=node, is_schedulable=False, unschedulable_reason="is cordoned: maintenance"), ADMIN, 200.0
    )
    assert view.note == "It takes nothing new: it is cordoned: maintenance. Warning: runc is old."
    assert view.status.badge is not None
    assert view.status.badge.tone is Tone.WARNING


def test_a_node_without_root_says_in_its_note_what_it_enforces() -> None:
    enforcement = NodeEnforcement(Isolation.USER_NAMESPACE, Limits(memory=LimitMeans.WATCHED))
    view = node_view(row(node=replace(NODE, facts=NodeFacts(enforcement=enforcement))), ADMIN, 200.0)
    assert "without root, isolation user-namespace; limits: cpu none, memory watched" in view.note
    as_root = node_view(row(node=replace(NODE, facts=NodeFacts(enforcement=AS_ROOT))), ADMIN, 200.0)
    assert "isolation" not in as_root.note


def test_who_may_not_change_nodes_sees_no_actions() -> None:
    assert [one.id for one in node_view(row(), ADMIN, 200.0).actions] == ["cordon", "drain", "remove"]
    assert node_view(row(), VIEWER, 200.0).actions == ()


def test_a_cordoned_node_can_be_uncordoned_and_drained() -> None:
    actions = node_actions(replace(NODE, is_cordoned=True))
    assert [one.id for one in actions] == ["uncordon", "drain", "remove"]
    assert [one.command for one in actions][:2] == ["skerry node uncordon pi", "skerry node drain pi"]


def test_the_list_finds_nodes_by_kind_and_sorts_by_memory() -> None:
    borrowed = replace(NODE, id=NodeId("borrowed-c1"), name="lent")
    rows = [row(instance("a", 100)), row(instance("b", 500), node=borrowed)]
    found = node_table(rows, ListQuery(q="borrowed"), 200.0)
    assert [one.cells[0].text for one in found.rows] == ["lent"]
    ordered = node_table(rows, ListQuery(sort="-memory"), 200.0)
    assert [one.cells[0].text for one in ordered.rows] == ["lent", "pi"]


def test_the_tree_adds_up_what_each_namespace_uses() -> None:
    one, other = instance("web", 10, "shop"), instance("db", 10, "shop")
    usage = {each.id: Resources(Millicores(250), Megabytes(30)) for each in (one, other)}
    (shop,) = namespace_tree([one, other], usage)
    assert (shop.label, [cell.text for cell in shop.cells]) == ("shop", ["", "0.5 cores", "60 MB"])
    (made_by,) = shop.children
    assert [leaf.label for leaf in made_by.children] == ["db", "web"]
    assert {len(one.cells) for one in (shop, made_by, *made_by.children)} == {3}
