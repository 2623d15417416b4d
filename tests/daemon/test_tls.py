"""Certificates in a whole Skerry, ordered from a real ACME server by DNS, also after `kill -9`."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import TestAuthority
from tests.support.chains import ChainMaker
from tests.support.pebble import PebbleServer
from tests.support.skerry import Skerry
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def pebble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PebbleServer]:
    folder = tmp_path_factory.mktemp("pebble")
    server = PebbleServer(folder, TestAuthority(folder / "ca"))
    server.start()
    yield server
    server.stop()


class Cloud:
    """A server that can be killed and started again."""

    def __init__(self, folder: Path, pebble: PebbleServer) -> None:
        self._folder = folder
        settings = {
            "acme_directory": pebble.directory,
            "acme_terms_agreed": "true",
            "acme_ca_file": str(pebble.ca_file),
            "challenge": "dns-01",
            "challenge_delay_s": "0",
            "dns_hook": str(pebble.dns_hook()),
        }
        self._flags = [each for key, value in settings.items() for each in ("--set", f"tls.{key}={value}")]
        self.skerry = self.start()

    def start(self) -> Skerry:
        self.skerry = Skerry(self._folder, *self._flags, role="server")
        self.skerry.wait_ready()
        return self.skerry


@pytest.fixture
def cloud(tmp_path: Path, pebble: PebbleServer) -> Iterator[Cloud]:
    made = Cloud(tmp_path, pebble)
    try:
        yield made
    finally:
        assert made.skerry.stop() == 0


def test_a_person_issues_imports_and_deletes_certificates(
    cloud: Cloud, pebble: PebbleServer, tmp_path: Path
) -> None:
    skerry = cloud.skerry
    issued = skerry.cli("tls", "issue", "*.example.org")
    assert issued.returncode == 0, issued.stderr
    assert "certificate _wildcard.example.org by Pebble Intermediate CA" in issued.stdout
    # Nothing of the server's environment reaches the hook.
    name = "_acme-challenge.example.org"
    assert [call[:3] for call in pebble.hook_calls()] == [
        ["present", "example.org", name],
        ["cleanup", "example.org", name],
    ]
    assert {variable for call in pebble.hook_calls() for variable in call[3:]} <= {"PATH", "LC_CTYPE"}
    internal = skerry.cli("tls", "issue", "web.default.skerry")
    assert "by Skerry CA" in internal.stdout, internal.stderr

    chain, key = ChainMaker(time.time()).pair("shop.example.org")
    (tmp_path / "chain.pem").write_bytes(chain)
    (tmp_path / "key.pem").write_bytes(key)
    files = ("--cert", str(tmp_path / "chain.pem"), "--key", str(tmp_path / "key.pem"))
    imported = skerry.cli("tls", "import", "shop.example.org", *files)
    assert imported.returncode == 0, imported.stderr
    wrong = skerry.cli("tls", "import", "other.example.org", *files)
    assert "is for shop.example.org, not for other.example.org" in wrong.stderr
    listed = skerry.cli("tls", "list").stdout
    assert [line.split()[:3] for line in listed.splitlines()[1:]] == [
        ["_wildcard.example.org", "READY", "acme"],
        ["web.default.skerry", "READY", "own-ca"],
        ["shop.example.org", "READY", "imported"],
    ]
    shown = json.loads(skerry.cli("tls", "describe", "shop.example.org", "-o", "json").stdout)
    assert shown["issuer"] == "middle"
    assert "middle" in skerry.cli("tls", "describe", "shop.example.org").stdout
    deleted = skerry.cli("tls", "delete", "shop.example.org", "_wildcard.example.org")
    assert deleted.returncode == 0, deleted.stderr
    # The key is neither in the log, nor readable in the store.
    secret = base64.b64decode(b"".join(key.splitlines()[1:-1]))[40:60]
    for path in [skerry.log, *(each for each in skerry.data.rglob("*") if each.is_file())]:
        data = path.read_bytes()
        assert secret not in data, path
        assert key.splitlines()[1] not in data, path


def test_an_order_survives_kill_9_and_is_placed_once(cloud: Cloud, pebble: PebbleServer) -> None:
    before, orders, accounts = len(pebble.hook_calls()), pebble.orders(), pebble.accounts()
    hold = pebble.folder / "hold"
    hold.touch()
    made = cloud.skerry.cli("tls", "issue", "--detach", "shop.example.com")
    assert made.returncode == 0, made.stderr
    eventually_sync(lambda: len(pebble.hook_calls()) > before, what="the order is under way")
    cloud.skerry.kill()
    hold.unlink()
    skerry = cloud.start()
    eventually_sync(
        lambda: '"READY"' in skerry.cli("tls", "describe", "shop.example.com", "-o", "json").stdout
    )
    eventually_sync(lambda: pebble.hook_calls()[-1][0] == "cleanup")
    assert pebble.orders() == orders + 1
    assert pebble.accounts() == accounts + 1
