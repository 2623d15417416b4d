"""Each role gets what its row says, on every route; every route has a row and every row a route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from skerry.kit.clock import ManualClock, SystemClock
from skerry.market.terms.keys import SigningKey
from skerry.model.callers import ANONYMOUS, AuthMethod, Caller, Role
from skerry.transport.access import revalidation, rules
from skerry.transport.access.gate import AccessGate
from skerry.transport.access.peers import ConnectionPeer
from skerry.transport.http.dispatcher import HttpDispatcher
from skerry.wire.kudo import routes as kudo_table
from skerry.wire.own import backups as backup_table
from skerry.wire.own import routes as own_table
from skerry.wire.own.alerts import endpoints as alert_table
from skerry.wire.own.http_routes import routes as route_table
from skerry.wire.own.jobs import routes as job_table
from skerry.wire.own.market import routes as market_table
from skerry.wire.own.mesh import endpoints as mesh_table
from skerry.wire.own.namespaces import endpoints as namespace_table
from skerry.wire.own.secrets import routes as secret_table
from skerry.wire.own.services import routes as service_table
from skerry.wire.own.snapshots import routes as snapshot_table
from skerry.wire.own.telemetry import endpoints as telemetry_table
from skerry.wire.own.tls import routes as tls_table
from skerry.wire.own.volumes import routes as volume_table
from skerry.wire.own.web_functions import endpoints as web_function_table
from skerry.wire.rear import routes as rear_table
from skerry.wire.serverledge import routes as serverledge_table
from tests.support.deals import OPEN
from tests.support.waiting import PATIENCE_S
from tests.transport.http.conftest import Serve, StrangerGate
from tests.wire.own.market.conftest import desk_of
from tests.wire.rear.conftest import market_of
from tests.wire.serverledge.fakes import Fakes


@pytest.fixture
async def market() -> AsyncIterator[dict[str, Any]]:
    """Both sides of one, as `serve` takes them."""
    clock = ManualClock()
    async with market_of(SigningKey.generate(), clock, OPEN) as (ledger, rear):
        yield {"rear": rear, "desk": desk_of(ledger, rear.provider)}


class RoleGate(AccessGate):
    """Believes whatever role the caller names."""

    def caller(self, peer: ConnectionPeer, authorization: str | None, *, is_forwarded: bool) -> Caller:
        if authorization is None:
            return ANONYMOUS
        return Caller(origin=AuthMethod.TOKEN, name="somebody", role=Role(authorization))


async def test_every_route_has_a_row_and_every_row_a_route(serve: Serve) -> None:
    site = await serve()
    app = site.server._config.app
    assert isinstance(app, HttpDispatcher)
    served = [f"{target.method} {target.template}" for target in app.targets()]
    assert sorted(served) == sorted(rules.HTTP_RULES)
    rooms = (
        own_table,
        kudo_table,
        service_table,
        job_table,
        namespace_table,
        secret_table,
        volume_table,
        snapshot_table,
        route_table,
        mesh_table,
        telemetry_table,
        alert_table,
        backup_table,
        tls_table,
        serverledge_table,
        web_function_table,
        rear_table,
        market_table,
    )
    assert sorted(served) == sorted(endpoint.name for room in rooms for endpoint in room.ENDPOINTS)
    assert all(
        target.row is rules.HTTP_RULES[f"{target.method} {target.template}"] for target in app.targets()
    )


@pytest.mark.parametrize("role", [None, *Role])
async def test_a_role_reaches_exactly_the_routes_of_its_rows(
    serve: Serve, market: dict[str, Any], role: Role | None
) -> None:
    site = await serve(gate=RoleGate, serverledge=Fakes(SystemClock()).bundle, **market)
    session = await site.session(headers={"Authorization": role} if role else {})
    got = {}
    wanted = {}
    for name, row in rules.HTTP_RULES.items():
        method, path = name.split(" ")
        path = path.replace("{id}", "some").replace("{serial}", "some")
        params = {"follow": "false"} if path == "/events" else {}
        async with session.request(method, path, params=params) as reply:
            got[name] = {401: "unknown", 403: "forbidden"}.get(reply.status, "passed")
            assert reply.status < 500
        if row.anybody or role in row.roles:
            wanted[name] = "passed"
        else:
            wanted[name] = "unknown" if role is None else "forbidden"
    assert got == wanted


async def test_a_caller_without_proof_learns_how_to_prove_itself(serve: Serve) -> None:
    site = await serve(gate=StrangerGate)
    session = await site.session()
    async with session.get("/token/") as reply:
        assert reply.status == 401
        assert reply.headers["WWW-Authenticate"] == 'Bearer realm="skerry"'
        said = await reply.json()
    assert said["code"] == "unauthenticated"
    assert "skerry token create" in said["error"]


async def test_a_bad_token_is_refused_even_on_loopback(serve: Serve) -> None:
    site = await serve()
    session = await site.session()
    async with session.get("/token/", headers={"Authorization": "Bearer nonsense"}) as reply:
        assert reply.status == 401


async def test_a_token_is_good_until_it_is_revoked(serve: Serve) -> None:
    site = await serve(gate=StrangerGate)
    admin = await site.bearer(Role.ADMIN)
    session = await site.session()
    async with session.post("/token/", json={"role": "viewer"}, headers=admin) as reply:
        made = await reply.json()
    shown = {"Authorization": f"Bearer {made['token']}"}
    async with session.get("/about", headers=shown) as reply:
        assert reply.status == 200
    async with session.delete(f"/token/{made['id']}", headers=admin) as reply:
        assert reply.status == 204
    async with session.get("/about", headers=shown) as reply:
        assert reply.status == 401


async def test_a_stream_ends_when_the_token_that_began_it_is_revoked(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revalidation, "RECHECK_S", 0.01)
    site = await serve(gate=StrangerGate)
    admin = await site.bearer(Role.ADMIN)
    session = await site.session()
    async with session.post("/token/", json={"role": "viewer"}, headers=admin) as reply:
        made = await reply.json()
    shown = {"Authorization": f"Bearer {made['token']}"}
    async with (
        session.get("/events", headers=shown) as theirs,
        session.get("/events", headers=admin) as ours,
    ):
        await session.delete(f"/token/{made['id']}", headers=admin)
        with pytest.raises(aiohttp.ClientPayloadError):  # it is broken off
            async with asyncio.timeout(PATIENCE_S):
                await theirs.read()
        await session.post("/token/", json={"role": "viewer"}, headers=admin)
        async with asyncio.timeout(PATIENCE_S):
            while b"token.created" not in await ours.content.readline():
                pass  # whose token counts goes on


async def test_a_stranger_cannot_tell_routes_that_need_a_role_from_each_other(serve: Serve) -> None:
    site = await serve(gate=StrangerGate)
    session = await site.session()
    async with session.delete("/token/there-is-none") as reply:
        assert reply.status == 401
    async with session.get("/nothing/here") as reply:
        assert reply.status == 404
    async with session.put("/token/") as reply:
        assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD, POST")


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1:80"])
async def test_a_web_page_that_points_its_name_here_is_refused(serve: Serve, host: str) -> None:
    site = await serve()
    session = await site.session()
    async with session.get("/healthz", headers={"Host": host}) as reply:
        assert (reply.status, (await reply.json())["code"]) == (403, "forbidden")


async def test_a_web_page_of_another_origin_is_refused(serve: Serve) -> None:
    site = await serve()
    session = await site.session()
    async with session.post("/token/", headers={"Origin": "http://evil.example"}) as reply:
        assert reply.status == 403
    async with session.get("/about", headers={"Origin": site.url}) as reply:
        assert reply.status == 200
