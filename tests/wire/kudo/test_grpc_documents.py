"""Clients that know only a document make every call of it, at both paths, and are understood."""

from __future__ import annotations

import pytest

from skerry.model.ports import PortMapping
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.statuses import InstanceStatus, NodeStatus
from skerry.model.workloads import InstanceSpec
from tests.support.waiting import eventually
from tests.wire.kudo.grpc_serving import CONTROLLER, SCHEDULER

PREFIXES = pytest.mark.parametrize("prefix", ["", "scheduler."])
SOME = {"cpu": 500, "memory": 64, "disk": 1}
MORE = {"cpu": 4000, "memory": 8192, "disk": 100}
ROOM = Resources(Millicores(500), Megabytes(64), Gigabytes(1))
MORE_ROOM = Resources(Millicores(4000), Megabytes(8192), Gigabytes(100))
SPEC = InstanceSpec(name="web", uri="example.org/web:1.2")
WEB = {
    "id": "web-1",
    "name": "web",
    "uri": "example.org/web:1.2",
    "environnement": ["MODE=fast", "EMPTY="],
    "resource": {"limit": SOME},
    "ports": [{"source": 8080, "destination": 80}],
}


@PREFIXES
async def test_a_node_of_the_newer_document_comes_reports_and_goes(served, prefix):
    async with served.client(SCHEDULER, prefix=prefix) as client:
        registered = await client.call("NodeService.Register", certificate="node-7")
        assert registered == {"code": 0, "description": "registered; id=node-7", "subnet": "10.64.0.0/24"}
        assert served.nodes.all["node-7"].status is NodeStatus.REGISTERING

        report = {"id": "node-7", "resource": {"limit": MORE, "usage": SOME}, "statusDescription": "well"}
        await client.send("NodeService.Status", **report, status="RUNNING")
        await eventually(lambda: served.nodes.reports == ["node-7"])
        node = served.nodes.all["node-7"]
        assert (node.status, node.reason, node.resources) == (NodeStatus.READY, "well", MORE_ROOM)
        assert node.is_foreign
        assert (served.nodes.usage["node-7"], served.nodes.inventories["node-7"]) == (ROOM, None)
        await client.send("NodeService.Status", **report, status="STOPPING")
        assert await client.end() == {}
        assert served.nodes.all["node-7"].status is NodeStatus.DRAINING
        assert served.nodes.unregistered == []

        gone = await client.call("NodeService.Unregister", id="node-7")
        assert gone == {"code": 0, "description": "unregistered"}
        assert [id for id, _ in served.nodes.unregistered] == ["node-7"]


@PREFIXES
async def test_an_instance_of_the_newer_document_is_made_followed_stopped_started_and_destroyed(
    served, prefix
):
    instances = served.instances
    async with served.client(SCHEDULER, prefix=prefix) as client:
        await client.open("InstanceService.Create", **WEB)
        first = await client.next()
        assert first == {
            "id": "web-1",
            "status": "SCHEDULING",
            "statusDescription": "waits for a node",
            "resource": {"limit": SOME, "usage": {"cpu": 0, "memory": 0, "disk": 0}},
        }
        spec = instances.all["web-1"].spec
        assert (spec.name, spec.uri, spec.environment) == (
            *("web", "example.org/web:1.2"),
            ("MODE=fast", "EMPTY="),
        )
        assert (spec.resources, spec.ports) == (ROOM, (PortMapping(8080, 80),))

        instances.used["web-1"] = ROOM
        instances.become("web-1", InstanceStatus.SCHEDULED, InstanceStatus.STARTING, InstanceStatus.RUNNING)
        running = [await client.next() for _ in range(3)]
        assert [update["status"] for update in running] == ["SCHEDULED", "STARTING", "RUNNING"]
        assert running[-1]["resource"]["usage"] == SOME

        for method in ("Stop", "Stop", "Start", "Destroy", "Destroy"):
            assert await client.call(f"InstanceService.{method}", id="web-1") == {}
        assert [what for what, _, _ in instances.desired_changes] == [
            *("create", "stopped", "stopped", "running", "destroyed", "destroyed")
        ]
        unknown = await client.call("InstanceService.Start", id="nobody")
        assert unknown["error"] == "NOT_FOUND"


@PREFIXES
async def test_a_controller_of_the_older_document_tells_of_nodes_and_instances(served, prefix):
    served.nodes.add("node-1", is_foreign=True)
    async with served.client(CONTROLLER, prefix=prefix) as client:
        said = await client.call(
            "SchedulerService.setNodeStatus",
            id="node-1",
            status="RUNNING",
            description="well",
            resource={"max": MORE, "usage": SOME},
            instances=[
                {"id": "a", "name": "a", "status": "CRASHED", "ports": ["8080:80", "53:53/udp"]},
                {"id": "b", "name": "b", "status": "SCHEDULED"},
            ],
        )
        assert said == {}
        node = served.nodes.all["node-1"]
        assert (node.status, node.reason, node.resources) == (NodeStatus.READY, "well", MORE_ROOM)
        assert (served.nodes.usage["node-1"], served.nodes.inventories["node-1"]) == (ROOM, ("a", "b"))


async def test_what_a_client_of_one_document_says_reaches_a_client_of_the_other_by_name(served):
    async with served.client(CONTROLLER) as teller, served.client(SCHEDULER) as follower:
        await follower.open("InstanceService.Create", **WEB)
        await follower.next()
        served.instances.become("web-1", InstanceStatus.SCHEDULED)  # and on no node that could say otherwise
        assert (await follower.next())["status"] == "SCHEDULED"

        async def tell(status: str, description: str = "") -> object:
            return await teller.call(
                "SchedulerService.setInstanceStatus", id="web-1", status=status, description=description
            )

        for status in ("STARTING", "RUNNING"):
            assert await tell(status) == {}
            assert (await follower.next())["status"] == status
        assert await tell("CRASHED", "exited with 137") == {}
        crashed = await follower.next()
        assert (crashed["status"], crashed["statusDescription"]) == ("FAILED", "CRASHED: exited with 137")

        # A crash is not the end; being out of restarts is.
        assert await tell("STARTING") == {}
        assert (await follower.next())["status"] == "STARTING"
        refused = await tell("STOPPED")
        assert refused["error"] == "FAILED_PRECONDITION"
        assert "STARTING and cannot become STOPPED" in refused["details"]
        assert await tell("FAILED", "10 restarts are used up") == {}
        failed = await follower.next()
        assert (failed["status"], failed["statusDescription"]) == ("FAILED", "10 restarts are used up")
        assert await follower.next() is None


async def test_a_node_with_a_certificate_speaks_for_itself_and_for_nobody_else(served):
    pair = served.authority.issue("node-1", "node")
    served.nodes.add("node-2", is_foreign=True)
    async with served.client(SCHEDULER, pair=pair) as client:
        pem = pair.certificate.read_text()
        assert (await client.call("NodeService.Register", certificate=pem))["code"] == 0
        await client.send("NodeService.Status", id="node-1")
        assert await client.end() == {}
        assert served.nodes.all["node-1"].status is NodeStatus.READY
        assert (await client.call("NodeService.Unregister", id="node-2"))["error"] == "PERMISSION_DENIED"
        assert (await client.call("InstanceService.Stop", id="a"))["error"] == "PERMISSION_DENIED"
        assert (await client.call("NodeService.Unregister", id="node-1"))["code"] == 0
    await served.instances.create(SPEC, actor="somebody", id="web-1")
    async with served.client(CONTROLLER, pair=pair) as client:
        for method, about in (("setNodeStatus", "node-2"), ("setInstanceStatus", "web-1")):
            told = await client.call(f"SchedulerService.{method}", id=about, status="STOPPED")
            assert told["error"] == "PERMISSION_DENIED", method
