"""Container options on real machines: of instances, services and jobs, by REST, command line and file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from skerry.node.containers import init_programs
from tests.support import imagery
from tests.support.lans import Lan, lan
from tests.support.waiting import eventually_sync

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(init_programs.find() is None, reason="there is no init: see system-packages.txt"),
]

# Who it is, what it is called, what it may write to, its limits, its names, and process 1.
LOOKS = "id -u; cat /etc/hostname; touch /x || echo kept; ulimit -n; cat /proc/1/cmdline; echo"
SAYS = ["1000", "db-host", "kept", "512", "/dev/init"]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = imagery.busybox(command=("sh", "-c", "echo of the image"))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'web.tar')}"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    with lan(tmp_path_factory.mktemp("lan"), "north", "south") as made:
        yield made


def has_seen_all(cloud: Lan, instance: str) -> bool:
    said = cloud.server.cli("logs", instance).stdout.replace("\0", " ")
    return all(word in said for word in SAYS)


def test_an_instance_has_all_its_options_on_the_node_that_it_is_pinned_to(cloud: Lan, image: str) -> None:
    made = cloud.create(
        uri=image,
        node="south",
        entrypoint=["sh", "-c", f"{LOOKS}; exec sleep 1000"],
        user="1000",
        hostname="db-host",
        read_only=True,
        ulimits=["nofile=512"],
        init=True,
        shm=16,
        stop_grace_s=0.5,
        extra_hosts=["db:192.0.2.99"],
        dns=["192.0.2.53"],
        resources={"cpu": 50, "memory": 32},
        cpu_limit=200,
    )
    seen = cloud.until(made, "RUNNING")
    assert cloud.node_of(seen) == "south"
    assert (seen["user"], seen["hostname"], seen["cpu_limit"]) == ("1000", "db-host", 200)
    eventually_sync(lambda: has_seen_all(cloud, made))
    shown = cloud.server.cli("describe", "instance", made).stdout
    assert "pinned to node" in shown
    assert "nofile=512" in shown


def test_what_is_pinned_to_a_node_that_is_not_there_waits_and_says_so(cloud: Lan, image: str) -> None:
    made = cloud.create(uri=image, node="east", arguments=["sleep", "1000"])
    waiting = "there is no node east; it waits for one of that name or id"
    eventually_sync(lambda: waiting in cloud.instance(made)["reason"])
    assert cloud.instance(made)["status"] == "SCHEDULING"
    told = cloud.call("GET", f"/instance/{made}/explain")
    assert {each["text"] for each in told["nodes"]} == {"is not node east"}
    cloud.call("PATCH", f"/instance/{made}", {"node": "north"})
    assert cloud.node_of(cloud.until(made, "RUNNING")) == "north"


def test_services_jobs_and_files_have_the_same_options(cloud: Lan, image: str, tmp_path: Path) -> None:
    flags = (
        "--node",
        "north",
        "-u",
        "1000",
        "--hostname",
        "db-host",
        "--read-only",
        "--ulimit",
        "nofile=512",
    )
    sizes = ("--init", "--cpu", "0.05", "--cpu-limit", "0.5", "--memory", "32m", "--stop-grace", "500ms")
    script = ("--", "sh", "-c", f"{LOOKS}; exec sleep 1000")
    cli = cloud.server.cli
    created = cli("service", "create", "web", "--replicas", "2", *flags, *sizes, image, *script)
    assert created.returncode == 0, created.stderr
    service = cloud.call("GET", "/service/web")
    assert (service["resources"]["cpu"], service["cpu_limit"], service["stop_grace_s"]) == (50, 500, 0.5)
    for copy in service["copies"]:
        instance = cloud.instance(copy["instance_id"])
        assert cloud.node_of(instance) == "north"
        eventually_sync(partial(has_seen_all, cloud, instance["id"]))
    ran = cli("job", "run", "--name", "once", "--wait", *flags, *sizes, image, "--", "sh", "-c", LOOKS)
    assert ran.returncode == 0, ran.stderr
    said = cli("job", "logs", "once").stdout.replace("\0", " ")
    assert all(word in said for word in SAYS)
    file = tmp_path / "all.yaml"
    file.write_text(
        "instances:\n"
        f"  - {{name: filed, image: '{image}', node: north, user: '1000', hostname: db-host,\n"
        "     read_only: true, ulimits: [nofile=512], init: true, cpu_limit: 0.5,\n"
        "     resources: {cpu: 0.05, memory: 32m},\n"
        f"     arguments: [sh, -c, '{LOOKS}; exec sleep 1000']}}\n"
    )
    applied = cli("apply", "-f", str(file))
    assert applied.returncode == 0, applied.stderr
    eventually_sync(lambda: has_seen_all(cloud, "filed"))
    assert "unchanged" in cli("apply", "-f", str(file)).stdout
    deleted = cli("job", "delete", "once")
    assert deleted.returncode == 0, deleted.stderr
