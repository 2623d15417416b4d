"""The command line on the machine of a server or of a node: root needs nothing, others a token."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.skerry import COMMAND, NOBODY, Skerry, environment, running, unprivileged
from tests.support.waiting import PATIENCE_S

as_root = pytest.mark.root


@pytest.fixture
def own_address() -> str:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


@pytest.fixture
def folder() -> Iterator[Path]:
    """That other users can enter, so that only what is in it keeps them out."""
    with tempfile.TemporaryDirectory(prefix="skerry-test-") as made:
        os.chmod(made, 0o755)
        yield Path(made)


def as_nobody(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A verb as another user, who can read the files of the server, and no more."""
    return subprocess.run(
        unprivileged(*COMMAND, *arguments),
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_root_needs_nothing_if_http_listens_elsewhere_with_tls(folder: Path, own_address: str) -> None:
    with running(folder, "--http", f"{own_address}:0", "--tls", role="server") as server:
        assert server.ready["http"].startswith(f"https://{own_address}:")
        made = server.cli("token", "create", "--role", "viewer", "--ttl", "7d")
        assert made.returncode == 0, made.stderr
        assert "expires in 7d" in made.stderr
        assert json.loads(server.cli("status", "-o", "json").stdout)["ready"] is True
        # Over TCP the kernel's word is worth nothing there.
        over_tcp = server.cli("status", "--url", server.ready["http"], "--ca", server.ready["ca"])
        assert over_tcp.returncode == 1


def test_the_socket_is_for_its_owner_and_goes_with_a_clean_stop(folder: Path) -> None:
    with running(folder, role="server") as server:
        path = Path(server.ready["http_socket"])
        assert path == server.data / "http.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert server.cli("status", "--url", f"unix:{path}").returncode == 0
    assert not path.exists()


def test_what_a_killed_server_left_is_replaced(folder: Path) -> None:
    first = Skerry(folder, role="server")
    first.wait_ready()
    first.kill()
    assert Path(first.ready["http_socket"]).exists()
    with running(folder, role="server") as again:
        assert again.cli("status", "--url", f"unix:{again.ready['http_socket']}").returncode == 0


@as_root
def test_another_user_gets_no_further_than_the_port_and_a_token(folder: Path) -> None:
    with running(folder, role="server") as server:
        token = server.call("POST", "/token/", {"role": "viewer"})[1]["token"]
        found = {"SKERRY_DATA": str(server.data)}
        socket_only = f"unix:{server.ready['http_socket']}"
        refused = as_nobody("status", "--url", socket_only)
        assert refused.returncode == 3
        assert "Permission denied" in refused.stderr
        asked = as_nobody("status", **found)
        assert asked.returncode == 1
        assert "skerry token create" in asked.stderr
        shown = as_nobody("status", "--token", token, **found)
        assert shown.returncode == 0, shown.stderr


@as_root
def test_a_group_that_may_open_the_socket_still_needs_a_token(folder: Path) -> None:
    path = folder / "run" / "http.sock"
    flags = ("--set", f"http.socket={path}", "--set", f"grpc.socket_group={NOBODY}")
    with running(folder, *flags, role="server") as server:
        found = path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, NOBODY)
        token = server.call("POST", "/token/", {"role": "viewer"})[1]["token"]
        assert as_nobody("status", "--url", f"unix:{path}").returncode == 1
        shown = as_nobody("status", "--url", f"unix:{path}", "--token", token)
        assert shown.returncode == 0, shown.stderr


def test_without_local_trust_root_shows_a_token_on_the_socket_too(folder: Path) -> None:
    with running(folder, role="server") as server:
        token = server.call("POST", "/token/", {"role": "admin"})[1]["token"]
    with running(folder, "--set", "identity.local_trust=false", role="server") as server:
        refused = server.cli("token", "list")
        assert refused.returncode == 1
        assert "identity.local_trust" in refused.stderr
        assert server.cli("token", "list", SKERRY_TOKEN=token).returncode == 0


def test_on_a_node_verbs_find_the_server_or_say_where_it_is(folder: Path, own_address: str) -> None:
    at_server, at_node = folder / "server", folder / "node"
    at_server.mkdir()
    at_node.mkdir()
    listen = ("--http", f"{own_address}:0", "--tls", "--grpc", f"{own_address}:0")
    with running(at_server, *listen, role="server") as server:
        url = server.ready["http"]
        join = json.loads(server.cli("token", "create", "--role", "node", "-o", "json").stdout)["token"]
        viewer = json.loads(server.cli("token", "create", "--role", "viewer", "-o", "json").stdout)["token"]
        with running(at_node, "--join", url, "--token", join, role="node") as node:
            lost = node.cli("get", "nodes")
            assert lost.returncode == 3
            assert url in lost.stderr
            assert "skerry token create" in lost.stderr
            shown = node.cli("get", "nodes", "-o", "json", SKERRY_TOKEN=viewer)
            assert shown.returncode == 0, shown.stderr
            assert json.loads(shown.stdout)["count"] == 1
            # What a viewer may not, root on a node may not either.
            assert node.cli("token", "list", SKERRY_TOKEN=viewer).returncode == 1
            assert node.cli("cell", "list").returncode != 3  # this machine's own, as far as it can have any
