"""Devices in real containers: nodes, owners, rules of the device cgroup, mounts, environment, hooks."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from skerry.model import errors
from skerry.model.workloads import UserNamespaceMode
from skerry.node.containers.device_edits import FOLDER
from tests.node.containers.real import Agent, Ground, needs_runc, printed, spec

pytestmark = [needs_runc, pytest.mark.root]

ONE = "example.com/gpu=one"


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """Device nodes that are no others': like /dev/null, and only for root."""
    folder = tmp_path / "dev"
    folder.mkdir()
    for name, minor in (("one", 3), ("two", 5)):  # null and zero
        os.mknod(folder / name, stat.S_IFCHR | 0o600, os.makedev(1, minor))
        os.chmod(folder / name, 0o600)
    os.mknod(folder / "fuse", stat.S_IFCHR | 0o600, os.stat("/dev/fuse").st_rdev)
    return folder


def describe(ground: Ground, nodes: Path, **edits: Any) -> None:
    """A CDI file with the devices `one` and `two`."""
    folder = ground.folder / "cdi"
    folder.mkdir(parents=True, exist_ok=True)
    made = [
        {
            "name": name,
            "containerEdits": {"deviceNodes": [{"path": "/dev/gpu", "hostPath": str(nodes / name)}]},
        }
        for name in ("one", "two")
    ]
    fuse = {"deviceNodes": [{"path": "/dev/fuse", "hostPath": str(nodes / "fuse"), "permissions": "rw"}]}
    made.append({"name": "fuse", "containerEdits": fuse})
    content = {"cdiVersion": "0.8.0", "kind": "example.com/gpu", "devices": made, "containerEdits": edits}
    (folder / "gpu.json").write_text(json.dumps(content))


async def run(agent: Agent, script: str, *devices: str, **more: Any) -> str:
    await agent.containers.create(spec("web", "sh", "-c", script, devices=devices, **more))
    await agent.containers.start("web")
    ended = await agent.containers.wait("web")
    output = printed(agent.containers, "web").decode()
    assert ended.code == 0, (ended, output)
    await agent.containers.remove("web")
    return output


@pytest.mark.parametrize("userns", list(UserNamespaceMode))
async def test_a_container_gets_its_device_and_no_other(
    ground: Ground, nodes: Path, userns: UserNamespaceMode
) -> None:
    describe(ground, nodes)
    async with ground.agent() as agent:
        script = (
            "ls -ln /dev/gpu; echo there > /dev/gpu && echo written; cat /dev/gpu; ls /dev/fuse 2>&1; true"
        )
        output = await run(agent, script, ONE, userns=userns)
        first, second, *rest = output.splitlines()
        assert first.split()[:6] == ["crw-------", "1", "0", "0", "1,", "3"]  # root's, as root sees it
        assert second == "written"
        assert rest == ["ls: /dev/fuse: No such file or directory"]
        output = await run(agent, "ls /dev/gpu 2>&1; true", userns=userns)
        assert "No such file" in output


async def test_the_device_cgroup_allows_what_was_given_and_nothing_else(ground: Ground, nodes: Path) -> None:
    describe(ground, nodes, mounts=[{"hostPath": str(nodes), "containerPath": "/all", "options": ["rw"]}])
    fuse = nodes / "fuse"
    fuse.chmod(0o666)  # so that only the rules of the cgroup are in the way
    async with ground.agent() as agent:
        # Opening /dev/fuse itself needs nothing but the right to.
        allowed = await run(agent, "exec 3<>/dev/fuse && echo opened", "example.com/gpu=fuse")
        assert allowed == "opened\n"
        denied = await run(agent, "(exec 3<>/all/fuse) 2>&1 && echo opened; true", ONE)
        assert "opened" not in denied
        assert "Operation not permitted" in denied


async def test_it_has_the_mounts_the_environment_the_groups_and_the_hooks_of_its_file(
    ground: Ground, nodes: Path, tmp_path: Path
) -> None:
    library, hooked = tmp_path / "driver.so", tmp_path / "hooked"
    library.write_text("driver")
    library.chmod(0o644)
    describe(
        ground,
        nodes,
        env=["GPU=yes", "PLAIN=device"],
        mounts=[
            {"hostPath": str(library), "containerPath": "/lib/driver.so", "options": ["ro", "nodev", "bind"]}
        ],
        additionalGids=[4444],
        hooks=[
            {
                "hookName": "createRuntime",
                "path": "/bin/sh",
                "args": ["sh", "-c", f"cat > {hooked}"],
                "timeout": 10,
            }
        ],
    )
    async with ground.agent() as agent:
        script = "cat /lib/driver.so; echo; echo $GPU $PLAIN; id -G; (echo x > /lib/driver.so) 2>&1; true"
        output = await run(agent, script, ONE, environment=("PLAIN=mine",))
    assert output.splitlines()[:3] == ["driver", "yes device", "0 4444"]
    assert "Read-only file system" in output
    assert (
        json.loads(hooked.read_text())["status"] == "creating"
    )  # the runtime told the hook of the container


async def test_a_user_of_the_container_uses_a_device_by_its_group(ground: Ground, nodes: Path) -> None:
    folder = ground.folder / "cdi"
    folder.mkdir(parents=True)
    node = {"path": "/dev/gpu", "hostPath": str(nodes / "one"), "gid": 1000, "fileMode": 0o660}
    device = {"name": "one", "containerEdits": {"deviceNodes": [node]}}
    content = {"cdiVersion": "0.5.0", "kind": "example.com/gpu", "devices": [device]}
    (folder / "gpu.yaml").write_text(json.dumps(content))  # YAML, too
    async with ground.agent() as agent:
        output = await run(agent, "id -u; echo x > /dev/gpu && echo written", ONE, user="guest")
        assert output == "1000\nwritten\n"
        assert (nodes / "one").stat().st_mode & 0o777 == 0o600  # the node's own is as it was


async def test_a_device_that_is_gone_is_said_and_nothing_is_left(ground: Ground, nodes: Path) -> None:
    describe(ground, nodes)
    (nodes / "two").unlink()
    async with ground.agent() as agent:
        for device, message in (
            ("example.com/gpu=two", r"device node .*/two cannot be found"),
            ("example.com/gpu=three", r"no device example\.com/gpu=three any more"),
        ):
            await agent.containers.create(spec("web", devices=(device,)))
            with pytest.raises(errors.FailedPrecondition, match=message):
                await agent.containers.start("web")
            await agent.containers.remove("web")
        await agent.containers.create(spec("web", devices=(ONE,)))
        await agent.containers.start("web")
        folder = ground.folder / "containers/all/web" / FOLDER
        assert [path.name for path in folder.iterdir()] == ["0"]
        await agent.containers.stop("web", grace_s=0)
        await agent.containers.start("web")  # the node of the last run is replaced
        await agent.containers.stop("web", grace_s=0)
        await agent.containers.remove("web")
