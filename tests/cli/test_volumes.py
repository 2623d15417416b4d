"""`skerry volume`, and volumes in `run`, `service` and `apply`, on the real control plane."""

from __future__ import annotations

import json
from typing import Any

from tests.support.sites import CloudServer
from tests.support.waiting import eventually_sync

IMAGE = "example.org/db:1"
FILE = """
volumes:
  - {name: db, size: 10g}
instances:
  - name: db
    image: example.org/db:1
    volumes: ["db:/var/lib/db"]
    tmpfs: ["/tmp:64"]
"""


def described(cloud: CloudServer, name: str) -> dict[str, Any]:
    return dict(json.loads(cloud.say("volume", "describe", name, "-o", "json")))


def test_a_volume_is_created_listed_described_and_deleted(cloud: CloudServer) -> None:
    assert cloud.say("volume", "create", "db", "--size", "10g").strip() == "db"
    header, row = cloud.say("volume", "list").splitlines()
    assert header.split() == ["NAME", "ID", "STATUS", "SIZE", "USED", "NODE", "AGE", "REASON"]
    assert row.split()[0] == "db"
    assert row.split()[2:6] == ["UNBOUND", "10GB", "-", "-"]
    assert cloud.say("get", "volumes") == cloud.say("volume", "ls")
    assert "nothing" in cloud.say("volume", "describe", "db")
    assert cloud.say("describe", "volume", "db") == cloud.say("volume", "show", "db")
    assert described(cloud, "db")["size"] == 10
    assert cloud.say("volume", "delete", "db").strip() == "deleted volume db"
    assert "volume list" in cloud.cli("volume", "describe", "db").stderr


def test_what_a_volume_cannot_be_is_told(cloud: CloudServer) -> None:
    assert cloud.cli("volume", "create", "db").exit_code == 2
    assert "lower-case" in cloud.cli("volume", "create", "Db", "--size", "1").stderr
    cloud.say("volume", "create", "db", "--size", "1")
    assert "exists with another spec" in cloud.cli("volume", "create", "db", "--size", "2").stderr


def test_an_instance_names_its_volume_which_must_exist_and_stays_while_it_is_used(cloud: CloudServer) -> None:
    refused = cloud.cli("run", "-d", "-v", "db:/var/lib/db", IMAGE)
    assert refused.exit_code == 1
    assert "skerry volume create db --size 1" in refused.stderr
    cloud.say("volume", "create", "db", "--size", "1")
    cloud.say("run", "-d", "--name", "db", "-v", "db:/var/lib/db", "--tmpfs", "/tmp:16", IMAGE)
    eventually_sync(lambda: described(cloud, "db")["node_id"] is not None)
    shown = cloud.say("describe", "instance", "db")
    assert "db:/var/lib/db" in shown
    assert "/tmp:16" in shown
    used = cloud.cli("volume", "delete", "db")
    assert used.exit_code == 1
    assert "is used by instance db" in used.stderr


def test_a_service_has_volumes_by_template_which_are_deleted_on_request_alone(cloud: CloudServer) -> None:
    cloud.say("service", "create", "db", "--replicas", "0", "--volume-template", "data:/data:1", IMAGE)
    assert "data:/data:1" in cloud.say("service", "describe", "db")
    wrong = cloud.cli("service", "delete", "db", "--delete-volumes", "--detach")
    assert wrong.exit_code == 2
    assert "deleted service db" in cloud.say("service", "delete", "db", "--delete-volumes")


def test_a_file_creates_volumes_before_what_uses_them_and_changes_none(cloud: CloudServer) -> None:
    file = cloud.data / "file.yaml"
    file.write_text(FILE)
    assert cloud.say("apply", "-f", str(file)).splitlines() == ["created volume db", "created instance db"]
    assert cloud.say("apply", "-f", str(file)).splitlines() == [
        "unchanged: volume db",
        "unchanged: instance db",
    ]
    file.write_text(FILE.replace("10g", "11g"))
    refused = cloud.cli("apply", "-f", str(file))
    assert refused.exit_code == 1
    assert "exists with another spec" in refused.stderr
    file.write_text(FILE.replace("10g", "none"))
    assert "volumes[0] (db)" in cloud.cli("apply", "-f", str(file)).stderr
