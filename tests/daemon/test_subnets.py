"""Subnets of nodes: each uses the one that the server gave it, wherever its data folder is."""

from __future__ import annotations

import ctypes
import json
import os
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from tests.node.network.machines import Machine, inside
from tests.support import imagery
from tests.support.lans import Resident, lan
from tests.support.skerry import Skerry

pytestmark = pytest.mark.root

SMALL = {"cpu": 50, "memory": 32}
_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


class Twin(Resident):
    """A node on a machine with files of its own, on which its data folder has the same path as its twin's."""

    def __init__(self, folder: Path, machine: Machine, *flags: str, role: str) -> None:
        self.machine = machine
        self.cgroup_root = f"skerry-{folder.name}"  # of the one kernel that all machines of a test share
        same = folder.parent / "same"
        for path in (folder, same):
            path.mkdir(exist_ok=True)

        def enter() -> None:
            done = (
                _libc.unshare(_CLONE_NEWNS),
                _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None),
                _libc.mount(os.fsencode(folder), os.fsencode(same), None, _MS_BIND, None),
            )
            if any(done):
                os._exit(125)

        flags = (*flags, "--set", "network.subnet=", "--set", f"node.cgroup_root={self.cgroup_root}")
        inside(machine.place, lambda: Skerry.__init__(self, same, *flags, role=role, preexec_fn=enter))
        self.ready_file = folder / "ready.json"
        self.kept_subnet = folder / "data" / "subnet.json"

    def left(self) -> list[str]:
        """Without what names the path: that may be its twin's."""
        return [each for each in super().left() if str(self.data) not in each]


def test_two_nodes_with_the_same_data_path_have_different_subnets_and_their_containers_different_addresses(
    tmp_path: Path,
) -> None:
    image = f"oci-archive:{imagery.write_oci_archive(imagery.busybox(), tmp_path / 'image.tar')}"
    with lan(tmp_path) as cloud:
        twins = [cloud.join(name, Twin) for name in ("one", "two")]
        assert twins[0].data == twins[1].data
        subnets = {name: cloud.call("GET", f"/node/{name}")["subnet"] for name in ("one", "two")}
        assert subnets["one"] != subnets["two"]
        spec = {"uri": image, "arguments": ["sleep", "100000"], "resources": SMALL}
        ids = [cloud.create(name=f"web-{number}", **spec) for number in range(2)]
        running = [cloud.until(id, "RUNNING") for id in ids]
        for instance in running:
            subnet = subnets[cloud.node_of(instance)]
            assert IPv4Address(instance["ip"]) in IPv4Network(subnet)
        assert {cloud.node_of(instance) for instance in running} == {"one", "two"}
        assert running[0]["ip"] != running[1]["ip"]
        for name, twin in zip(("one", "two"), twins, strict=True):
            assert json.loads(twin.kept_subnet.read_text()) == {"subnet": subnets[name]}
