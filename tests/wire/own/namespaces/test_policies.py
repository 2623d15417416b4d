"""Network policies of namespaces over HTTP: set, shown, ordered of nodes, and explained."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from skerry.control.named_table import key_of
from skerry.model.callers import Role
from skerry.model.ids import Namespace
from skerry.model.network import Egress
from skerry.model.statuses import InstanceStatus
from tests.wire.kudo.rest_client import WEB, Answer, Rest

OPEN = {"isolated": False, "allow_from": [], "egress": "all", "is_default_egress": True}


async def running(rest: Rest, namespace: str, name: str, ip: str, **more: Any) -> str:
    """The id of an instance that runs on node `n1` at this address."""
    control = rest.site.control
    if not control.nodes.list():
        await control.join("n1")
    made = await rest.make(f"/namespace/{namespace}/instance/", {**WEB, "name": name, **more})
    await control.bind(made["id"], "n1")
    await control.report(made["id"], InstanceStatus.STARTING, InstanceStatus.RUNNING, ip=ip)
    return str(made["id"])


async def with_address(rest: Rest, namespace: str, name: str, address: str) -> None:
    """A service with a virtual address."""
    await rest.make(f"/namespace/{namespace}/service/", {"name": name, "image": "example.org/web:1"})
    table = rest.site.control.services.tables.services
    record = table.by_name(name, Namespace(namespace))
    assert record is not None
    await table.commit([table.put(key_of(record.value), replace(record.value, address=address))])
    await table.sync()


async def explained(rest: Rest, source: str, destination: str, port: int = 80, **more: Any) -> Answer:
    query = f"from={source}&to={destination}&port={port}"
    return await rest.ask("GET", f"/namespace/shop/explain?{query}", **more)


async def test_a_policy_is_set_in_parts_shown_and_removed(rest: Rest) -> None:
    assert (await rest.get("/namespace/default"))["policy"] == OPEN
    changed = await rest.ask(
        "PATCH", "/namespace/shop", {"policy": {"isolated": True, "allow_from": ["lab", "front", "lab"]}}
    )
    isolated = {**OPEN, "isolated": True, "allow_from": ["front", "lab"]}
    assert (changed.status, changed.body["policy"]) == (200, isolated)
    changed = await rest.ask("PATCH", "/namespace/shop", {"policy": {"egress": "mesh"}, "quota": {"cpu": 9}})
    restricted = {**isolated, "egress": "mesh", "is_default_egress": False}
    assert (changed.body["policy"], changed.body["quota"]["cpu"]) == (restricted, 9)
    changed = await rest.ask("PATCH", "/namespace/shop", {"policy": {"isolated": False}})
    assert changed.body["policy"] == {**restricted, "isolated": False, "allow_from": []}
    changed = await rest.ask("PATCH", "/namespace/shop", {"policy": None})
    assert (changed.body["policy"], changed.body["quota"]["cpu"]) == (OPEN, 9)


async def test_what_is_not_valid_is_refused(rest: Rest) -> None:
    for policy in (
        {"allow_from": ["front"]},
        {"isolated": True, "allow_from": ["shop"]},
        {"isolated": True, "allow_from": ["Front"]},
        {"isolated": True, "allow_from": [f"n{number}" for number in range(101)]},
        {"egress": "lan"},
        {"isolate": True},
    ):
        refused = await rest.ask("PATCH", "/namespace/shop", {"policy": policy})
        assert refused.status == 400, policy
    assert (await rest.ask("PATCH", "/namespace/market", {"policy": {"isolated": True}})).status == 400
    assert (await rest.ask("PUT", "/instance/", {**WEB, "egress": "lan"})).status == 400


async def test_only_an_admin_sets_policies_and_tenants_see_their_own(rest: Rest) -> None:
    await rest.ask("PATCH", "/namespace/shop", {"policy": {"isolated": True}})
    tenant = await rest.site.bearer(Role.DEPLOYER, "shop")
    assert (
        await rest.ask("PATCH", "/namespace/shop", {"policy": {"isolated": False}}, headers=tenant)
    ).status == 403
    assert (await rest.get("/namespace/shop", headers=tenant))["policy"]["isolated"]
    assert (await rest.ask("GET", "/namespace/lab", headers=tenant)).status == 404


async def test_orders_follow_the_policy_and_the_choice_of_a_workload(rest: Rest) -> None:
    control = rest.site.control
    tenant = await rest.site.bearer(Role.DEPLOYER, "shop")
    ids = {}
    for name, egress, headers in (
        ("plain", None, {}),
        ("strict", "none", tenant),
        ("wide", "all", tenant),
        ("granted", "all", {}),
    ):
        given = {**WEB, "name": name, "egress": egress}
        ids[name] = (await rest.make("/namespace/shop/instance/", given, headers=headers))["id"]

    def orders() -> dict[str, Egress]:
        return {name: control.instances.order(control.instances.get(id)).egress for name, id in ids.items()}

    assert orders() == {
        "plain": Egress.ALL, "strict": Egress.NONE, "wide": Egress.ALL, "granted": Egress.ALL
    }  # fmt: skip
    await rest.ask("PATCH", "/namespace/shop", {"policy": {"egress": "mesh", "isolated": True}})
    await control.instances.sync()
    assert orders() == {
        "plain": Egress.MESH, "strict": Egress.NONE, "wide": Egress.MESH, "granted": Egress.ALL
    }  # fmt: skip
    assert control.instances.order(control.instances.get(ids["plain"])).is_isolated
    shown = await rest.get(f"/instance/{ids['wide']}")
    assert shown["egress"] == "all"
    # A tenant that sends back what it read does not become the author of an admin's choice, nor loses it.
    await rest.ask("PATCH", f"/instance/{ids['granted']}", {"egress": "all"}, headers=tenant)
    assert orders()["granted"] is Egress.ALL


async def test_connections_are_explained_by_rule_and_node(rest: Rest) -> None:
    await running(rest, "shop", "db", "10.64.0.2", ports=["8080:80"])
    await running(rest, "shop", "api", "10.64.0.3", egress="none")
    await running(rest, "lab", "tool", "10.64.0.4", egress="internet")
    cases: list[tuple[str, str, int, bool, str]] = [
        ("lab/tool", "db", 5432, True, "open"),
        ("api", "db", 5432, False, "egress"),
        ("internet", "db", 80, True, "published"),
        ("internet", "db", 5432, False, "not-published"),
        ("lab/tool", "192.168.1.1", 80, False, "egress"),
        ("lab/tool", "169.254.169.254", 80, False, "metadata"),
        ("lab/tool", "internet", 443, True, "open"),
        ("lab/tool", "node/n1", 22, False, "egress"),
        ("lab/tool", "node/n1", 8080, True, "published"),
        ("node/n1", "instance/db", 5432, True, "open"),
        ("10.64.0.4", "10.64.0.2", 5432, True, "open"),
        ("fda8:5e7c:f8fa::10.64.0.4", "fda8:5e7c:f8fa::10.64.0.2", 5432, True, "open"),
        ("lab/tool", "fd00::1", 80, False, "egress"),
        ("lab/tool", "fd00:ec2::254", 80, False, "metadata"),
        ("lab/tool", "2600::1", 443, True, "open"),
    ]
    for source, destination, port, is_allowed, rule in cases:
        answer = await explained(rest, source, destination, port)
        (one,) = answer.body["connections"]
        assert (one["allowed"], one["rule"]) == (is_allowed, rule), (source, destination, one)
    await rest.ask("PATCH", "/namespace/shop", {"policy": {"isolated": True, "allow_from": ["front"]}})
    (one,) = (await explained(rest, "lab/tool", "db", 5432)).body["connections"]
    assert one == {
        "from": "lab/tool",
        "to": "shop/db",
        "allowed": False,
        "rule": "namespace-policy",
        "node": "machine-n1",
        "reason": "namespace shop is isolated, and allows connections from itself and front only",
    }
    assert not (await explained(rest, "lab/tool", "node/n1", 8080)).body["allowed"]
    for source, destination in (
        ("nobody", "db"),
        ("db", "service/db"),
        ("db", "10.64.9.9"),
        ("db", "node/n9"),
    ):
        assert (await explained(rest, source, destination)).status == 404, (source, destination)
    for source, destination in (("a b", "db"), ("db", "")):
        assert (await explained(rest, source, destination)).status == 400, (source, destination)


async def test_a_service_is_its_ready_copies(rest: Rest) -> None:
    await running(rest, "shop", "db", "10.64.0.2")
    await with_address(rest, "shop", "web", "10.63.0.9")
    (one,) = (await explained(rest, "db", "web")).body["connections"]
    assert (one["rule"], one["to"]) == ("not-ready", "service shop/web")
    (other,) = (await explained(rest, "db", "10.63.0.9")).body["connections"]
    assert other == one, "its address is no other network"


async def test_what_a_tenant_may_not_see_does_not_exist_for_its_explanations(rest: Rest) -> None:
    await running(rest, "shop", "db", "10.64.0.2")
    await running(rest, "lab", "tool", "10.64.0.4")
    await with_address(rest, "lab", "web", "10.63.0.9")
    tenant = await rest.site.bearer(Role.VIEWER, "shop")
    assert (await explained(rest, "db", "internet", headers=tenant)).status == 200
    for there, missing in (
        ("lab/tool", "lab/none"),
        ("10.64.0.4", "10.64.0.9"),
        ("10.63.0.9", "10.63.0.8"),
        ("node/n1", "node/n9"),
    ):
        seen = await explained(rest, "db", there, headers=tenant)
        absent = await explained(rest, "db", missing, headers=tenant)
        assert seen.status == absent.status == 404
        name, other = there.rpartition("/")[2], missing.rpartition("/")[2]
        assert seen.body["error"].replace(name, "X") == absent.body["error"].replace(other, "X")
    other = await rest.site.bearer(Role.VIEWER, "lab")
    assert (await explained(rest, "db", "internet", headers=other)).status == 404
