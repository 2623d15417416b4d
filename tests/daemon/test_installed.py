"""The Debian package in a clean Debian with a real systemd: install, use, restart, fail, uninstall."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator

import pytest
from scripts import dist

from tests.support.debian_roots import BootedRoot, booted, clean_root, in_root
from tests.support.waiting import PATIENCE_S, eventually_sync

pytestmark = [pytest.mark.root, pytest.mark.timeout(1500)]

# Opens connections one after the other until it is told to stop; prints how many were answered or refused.
CLIENT = """
import http.client, json, os, time
answered, failures = 0, []
while not os.path.exists("/srv/stop"):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", 1323, timeout=100)
        connection.request("GET", "/healthz")
        answered += connection.getresponse().status == 200
        connection.close()
    except ConnectionRefusedError as error:
        failures.append(repr(error))
    except OSError:
        pass  # the process was killed while it answered
    time.sleep(0.01)
print(json.dumps([answered, failures]))
"""
QUICK_WATCHDOG = "[Service]\nWatchdogSec=2\nTimeoutAbortSec=1\n"
SETTINGS = ("--set", "functions.spare_workers=0")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedRoot]:
    """A booted Debian with the package; its dependencies were installed by apt."""
    folder = tmp_path_factory.mktemp("installed")
    with clean_root(folder / "root") as root:
        os.environ.setdefault("SOURCE_DATE_EPOCH", str(dist.commit_time()))
        made = dist.build_deb(folder, is_quick=True)
        shutil.move(made, root / "srv" / "skerry.deb")
        in_root(root, "apt-get", "-qq", "install", "-y", "--no-install-recommends", "/srv/skerry.deb")
        (root / "srv" / "skerry.deb").unlink()
        (root / "srv" / "hello.py").write_text("def handler(params, context):\n    return 6 * 7\n")
        (root / "srv" / "client.py").write_text(CLIENT)
        with booted(root, f"skerry-installed-{os.getpid()}") as booted_machine:
            yield booted_machine


@pytest.fixture(autouse=True)
def removed(machine: BootedRoot) -> Iterator[None]:
    """Nothing is installed for the next test, nor for a second try of this one."""
    yield
    for command in (
        ("systemctl", "stop", "cloud"),
        ("skerry", "uninstall", "--purge", "--yes", "--force", "--no-drain"),
        ("rm", "-rf", "/srv/stop", "/srv/cloud", "/etc/systemd/system/skerry.service.d"),
    ):
        machine.run(*command, is_checked=False)


def leftovers(machine: BootedRoot) -> str:
    """Processes, links, rules, mounts and cgroups of Skerry."""
    return machine.run(
        "sh", "-c",
        "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep '/usr/lib/[s]kerry';"
        "ip -br link | grep -v ^lo; nft list ruleset; grep -E 'skerry|nsfs' /proc/self/mountinfo;"
        "find /sys/fs/cgroup -name 'skerry*'",
        is_checked=False,
    )  # fmt: skip


def instances(machine: BootedRoot) -> list[tuple[str, str, int]]:
    """Name, status and restarts of each."""
    listed = json.loads(machine.run("skerry", "get", "instances", "-o", "json"))
    return [(each["name"], each["status"], each["restarts"]) for each in listed["instances"]]


def wait_for_instances(machine: BootedRoot, wanted: list[tuple[str, str, int]]) -> None:
    try:
        eventually_sync(lambda: instances(machine) == wanted)
    except AssertionError:
        assert instances(machine) == wanted  # shows what there is instead
        raise


def test_what_is_installed_restarts_without_a_refused_connection_and_leaves_nothing(
    machine: BootedRoot,
) -> None:
    before = machine.files()
    assert machine.run("skerry", "--version") == f"skerry, version {dist.__version__}"
    machine.run("skerry", "install", "up", *SETTINGS)
    assert machine.shown("ActiveState") == "active"
    assert "http://127.0.0.1:1323" in machine.shown("StatusText")
    assert machine.run("systemd-analyze", "verify", "--man=no", "skerry.service", "skerry-http.socket") == ""
    machine.run("skerry", "fn", "deploy", "/srv/hello.py")
    assert machine.run("skerry", "fn", "invoke", "hello") == "42"
    assert "uid=" in machine.run("skerry", "cell", "run", "--", "id")
    machine.run("sh", "-c", "skerry run --name web $(skerry image sample)")

    client = machine.start("python3", "/srv/client.py")
    try:
        machine.run("systemctl", "restart", "skerry")
        machine.run("sh", "-c", f"kill -9 {machine.shown('MainPID')}")
        eventually_sync(lambda: machine.shown("NRestarts") == "1" and machine.shown("SubState") == "running")
    finally:
        machine.run("touch", "/srv/stop")
        answered, refused = json.loads(client.communicate(timeout=2 * PATIENCE_S)[0])
    assert answered > 0
    assert refused == []
    machine.run("rm", "/srv/stop")
    wait_for_instances(machine, [("web", "RUNNING", 0)])  # adopted, not started again

    machine.run("mkdir", "/etc/systemd/system/skerry.service.d")
    machine.run("tee", "/etc/systemd/system/skerry.service.d/watchdog.conf", stdin=QUICK_WATCHDOG)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "skerry")
    stalled = machine.shown("MainPID")
    machine.run("sh", "-c", f"kill -STOP {stalled}")
    eventually_sync(lambda: machine.shown("MainPID") not in ("0", stalled))
    eventually_sync(lambda: machine.shown("SubState") == "running")
    machine.run("rm", "-r", "/etc/systemd/system/skerry.service.d")

    machine.run("skerry", "uninstall", "--yes")
    assert leftovers(machine) == ""
    machine.run("skerry", "install", "up")  # goes on with the data
    wait_for_instances(machine, [("web", "RUNNING", 1)])  # started again
    machine.run("skerry", "uninstall", "--purge", "--yes")
    assert leftovers(machine) == ""
    assert machine.files() == before


def test_an_installed_node_joins_by_an_invitation_that_is_not_kept_and_leaves_its_cloud(
    machine: BootedRoot,
) -> None:
    """The server is installed by hand, with its own units turned off: one machine has one installation."""
    before = machine.files()
    server = (
        "skerry",
        "server",
        "--data",
        "/srv/cloud",
        "--http",
        "127.0.0.1:1423",
        "--grpc",
        "127.0.0.1:1523",
    )
    machine.run("systemd-run", "--unit=cloud", *server, "--socket", "/srv/s.sock")
    cloud = ("env", "SKERRY_DATA=/srv/cloud", "skerry")
    eventually_sync(lambda: "ready" in machine.run(*cloud, "status", is_checked=False))
    invitation = machine.run("sh", "-c", f"{' '.join(cloud)} token create --role node 2>/dev/null")
    assert "invitation" in machine.run("skerry", "install", "node", is_checked=False)  # has none yet

    machine.run("skerry", "install", "node", "-", *SETTINGS, stdin=invitation + "\n")
    eventually_sync(lambda: not machine.run("find", "/etc/skerry", "-name", "invitation"))
    secret = invitation.split(".")[1]
    assert machine.run("grep", "-rls", secret, "/etc", "/var/lib/skerry", is_checked=False) == ""
    machine.run("systemctl", "restart", "skerry")  # without it
    assert "joined" not in machine.run("skerry", "install", "node", "--http", "127.0.0.1:1700")
    assert machine.shown("ActiveState", "skerry-http.socket") == "active"
    eventually_sync(lambda: "ready" in machine.run(*cloud, "get", "nodes"))
    refused = machine.run("skerry", "install", "up", is_checked=False)
    assert "installed as 'node'" in refused

    machine.run("skerry", "uninstall", "--purge", "--yes", "--no-drain")
    assert json.loads(machine.run(*cloud, "get", "nodes", "-o", "json"))["count"] == 0
    machine.run("systemctl", "stop", "cloud")
    machine.run("rm", "-r", "/srv/cloud")
    machine.run("rm", "-f", "/srv/s.sock")
    assert leftovers(machine) == ""
    assert machine.files() == before


def test_an_installed_server_is_confined_and_removing_the_package_removes_its_service(
    machine: BootedRoot,
) -> None:
    machine.run("skerry", "install", "server", "--http", "127.0.0.1:1323")
    assert "ready" in machine.run("skerry", "status")
    machine.run("systemd-analyze", "security", "--threshold=25", "--no-pager", "skerry.service")
    machine.run("skerry", "install", "server", "--http", "127.0.0.1:1423")  # another port
    assert "127.0.0.1:1423" in machine.run("skerry", "status")
    machine.run("apt-get", "-qq", "remove", "-y", "skerry")
    assert machine.shown("LoadState") == "not-found"
    assert leftovers(machine) == ""
    kept = {path for path in machine.files() if "skerry" in path and not path.startswith("/var/lib/dpkg")}
    assert {path for path in kept if not path.startswith("/var/lib/skerry")} == set()
    assert "/var/lib/skerry/store.db" in kept  # data are the operator's
