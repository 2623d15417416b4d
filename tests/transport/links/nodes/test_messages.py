"""Nouns and messages: everything that a session carries comes out as it went in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.callers import RevokedCertificate
from skerry.model.containers import NetworkMode
from skerry.model.enforcement import (
    AS_ROOT,
    ContainerNetwork,
    Isolation,
    LimitMeans,
    Limits,
    NodeEnforcement,
    RootFilesystem,
)
from skerry.model.functions import CUSTOM, Function
from skerry.model.health_checks import CheckMethod, CheckRole, HealthCheck
from skerry.model.ids import Digest, FunctionName, InstanceId, NodeId
from skerry.model.images import ImageAccess
from skerry.model.members import ContinuumMember
from skerry.model.network import Egress
from skerry.model.node_messages import (
    ClaimBatch,
    FunctionUpdate,
    InstanceClaim,
    MemberList,
    NodeHello,
    OrderUpdate,
    ReportAck,
    ReportBatch,
    RevocationUpdate,
    ServerList,
    SessionClose,
    SessionConfig,
    SessionHeartbeat,
    TunnelRequest,
)
from skerry.model.nodes import NodeFacts
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.ports import PortMapping, Protocol
from skerry.model.resources import MAX_AMOUNT, Gigabytes, Megabytes, Millicores, Resources
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.streams import ExecStreamRequest, LogStreamRequest
from skerry.model.workloads import InstanceSpec, MetricSource, RestartMode, RestartPolicy
from skerry.transport.links.nodes import enforcement_messages, member_messages, messages
from skerry.transport.links.nodes.message_parts import PART_BYTES
from skerry.transport.proto import nodes_pb2 as pb
from tests.support.option_strategies import container_options

words = st.from_regex(r"[a-z][a-z0-9]{0,11}", fullmatch=True)
lines = st.text(st.characters(categories=["L", "N", "P"]), max_size=40)
amounts = st.integers(0, MAX_AMOUNT)
rooms = st.builds(
    lambda cpu, memory, disk: Resources(Millicores(cpu), Megabytes(memory), Gigabytes(disk)),
    amounts,
    amounts,
    amounts,
)
instance_ids = words.map(InstanceId)
moments = st.floats(0, 4e9)
means = st.sampled_from(LimitMeans)
enforcements = st.builds(
    NodeEnforcement,
    st.sampled_from(Isolation),
    st.builds(Limits, means, means, means, means),
    st.sampled_from(ContainerNetwork),
    st.sampled_from(RootFilesystem),
    st.integers(0, 1 << 32),
    st.integers(0, 65535),
    st.booleans(),
    st.lists(lines, max_size=3).map(tuple),
)

ports = st.lists(
    st.builds(PortMapping, st.integers(1, 65535), st.integers(1, 65535), st.sampled_from(Protocol)),
    max_size=4,
    unique_by=lambda mapping: (mapping.source, mapping.protocol),
)
checks = st.builds(
    HealthCheck,
    st.sampled_from(CheckRole),
    st.sampled_from(CheckMethod),
    st.integers(1, 65535),
    st.just("/health"),
    words,
    st.lists(words, min_size=1, max_size=3).map(tuple),
    st.floats(0.1, 3600),
    st.floats(0.05, 300),
    st.integers(1, 1000),
    st.integers(1, 1000),
    st.floats(0, 3600),
)
checked_specs = st.builds(
    lambda name, checks, spread, most, metric: InstanceSpec(
        name=name,
        uri="example.org/web:1",
        checks=tuple(checks),
        spread=tuple(spread),
        max_per_node=most,
        metric=metric,
    ),
    words,
    st.lists(checks, max_size=3),
    st.lists(words, max_size=3),
    st.integers(0, 1000),
    st.none() | st.builds(MetricSource, words, st.integers(1, 65535), st.just("/metrics")),
)
optioned_specs = st.builds(
    lambda name, node, limit, options: InstanceSpec(
        name=name, uri="example.org/web:1", node=node, cpu_limit=limit, options=options
    ),
    words,
    st.just("") | words,
    st.none() | st.integers(0, MAX_AMOUNT).map(Millicores),
    container_options,
)
specs = (
    checked_specs
    | optioned_specs
    | st.builds(
        lambda name, keys, resources, ports, when, budget, arguments, architecture, constraints: InstanceSpec(
            name=name,
            uri=f"example.org/{name}:1",
            environment=tuple(f"{key}=ü" for key in keys),
            resources=resources,
            ports=tuple(ports),
            restart=RestartPolicy(when, budget),
            arguments=tuple(arguments),
            architecture=architecture,
            constraints=tuple(f"{label}!=x" for label in constraints),
        ),
        words,
        st.lists(words, unique=True, max_size=3),
        rooms,
        ports,
        st.sampled_from(RestartMode),
        st.none() | st.integers(0, 1_000_000),
        st.lists(lines, max_size=3),
        words,
        st.lists(words, max_size=3),
    )
)
orders = st.builds(
    InstanceOrder,
    instance_ids,
    st.integers(1, 2**60),
    specs,
    st.sampled_from(DesiredStatus),
    st.sampled_from(Egress),
    st.binary(max_size=50),
)
reports = st.builds(
    InstanceReport,
    instance_ids,
    st.integers(0, 2**60),
    st.sampled_from(InstanceStatus),
    moments,
    lines,
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**31),
    st.just("") | st.just("10.64.0.2"),
    rooms,
    st.none() | moments,
    st.booleans(),
    moments,
    lines,
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
)


members = st.builds(
    ContinuumMember,
    words.map(NodeId),
    lines,
    lines,
    lines,
    lines,
    st.integers(0, 2**52),
    st.floats(0, 1e6),
    st.booleans(),
)
functions = st.builds(
    lambda name, image, memory, cpu, concurrency, keys, network, timeout_s, at, version, idempotent: Function(
        name=FunctionName(name),
        runtime=CUSTOM if image else "python310",
        memory=Megabytes(memory),
        created_at=at,
        cpu=None if cpu is None else Millicores(cpu),
        max_concurrency=concurrency,
        handler="" if image else "m.f",
        code=None if image else Digest("sha256:" + "0" * 64),
        image=image,
        environment=tuple(f"{key}=ü" for key in keys),
        network=network,
        timeout_s=timeout_s,
        updated_at=at + 1.0,
        version=version,
        is_idempotent=idempotent,
        policy="edgecloud" if idempotent else "",
    ),
    words,
    st.just("") | words,
    st.integers(1, MAX_AMOUNT),
    st.none() | st.integers(1, MAX_AMOUNT),
    st.integers(1, 2**15 - 1),
    st.lists(words, unique=True, max_size=3),
    st.sampled_from(NetworkMode),
    st.none() | st.floats(0.001, 86_400),
    moments,
    st.integers(1, 2**60),
    st.booleans(),
)


def through(message):
    """`message` as the node reads it, whole, and in how many parts."""
    reader = messages.MessageReader()
    parts = [
        pb.ToNode.FromString(part.SerializeToString()) for part in messages.encode_server_message(message)
    ]
    read = [reader.read(part) for part in parts]
    assert read[:-1] == [None] * (len(read) - 1)
    return read[-1], len(parts)


@given(
    st.builds(
        NodeHello,
        lines,
        st.builds(
            NodeFacts,
            lines,
            lines,
            lines,
            lines,
            runs_checks=st.booleans(),
            features=st.lists(words, max_size=3).map(tuple),
            devices=st.sampled_from([(), ("nvidia.com/gpu=0", "a.b/c-d=GPU-1:0")]),
            enforcement=st.none() | enforcements,
        ),
        rooms,
        st.dictionaries(words, lines, max_size=5),
        st.just("10.64.0.0/24"),
        st.none() | members,
        st.booleans(),
        st.sampled_from([(), ("10.64.3.0/24", "192.0.2.0/24")]),
        st.booleans(),
        st.sampled_from([(), ("10.64.1.0/24", "10.64.2.0/24")]),
    )
)
def test_a_hello_comes_out_as_it_went_in(hello):
    assert (
        messages.decode_hello(pb.Hello.FromString(messages.encode_hello(hello).SerializeToString())) == hello
    )


def test_a_node_that_states_no_enforcement_is_none_and_unknown_words_enforce_nothing() -> None:
    silent = messages.decode_hello(pb.Hello(name="edge", facts=pb.Facts()))
    assert silent.facts.enforcement is None
    later = pb.Facts(enforcement=pb.Enforcement(isolation="machine", memory="hardware", network="quantum"))
    found = messages.decode_hello(pb.Hello(name="edge", facts=later)).facts.enforcement
    assert found == NodeEnforcement(Isolation.NONE)


def test_reasons_of_a_node_are_shortened_to_what_servers_take() -> None:
    wordy = replace(AS_ROOT, reasons=("two\nlines" + "x" * 2000,) * 99)
    sent = messages.encode_hello(NodeHello("edge", NodeFacts(enforcement=None)))
    assert not sent.facts.HasField("enforcement")
    encoded = enforcement_messages.encode(wordy)
    decoded = enforcement_messages.decode(pb.Facts(enforcement=encoded))
    assert decoded is not None
    assert len(decoded.reasons) == 16
    NodeFacts(enforcement=decoded)  # is valid


@given(st.integers(1, 2**60), st.lists(reports, max_size=5))
def test_reports_come_out_as_they_went_in(sequence, batch):
    told = messages.encode_reports(ReportBatch(sequence, tuple(batch)))
    assert messages.decode_reports(pb.Reports.FromString(told.SerializeToString())) == ReportBatch(
        sequence, tuple(batch)
    )


@given(st.lists(st.builds(InstanceClaim, st.binary(max_size=100), reports), max_size=5))
def test_claims_come_out_as_they_went_in(some):
    claims = ClaimBatch(tuple(some), (RevokedCertificate("0a" * 16, 1.5, b"proof"),))
    told = messages.encode_claims(claims)
    assert messages.decode_claims(pb.Claims.FromString(told.SerializeToString())) == claims


def test_a_report_of_a_node_that_knows_no_checks_says_that_they_have_passed():
    before = pb.Report(instance="i", generation=1, status=pb.STATUS_RUNNING, at=5.0)
    [report] = messages.decode_reports(pb.Reports(sequence=1, reports=[before])).reports
    assert report.has_passed
    assert report.metric is None


def test_a_metric_that_is_no_number_says_nothing_and_the_report_still_counts():
    odd = pb.Report(instance="i", generation=1, status=pb.STATUS_RUNNING, at=5.0, metric=float("nan"))
    [report] = messages.decode_reports(pb.Reports(sequence=1, reports=[odd])).reports
    assert report.metric is None
    odd.checked_at = float("inf")
    with pytest.raises(errors.Invalid, match="numbers of seconds"):
        messages.decode_reports(pb.Reports(sequence=1, reports=[odd]))


def test_checks_that_are_impossible_or_too_many_are_refused():
    def order(*checks):
        return pb.ToNode(
            orders=pb.Orders(
                orders=[
                    pb.Order(
                        instance="i",
                        generation=1,
                        desired=pb.DESIRED_RUNNING,
                        spec=pb.Spec(
                            name="web", uri="web:1", kind="CONTAINER", restart="always", checks=checks
                        ),
                    )
                ]
            )
        )

    good = pb.Check(
        role="liveness",
        method="tcp",
        port=80,
        path="/",
        interval_s=1,
        timeout_s=1,
        healthy_after=1,
        unhealthy_after=1,
    )
    messages.MessageReader().read(order(good))
    for wrong, why in ((order(*[good] * 17), "at most 16"), (order(pb.Check(role="odd")), "no checks.role")):
        with pytest.raises(errors.Invalid, match=why):
            messages.MessageReader().read(wrong)


def test_a_hello_names_a_bearable_number_of_networks():
    many = ("10.0.0.0/24",) * 1001
    for too_many in (NodeHello("edge", occupied=many), NodeHello("edge", former=many)):
        with pytest.raises(errors.Invalid, match="at most 1000 networks"):
            messages.decode_hello(messages.encode_hello(too_many))


def test_a_welcome_comes_out_as_it_went_in():
    welcome = SessionConfig(
        NodeId("n1"), "10.64.0.0/24", 2.0, 1.0, 60.0, 600.0, 8.0, takes_claims=True, wants_claims=True
    )
    told = pb.ToNode.FromString(messages.encode_welcome(welcome).SerializeToString())
    assert messages.decode_welcome(told.welcome) == welcome


@given(st.integers(1, 2**60), st.booleans(), st.lists(orders, max_size=4), st.lists(instance_ids, max_size=3))
def test_orders_come_out_as_they_went_in(sequence, is_full, some, gone):
    sent = OrderUpdate(sequence, is_full=is_full, orders=tuple(some), removed=tuple(gone))
    assert through(sent) == (sent, 1)


@given(st.lists(members, max_size=4))
def test_members_come_out_as_they_went_in(some):
    assert through(MemberList(tuple(some))) == (MemberList(tuple(some)), 1)


@given(st.booleans(), st.lists(functions, max_size=4), st.lists(words.map(FunctionName), max_size=3))
def test_functions_come_out_as_they_went_in(is_full, some, gone):
    sent = FunctionUpdate(is_full=is_full, functions=tuple(some), removed=tuple(gone))
    assert through(sent) == (sent, 1)


def test_many_functions_and_members_go_in_parts_and_come_out_as_one_set():
    one = Function(
        FunctionName("f"),
        CUSTOM,
        Megabytes(1),
        0.0,
        image="i",
        environment=tuple(f"K{n}={'x' * 9000}" for n in range(28)),
    )
    sent = FunctionUpdate(is_full=False, functions=(one,) * 10, removed=(FunctionName("g"),))
    read, count = through(sent)
    assert read == sent
    assert 3 <= count <= 10
    everybody = MemberList(tuple(ContinuumMember(NodeId(f"n{n}"), "x" * 200, "edge") for n in range(6000)))
    read, count = through(everybody)
    assert read == everybody
    assert count == 2


def test_many_revoked_certificates_go_in_parts_and_come_out_as_one_set():
    everything = RevocationUpdate(tuple(RevokedCertificate(f"{n:032x}", 4e9) for n in range(60_000)))
    read, count = through(everything)
    assert read == everything
    assert count > 1


def test_many_orders_go_in_parts_and_come_out_as_one_set():
    spec = InstanceSpec(
        name="web", uri="example.org/web:1", environment=tuple(f"K{n}={'x' * 9000}" for n in range(60))
    )
    sent = OrderUpdate(
        3,
        is_full=True,
        orders=tuple(InstanceOrder(InstanceId(f"i{n}"), 1, spec, DesiredStatus.RUNNING) for n in range(10)),
    )
    read, parts = through(sent)
    assert read == sent
    assert 5 <= parts <= 10
    assert all(part.ByteSize() < 2 * PART_BYTES for part in messages.encode_server_message(sent))


@pytest.mark.parametrize(
    "message",
    [
        ReportAck(7),
        ServerList(("server-1.example:8081", "[fd00::2]:8081")),
        SessionHeartbeat(),
        SessionClose("this server stops"),
        RevocationUpdate(),
        RevocationUpdate(revoked=(RevokedCertificate("0a" * 16, 1.5),)),
        TunnelRequest("id", InstanceId("i1"), LogStreamRequest(tail=10)),
        TunnelRequest("id", InstanceId("i1"), ExecStreamRequest(("sh",))),
    ],
)
def test_the_rest_comes_out_as_it_went_in(message):
    assert through(message) == (message, 1)


@pytest.mark.parametrize(
    "rubbish",
    [
        pb.ToNode(),
        pb.ToNode(welcome=pb.Welcome()),
        pb.ToNode(open_tunnel=pb.OpenTunnel(id="x")),
        pb.ToNode(open_tunnel=pb.OpenTunnel(id="x", logs=pb.LogsAsk(stream="stdin"))),
        pb.ToNode(orders=pb.Orders(orders=[pb.Order()])),
        pb.ToNode(members=pb.Members(members=[pb.Member()])),
        pb.ToNode(members=pb.Members(members=[pb.Member(node="n1", cpus=float("nan"))])),
        pb.ToNode(functions=pb.Functions(functions=[pb.Function(name="f", network="bridge")])),
        pb.ToNode(functions=pb.Functions(functions=[pb.Function(name="f", created_at=float("inf"))])),
        pb.ToNode(orders=pb.Orders(orders=[pb.Order(instance="i1", desired=77)])),
    ],
)
def test_what_a_server_says_wrong_is_refused(rubbish):
    with pytest.raises(errors.Invalid):
        messages.MessageReader().read(rubbish)


def test_parts_of_different_sets_do_not_become_one():
    reader = messages.MessageReader()
    assert reader.read(pb.ToNode(orders=pb.Orders(sequence=1, whole=True, more=True))) is None
    with pytest.raises(errors.Invalid):
        reader.read(pb.ToNode(orders=pb.Orders(sequence=2, whole=False)))
    assert reader.read(pb.ToNode(functions=pb.Functions(whole=True, more=True))) is None
    with pytest.raises(errors.Invalid):
        reader.read(pb.ToNode(functions=pb.Functions(whole=False)))


def test_every_status_has_a_number_of_its_own():
    assert len({messages._STATUS[status] for status in InstanceStatus}) == len(InstanceStatus)
    assert 0 not in messages._STATUS_OF
    assert 0 not in messages._DESIRED_OF


def test_orders_in_more_parts_than_are_bearable_are_given_up() -> None:
    reader = messages.MessageReader(most_bytes=1000)
    part = pb.ToNode(orders=pb.Orders(sequence=1, whole=True, more=True, gone=["a" * 100]))
    assert [reader.read(part) for _ in range(9)] == [None] * 9
    with pytest.raises(errors.TooLarge):
        reader.read(part)
    counting = messages.MessageReader(most_orders=4)
    assert counting.read(part) is None
    assert counting.read(part) is None
    with pytest.raises(errors.TooLarge):
        counting.read(part)
    fresh = messages.MessageReader(most_bytes=1000, most_orders=4)
    whole = pb.ToNode(orders=pb.Orders(sequence=1, gone=["a" * 100]))
    assert all(isinstance(fresh.read(whole), OrderUpdate) for _ in range(20))  # each is counted on its own


@pytest.mark.parametrize("said", ["", "two words", "x" * 65, "line\nbreak"])
def test_an_order_carries_a_request_id_and_a_bad_one_is_taken_for_none(said: str) -> None:
    spec = InstanceSpec(name="web", uri="web:1")
    order = InstanceOrder(InstanceId("i1"), 1, spec, DesiredStatus.RUNNING, request_id="put-1")
    told = messages._encode_order(order)
    assert messages._order_of(told) == order
    told.request_id = said
    assert messages._order_of(told).request_id == ""


@pytest.mark.parametrize("said", ["", "everything"])
def test_what_a_server_does_not_say_of_an_image_grants_nothing(said: str) -> None:
    path = InstanceSpec(name="web", uri="rootfs:/srv", granted_access=ImageAccess.ALL)
    told = messages._encode_order(InstanceOrder(InstanceId("i1"), 1, path, DesiredStatus.RUNNING))
    assert messages._order_of(told).spec.image_access is ImageAccess.ALL
    told.spec.image_access = said
    assert messages._order_of(told).spec.image_access is ImageAccess.REGISTRIES
    function = Function(
        FunctionName("f"),
        CUSTOM,
        Megabytes(1),
        0.0,
        image="rootfs:/srv",
        image_access=ImageAccess.ALL,
        signature='{"Inputs": []}',
    )
    sent = member_messages.encode_function(function)
    assert member_messages.decode_function(sent) == function
    sent.image_access = said
    assert member_messages.decode_function(sent).image_access is ImageAccess.REGISTRIES


def test_a_node_hears_that_a_function_has_no_template_and_may_make_one_if_it_hears_nothing() -> None:
    function = Function(FunctionName("f"), CUSTOM, Megabytes(1), 0.0, image="f:1", uses_template=False)
    sent = member_messages.encode_function(function)
    assert member_messages.decode_function(sent) == function
    sent.ClearField("no_template")  # as a server of an earlier version sends it
    assert member_messages.decode_function(sent).uses_template
