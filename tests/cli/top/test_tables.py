"""Tables: usage of services and nodes is that of their instances; sorted and filtered."""

from __future__ import annotations

import pytest

from skerry.cli.top.tables import TABLES, TopRow, arranged, node_usage
from tests.cli.top.clouds import cloud, instance, node

INSTANCES, SERVICES, FUNCTIONS, NODES = TABLES


def names(rows: list[TopRow] | None) -> list[str]:
    return [row.cells["name"] for row in rows or []]


def test_instances_are_sorted_by_cpu_at_first() -> None:
    shown = arranged(INSTANCES, INSTANCES.rows(cloud()) or [], INSTANCES.sort, "", is_reversed=False)
    assert names(shown) == ["db", "web-0", "web-1", "job"]


@pytest.mark.parametrize(
    ("sort", "is_reversed", "expected"),
    [
        ("name", False, ["db", "job", "web-0", "web-1"]),
        ("name", True, ["web-1", "web-0", "job", "db"]),
        ("memory_mb", False, ["db", "web-0", "web-1", "job"]),
        ("memory_mb", True, ["job", "web-1", "web-0", "db"]),
        ("node", False, ["job", "db", "web-0", "web-1"]),
    ],
)
def test_words_are_sorted_from_a_and_numbers_from_the_largest(
    sort: str, is_reversed: bool, expected: list[str]
) -> None:
    shown = arranged(INSTANCES, INSTANCES.rows(cloud()) or [], sort, "", is_reversed=is_reversed)
    assert names(shown) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("WEB", ["web-0", "web-1"]), ("shop", ["db"]), ("scheduling", ["job"]), ("hub", ["web-1"]), ("no", [])],
)
def test_a_filter_is_for_names_namespaces_statuses_and_nodes(text: str, expected: list[str]) -> None:
    shown = arranged(INSTANCES, INSTANCES.rows(cloud()) or [], "name", text, is_reversed=False)
    assert names(shown) == expected


def test_a_service_uses_what_its_copies_use() -> None:
    (web,) = SERVICES.rows(cloud()) or []
    assert (web.cells["cpu_millicores"], web.cells["memory_mb"], web.cells["ready"]) == (750, 150, "2/2")


def test_a_copy_in_another_namespace_is_not_of_this_service() -> None:
    other = instance("web-9", 9000, 9000, owner="service/web", namespace="shop")
    (web,) = SERVICES.rows(cloud(instances=[other])) or []
    assert web.cells["cpu_millicores"] == 0


def test_a_node_uses_what_its_instances_use() -> None:
    edge, hub = node_usage(cloud()) or []
    assert (edge.cpu, edge.memory, edge.instances) == (1400, 300, 2)
    assert (hub.cpu, hub.memory, hub.instances) == (250, 50, 1)


def test_functions_show_their_namespace_and_the_busiest_is_first() -> None:
    shown = arranged(FUNCTIONS, FUNCTIONS.rows(cloud()) or [], FUNCTIONS.sort, "", is_reversed=False)
    assert [(row.cells["namespace"], row.id) for row in shown] == [("shop", "resize"), ("default", "hello")]


def test_what_needs_attention_is_marked() -> None:
    unready = instance("slow", ready=False)
    rows = INSTANCES.rows(cloud(instances=[unready, instance("fine"), instance("again", retry_at=5.0)])) or []
    assert [row.is_wrong for row in rows] == [True, False, True]
    assert rows[0].cells["status"] == "UNREADY"
    lost = NODES.rows(cloud(nodes=[node("gone", liveness="lost")])) or []
    assert [row.is_wrong for row in lost] == [True]


def test_a_table_that_the_caller_may_not_see_has_no_rows_at_all() -> None:
    assert NODES.rows(cloud(nodes=None)) is None
    assert FUNCTIONS.rows(cloud(functions=None)) is None


def test_every_column_shows_every_value() -> None:
    for table in TABLES:
        for row in table.rows(cloud()) or []:
            assert all(isinstance(column.show(row.cells[column.name]), str) for column in table.columns)
