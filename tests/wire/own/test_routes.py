"""Our own routes, called as a client would."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from skerry import __version__
from skerry.kit import pki
from skerry.model import errors
from skerry.model.invitations import Invitation
from skerry.wire.own import join as joining_routes
from tests.support.clouds import new_request
from tests.transport.http.conftest import Serve, Site, StrangerGate, authority, logged, serve

__all__ = ["authority", "logged", "serve"]


async def ask(site: Site, method: str, path: str, **options: Any) -> tuple[int, Any]:
    session = await site.session()
    async with session.request(method, path, **options) as reply:
        is_json = reply.content_type == "application/json"
        return reply.status, await reply.json() if is_json else await reply.read()


async def test_health_is_tiny(serve: Serve) -> None:
    assert await ask(await serve(), "GET", "/healthz") == (200, {"status": "ok"})


async def test_ready_tells_of_every_check(serve: Serve) -> None:
    async def good() -> None:
        return

    async def away() -> None:
        raise errors.Unavailable("the store is away")

    async def broken() -> None:
        raise ZeroDivisionError("secret")

    site = await serve(checks={"good": good})
    assert await ask(site, "GET", "/readyz") == (200, {"ready": True, "checks": {"good": "ok"}})
    site = await serve(checks={"good": good, "store": away, "broken": broken})
    status, said = await ask(site, "GET", "/readyz")
    assert status == 503
    assert said == {
        "ready": False,
        "checks": {"good": "ok", "store": "the store is away", "broken": "failed; see the log"},
    }


async def test_a_check_that_hangs_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("skerry.wire.own.health.CHECK_TIMEOUT_S", 0.05)
    site = await serve(checks={"slow": hang})
    assert await ask(site, "GET", "/readyz") == (
        503,
        {"ready": False, "checks": {"slow": "no answer within 0.05 s"}},
    )


async def test_about_says_what_runs_and_what_it_lacks(serve: Serve) -> None:
    site = await serve(lacking=("cells need root",))
    status, said = await ask(site, "GET", "/about")
    assert status == 200
    assert (said["version"], said["store"], said["lacking"]) == (__version__, "sqlite", ["cells need root"])
    assert said["started_at"] == site.plane.started_at
    assert said["uptime_s"] >= 0


async def test_metrics_are_in_the_text_format(serve: Serve) -> None:
    site = await serve()
    await ask(site, "GET", "/healthz")
    status, text = await ask(site, "GET", "/metrics")
    assert status == 200
    assert b'skerry_http_requests_total{method="GET",route="/healthz",status="200"}' in text


async def test_the_ca_is_served_as_pem_to_anybody(serve: Serve) -> None:
    site = await serve(gate=StrangerGate)
    session = await site.session()
    async with session.get("/ca.pem") as reply:
        assert reply.content_type == "application/x-pem-file"
        assert await reply.read() == site.plane.authority.certificate_pem


async def test_a_token_shows_its_secret_once(serve: Serve) -> None:
    site = await serve()
    status, made = await ask(site, "POST", "/token/", json={"role": "viewer", "ttl_s": 60, "note": "n"})
    assert status == 201
    assert made["token"].startswith(f"skerry_{made['id']}_")
    assert made["expires_at"] == pytest.approx(made["created_at"] + 60)
    status, listed = await ask(site, "GET", "/token/")
    assert status == 200
    assert [(one["id"], one["role"], one["note"]) for one in listed["tokens"]] == [
        (made["id"], "viewer", "n")
    ]
    secret = made["token"].split("_")[2]
    assert secret not in str(listed)
    assert "digest" not in str(listed)


async def test_who_made_a_token_is_in_the_events(serve: Serve) -> None:
    site = await serve()
    await ask(site, "POST", "/token/", json={"role": "viewer"})
    [told] = await site.plane.events.list_after("0", frozenset({"token"}))
    assert told.event.actor.startswith("uid:")


async def test_revoking_what_is_not_there_is_404(serve: Serve) -> None:
    site = await serve()
    assert (await ask(site, "DELETE", "/token/none"))[0] == 404
    assert (await ask(site, "POST", "/certificate/none/revoke"))[0] == 404
    assert (await ask(site, "DELETE", "/token/" + "x" * 65))[0] == 400


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b"null", None),
        (b'{"role":"viewer"} x', None),
        (b'{"role":"\xff"}', None),
        (b'{"note":"' + b"[" * 2000, None),
        (b"[" * 5000, None),
        (b"{}", "role"),
        (b'{"role":"king"}', "role"),
        (b'{"role":1}', "role"),
        (b'{"role":"viewer","ttl_s":"soon"}', "ttl_s"),
        (b'{"role":"viewer","ttl_s":1e300}', "ttl_s"),
        (b'{"role":"viewer","ttl_s":-1}', "ttl_s"),
        (b'{"role":"viewer","note":"a\\u0000b"}', "note"),
        (b'{"role":"viewer","odd":1}', "odd"),
        (b'{"role":"viewer","role":"admin"}', "role"),
    ],
)
async def test_a_bad_body_is_400_with_the_place_named_and_changes_nothing(
    serve: Serve, body: bytes, field: str | None
) -> None:
    site = await serve()
    status, said = await ask(site, "POST", "/token/", data=body, headers={"Content-Type": "application/json"})
    assert (status, said["code"], said.get("field")) == (400, "invalid", field)
    assert site.plane.identity.tokens() == []


@pytest.mark.parametrize(
    ("media", "status"),
    [
        ("application/json", 201),
        ("application/json; charset=UTF-8", 201),
        ("application/vnd.some+json", 201),
        ("application/json; charset=latin-1", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("nonsense", 415),
    ],
)
async def test_a_body_must_be_called_json(serve: Serve, media: str, status: int) -> None:
    site = await serve()
    got, said = await ask(site, "POST", "/token/", data=b'{"role":"viewer"}', headers={"Content-Type": media})
    assert got == status
    assert status == 201 or said["code"] == "wrong-media-type"


async def test_a_body_without_a_type_is_taken_as_json_and_a_compressed_one_is_not(serve: Serve) -> None:
    site = await serve()
    options: dict[str, Any] = {"data": b'{"role":"viewer"}', "skip_auto_headers": ["Content-Type"]}
    assert (await ask(site, "POST", "/token/", **options))[0] == 201
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    assert (await ask(site, "POST", "/token/", data=b"{}", headers=headers, chunked=True))[0] == 415


async def joining(site: Site, tmp_path: Path, **other: str) -> tuple[int, Any]:
    _, token = (await ask(site, "POST", "/token/", json={"role": "node"}))[1], ""
    token = _["token"]
    wish = {"token": token, "csr": new_request(tmp_path).decode(), "name": "edge-1", **other}
    return await ask(site, "POST", "/join", json=wish)


async def test_a_machine_joins_and_its_certificate_is_listed_and_revoked(
    serve: Serve, tmp_path: Path
) -> None:
    site = await serve()
    status, joined = await joining(site, tmp_path)
    assert status == 200
    assert joined["ca"].encode() == site.plane.authority.certificate_pem
    assert joined["grpc"] == "127.0.0.1:50052"
    serial = pki.read_certificate(joined["certificate"].encode()).serial
    _, listed = await ask(site, "GET", "/certificate/")
    [record] = listed["certificates"]
    assert (record["serial"], record["node"], record["name"]) == (serial, joined["node"], "edge-1")
    assert (record["role"], record["revoked_at"]) == ("node", None)
    assert (await ask(site, "POST", f"/certificate/{serial}/revoke"))[0] == 204
    _, listed = await ask(site, "GET", "/certificate/")
    assert listed["certificates"][0]["revoked_at"] is not None


async def test_a_token_for_a_node_comes_with_an_invitation_and_another_does_not(serve: Serve) -> None:
    site = await serve()
    _, made = await ask(site, "POST", "/token/", json={"role": "node"})
    invited = Invitation.parse(made["invitation"])
    assert (invited.urls, invited.token) == (("https://192.0.2.1:1323", "https://hub:1323"), made["token"])
    assert invited.fingerprint == site.plane.authority.fingerprint
    _, made = await ask(site, "POST", "/token/", json={"role": "viewer"})
    assert made["invitation"] == ""


async def test_a_node_asks_where_its_server_is_now(serve: Serve) -> None:
    assert await ask(await serve(), "GET", "/join") == (200, {"grpc": "127.0.0.1:50052"})


async def test_a_server_answers_to_the_names_of_its_machine(serve: Serve) -> None:
    site = await serve()
    assert (await ask(site, "GET", "/readyz", headers={"Host": "hub.example:1323"}))[0] == 200
    assert (await ask(site, "GET", "/readyz", headers={"Host": "other.example:1323"}))[0] == 403


@pytest.mark.parametrize(
    ("grpc", "caller", "is_let_in"),
    [
        ("127.0.0.1:50052", "192.0.2.11", False),
        ("[::1]:50052", "192.0.2.11", False),
        ("127.0.0.1:50052", "127.0.0.1", True),
        ("192.0.2.1:50052", "192.0.2.11", True),
    ],
)
def test_a_machine_that_could_never_connect_is_told_so_before_its_token_is_used(
    grpc: str, caller: str, is_let_in: bool
) -> None:
    with contextlib.nullcontext() if is_let_in else pytest.raises(errors.FailedPrecondition, match="--grpc"):
        joining_routes.check_dialable(grpc, caller)


async def test_a_token_joins_one_machine_only(serve: Serve, tmp_path: Path) -> None:
    site = await serve()
    _, made = await ask(site, "POST", "/token/", json={"role": "node"})
    first, second = (new_request(tmp_path, name).decode() for name in ("one", "two"))
    wish = {"token": made["token"], "name": "edge"}
    assert (await ask(site, "POST", "/join", json={**wish, "csr": first}))[0] == 200
    assert (await ask(site, "POST", "/join", json={**wish, "csr": second}))[0] == 401


async def test_a_bad_signing_request_is_400(serve: Serve, tmp_path: Path) -> None:
    status, said = await joining(await serve(), tmp_path, csr="nonsense")
    assert (status, said["field"]) == (400, "csr")


async def test_guessing_join_tokens_is_slowed_down(serve: Serve) -> None:
    site = await serve(gate=StrangerGate)
    wish = {"token": "skerry_guess", "csr": "", "name": "x"}
    statuses = [(await ask(site, "POST", "/join", json=wish))[0] for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2


async def test_the_token_of_a_join_is_never_logged(serve: Serve, tmp_path: Path, logged: list[Any]) -> None:
    site = await serve()
    _, made = await ask(site, "POST", "/token/", json={"role": "node"})
    wish = {"token": made["token"], "csr": new_request(tmp_path).decode(), "name": "edge"}
    assert (await ask(site, "POST", "/join", json=wish))[0] == 200
    assert made["token"].split("_")[2] not in str(logged)
