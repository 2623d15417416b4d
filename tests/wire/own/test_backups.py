"""`/backup/` over HTTP: for admins of the whole cloud, whole, and encrypted in S3 unless told otherwise."""

from __future__ import annotations

import io
import json

import pytest

from skerry.control.backup import restore
from skerry.kit import sealed_stream
from skerry.model.callers import Role
from skerry.store.protocol import Put
from tests.transport.http.conftest import Serve, authority, logged, serve

__all__ = ["authority", "logged", "serve"]


async def test_an_admin_gets_a_backup_of_the_moment(serve: Serve) -> None:
    site = await serve()
    await site.plane.store.commit([Put("blob/one", b"x")])
    session = await site.session()
    async with session.post("/backup/") as reply:
        assert reply.status == 200
        data = await reply.read()
    verified = restore.verify(io.BytesIO(data), None)
    assert verified.manifest.records["blob/"] == 1
    assert {part.name for part in verified.manifest.parts} >= {"files/pki/ca.key", "files/node.id"}
    async with session.get("/backup/") as reply:
        listed = await reply.json()
    assert (listed["schedule"], listed["next_at"], listed["backups"]) == ("", None, [])


@pytest.mark.parametrize(
    ("role", "namespaces"), [(Role.DEPLOYER, ()), (Role.VIEWER, ()), (Role.DEPLOYER, ("shop",))]
)
async def test_nobody_else_does(serve: Serve, role: Role, namespaces: tuple[str, ...]) -> None:
    site = await serve()
    session = await site.session()
    headers = await site.bearer(role, *namespaces)
    for method, path in (("POST", "/backup/"), ("POST", "/backup/s3"), ("GET", "/backup/")):
        async with session.request(method, path, headers=headers) as reply:
            assert reply.status == 403, await reply.text()


async def test_a_backup_for_s3_is_encrypted_unless_plain_is_asked_for(serve: Serve) -> None:
    site = await serve()
    session = await site.session()
    url = "s3://bucket/skerry-20261118T000000Z-1.backup"
    async with session.post("/backup/s3", json={"url": url}) as reply:
        assert reply.status == 400
        assert "keys" in (await reply.json())["error"] or "passphrase" in (await reply.json())["error"]
    for body in ({"url": "s3://bucket"}, {"url": url, "passphrase": "short"}, {"url": url, "recipient": "x"}):
        async with session.post("/backup/s3", json=body) as reply:
            assert reply.status == 400
    _, public = sealed_stream.new_key_pair()
    async with session.post("/backup/s3", json={"url": url, "recipient": public}) as reply:
        lines = [json.loads(line) async for line in reply.content]
    assert lines[-1]["step"] == "done"
    assert lines[-1]["bytes"] > 0
    kinds = [entry.value.decode() for entry in (await site.plane.store.range("event/")).entries]
    assert any("backup.written" in one for one in kinds)
