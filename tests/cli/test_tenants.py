"""Verbs with a token that is bound to a namespace: they need no `-n`, and see nothing else."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from skerry.cli import main
from skerry.kit import pki
from tests.support.sites import CloudServer

IMAGE = "example.org/web:1"
FILE = (
    "workloads: [{name: web, image: 'example.org/web:1'}]\n"
    "services: [{name: site, image: 'example.org/web:1'}]\n"
)


def tenant(cloud: CloudServer, token: str, *arguments: str, namespace: str | None = None) -> Result:
    clean = {name: None for name in os.environ if name.startswith("SKERRY_")}
    env = {**clean, "SKERRY_DATA": str(cloud.data), "SKERRY_TOKEN": token, "SKERRY_NAMESPACE": namespace}
    return CliRunner().invoke(main.cli, list(arguments), env=env)


def said(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def token(cloud: CloudServer) -> str:
    create = ("token", "create", "--role", "deployer", "--namespace", "shop", "-n", "store")
    made = json.loads(cloud.say(*create, "-o", "json"))
    assert made["namespaces"] == ["shop", "store"]
    return str(made["token"])


def test_a_bound_token_works_without_naming_a_namespace(
    cloud: CloudServer, token: str, tmp_path: Path
) -> None:
    cloud.say("run", "--name", "theirs", "-n", "lab", "-d", IMAGE)
    assert "shop,store" in cloud.say("token", "list")
    said(tenant(cloud, token, "run", "--name", "web", IMAGE))
    listed = json.loads(said(tenant(cloud, token, "get", "instances", "-o", "json")))
    assert [(one["namespace"], one["name"]) for one in listed["instances"]] == [("shop", "web")]
    assert "theirs" not in said(tenant(cloud, token, "get", "instances", "-A"))
    file = tmp_path / "file.yaml"
    file.write_text(FILE)
    assert "site" in said(tenant(cloud, token, "apply", "-f", str(file)))
    said(tenant(cloud, token, "service", "scale", "site", "2", "-d"))
    said(tenant(cloud, token, "run", "--name", "other", "-d", IMAGE, namespace="store"))
    shown = said(tenant(cloud, token, "get", "instances", "-A"))
    assert {"web", "other"} <= set(shown.split())
    status = said(tenant(cloud, token, "status"))
    assert "deployer" in status
    assert "shop, store" in status


def test_what_is_in_another_namespace_is_not_found(cloud: CloudServer, token: str) -> None:
    theirs = cloud.say("run", "--name", "theirs", "-n", "lab", "-d", IMAGE).strip()
    for name in (theirs, "theirs"):
        for verb in (("logs",), ("describe", "instance"), ("delete", "instance"), ("stop",)):
            result = tenant(cloud, token, *verb, name)
            assert result.exit_code != 0
            assert "lab" not in result.output
    result = tenant(cloud, token, "get", "instances", "-n", "lab")
    assert result.exit_code != 0
    assert "no namespace 'lab'" in result.output
    result = tenant(cloud, token, "get", "nodes")
    assert "the whole cloud" in result.output.replace("\n", " ")


def test_a_certificate_is_created_with_its_key_beside_it(cloud: CloudServer, tmp_path: Path) -> None:
    folder = tmp_path / "ci"
    create = ("certificate", "create", "ci", "--role", "viewer", "-n", "shop", "--out", str(folder))
    cloud.say(*create)
    shown = pki.read_certificate((folder / "ci.crt").read_bytes())
    assert (shown.name, shown.units) == ("ci", ("shop",))
    assert pki.key_digest((folder / "ci.key").read_bytes()) == shown.key
    assert pki.is_issued_by((folder / "ci.crt").read_bytes(), (folder / "ca.crt").read_bytes())
    assert stat.S_IMODE((folder / "ci.key").stat().st_mode) == 0o600
    assert "shop" in cloud.say("certificate", "list")
    clean = {name: None for name in os.environ if name.startswith("SKERRY_")}
    again = CliRunner().invoke(main.cli, list(create), env={**clean, "SKERRY_DATA": str(cloud.data)})
    assert again.exit_code != 0
    assert "exists" in again.output
