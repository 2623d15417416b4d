"""What is still on the machine of a Skerry that has ended, and of its containers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from skerry.daemon.node_runtime import group_root
from skerry.node import user_namespaces
from tests.support.skerry import Skerry


def left_of(skerry: Skerry) -> list[str]:
    """Mounts, addresses, rules, processes and groups; of the network namespace that this is called in."""
    network = skerry.subnet.rpartition(".")[0] + "."
    key = group_root(skerry.cgroup_root, skerry.data).rpartition("-")[2]
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    command = ["ip", "-json", "address"]
    links = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    addresses = [each.get("local", "") for link in links for each in link.get("addr_info", ())]
    rules = subprocess.run(["nft", "list", "ruleset"], check=True, capture_output=True, text=True).stdout
    processes = [
        line.decode(errors="replace")
        for line in map(_command_line, Path("/proc").glob("[0-9]*"))
        if str(skerry.data).encode() in line
    ]
    return [
        *(mount for mount in mounts if mount.startswith(str(skerry.data))),
        *(address for address in addresses if address.startswith(network)),
        *(line for line in rules.splitlines() if line.startswith("table") and f"skerry_{key}" in line),
        *processes,
        *map(str, groups_of(skerry)),
        *map(str, ranges_of(skerry)),
    ]


def groups_of(skerry: Skerry) -> list[Path]:
    """Its own cgroup, in each hierarchy that has one."""
    top = Path("/sys/fs/cgroup")
    name = group_root(skerry.cgroup_root, skerry.data)
    # Not by a search below: groups of others come and go meanwhile.
    return [group for parent in (top, *top.iterdir()) if (group := parent / name).is_dir()]


def ranges_of(skerry: Skerry) -> list[Path]:
    """Ranges of ids that it has claimed."""
    return user_namespaces.claimed_by(f"{group_root(skerry.cgroup_root, skerry.data)}-")


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""  # it has ended meanwhile
