"""`skerry install --root` and `skerry uninstall --root`: files in a folder, with nothing started."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from skerry.cli.commands.install import install, uninstall
from skerry.kit import ulid
from skerry.model.invitations import Invitation
from skerry.model.token_text import TokenText, new_secret, pin_of

pytestmark = pytest.mark.root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of an image in which Skerry is, at the place of this one."""
    made = tmp_path / "root"
    program = made / sys.prefix.lstrip("/") / "bin" / "skerry"
    for folder in (made / "etc" / "systemd" / "system", program.parent, made / "usr" / "local" / "bin"):
        folder.mkdir(parents=True)
    program.write_text("")
    return made


def call(root: Path, *arguments: str, stdin: str = "", is_checked: bool = True) -> Result:
    command = uninstall if arguments[0] == "uninstall" else install
    result = CliRunner().invoke(
        command,
        [*arguments[command is uninstall :], "--root", str(root)],
        input=stdin,
        catch_exceptions=False,
    )
    assert not is_checked or result.exit_code == 0, result.output
    return result


def everything(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_uninstall_removes_exactly_what_install_has_made(root: Path) -> None:
    folders = sorted(root.rglob("*"))
    call(root, "up")
    made = everything(root)
    assert "etc/systemd/system/multi-user.target.wants/skerry.service" in made
    assert made["usr/local/bin/skerry"] == f"{sys.prefix}/bin/skerry"
    assert (root / "etc/skerry/skerry.toml").stat().st_mode & 0o077 == 0
    call(root, "uninstall", "--yes")
    assert sorted(root.rglob("*")) == folders


def test_installing_again_changes_what_is_given_and_keeps_the_rest(root: Path) -> None:
    call(root, "server", "--http", "127.0.0.1:1500", "--set", "log.level=debug")
    first = everything(root)
    call(root, "server")
    assert everything(root) == first
    call(root, "server", "--http", "127.0.0.1:1600")
    second = everything(root)
    assert "ListenStream=127.0.0.1:1600" in second["etc/systemd/system/skerry-http.socket"]
    assert 'log.level = "debug"' in second["etc/skerry/skerry.toml"]
    assert second.keys() == first.keys()


def test_a_server_can_write_where_its_settings_say(root: Path) -> None:
    call(
        root, "server", "--set", "backup.target=/srv/backups", "--set", "log.forward=file:///srv/logs/all.log"
    )
    service = everything(root)["etc/systemd/system/skerry.service"]
    assert "ReadWritePaths=/var/lib/skerry -/srv/backups -/srv/logs\n" in service
    call(root, "server", "--set", "backup.target=s3://bucket/cloud")
    service = everything(root)["etc/systemd/system/skerry.service"]
    assert "ReadWritePaths=/var/lib/skerry -/srv/logs\n" in service


def test_files_of_others_are_neither_overwritten_nor_removed(root: Path) -> None:
    unit = root / "etc/systemd/system/skerry.service"
    unit.write_text("of somebody")
    refused = call(root, "up", is_checked=False)
    assert refused.exit_code == 1
    assert "has not made it" in refused.output
    assert unit.read_text() == "of somebody"
    unit.unlink()
    settings = root / "etc/skerry/skerry.toml"
    settings.parent.mkdir()
    settings.write_text('# mine\nlog.level = "debug"\n')
    (root / "usr/local/bin/skerry").write_text("another program")
    (root / "usr/local/bin/skerry").chmod(0o755)
    call(root, "up")
    call(root, "uninstall", "--yes")
    assert settings.read_text() == '# mine\nlog.level = "debug"\n'
    assert (root / "usr/local/bin/skerry").read_text() == "another program"


def test_an_interrupted_installation_is_removed_too(root: Path) -> None:
    before = everything(root)
    call(root, "up")
    (root / "etc/systemd/system/skerry.slice").unlink()  # as if it had not come so far
    (root / "etc/systemd/system/skerry-grpc.socket").unlink()
    call(root, "uninstall", "--yes")
    assert everything(root) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("server", "--http", "0.0.0.0:1323"), "TLS"),
        (("server", "--http", "127.0.0.1:0"), "fixed port"),
        (("server", "--http", "nowhere"), "HOST:PORT"),
        (("server", "--set", "http.listn=1"), "http.listen"),
        (("node",), "invitation"),
        (("node", "skerry-join-v1.nonsense"), "no invitation"),
        (("node", "-"), "nothing was read"),
    ],
)
def test_what_could_not_start_is_refused_before_anything_is_written(
    root: Path, arguments: tuple[str, ...], said: str
) -> None:
    before = everything(root)
    refused = call(root, *arguments, is_checked=False)
    assert refused.exit_code != 0
    assert said in refused.output
    assert everything(root) == before


def test_an_invitation_is_in_one_file_that_only_root_can_read(root: Path) -> None:
    fingerprint = "ab" * 32
    token = TokenText(ulid.new_id(0.0), new_secret(), pin_of(fingerprint)).format()
    invitation = Invitation(("https://10.0.0.7:1323",), fingerprint, token).format()
    call(root, "node", "-", stdin=invitation + "\n")
    kept = root / "etc/skerry/invitation"
    assert kept.read_text().strip() == invitation
    assert kept.stat().st_mode & 0o777 == 0o600
    others = [name for name, text in everything(root).items() if invitation in text]
    assert others == ["etc/skerry/invitation"]
    call(root, "uninstall", "--yes")
    assert not kept.exists()


def test_another_role_needs_an_uninstall_and_a_server_can_become_up(root: Path) -> None:
    call(root, "server")
    call(root, "up")
    assert json.loads((root / "etc/skerry/installation.json").read_text())["role"] == "up"
    refused = call(root, "server", is_checked=False)
    assert "skerry uninstall" in refused.output


def test_uninstalling_what_is_not_installed_says_so(root: Path) -> None:
    refused = call(root, "uninstall", "--yes", is_checked=False)
    assert refused.exit_code == 1
    assert "made nothing here" in refused.output
