"""Who may run what is on the disk of a node: a whole Skerry, a deployer's token, and a file of root's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import imagery
from tests.support.bundles import busybox_root
from tests.support.registry import Registry
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

CANARY = "only-root-reads-this"
OVER = ("STOPPED", "FAILED", "TERMINATED")


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skerry]:
    with running(tmp_path_factory.mktemp("access")) as one:
        yield one
        for left in one.call("GET", "/instance/")[1]["instances"]:
            one.call("DELETE", f"/instance/{left['id']}")
        eventually_sync(lambda: one.call("GET", "/instance/")[1]["count"] == 0, what="an empty node")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that can run, with a file in it that is nobody's business but root's."""
    root = busybox_root(tmp_path_factory.mktemp("tree") / "root")
    secret = root / "secret"
    secret.write_text(CANARY)
    secret.chmod(0o600)
    return root


@pytest.fixture(scope="module")
def deployer(skerry: Skerry) -> dict[str, str]:
    _, token = skerry.call("POST", "/token/", {"role": "deployer"})
    return {"Authorization": f"Bearer {token['token']}"}


def id_of(folder: Path) -> str:
    said = json.dumps({"rootfs": {"folder": str(folder)}}, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(said.encode()).hexdigest()


def function(image: str, name: str = "reader") -> dict[str, Any]:
    return {"Name": name, "Runtime": "custom", "MemoryMB": 64, "CustomImage": image}


def images_of(skerry: Skerry) -> list[dict[str, Any]]:
    return list(json.loads(skerry.cli("image", "list", "-o", "json").stdout)["images"])


def names_of(skerry: Skerry) -> set[str]:
    return {name for image in images_of(skerry) for name in image["names"]}


def run_to_its_end(skerry: Skerry, headers: dict[str, str] | None, uri: str, *command: str) -> dict[str, Any]:
    spec = {"name": "reader", "uri": uri, "arguments": list(command), "restart": "never"}
    status, made = skerry.call("PUT", "/instance/", spec, headers)
    assert status == 201, made
    return ended(skerry, made["id"])


def ended(skerry: Skerry, id: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def is_over() -> bool:
        seen.update(skerry.call("GET", f"/instance/{id}")[1])
        return seen["status"] in OVER

    eventually_sync(is_over, what="the end of the instance")
    seen["logs"] = skerry.call("GET", f"/instance/{id}/logs")[1]
    return seen


def test_a_deployer_cannot_have_a_folder_of_the_node_registered_and_run_it_by_its_id(
    skerry: Skerry, deployer: dict[str, str], tree: Path
) -> None:
    refusals = [
        skerry.call("POST", verb, function(f"rootfs:{tree}"), deployer)[0] for verb in ("/create", "/update")
    ]
    seen = run_to_its_end(skerry, deployer, id_of(tree), "cat", "/secret")
    assert CANARY not in str(seen)
    assert (refusals, images_of(skerry)) == ([403, 403], [])
    assert seen["status"] == "FAILED"
    assert "there is no image" in seen["reason"]


@pytest.mark.parametrize("scheme", ["rootfs", "oci", "oci-archive", "docker-archive"])
def test_a_deployer_is_told_the_same_of_every_path_at_every_entry(
    skerry: Skerry, deployer: dict[str, str], tree: Path, scheme: str
) -> None:
    said = set[tuple[int, str]]()
    for path in (tree, tree / "secret", tree / "absent", "/proc/self/root"):
        uri = f"{scheme}:{path}"
        for verb, place, body in (
            ("POST", "/create", function(uri)),
            ("POST", "/update", function(uri)),
            ("PUT", "/instance/", {"name": "x", "uri": uri}),
            ("POST", "/namespace/team/instance/", {"name": "x", "uri": uri}),
            ("PUT", "/workload/", {"name": "x", "uri": uri}),
        ):
            status, answer = skerry.call(verb, place, body, deployer)
            said.add((status, answer["message"] if "message" in answer else answer["error"]))
    ((status, text),) = said
    assert status == 403
    assert "only an admin" in text
    assert str(tree) not in text


def test_an_image_that_an_admin_took_from_a_path_is_not_a_deployers_by_its_id(
    skerry: Skerry, deployer: dict[str, str], tree: Path, tmp_path: Path
) -> None:
    made = imagery.busybox(imagery.layer(imagery.file("secret", CANARY)), command=("cat", "/secret"))
    archive = f"oci-archive:{imagery.write_oci_archive(made, tmp_path / 'image.tar')}"
    assert skerry.cli("image", "pull", "--quiet", archive).returncode == 0
    seen = run_to_its_end(skerry, deployer, made.id)
    assert (seen["status"], CANARY in str(seen)) == ("FAILED", False)
    status, answer = skerry.call("POST", "/create", function(made.id), deployer)
    assert status == 422
    assert "there is no image" in answer["message"]
    assert CANARY in run_to_its_end(skerry, None, made.id)["logs"], "an admin may"
    with Registry(tmp_path / "registry") as registry:
        registry.push(made, "shared:1")
        name = f"{registry.address}/shared:1"
        assert skerry.cli("image", "pull", "--quiet", name).returncode == 0
    assert CANARY in run_to_its_end(skerry, deployer, made.id)["logs"], "it is in a registry now"
    for each in (archive, name):
        skerry.cli("image", "remove", each)


def test_what_an_admin_named_a_deployer_may_use_and_change_but_for_the_path(
    skerry: Skerry, deployer: dict[str, str], tree: Path
) -> None:
    spec = {"name": "public", "uri": f"rootfs:{tree}", "arguments": ["cat", "/secret"], "restart": "never"}
    status, workload = skerry.call("PUT", "/workload/", spec)
    assert status == 201, workload
    place = f"/workload/{workload['id']}"
    assert skerry.call("PATCH", place, {"uri": "rootfs:/etc"}, deployer)[0] == 403
    assert skerry.call("PATCH", place, {"env": ["A=1"], "uri": spec["uri"]}, deployer)[0] == 200
    status, made = skerry.call("PUT", f"/instance/?workloadId={workload['id']}", None, deployer)
    assert status == 201, made
    assert CANARY in ended(skerry, made["id"])["logs"]
    assert skerry.call("PATCH", f"/instance/{made['id']}", {"uri": f"rootfs:{tree}/"}, deployer)[0] == 403
    # Its own path is given up with the first change to another image, and not to be had back.
    assert skerry.call("PATCH", place, {"uri": "localhost:1/other:1"}, deployer)[0] == 200
    assert skerry.call("PATCH", place, {"uri": spec["uri"]}, deployer)[0] == 403
    assert skerry.call("DELETE", place)[0] == 200


def test_a_function_that_cannot_be_made_leaves_no_image(
    skerry: Skerry, deployer: dict[str, str], tree: Path, tmp_path: Path
) -> None:
    before, layers = images_of(skerry), set((skerry.data / "images" / "layers").iterdir())
    with Registry(tmp_path / "registry") as registry:
        registry.push(imagery.busybox(command=("false",)), "broken:1")
        name = f"{registry.address}/broken:1"
        for headers, image in ((deployer, name), ({}, f"rootfs:{tree}")):
            for verb in ("/create", "/update"):
                status, answer = skerry.call("POST", verb, function(image), headers)
                assert status == 422, answer
                assert images_of(skerry) == before
        assert set((skerry.data / "images" / "layers").iterdir()) == layers
        # What was here before stays.
        assert skerry.cli("image", "pull", "--quiet", name).returncode == 0
        assert skerry.call("POST", "/create", function(name), deployer)[0] == 422
        assert name in names_of(skerry)
        skerry.cli("image", "remove", name)
