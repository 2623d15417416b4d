"""Snapshots, restores and moves over HTTP, on the real control plane, which nobody leads."""

from __future__ import annotations

from typing import Any

from skerry.control.named_table import key_of
from skerry.model.callers import Role
from skerry.model.ids import NodeId, VolumeId
from skerry.model.resources import Gigabytes
from skerry.model.snapshots import Snapshot, SnapshotStatus
from skerry.model.volumes import Volume, VolumeStatus
from tests.wire.kudo.rest_client import Rest


async def add_volume(rest: Rest, name: str = "db") -> Volume:
    """A volume that its node has."""
    control = rest.site.control
    for node in ("n1", "n2"):
        await control.join(node)
    table = control.volumes.table
    volume = Volume(
        VolumeId(f"01{name}"),
        name,
        Gigabytes(1),
        1.0,
        node=NodeId("n1"),
        status=VolumeStatus.READY,
        has_been_ready=True,
    )
    await table.commit([table.put(key_of(volume), volume)])
    return volume


async def add_snapshot(rest: Rest, name: str = "old") -> None:
    table = rest.site.control.snapshots.snapshots
    snapshot = Snapshot(
        f"01{name}",
        name,
        "db",
        "01db",
        Gigabytes(1),
        2.0,
        node=NodeId("n1"),
        status=SnapshotStatus.READY,
        digest="sha256:1",
        data_bytes=5,
        taken_at=3.0,
    )
    await table.commit([table.put(key_of(snapshot), snapshot)])


async def test_a_snapshot_is_requested_shown_and_cancelled(rest: Rest) -> None:
    await add_volume(rest)
    begun = await rest.ask("POST", "/volume/db/snapshot", {"name": "one"})
    assert begun.status == 202, begun
    operation = begun.body
    assert begun.headers["Location"] == f"/namespace/default/volume-operation/{operation['id']}"
    assert (operation["kind"], operation["status"], operation["step"]) == ("snapshot", "RUNNING", "COPYING")
    assert (operation["node_id"], operation["snapshot"], operation["may_cancel"]) == ("n1", "one", True)
    assert await rest.get(f"/volume-operation/{operation['id']}") == operation
    assert await rest.get("/volume-operation/") == {"count": 1, "operations": [operation], "cursor": None}
    snapshot = await rest.get("/snapshot/one")
    assert (snapshot["status"], snapshot["volume"], snapshot["location"]) == ("CREATING", "db", "node")
    assert (await rest.get("/volume/db/snapshots"))["snapshots"] == [snapshot]
    assert (await rest.get("/snapshot/?volume=other"))["count"] == 0
    busy = await rest.ask("POST", "/volume/db/move", {"node": "n2"})
    assert busy.status == 412
    assert f"skerry volume cancel {operation['id']}" in busy.body["error"]
    refused = await rest.ask("DELETE", "/volume/db")
    assert refused.status == 412
    assert "operation under way" in refused.body["error"]
    cancelled = await rest.ask("POST", f"/volume-operation/{operation['id']}/cancel")
    assert cancelled.status == 202


async def test_a_move_and_a_restore_hold_what_they_must(rest: Rest) -> None:
    await add_volume(rest)
    await add_snapshot(rest)
    copied = await rest.ask("POST", "/volume/db/restore", {"snapshot": "old", "new_name": "copy"})
    assert (copied.status, copied.body["volume"]) == (202, "copy")
    table = rest.site.control.volumes.table
    copy = table.by_name("copy")
    assert copy is not None
    assert (copy.value.is_held, copy.value.node, copy.value.operation) == (True, None, copied.body["id"])
    moved = await rest.ask("POST", "/volume/db/move", {"node": "machine-n2"})
    assert (moved.status, moved.body["step"], moved.body["target_id"]) == (202, "STOPPING", "n2")
    record = table.by_name("db")
    assert record is not None
    assert record.value.is_held
    deleted = await rest.ask("DELETE", "/snapshot/old")
    assert deleted.status == 412, "a restore reads it"


async def test_bad_requests_say_what_is_wrong(rest: Rest) -> None:
    await add_volume(rest)
    bad: list[tuple[str, dict[str, Any], int]] = [
        ("/volume/db/snapshot", {"to": "moon"}, 400),
        ("/volume/db/snapshot", {"name": "../x"}, 400),
        ("/volume/db/snapshot", {"to": "s3"}, 412),
        ("/volume/nothing/snapshot", {}, 404),
        ("/volume/db/restore", {}, 400),
        ("/volume/db/restore", {"snapshot": "nothing"}, 404),
        ("/volume/db/move", {"node": "nowhere"}, 404),
        ("/volume/db/move", {"node": "n1"}, 412),
        ("/volume/db/move", {"node": ""}, 400),
        ("/volume-operation/nothing/cancel", {}, 404),
    ]
    for path, body, status in bad:
        answer = await rest.ask("POST", path, body)
        assert answer.status == status, (path, body, answer)
    assert await rest.get("/volume-operation/") == {"count": 0, "operations": [], "cursor": None}


async def test_another_namespace_has_none_of_it(rest: Rest) -> None:
    await add_volume(rest)
    await add_snapshot(rest)
    begun = await rest.ask("POST", "/volume/db/snapshot", {"name": "one"})
    id = begun.body["id"]
    for path in ("/snapshot/old", "/snapshot/01old", f"/volume-operation/{id}"):
        assert (await rest.ask("GET", f"/namespace/other{path}")).status == 404
    for path, body in (
        ("/volume/db/snapshot", {}),
        ("/volume/db/move", {"node": "n2"}),
        ("/volume/db/restore", {"snapshot": "old"}),
        (f"/volume-operation/{id}/cancel", None),
    ):
        assert (await rest.ask("POST", f"/namespace/other{path}", body)).status == 404
    assert (await rest.ask("DELETE", "/namespace/other/snapshot/old")).status == 404
    assert (await rest.get("/namespace/other/snapshot/"))["count"] == 0
    assert (await rest.get("/namespace/other/volume/db/snapshots"))["count"] == 0


async def test_viewers_read_and_deployers_write(rest: Rest) -> None:
    await add_volume(rest)
    viewer = await rest.site.bearer(Role.VIEWER)
    assert (await rest.ask("GET", "/snapshot/", headers=viewer)).status == 200
    for verb, path in (
        ("POST", "/volume/db/snapshot"),
        ("POST", "/volume/db/restore"),
        ("POST", "/volume/db/move"),
        ("DELETE", "/snapshot/old"),
        ("POST", "/volume-operation/x/cancel"),
    ):
        assert (await rest.ask(verb, path, {}, headers=viewer)).status == 403, path
