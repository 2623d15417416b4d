"""A device calls the node of its network: over TLS, with an offline token, also while no server can be
reached."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from skerry.kit import pki, signing
from skerry.model import offline_tokens
from skerry.model.callers import Role
from skerry.model.offline_tokens import OfflineClaims
from skerry.model.token_text import pin_of
from tests.node.network.machines import Machine, inside, needs_root
from tests.support import functions
from tests.support.lans import Lan, Resident, lan
from tests.support.skerry import COMMAND, ask, environment
from tests.support.waiting import PATIENCE_S, eventually_sync
from tests.support.walkthrough import steps

pytestmark = needs_root

NODE, DEVICE, PORT = "192.168.77.1", "192.168.77.2", 8443
URL = f"https://{NODE}:{PORT}"
HELLO = "def handler(params, context):\n    return 'hello ' + params.get('name', '')\n"
FLAGS = (
    *("--name", "pi"),
    *("--http", f"0.0.0.0:{PORT}"),
    *("--set", "node.stop_grace_s=0.5", "--set", "functions.memory_mb=256"),
    *("--set", "node.names=pi.example.org"),
)
LONG_AGO = 1_700_000_000


class DeviceConnection(http.client.HTTPSConnection):
    """A connection to the node that verifies it by the name or address `verified`."""

    def __init__(self, ca: Path, verified: str) -> None:
        self._device_context = ssl.create_default_context(cafile=str(ca))
        self._verified = verified
        super().__init__(NODE, PORT, timeout=PATIENCE_S, context=self._device_context)

    def connect(self) -> None:
        plain = socket.create_connection((NODE, PORT), timeout=PATIENCE_S)
        self.sock = self._device_context.wrap_socket(plain, server_hostname=self._verified)


@dataclass
class Site:
    """A node with a device on a network of its own, which the server has no part in."""

    cluster: Lan
    device: Machine
    folder: Path

    @property
    def node(self) -> Resident:
        return self.cluster._residents["pi"]

    @property
    def ca(self) -> Path:
        return Path(self.node.ready["ca"])

    def token(self, *flags: str, role: str = "invoker") -> str:
        done = self.cluster.server.cli("token", "create", "--offline", "--role", role, *flags)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def revoke(self, note: str) -> None:
        server = self.cluster.server
        listed = json.loads(server.cli("token", "list", "-o", "json").stdout)["tokens"]
        (id,) = [token["id"] for token in listed if token["note"] == note]
        assert server.cli("token", "revoke", id).returncode == 0

    def call(
        self, path: str, token: str | None = None, body: Any = None, *, host: str = NODE, verified: str = NODE
    ) -> tuple[int, Any]:
        """A request of the device: status, and JSON or text."""
        headers = {"Host": f"{host}:{PORT}"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"

        def go() -> tuple[int, Any]:
            connection = DeviceConnection(self.ca, verified)
            try:
                return ask(connection, "GET" if body is None else "POST", path, body, headers)
            finally:
                connection.close()

        return inside(self.device.place, go)

    def invoke(self, token: str | None, name: str = "hello", query: str = "") -> tuple[int, Any]:
        return self.call(f"/invoke/{name}{query}", token, {"Params": {"name": "device"}})

    def restart_node(self) -> None:
        """Kill the agent, and start it again as it is; it needs no server for that."""
        self.node.kill()
        again = Resident(self.folder / "pi", self.node.machine, *FLAGS, role="node")
        self.cluster._residents["pi"] = again
        again.wait_ready()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("edge")
    with lan(folder) as cluster:
        device = cluster._machine("device")

        def start(home: Path, machine: Machine, *flags: str, role: str) -> Resident:
            there = ("peer", "eth0", "netns", str(device.place))
            machine.run("ip", "link", "add", "lan0", "type", "veth", *there)
            for end, link, address in ((machine, "lan0", NODE), (device, "eth0", DEVICE)):
                end.run("ip", "address", "add", f"{address}/24", "dev", link)
                end.run("ip", "link", "set", link, "up")
            return Resident(home, machine, *flags, *FLAGS, role=role)

        cluster.join("pi", start)
        made = Site(cluster, device, folder)
        functions.create(cluster.server, "hello", HELLO)
        token = made.token("--note", "first")
        eventually_sync(lambda: made.invoke(token)[0] == 200, what="a first answer")
        yield made


def test_a_device_calls_a_function_and_gets_nothing_that_its_role_has_not(site: Site) -> None:
    token, reading = site.token(), site.token(role="viewer")
    status, answer = site.invoke(token)
    assert (status, json.loads(answer["Result"])) == (200, "hello device")
    assert site.call("/functions", reading)[0] == 200
    assert site.call("/functions", token)[0] == 403
    assert site.invoke(reading)[0] == 403
    assert site.call("/create", token, functions.body("more", HELLO))[0] == 403
    # The same token is good at the server.
    status, about = site.cluster.server.call("GET", "/about", headers={"Authorization": f"Bearer {token}"})
    assert (status, about["role"]) == (200, "invoker")
    # The node says who is calling, and where.
    status, about = site.call("/about", token)
    assert (status, about["role"], about["name"]) == (200, "invoker", "pi")
    assert about["contact_at"] > LONG_AGO
    assert URL in about["urls"]
    assert URL in site.node.ready["urls"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_a_device_calls_its_node_as_the_page_says(site: Site, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    shutil.copy(site.ca, tmp_path / "ca.pem")
    skerry = tmp_path / "bin" / "skerry"
    skerry.parent.mkdir()
    skerry.write_text(f'#!/bin/sh\nexec {" ".join(map(str, COMMAND))} "$@"\n')
    skerry.chmod(0o755)
    known = environment(SKERRY_DATA=str(site.cluster.server.data))
    known |= {"PATH": f"{skerry.parent}:{known['PATH']}"}
    places = {"the server's machine": site.cluster.server_place, "the device": site.device.place}
    printed = []
    for place, command in steps("edge.md", "A device calls its node"):
        if place == "the node":  # which runs already
            assert command == f"skerry node --join INVITATION --name pi --http 0.0.0.0:{PORT}"
            continue
        typed = ["bash", "-c", command.replace("192.168.1.10", NODE)]
        options: dict[str, Any] = {"cwd": tmp_path, "env": known, "capture_output": True, "text": True}
        done = inside(places[place], lambda typed=typed, options=options: subprocess.run(typed, **options))
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        printed.append(done.stdout.strip())
        known["TOKEN"] = printed[-1]
    assert json.loads(json.loads(printed[-1])["Result"]) == "hello you"


def test_commands_call_the_node_with_the_token_of_a_device(site: Site) -> None:
    token = site.token()
    done = site.node.cli(
        "status", "--url", f"https://localhost:{PORT}", "--ca", str(site.ca), "--token", token
    )
    assert done.returncode == 0, done.stderr
    for shown in ("pi (", "invoker", URL):
        assert shown in done.stdout
    # On the machine of the node, its listener is found.
    done = site.node.cli("fn", "invoke", "hello", "-p", "name:pi", SKERRY_TOKEN=token)
    assert (done.returncode, "hello pi" in done.stdout) == (0, True), done.stderr
    listed = site.cluster.server.cli("token", "list").stdout
    assert "offline" in listed


def test_callers_without_a_valid_token_are_nobody(site: Site) -> None:
    authority = pki.fingerprint(site.ca.read_bytes())
    claims = OfflineClaims("0" * 26, pin_of(authority), Role.INVOKER, LONG_AGO, 2 * LONG_AGO)
    stranger = signing.SigningKey(secrets.token_bytes(32))
    secret = site.cluster.server.call("POST", "/token/", {"role": "admin"})[1]["token"]
    for token in (None, site.token() + "A", offline_tokens.sign(claims, stranger), secret):
        assert site.invoke(token)[0] == 401, token
    assert site.call("/functions")[0] == 401
    assert site.call("/healthz")[0] == 200

    def plain() -> bytes:
        connection = http.client.HTTPConnection(NODE, PORT, timeout=PATIENCE_S)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return b""
        finally:
            connection.close()

    assert inside(site.device.place, plain) == b"", "it is served without TLS"


def test_the_node_has_its_own_names_and_no_others(site: Site) -> None:
    for name in ("pi", "pi.local", "pi.node.skerry"):
        assert site.call("/healthz", host=name, verified=name)[0] == 200
    assert site.call("/healthz", host="evil.example.org")[0] == 403
    for name in ("evil.example.org", "pi.example.org", "192.0.2.1"):  # the last is the server's
        with pytest.raises(ssl.SSLCertVerificationError):
            site.call("/healthz", verified=name)
    assert any("pi.example.org" in warning for warning in site.node.ready["warnings"])
    assert site.call("/ca.pem") == (200, site.ca.read_text())


def test_a_bound_token_calls_what_is_in_its_namespace_and_finds_nothing_else(site: Site) -> None:
    site.cluster.call("PUT", "/namespace/", {"name": "shop"})
    status, said = site.cluster.server.call("POST", "/create?namespace=shop", functions.body("till", HELLO))
    assert status == 200, said
    token = site.token("--namespace", "shop")
    eventually_sync(lambda: site.invoke(token, "till")[0] == 200, what="the function of the namespace")
    assert site.invoke(token, "hello")[0] == site.invoke(token, "nothing")[0] == 404
    hidden, missing = (site.invoke(token, "hello", f"?namespace={name}") for name in ("default", "nowhere"))
    assert hidden[0] == missing[0] == 404
    assert str(hidden[1]).replace("default", "") == str(missing[1]).replace("nowhere", "")


def test_connections_that_begin_and_say_nothing_more_keep_no_device_out(site: Site) -> None:
    """Without TLS, in the middle of a handshake, and in the middle of a request."""
    token = site.token()
    context = ssl.create_default_context(cafile=str(site.ca))
    with contextlib.ExitStack() as held:

        def hold() -> None:
            for number in range(240):
                plain = held.enter_context(socket.create_connection((NODE, PORT), timeout=PATIENCE_S))
                if number % 3 == 1:
                    plain.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
                elif number % 24 == 2:
                    secure = held.enter_context(context.wrap_socket(plain, server_hostname=NODE))
                    secure.sendall(b"POST /invoke/hello HTTP/1.1\r\nHost: ")

        inside(site.device.place, hold)
        assert site.invoke(token)[0] == 200


def test_tokens_of_a_key_that_was_replaced_hold_and_those_of_a_revoked_one_do_not(site: Site) -> None:
    token = site.token()
    assert site.cluster.server.cli("token", "rotate-key").returncode == 0
    newer = site.token()
    eventually_sync(lambda: site.call("/about", newer)[0] == 200, what="the new key at the node")
    assert site.call("/about", token)[0] == 200
    assert site.cluster.server.cli("token", "rotate-key", "--revoke").returncode == 0
    eventually_sync(lambda: site.call("/about", newer)[0] == 401, what="the revocation of the keys")
    assert site.call("/about", token)[0] == 401


@dataclass(frozen=True)
class CutOff:
    """The site after its server was killed, and then its agent."""

    token: str
    stolen: str  # revoked before
    statuses: tuple[int, int]  # of the two with the old agent


@pytest.fixture(scope="module")
def cut_off(site: Site) -> Iterator[CutOff]:
    token, stolen = site.token(), site.token("--note", "stolen")
    assert site.invoke(stolen)[0] == 200
    site.revoke("stolen")
    eventually_sync(lambda: site.invoke(stolen)[0] == 401, what="the revocation at the node")
    site.cluster.server.kill()
    statuses = site.invoke(token)[0], site.invoke(stolen)[0]
    site.restart_node()
    yield CutOff(token, stolen, statuses)
    site.cluster.restart_server()
    site.cluster.until_ready("pi")


def test_devices_are_served_while_the_server_is_away_and_revocations_hold(
    site: Site, cut_off: CutOff
) -> None:
    assert cut_off.statuses == (200, 401)
    assert site.invoke(cut_off.stolen)[0] == 401
    eventually_sync(lambda: site.invoke(cut_off.token)[0] == 200, what="an answer of the new agent")


def test_guesses_are_slowed_down_and_known_tokens_are_not(site: Site, cut_off: CutOff) -> None:
    assert site.call("/about", cut_off.token)[0] == 200
    eventually_sync(lambda: site.call("/about", cut_off.token + "A")[0] == 429, what="a limit")
    assert site.call("/about", cut_off.token)[0] == 200
