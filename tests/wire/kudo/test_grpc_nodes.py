"""NodeService and setNodeStatus: nodes of third parties come, report, and go only when they say so."""

from __future__ import annotations

import hashlib

import pytest
from grpclib.const import Status as Code
from grpclib.exceptions import GRPCError

from skerry.model import errors
from skerry.model.nodes import NodeFacts
from skerry.model.resources import Megabytes, Millicores, Resources
from skerry.model.statuses import NodeStatus
from skerry.transport.grpc.channels import dial
from skerry.transport.proto import kudo_controller_pb2 as a
from skerry.transport.proto import kudo_scheduler_pb2 as pb
from skerry.transport.proto.kudo_services_grpc import NodeServiceStub, SchedulerServiceStub
from tests.support.waiting import eventually


@pytest.fixture
def nodes(channel) -> NodeServiceStub:
    return NodeServiceStub(channel)


async def register(nodes: NodeServiceStub, certificate: str = "node-1") -> pb.NodeRegisterResponse:
    return await nodes.Register(pb.NodeRegisterRequest(certificate=certificate))


async def test_a_node_gets_an_id_and_a_subnet_of_its_own_and_gets_them_again(nodes, served):
    first, other, again = [await register(nodes, name) for name in ("node-1", "node-2", "node-1")]
    assert (first.code, first.id, first.subnet) == (0, "node-1", "10.64.0.0/24")
    assert first.description == "registered; id=node-1"
    assert (other.id, other.subnet) == ("node-2", "10.64.1.0/24")
    assert again == first
    assert all(node.is_foreign for node in served.nodes.all.values())


async def test_registering_again_forgets_nothing(nodes, served):
    await register(nodes)
    resources = Resources(Millicores(4000), Megabytes(8192))
    facts = NodeFacts(architecture="arm64")
    served.nodes.add(
        "node-1", is_foreign=True, name="attic", resources=resources, facts=facts, labels={"zone": "a"}
    )
    before = served.nodes.all["node-1"]
    assert (await register(nodes)).code == 0
    assert served.nodes.all["node-1"] == before


async def test_what_is_no_id_becomes_one_and_always_the_same(nodes):
    text = "a node of ours, höher\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    assert [(await register(nodes, text)).id for _ in range(2)] == [digest] * 2


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (errors.Internal("a fault"), 1),
        (errors.Unavailable("the store is away"), 1),
        (errors.AlreadyExists("node node-1 has a session of its own"), 3),
        (errors.ResourcesExhausted("all subnets are taken"), 4),
    ],
)
async def test_why_a_registration_failed_is_in_the_answer(nodes, served, failure, code):
    served.nodes.fails = failure
    answer = await register(nodes)
    assert (answer.code, answer.description) == (code, failure.message)
    assert (answer.subnet, answer.id) == ("", "")
    assert served.nodes.all == {}


async def test_the_id_of_a_node_of_ours_cannot_be_taken(nodes, served):
    served.nodes.add("node-1")
    assert (await register(nodes)).code == 3
    assert not served.nodes.all["node-1"].is_foreign


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        ("", "send the certificate"),
        ("x" * 70_000, "send the certificate"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "not a PEM certificate"),
        ("-----BEGIN CERTIFICATE-----", "not a PEM certificate"),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "not a PEM certificate"),
    ],
)
async def test_a_bad_certificate_makes_no_node(nodes, served, certificate, words):
    answer = await register(nodes, certificate)
    assert answer.code == 2
    assert words in answer.description
    assert served.nodes.all == {}


@pytest.mark.parametrize("role", ["node", "admin"])
async def test_a_name_is_taken_only_without_tls_on_loopback(served, role):
    pair = served.authority.issue("node-1", role)
    line = dial(f"localhost:{served.port}", served.authority.client_context(pair))
    answer = await register(NodeServiceStub(line), "node-1")
    line.close()
    assert answer.code == 2
    assert "no PEM" in answer.description
    assert served.nodes.all == {}


async def test_a_node_cannot_register_with_the_certificate_of_another(served):
    mine, others = (served.authority.issue(name, "node") for name in ("node-1", "node-2"))
    line = dial(f"localhost:{served.port}", served.authority.client_context(mine))
    answers = [await register(NodeServiceStub(line), pair.certificate.read_text()) for pair in (others, mine)]
    line.close()
    assert [answer.code for answer in answers] == [2, 0]
    assert "node node-2's" in answers[0].description
    assert list(served.nodes.all) == ["node-1"]


async def test_reports_of_both_documents_are_one_kind_of_thing(nodes, served, channel):
    for name in ("node-1", "node-2"):
        await register(nodes, name)
    resources, usage = {"cpu": 4000, "memory": 8192, "disk": 100}, {"cpu": 1, "memory": 2, "disk": 3}
    old = a.Resource(max=a.ResourceSummary(**resources), usage=a.ResourceSummary(**usage))
    new = pb.Resource(limit=pb.ResourceSummary(**resources), usage=pb.ResourceSummary(**usage))
    said = {"status": "STOPPED", "instances": [{"id": "i"}]}
    await SchedulerServiceStub(channel).setNodeStatus(
        a.NodeStatus(id="node-1", description="so", resource=old, **said)
    )
    await nodes.Status([pb.NodeStatus(id="node-2", statusDescription="so", resource=new, **said)])
    one, two = (served.nodes.all[name] for name in ("node-1", "node-2"))
    assert (one.status, one.reason, one.resources) == (two.status, two.reason, two.resources)
    assert one.status is NodeStatus.DRAINED
    assert one.resources == Resources(**resources)
    assert served.nodes.usage["node-1"] == served.nodes.usage["node-2"] == Resources(**usage)
    assert served.nodes.inventories == {"node-1": ("i",), "node-2": ("i",)}


async def test_a_report_without_resources_leaves_them_as_they_are(nodes, served):
    await register(nodes)
    resources = pb.Resource(limit=pb.ResourceSummary(cpu=4000))
    await nodes.Status([pb.NodeStatus(id="node-1", resource=resources), pb.NodeStatus(id="node-1")])
    assert served.nodes.all["node-1"].resources == Resources(Millicores(4000))


async def test_an_inventory_is_the_whole_one_and_each_instance_is_in_it_once(nodes, served):
    await register(nodes)
    messages = [
        pb.NodeStatus(id="node-1", instances=[pb.Instance(id=name) for name in names])
        for names in ("ab", "aba", "b")
    ]
    for message, inventory in zip(messages, [("a", "b"), ("a", "b"), ("b",)], strict=True):
        await nodes.Status([message])
        assert served.nodes.inventories["node-1"] == inventory


async def test_the_end_of_a_stream_is_no_end_of_a_node_whether_it_is_clean_or_not(nodes, served):
    await register(nodes)
    await nodes.Status([pb.NodeStatus(id="node-1")])
    async with nodes.Status.open() as stream:
        await stream.send_message(pb.NodeStatus(id="node-1"))
        await eventually(lambda: len(served.nodes.reports) == 2)
        await stream.cancel()
    # It goes on without registering again.
    await nodes.Status([pb.NodeStatus(id="node-1")])
    assert len(served.nodes.reports) == 3
    assert served.nodes.unregistered == []
    assert served.nodes.all["node-1"].status is NodeStatus.READY


async def test_the_streams_of_many_nodes_stay_open_and_none_waits_for_another(nodes, served, channel):
    names = [f"node-{number}" for number in range(5)]
    for name in names:
        await register(nodes, name)
    async with (
        nodes.Status.open() as one,
        nodes.Status.open() as two,
        nodes.Status.open() as three,
    ):
        streams = [one, two, three]
        for _ in range(50):
            for stream, name in zip(streams, names, strict=False):
                await stream.send_message(pb.NodeStatus(id=name))
        await eventually(lambda: len(served.nodes.reports) == 150)
        # And other calls are served meanwhile.
        await SchedulerServiceStub(channel).setNodeStatus(a.NodeStatus(id="node-4"))
        for stream in streams:
            await stream.end()
            assert await stream.recv_message() is not None
    assert [served.nodes.reports.count(name) for name in names] == [50, 50, 50, 0, 1]


@pytest.mark.parametrize("message", [pb.NodeStatus(id="nobody"), pb.NodeStatus(id="attic")])
async def test_a_report_of_a_node_that_did_not_register_is_not_found(nodes, served, message):
    served.nodes.add("node-1", name="attic")  # a name is no id
    with pytest.raises(GRPCError, match="register it first") as caught:
        await nodes.Status([message])
    assert caught.value.status is Code.NOT_FOUND
    assert served.nodes.reports == []


async def test_unregistering_says_how_it_went(nodes, served):
    await register(nodes)
    served.nodes.add("node-2", name="attic")
    done = await nodes.Unregister(pb.NodeUnregisterRequest(id="node-1"))
    assert (done.code, done.description) == (0, "unregistered")
    for id in ("node-1", "attic"):
        unknown = await nodes.Unregister(pb.NodeUnregisterRequest(id=id))
        assert unknown.code == 1
        assert "there is no node" in unknown.description
    served.nodes.fails = errors.FailedPrecondition("node node-2 has 3 instances; drain it first")
    refused = await nodes.Unregister(pb.NodeUnregisterRequest(id="node-2"))
    assert (refused.code, refused.description) == (1, "node node-2 has 3 instances; drain it first")
    assert list(served.nodes.all) == ["node-2"]


async def test_a_node_that_left_may_come_again(nodes, served):
    await register(nodes)
    await nodes.Unregister(pb.NodeUnregisterRequest(id="node-1"))
    assert (await register(nodes)).code == 0
    assert list(served.nodes.all) == ["node-1"]
