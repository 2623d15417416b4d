"""Requests as Kudo's own programs send them: its CLI of August 2022, its node agent and its controller.

docs/kudo.md has a row for each. What its controller does with an instance that has failed is in
`test_grpc_instances`.
"""

from __future__ import annotations

import uuid
from typing import Any

from skerry.model.statuses import NodeStatus
from tests.wire.kudo.grpc_serving import SCHEDULER, Served
from tests.wire.kudo.rest_client import Rest

MANIFEST = {
    "kind": "workload",
    "name": "web",
    "type": "container",
    "uri": "docker.io/library/nginx:1.27",
    "env": ["MODE=fast"],
    "resources": {"cpu": 500, "memory": 64, "disk": 1},
    "ports": ["8080:80"],
}
PACKAGE = "scheduler."


def read_by_the_cli(entry: dict[str, Any]) -> dict[str, Any]:
    """What the CLI must find in an object, flat; it gives up on one that lacks any of it."""
    resources = entry["resources"]
    return {
        "name": entry["name"],
        "type": entry["type"],
        "uri": entry["uri"],
        "env": entry["env"],
        "ports": entry["ports"],
        "resources": [resources["cpu"], resources["memory"], resources["disk"]],
    }


SHOWN = {**MANIFEST, "type": "CONTAINER", "resources": [500, 64, 1]}


async def test_the_cli_applies_a_manifest_lists_it_and_makes_and_deletes_an_instance(rest: Rest) -> None:
    made = await rest.ask("PUT", "/workload/", MANIFEST)
    assert made.status == 201
    # It applies again: what is there already is changed.
    assert (await rest.ask("PUT", "/workload/", MANIFEST)).status == 409
    again = await rest.ask("PATCH", f"/workload/{made.body['id']}", MANIFEST)
    assert (again.status, again.body["version"]) == (200, 1)
    [entry] = (await rest.get("/workload/"))["workloads"]
    assert {"kind": entry["kind"], **read_by_the_cli(entry)} == SHOWN
    instance = await rest.ask("PUT", f"/instance/?workloadId={made.body['id']}")
    assert instance.status == 201
    [listed] = (await rest.get("/instance/"))["instances"]
    assert read_by_the_cli(listed) == {name: value for name, value in SHOWN.items() if name != "kind"}
    assert (listed["id"], listed["status"]) == (instance.body["id"], "SCHEDULING")
    assert (await rest.ask("DELETE", f"/instance/{instance.body['id']}")).status == 200
    assert (await rest.ask("DELETE", f"/workload/{made.body['id']}")).status == 200


async def test_the_agent_registers_with_a_new_name_at_each_start_and_reports_on_one_stream(
    served: Served,
) -> None:
    for _ in range(2):  # it is started anew, and never unregisters
        name = str(uuid.uuid4())
        async with served.client(SCHEDULER, prefix=PACKAGE) as agent:
            registered = await agent.call("NodeService.Register", certificate=name)
            assert registered["code"] == 0
            for cpu in (1, 2, 3):
                room = {"limit": {"cpu": 4000, "memory": 8192, "disk": 100}, "usage": {"cpu": cpu}}
                await agent.send("NodeService.Status", id=name, status="RUNNING", resource=room)
            await agent.end()
        assert served.nodes.all[name].status is NodeStatus.READY
        assert served.nodes.usage[name].cpu == 3
    assert len(served.nodes.all) == 2


async def test_the_controller_creates_follows_and_destroys_an_instance(served: Served) -> None:
    async with served.client(SCHEDULER, prefix=PACKAGE) as controller:
        wish = {"id": "default.web", "name": "web", "uri": "docker.io/library/nginx:1.27"}
        await controller.open("InstanceService.Create", **wish)
        first = await controller.next()
        assert (first["status"], first["resource"]["limit"]["cpu"]) == ("SCHEDULING", 0)
        assert await controller.call("InstanceService.Destroy", id="default.web") == {}
        await controller.hang_up()
    assert [what for what, _, _ in served.instances.desired_changes] == ["create", "destroyed"]
