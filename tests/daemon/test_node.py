"""A machine that joins: one token, its own key, a certificate that renews itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skerry.model.invitations import Invitation
from tests.support.skerry import Skerry, running
from tests.support.waiting import PATIENCE_S, eventually_sync

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Skerry]:
    folder = tmp_path / "server"
    folder.mkdir()
    # Certificates of three seconds, so that a renewal is seen soon.
    with running(folder, "--set", "identity.node_certificate_s=3", role="server") as skerry:
        yield skerry


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    folder = tmp_path / "machine"
    folder.mkdir()
    return folder


def join_token(server: Skerry) -> str:
    return str(server.call("POST", "/token/", {"role": "node"}, JSON)[1]["token"])


def invitation(server: Skerry) -> str:
    done = server.cli("token", "create", "--role", "node")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def node_certificates(server: Skerry) -> list[dict[str, Any]]:
    """Of machines that joined; the server has one of its own, too."""
    return [c for c in server.call("GET", "/certificate/")[1]["certificates"] if c["node"]]


def test_a_machine_joins_once_and_renews_its_certificate_while_it_runs(server: Skerry, machine: Path) -> None:
    token = join_token(server)
    flags = ["--join", server.ready["http"], "--token", token, "--name", "edge-1"]
    with running(machine, *flags, role="node") as node:
        (first,) = node_certificates(server)[:1]
        assert (first["node"], first["name"]) == (node.ready["node"], "edge-1")
        # Renewed before it ends, twice over, for the same node.
        serials = {first["serial"]}

        def renewed_twice() -> bool:
            current = node_certificates(server)
            assert {c["node"] for c in current} <= {node.ready["node"]}
            serials.update(c["serial"] for c in current)
            return len(serials) >= 3

        eventually_sync(renewed_twice)
    assert token not in node.said(), "the token stands in the log"


def test_a_node_that_starts_again_is_the_same_node_and_needs_no_token(tmp_path: Path, machine: Path) -> None:
    with running(tmp_path, role="server") as server:
        check_that_it_stays_the_same(server, machine)


def check_that_it_stays_the_same(server: Skerry, machine: Path) -> None:
    with running(machine, "--join", server.ready["http"], "--token", join_token(server), role="node") as node:
        joined_as = node.ready["node"]
    with running(machine, role="node") as again:
        assert again.ready["node"] == joined_as


def test_a_join_token_is_good_for_one_machine(server: Skerry, machine: Path, tmp_path: Path) -> None:
    token = join_token(server)
    other = tmp_path / "other"
    other.mkdir()
    with running(machine, "--join", server.ready["http"], "--token", token, role="node"):
        refused = Skerry(other, "--join", server.ready["http"], "--token", token, role="node")
        assert refused.process.wait(PATIENCE_S) == 1
        assert "used" in refused.said()
        assert "Traceback" not in refused.said()


def test_without_a_token_a_new_machine_is_told_where_to_get_one(server: Skerry, machine: Path) -> None:
    node = Skerry(machine, "--join", server.ready["http"], role="node")
    assert node.process.wait(PATIENCE_S) == 1
    assert "skerry token create --role node" in node.said()


def test_a_revoked_node_cannot_renew_and_says_so(server: Skerry, machine: Path) -> None:
    flags = ["--join", server.ready["http"], "--token", join_token(server)]
    with running(machine, *flags, role="node") as node:
        (certificate,) = node_certificates(server)[:1]
        assert server.cli("certificate", "revoke", certificate["serial"]).returncode == 0
        eventually_sync(lambda: "revoked" in node.said())


def test_a_server_of_another_cloud_is_found_out_by_the_pin_in_the_token(
    server: Skerry, machine: Path, tmp_path: Path
) -> None:
    impostor = tmp_path / "impostor"
    impostor.mkdir()
    with running(impostor, role="server") as other:
        node = Skerry(machine, "--join", other.ready["http"], "--token", join_token(server), role="node")
        assert node.process.wait(PATIENCE_S) == 1
        assert "CA" in node.said()
        assert "Traceback" not in node.said()


def test_a_node_joins_over_tls(tmp_path: Path, machine: Path) -> None:
    folder = tmp_path / "tls"
    folder.mkdir()
    with running(folder, "--http", "0.0.0.0:0", "--tls", role="server") as server:
        token = join_token(server)
        with running(machine, "--join", server.ready["http"], "--token", token, role="node") as node:
            assert node.ready["node"]


def test_a_machine_joins_by_an_invitation_and_again_after_it_was_revoked_and_says_what_it_did(
    tmp_path: Path, machine: Path
) -> None:
    folder = tmp_path / "tls"
    folder.mkdir()
    with running(folder, "--tls", role="server") as server:
        first = invitation(server)
        with running(machine, "--join", first, "--name", "edge-1", role="node") as node:
            was = node.ready["node"]
            assert node.ready["joined"] == f"joined the cloud at {server.ready['http']} as node {was}"
        with running(machine, "--join", first, "--name", "edge-1", role="node") as node:
            assert node.ready["node"] == was
            assert "kept its name and certificate" in node.ready["joined"]
        (certificate,) = node_certificates(server)
        assert server.cli("certificate", "revoke", certificate["serial"]).returncode == 0
        (tmp_path / "invitation").write_text(invitation(server))
        flags = ["--join", f"@{tmp_path / 'invitation'}", "--name", "edge-1"]
        with running(machine, *flags, role="node") as node:
            assert node.ready["node"] != was
            assert "was revoked" in node.ready["joined"]
            assert f"`skerry node remove {was}`" in node.ready["joined"]
        said = node.said() + server.said()
    for text in (first, (tmp_path / "invitation").read_text()):
        token = Invitation.parse(text).token
        assert text not in said
        assert token not in said


def test_a_malformed_invitation_is_refused_in_plain_words_and_not_repeated(machine: Path) -> None:
    node = Skerry(machine, "--join", "skerry-join-v1.secret.00000000", role="node")
    assert node.process.wait(PATIENCE_S) == 1
    assert "not copied whole" in node.said()
    assert "secret" not in node.said()
    assert "Traceback" not in node.said()
