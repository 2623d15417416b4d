"""Messages that are wrong in every way that a message can be: refused in words, and nothing half-done."""

from __future__ import annotations

from typing import Any

import pytest
from grpclib.const import Status as Code
from grpclib.exceptions import GRPCError

from skerry.transport.proto import kudo_controller_pb2 as a
from skerry.transport.proto import kudo_scheduler_pb2 as pb
from skerry.transport.proto.kudo_services_grpc import (
    InstanceServiceStub,
    NodeServiceStub,
    SchedulerServiceStub,
)
from tests.transport.grpc.raw import RawClient, framed

TOO_MUCH = 2**31


def web(**fields: Any) -> pb.Instance:
    return pb.Instance(**{"id": "web-1", "name": "web", "uri": "example.org/web", **fields})


def limit(**amounts: int) -> pb.Resource:
    return pb.Resource(limit=pb.ResourceSummary(**amounts))


def ports(*pairs: tuple[int, int]) -> list[pb.Port]:
    return [pb.Port(source=source, destination=destination) for source, destination in pairs]


INSTANCES = {
    "no image": (web(uri=""), "uri"),
    "no image by that name": (web(uri="http://example.org/web"), "without the"),
    "a bad id": (web(id="../web"), "id '../web' must be"),
    "a long id": (web(id="x" * 129), "1 to 128 letters"),
    "another type": (web(type=1), "no type 1"),
    "a negative type": (web(type=-1), "no type -1"),
    "101 ports": (web(ports=ports(*((n, n) for n in range(1, 102)))), "101 ports"),
    "a port twice": (web(ports=ports((80, 80), (80, 81))), "mapped twice"),
    "no port": (web(ports=[pb.Port()]), "1 to 65535, not 0"),
    "a port to nowhere": (web(ports=[pb.Port(source=80)]), "1 to 65535, not 0"),
    "a large port": (web(ports=ports((65536, 1))), "not 65536"),
    "a negative port": (web(ports=ports((-1, 1))), "not -1"),
    "a port that would be cut to a good one": (web(ports=ports((2**32 + 80, 1))), "65535"),
    "101 variables": (web(environnement=[f"K{n}=" for n in range(101)]), "101 variables"),
    "a variable without a value": (web(environnement=["A=1", "SECRET"]), "[1] must read KEY=VALUE"),
    "a variable twice": (web(environnement=["A=1", "A=2"]), "'A' twice"),
    "negative cpu": (web(resource=limit(cpu=-1)), "resource.limit.cpu must be 0 to 2147483647"),
    "too much memory": (web(resource=limit(memory=TOO_MUCH)), "resource.limit.memory must be 0"),
    "disk that would be cut to none": (web(resource=limit(disk=2**32)), "resource.limit.disk must be 0"),
}


@pytest.mark.parametrize("case", INSTANCES)
async def test_an_instance_that_is_wrong_is_not_made(channel, served, case):
    message, words = INSTANCES[case]
    with pytest.raises(GRPCError) as caught:
        await InstanceServiceStub(channel).Create(message)
    assert caught.value.status is Code.INVALID_ARGUMENT
    assert words in caught.value.message
    assert "SECRET" not in caught.value.message
    assert served.instances.all == {}


async def test_an_instance_at_every_limit_is_made(channel, served):
    message = web(
        environnement=[f"K{n}=v" for n in range(100)],
        ports=ports(*((65535 - n, n + 1) for n in range(100))),
        resource=limit(cpu=TOO_MUCH - 1, memory=TOO_MUCH - 1, disk=TOO_MUCH - 1),
    )
    async with InstanceServiceStub(channel).Create.open() as stream:
        await stream.send_message(message, end=True)
        told = await stream.recv_message()
        await stream.cancel()
    assert told.resource.limit == message.resource.limit
    assert len(served.instances.all["web-1"].spec.ports) == 100


def node(**fields: Any) -> a.NodeStatus:
    return a.NodeStatus(**{"id": "node-1", **fields})


NODES = {
    "nothing at all": (a.NodeStatus(), "id '' must be"),
    "a number of no document": (node(status=10), "no status 10"),
    "a negative number": (node(status=-1), "no status -1"),
    "what no node can be": (node(status="SCHEDULING"), "a node cannot be SCHEDULING"),
    "negative room": (node(resource=a.Resource(max=a.ResourceSummary(cpu=-1))), "cpu"),
    "too much use": (node(resource=a.Resource(usage=a.ResourceSummary(disk=TOO_MUCH))), "disk"),
    "an instance without an id": (node(instances=[a.Instance(id="i"), a.Instance()]), "instances.id"),
    "an instance of no status": (node(instances=[a.Instance(id="i", status=10)]), "no status 10"),
    "an instance of no type": (node(instances=[a.Instance(id="i", type=2)]), "no type 2"),
    "negative use of an instance": (
        node(instances=[a.Instance(id="i", resource=a.Resource(usage=a.ResourceSummary(cpu=-1)))]),
        "cpu",
    ),
    "too many instances": (node(instances=[a.Instance(id=f"i{n}") for n in range(10_001)]), "at most 10000"),
}


@pytest.mark.parametrize("case", NODES)
async def test_a_report_of_a_node_that_is_wrong_is_not_taken(channel, served, case):
    served.nodes.add("node-1", is_foreign=True)
    message, words = NODES[case]
    with pytest.raises(GRPCError) as caught:
        await SchedulerServiceStub(channel).setNodeStatus(message)
    assert caught.value.status is Code.INVALID_ARGUMENT
    assert words in caught.value.message
    assert served.nodes.reports == []


async def test_a_number_that_only_the_other_document_has_is_refused(channel, served):
    served.nodes.add("node-1", is_foreign=True)
    with pytest.raises(GRPCError, match="no status 9") as caught:
        await NodeServiceStub(channel).Status(
            [pb.NodeStatus(id="node-1"), pb.NodeStatus(id="node-1", status=9)]
        )
    assert caught.value.status is Code.INVALID_ARGUMENT
    assert served.nodes.reports == ["node-1"]  # what came before was said


@pytest.mark.parametrize("fields", [{}, {"status": "STOPPED"}, {"id": "web-1", "status": 10}])
async def test_a_status_of_nothing_or_of_no_number_is_refused(channel, fields):
    with pytest.raises(GRPCError) as caught:
        await SchedulerServiceStub(channel).setInstanceStatus(a.InstanceStatus(**fields))
    assert caught.value.status is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("method", ["Start", "Stop", "Destroy"])
async def test_a_wish_for_nothing_is_refused(channel, method):
    with pytest.raises(GRPCError) as caught:
        await getattr(InstanceServiceStub(channel), method)(pb.InstanceIdentifier())
    assert caught.value.status is Code.INVALID_ARGUMENT


async def test_a_description_of_any_kind_is_taken_as_one_short_line(channel, served):
    served.nodes.add("node-1", is_foreign=True)
    text = "died:\n\tOut of\0memory " + "x" * 1000
    await SchedulerServiceStub(channel).setNodeStatus(a.NodeStatus(id="node-1", description=text))
    reason = served.nodes.all["node-1"].reason
    assert reason.startswith("died: Out of memory xxx")
    assert len(reason) == 256


@pytest.mark.parametrize("ports", ["420438303830", "4207383038303a3830"], ids=["8080", "8080:80"])
async def test_ports_in_the_older_documents_words_are_no_ports_of_the_newer(served, ports):
    # The first reads as a Port that has nothing in it, and the second as no Port at all.
    body = web().SerializeToString() + bytes.fromhex(ports)
    async with RawClient(served.port) as raw:
        status, _ = await raw.call("/InstanceService/Create", framed(body))
    assert Code(status) is Code.INVALID_ARGUMENT
    assert served.instances.all == {}


async def test_ports_in_the_newer_documents_words_are_no_texts_of_the_older(served):
    served.nodes.add("node-1", is_foreign=True)
    instance = bytes.fromhex("0a0169" + "420508903f1050")  # Port{8080, 80}
    body = node().SerializeToString() + bytes([0x2A, len(instance)]) + instance
    async with RawClient(served.port) as raw:
        status, _ = await raw.call("/SchedulerService/setNodeStatus", framed(body))
    assert Code(status) is Code.INVALID_ARGUMENT
    assert served.nodes.reports == []
