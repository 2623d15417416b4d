"""Servers that keep their state in etcd: several share it, and all survive etcd being away."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from skerry.transport.access import sessions
from tests.support.etcd import EtcdServer
from tests.support.skerry import Skerry, running
from tests.support.waiting import PATIENCE_S, eventually_sync


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    folder = tmp_path / "etcd"
    folder.mkdir()
    server = EtcdServer(folder)
    server.start()
    yield server
    server.stop()


def folder(tmp_path: Path, name: str, authority_of: Skerry | None = None) -> Path:
    """A folder for one more server, with the CA of one that runs already."""
    made = tmp_path / name
    (made / "data" / "pki").mkdir(parents=True, mode=0o700)
    if authority_of is not None:
        for part in ("ca.crt", "ca.key"):
            shutil.copy2(authority_of.data / "pki" / part, made / "data" / "pki" / part)
    return made


def test_two_servers_with_one_ca_share_one_cloud(tmp_path: Path, etcd: EtcdServer) -> None:
    store = ("--store", f"etcd://{etcd.address}")
    with running(folder(tmp_path, "a"), *store) as one:
        _, token = one.call("POST", "/token/", {"role": "viewer"})
        with running(folder(tmp_path, "b", authority_of=one), *store) as other:
            bearer = {"Authorization": f"Bearer {token['token']}"}
            assert other.call("GET", "/about", headers=bearer)[0] == 200
            assert other.call("DELETE", f"/token/{token['id']}")[0] in (200, 204)
            eventually_sync(lambda: one.call("GET", "/about", headers=bearer)[0] == 401)
            check_console_sessions(one, other)


def check_console_sessions(one: Skerry, other: Skerry) -> None:
    """A session that was opened at one server works at the other, and signing out there ends it at both."""
    code = one.call("POST", "/console/link")[1]["path"].partition("#")[2]
    with contextlib.closing(one.connect()) as connection:
        origin = {"Origin": one.ready["http"], "Content-Type": "application/json"}
        connection.request("POST", "/console/login", json.dumps({"code": code}), origin)
        secret = str(connection.getresponse().headers["set-cookie"]).partition(";")[0].partition("=")[2]

    def cookie(server: Skerry) -> dict[str, str]:
        """As a browser has it that reaches both by one name: names of cookies have the port."""
        return {"Cookie": f"skerry-console-{urlsplit(server.ready['http']).port}={secret}"}

    assert one.call("GET", "/console/services", headers=cookie(one))[0] == 200
    eventually_sync(lambda: other.call("GET", "/console/services", headers=cookie(other))[0] == 200)
    token = {"X-Skerry-CSRF": sessions.csrf_token(secret), "Origin": other.ready["http"]}
    assert other.call("POST", "/console/logout", headers=cookie(other) | token)[0] == 204
    assert other.call("GET", "/console/services", headers=cookie(other))[0] == 401
    eventually_sync(lambda: one.call("GET", "/console/services", headers=cookie(one))[0] == 401)


def test_a_server_with_another_ca_is_refused_and_told_what_to_copy(tmp_path: Path, etcd: EtcdServer) -> None:
    store = ("--store", f"etcd://{etcd.address}")
    with running(folder(tmp_path, "a"), *store):
        stranger = Skerry(folder(tmp_path, "b"), *store)
        assert stranger.process.wait(PATIENCE_S) == 1
        assert "ca.key" in stranger.said()
        assert "Traceback" not in stranger.said()


def test_while_etcd_is_away_it_says_so_and_afterwards_it_goes_on(tmp_path: Path, etcd: EtcdServer) -> None:
    with running(
        folder(tmp_path, "a"), "--store", f"etcd://{etcd.address}", "--set", "store.timeout_s=2"
    ) as skerry:
        _, made = skerry.call("POST", "/token/", {"role": "viewer"})
        etcd.kill()
        eventually_sync(lambda: skerry.call("GET", "/readyz")[0] == 503)
        status, answer = skerry.call("POST", "/token/", {"role": "viewer"})
        assert (status, answer["code"]) == (503, "unavailable")
        # Who may come in is known from memory, so reading goes on.
        assert skerry.call("GET", "/about")[0] == 200
        etcd.start()
        eventually_sync(lambda: skerry.call("GET", "/readyz")[0] == 200)
        eventually_sync(lambda: skerry.call("POST", "/token/", {"role": "viewer"})[0] == 201)
        listed = {token["id"] for token in skerry.call("GET", "/token/")[1]["tokens"]}
        assert made["id"] in listed


def test_an_etcd_that_is_not_there_is_told_at_start(tmp_path: Path) -> None:
    skerry = Skerry(folder(tmp_path, "a"), "--store", "etcd://127.0.0.1:1", "--set", "store.timeout_s=1")
    assert skerry.process.wait(PATIENCE_S) == 1
    assert "etcd" in skerry.said()
    assert "Traceback" not in skerry.said()


def test_a_full_etcd_is_told_by_readyz_and_status_and_is_over_when_its_alarm_is_disarmed(
    tmp_path: Path,
) -> None:
    (tmp_path / "etcd").mkdir()
    etcd = EtcdServer(tmp_path / "etcd", quota_bytes=8 << 20)
    etcd.start()
    try:
        with running(folder(tmp_path, "a"), "--store", f"etcd://{etcd.address}") as skerry:
            assert skerry.call("GET", "/readyz")[0] == 200
            etcd.fill()
            status, answer = skerry.call("GET", "/readyz")
            assert (status, answer["ready"]) == (503, False)
            assert answer["checks"]["store"].startswith("etcd has used up its space and takes no writes; ")
            assert skerry.call("POST", "/token/", {"role": "viewer"})[0] == 503
            shown = skerry.cli("status")
            assert shown.returncode == 1
            assert "check store" in shown.stdout
            assert "etcd has used up its space" in shown.stdout
            assert skerry.call("GET", "/token/")[0] == 200
            etcd.make_space()
            etcd.disarm()
            eventually_sync(lambda: skerry.call("GET", "/readyz")[0] == 200)
            assert skerry.call("POST", "/token/", {"role": "viewer"})[0] == 201
            assert skerry.cli("status").returncode == 0
    finally:
        etcd.stop()
