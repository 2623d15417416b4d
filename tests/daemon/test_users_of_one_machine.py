"""Two ordinary users and root, each with a Skerry in its default places on one machine: they do not meet."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.daemon.node_runtime import group_root
from tests.daemon.ordinary import OrdinarySkerry, processes_of, skerry_of
from tests.support.ordinary_users import CAN_HAVE_NAMESPACES, OrdinaryUser, ordinary_user

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not CAN_HAVE_NAMESPACES, reason="needs user namespaces of ordinary users"),
]

# Where root's Skerry writes, and the network, are of this machine alone.
_MACHINE = (
    "ip link set lo up && mount -t tmpfs lib /var/lib && mount -t tmpfs run /run && echo && exec sleep 1000"
)
_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run")
_GROUPS = f"skt-users-{os.getpid()}"
DEFAULT_PORTS = ("--http", "127.0.0.1:1323", "--grpc", "127.0.0.1:50052")
WHO = "import os\ndef handler(params, context):\n    return {'uid': os.getuid(), 'whose': '%s'}\n"


@pytest.fixture
def machine() -> Iterator[int]:
    """The pid of a process in the namespaces of the machine."""
    command = ("unshare", "--mount", "--net", "--propagation=slave", "sh", "-c", _MACHINE)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            yield process.pid
        finally:
            process.kill()


def on(machine: int, user: OrdinaryUser) -> OrdinaryUser:
    enter = ("nsenter", "--mount", "--net", f"--target={machine}", f"--wd={user.home}")
    return user._replace(prefix=(*enter, *user.prefix))


@pytest.fixture
def ann(machine: int) -> Iterator[OrdinarySkerry]:
    with ordinary_user() as user, skerry_of(on(machine, user)) as skerry:
        yield skerry


@pytest.fixture
def ben(machine: int) -> Iterator[OrdinarySkerry]:
    with ordinary_user() as user, skerry_of(on(machine, user)) as skerry:
        yield skerry


@pytest.fixture
def root(machine: int, tmp_path: Path) -> Iterator[OrdinarySkerry]:
    home = tmp_path / "home"
    home.mkdir()
    skerry = OrdinarySkerry(on(machine, OrdinaryUser(0, home, (sys.executable,), ())))
    skerry.data = Path("/proc", str(machine), "root", "var/lib/skerry")
    try:
        yield skerry
    finally:
        if skerry.process is not None and skerry.process.poll() is None:
            skerry.kill()


def test_each_has_its_own_and_all_stop_without_leaving_anything(
    machine: int, ann: OrdinarySkerry, ben: OrdinarySkerry, root: OrdinarySkerry
) -> None:
    everyone = {"ann": ann, "ben": ben, "root": root}
    urls = {"ann": ann.start(*DEFAULT_PORTS)["http"]}
    for other in (ben, root):
        refused = other.attempt("up")
        assert refused.returncode == 1
        assert "--http: 127.0.0.1:1323 is in use by another program. Choose another port" in refused.stderr
    urls |= {"ben": ben.start()["http"]}
    urls |= {"root": root.start("--set", f"node.cgroup_root={_GROUPS}")["http"]}

    for name, skerry in everyone.items():
        file = skerry.file("who.py", WHO % name)
        skerry.cli("fn", "deploy", str(file), "--name", f"of-{name}", "--network", "none")
        skerry.cli("cell", "allocate", f"cell-of-{name}")
        assert skerry.cli("cell", "run", "--", "echo", name) == f"{name}\n"
    for name, skerry in everyone.items():
        assert json.loads(skerry.cli("fn", "invoke", f"of-{name}"))["whose"] == name
        functions, cells = skerry.cli("fn", "list"), skerry.cli("cell", "list")
        for other in everyone:
            assert (f"of-{other}" in functions) == (other == name)
            assert (f"cell-of-{other}" in cells) == (other == name)
            if other != name:
                refused = skerry.attempt("fn", "list", "--url", urls[other])
                assert refused.returncode != 0
                assert f"of-{other}" not in refused.stdout

    # One of them is killed and comes again: that concerns no other, and its cell is still its own.
    ann.cli("cell", "start", "cell-of-ann", "sleeper", "--", "sleep", "1000")
    ann.kill()
    ann.start(*DEFAULT_PORTS)
    assert "sleeper" in ann.cli("cell", "list", "cell-of-ann")
    for name, skerry in everyone.items():
        assert json.loads(skerry.cli("fn", "invoke", f"of-{name}"))["whose"] == name
        skerry.cli("cell", "free", f"cell-of-{name}")
    for skerry in everyone.values():
        assert skerry.stop() == 0, skerry.said()
    assert left(machine, ann, ben) == []


def left(machine: int, *skerrys: OrdinarySkerry) -> list[str]:
    """Processes, links, groups and files of anybody there."""
    space = os.readlink(f"/proc/{machine}/ns/net")
    inside = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(process / "ns/net") == space and int(process.name) != machine:
                inside.append((process / "cmdline").read_text())
    enter = ("nsenter", "--net", f"--target={machine}")
    links = subprocess.run((*enter, "ip", "-json", "link"), check=True, capture_output=True, text=True).stdout
    group = group_root(_GROUPS, Path("/var/lib/skerry"))
    tops = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()]
    users = {skerry.user.uid for skerry in skerrys}
    files = [path for place in _PLACES for path in Path(f"/proc/{machine}/root{place}").iterdir()]
    return [
        *inside,
        *(each for skerry in skerrys for _, each in processes_of(skerry.user)),
        *(link["ifname"] for link in json.loads(links) if link["ifname"] != "lo"),
        *(str(top / group) for top in tops if (top / group).exists()),
        *(str(path) for path in files if path.lstat().st_uid in users),
    ]
