"""The registry and the images that tests are made with are what other tools take them for."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import imagery
from tests.support.certificates import TestAuthority
from tests.support.registry import PASSWORD, USER, Registry


def skopeo(*arguments: str) -> str:
    done = subprocess.run(["skopeo", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("docker", [False, True])
@pytest.mark.parametrize("password", [False, True])
def test_skopeo_reads_a_pushed_image(tmp_path: Path, docker: bool, password: bool) -> None:
    created = imagery.busybox(docker=docker)
    with Registry(tmp_path / "registry", password=password) as registry:
        digest = registry.push(created, "some/web:1")
        reported = json.loads(
            skopeo(
                "inspect",
                "--tls-verify=false",
                *(("--creds", f"{USER}:{PASSWORD}") if password else ()),
                f"docker://{registry.address}/some/web:1",
            )
        )
    assert reported["Digest"] == digest
    assert reported["Layers"] == [created.layers[0].digest]


@pytest.mark.root(tries=1)  # skopeo keeps the owners of files in an archive
def test_skopeo_reads_every_form_that_is_written_to_disk(tmp_path: Path) -> None:
    created = imagery.busybox(imagery.layer(imagery.file("more", "x"), compression=""))
    layout = imagery.write_layout(created, tmp_path / "layout", "v1")
    archive = imagery.write_oci_archive(created, tmp_path / "oci.tar", "v1")
    saved = imagery.write_docker_archive(created, tmp_path / "docker.tar")
    for place in (f"oci:{layout}:v1", f"oci-archive:{archive}:v1"):
        assert json.loads(skopeo("inspect", place))["Layers"] == [each.digest for each in created.layers]
    config = json.loads(skopeo("inspect", "--config", f"docker-archive:{saved}"))
    assert config["rootfs"]["diff_ids"] == [each.diff_id for each in created.layers]


def test_the_registry_speaks_tls_with_a_certificate_of_the_authority(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "ca")
    with Registry(tmp_path / "registry", authority=authority, tls=True) as registry:
        registry.push(imagery.busybox(), "web")
        trusted = tmp_path / "trusted"
        trusted.mkdir()
        shutil.copy(authority.ca, trusted)
        reported = skopeo("inspect", "--cert-dir", str(trusted), f"docker://{registry.address}/web:latest")
    assert json.loads(reported)["Architecture"] == "amd64"
