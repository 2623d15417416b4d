"""Keys of the mesh: private, durable, and replaced in two steps."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from skerry.model import errors, mesh
from skerry.node.network.mesh import keys
from skerry.node.network.mesh.keys import MeshKeys
from skerry.node.network.mesh.mesh import configured_endpoints

DAY_S = 86400.0


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    made = MeshKeys(path, 0.0)
    assert path.stat().st_mode & 0o777 == 0o600
    assert MeshKeys(path, 50.0).private == made.private
    mesh.check_public_key(made.public)


@pytest.mark.skipif(shutil.which("wg") is None, reason="wg is not installed")
def test_the_public_key_is_the_one_that_wg_derives(tmp_path: Path) -> None:
    made = MeshKeys(tmp_path / "key.json", 0.0)
    derived = subprocess.run(["wg", "pubkey"], input=made.private, capture_output=True, text=True, check=True)
    assert derived.stdout.strip() == made.public


def test_a_file_that_cannot_be_read_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    for content in ("nonsense", '{"private": "short", "made_at": 1}'):
        path.write_text(content)
        assert MeshKeys(path, 0.0).public


def test_the_next_key_is_announced_kept_over_a_restart_and_used_when_peers_know_it(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    held = MeshKeys(path, 0.0)
    first = held.public
    assert not held.announce_next(6 * DAY_S, 7 * DAY_S)
    assert held.announce_next(7 * DAY_S, 7 * DAY_S)
    assert not held.announce_next(8 * DAY_S, 7 * DAY_S)
    held = MeshKeys(path, 8 * DAY_S)
    second = held.next_public
    assert (held.public, bool(second)) == (first, True)
    assert not held.may_switch(7 * DAY_S + 5, is_known=False)
    assert held.may_switch(7 * DAY_S + 5, is_known=True)
    assert held.may_switch(7 * DAY_S + 700, is_known=False)  # a peer that is away does not stop it for ever
    held.switch()
    assert (held.public, held.next_public) == (second, "")
    assert MeshKeys(path, 0.0).public == second
    assert not held.may_switch(100 * DAY_S, is_known=True)
    assert not held.announce_next(8 * DAY_S, 7 * DAY_S)


def test_public_keys_of_others_are_checked() -> None:
    for text in ("", "x", "A" * 44, "A" * 60):
        with pytest.raises(errors.Invalid):
            mesh.check_public_key(text)
    with pytest.raises(ValueError, match="32 bytes"):
        keys.public_key("AAAA")


def test_configured_endpoints_have_an_address_and_perhaps_a_port() -> None:
    found = configured_endpoints(("198.51.100.7", "198.51.100.7:4000", "2001:db8::1", "[2001:db8::1]:4000"))
    assert found == [
        ("198.51.100.7", 0),
        ("198.51.100.7", 4000),
        ("2001:db8::1", 0),
        ("2001:db8::1", 4000),
    ]
    for text in ("example.org", "198.51.100.7:0", "198.51.100.7:99999", "[::1", ""):
        with pytest.raises(errors.Invalid, match=r"mesh\.endpoints"):
            configured_endpoints((text,))
