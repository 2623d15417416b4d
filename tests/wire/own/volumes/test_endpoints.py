"""`/volume/` over HTTP, on the real control plane: names, sizes, users, and what nodes report."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.model.callers import Role
from skerry.model.ids import NodeId, VolumeId
from skerry.model.mounts import MountKind
from skerry.model.statuses import InstanceStatus
from skerry.model.volumes import VolumeReport
from tests.support.waiting import eventually
from tests.wire.kudo.rest_client import Rest

DB: dict[str, Any] = {"name": "db", "size": 10}
WEB: dict[str, Any] = {"name": "web", "uri": "example.org/web:1", "volumes": ["db:/var/lib/db"]}


async def report(rest: Rest, name: str, **more: Any) -> None:
    """What the node of a volume says of it."""
    seen = await rest.get(f"/volume/{name}")
    control = rest.site.control
    volume = control.volumes.get(name)
    parts = {"generation": volume.generation, "used_bytes": 1, "capacity_bytes": 100} | more
    await control.volume_orders.reported(
        NodeId(seen["node_id"]), [VolumeReport(VolumeId(seen["id"]), **parts)]
    )


async def test_a_volume_is_made_shown_listed_and_deleted(rest: Rest) -> None:
    made = await rest.ask("PUT", "/volume/", DB)
    assert made.status == 201, made
    assert made.headers["Location"] == "/namespace/default/volume/db"
    document = made.body
    assert (document["status"], document["size"], document["node_id"]) == ("UNBOUND", 10, None)
    assert (await rest.ask("PUT", "/volume/", DB)).status == 200
    taken = await rest.ask("PUT", "/volume/", {**DB, "size": 11})
    assert taken.error[:2] == (409, "already-exists")
    for name in ("db", document["id"]):
        assert await rest.get(f"/volume/{name}") == document
    listed = await rest.get("/volume/")
    assert (listed["count"], [one["name"] for one in listed["volumes"]]) == (1, ["db"])
    assert (await rest.ask("DELETE", "/volume/db")).status == 202
    assert (await rest.ask("GET", "/volume/db")).status == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "db"}, "size"),
        ({"name": "db", "size": 0}, "size"),
        ({"name": "db", "size": 100_000}, "size"),
        ({"name": "Db", "size": 1}, "name"),
        ({"name": "../x", "size": 1}, "name"),
        ({"size": 1}, "name"),
        ({**DB, "constraints": ["edge"]}, "constraint"),
    ],
)
async def test_what_cannot_be_is_refused_with_its_field(rest: Rest, body: dict[str, Any], field: str) -> None:
    refused = await rest.ask("PUT", "/volume/", body)
    assert refused.status == 400
    assert field in refused.body["error"]


async def test_an_instance_binds_its_volume_and_that_is_deleted_when_nothing_uses_it(led: Rest) -> None:
    refused = await led.ask("PUT", "/instance/", WEB)
    assert refused.status == 412
    assert "skerry volume create db --size 1" in refused.body["error"]
    await led.make("/volume/", DB)
    web = await led.make("/instance/", WEB)

    async def is_bound() -> bool:
        return (await led.get("/volume/db"))["status"] == "CREATING"

    await eventually(is_bound)
    seen = await led.get(f"/instance/{web['id']}")
    volume = await led.get("/volume/db")
    assert seen["node_id"] == volume["node_id"]
    assert volume["used_by"] == [f"instance web ({web['id']})"]
    [order] = led.site.control.volume_orders.orders(NodeId(volume["node_id"]))
    assert (order.size, order.may_create, order.is_deleted) == (10, True, False)
    [sent] = led.site.control.instances.orders(NodeId(volume["node_id"]))
    [mount] = sent.spec.mounts
    assert (mount.kind, mount.volume) == (MountKind.VOLUME, volume["id"])
    await report(led, "db")
    assert (await led.get("/volume/db"))["status"] == "READY"
    assert (await led.get("/volume/db"))["used_bytes"] == 1
    used = await led.ask("DELETE", "/volume/db")
    assert used.status == 412
    assert "is used by instance web" in used.body["error"]
    control = led.site.control
    await led.ask("DELETE", f"/instance/{web['id']}")
    await control.nodes.unregister(volume["node_id"], actor="test", force=True)

    async def is_gone() -> bool:
        return (await led.ask("GET", f"/instance/{web['id']}")).status == 404

    await eventually(is_gone)
    assert (await led.ask("DELETE", "/volume/db")).status == 202
    assert (await led.ask("GET", "/volume/db")).status == 404


async def test_a_bound_volume_goes_when_its_node_has_removed_it(led: Rest) -> None:
    await led.make("/volume/", DB)
    web = await led.make("/instance/", WEB)

    async def is_bound() -> bool:
        return (await led.get("/volume/db"))["node_id"] is not None

    await eventually(is_bound)
    await report(led, "db")
    control = led.site.control
    assert control.volumes.get("db").has_been_ready
    [order] = control.volume_orders.orders(NodeId((await led.get("/volume/db"))["node_id"]))
    assert not order.may_create
    await led.ask("DELETE", f"/instance/{web['id']}")
    await control.report(web["id"], InstanceStatus.TERMINATED)

    async def is_deleting() -> bool:
        return (await led.ask("DELETE", "/volume/db")).status == 202

    await eventually(is_deleting)
    assert (await led.get("/volume/db"))["status"] == "DELETING"
    again = await led.ask("PUT", "/volume/", DB)
    assert again.status == 409
    assert "is being deleted" in again.body["error"]
    await report(led, "db", is_ready=False, reason="volume db is mounted by a container")
    assert "mounted" in (await led.get("/volume/db"))["reason"]
    await report(led, "db", is_ready=False, is_gone=True)
    assert (await led.ask("GET", "/volume/db")).status == 404


async def test_copies_of_a_service_have_a_volume_each_and_keep_it(led: Rest) -> None:
    service = {"name": "db", "uri": "example.org/db:1", "replicas": 2, "volume_templates": ["data:/data:1"]}
    await led.make("/service/", service)

    async def volumes() -> dict[str, Any]:
        return {one["name"]: one for one in (await led.get("/volume/"))["volumes"]}

    async def are_bound() -> bool:
        made = await volumes()
        return len(made) == 2 and all(one["node_id"] for one in made.values())

    await eventually(are_bound)
    made = await volumes()
    assert sorted(made) == ["data-0", "data-1"]
    assert made["data-1"]["owner"] == {"service": "db", "template": "data", "index": 1}
    instances = {one["name"]: one for one in (await led.get("/instance/"))["instances"]}
    assert instances["db-1"]["volumes"] == ["data-1:/data"]
    assert instances["db-1"]["node_id"] == made["data-1"]["node_id"]
    shown = await led.get("/service/db")
    assert shown["volume_templates"] == ["data:/data:1"]
    used = await led.ask("DELETE", "/volume/data-1")
    assert "service db" in used.body["error"]
    other = await led.ask("PUT", "/service/", {**service, "name": "other"})
    assert other.status == 409
    assert "not of service other" in other.body["error"]
    start_first = await led.ask("PATCH", "/service/db", {"update": {"order": "start-first"}})
    assert start_first.status == 400
    await led.ask("DELETE", "/service/db")
    assert sorted(await volumes()) == ["data-0", "data-1"]


@pytest.mark.parametrize("noun", ["instance", "workload", "service", "job"])
async def test_a_path_of_a_node_is_for_admins_alone_at_every_entry(rest: Rest, noun: str) -> None:
    body = {"name": "web", "uri": "example.org/web:1", "volumes": ["/etc:/mnt"]}
    deployer = await rest.site.bearer(Role.DEPLOYER)
    session = await rest.site.session(headers=deployer)
    async with session.put(f"/{noun}/", json=body) as reply:
        assert reply.status == 403, await reply.text()
        assert "only an admin may mount a path of a node" in await reply.text()
    assert (await rest.ask("PUT", f"/{noun}/", body)).status == 201
