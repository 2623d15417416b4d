"""Nouns and messages: everything that a session carries comes out as it went in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.containers import NetworkMode
from skerry.model.functions import CUSTOM, Function
from skerry.model.ids import Digest, FunctionName, InstanceId, NodeId
from skerry.model.members import Member
from skerry.model.nodes import Facts
from skerry.model.orders import Order, Report
from skerry.model.ports import PortMapping, Protocol
from skerry.model.room import MOST, Gigabytes, Megabytes, Millicores, Room
from skerry.model.sessions import (
    Acknowledged,
    Functions,
    Goodbye,
    Heartbeat,
    Hello,
    Members,
    OpenTunnel,
    Orders,
    Reports,
    Servers,
    Welcome,
)
from skerry.model.statuses import Desired, Status
from skerry.model.tunnels import ExecAsk, LogsAsk
from skerry.model.workloads import Restart, RestartPolicy, Spec
from skerry.wire.nodes import messages
from skerry.wire.nodes.parts import PART_BYTES
from skerry.wire.proto import nodes_pb2 as pb

words = st.from_regex(r"[a-z][a-z0-9]{0,11}", fullmatch=True)
lines = st.text(st.characters(categories=["L", "N", "P"]), max_size=40)
amounts = st.integers(0, MOST)
rooms = st.builds(
    lambda cpu, memory, disk: Room(Millicores(cpu), Megabytes(memory), Gigabytes(disk)),
    amounts,
    amounts,
    amounts,
)
instance_ids = words.map(InstanceId)
moments = st.floats(0, 4e9)

ports = st.lists(
    st.builds(PortMapping, st.integers(1, 65535), st.integers(1, 65535), st.sampled_from(Protocol)),
    max_size=4,
    unique_by=lambda mapping: (mapping.source, mapping.protocol),
)
specs = st.builds(
    lambda name, keys, room, ports, when, budget, arguments, architecture, constraints: Spec(
        name=name,
        uri=f"example.org/{name}:1",
        environment=tuple(f"{key}=ü" for key in keys),
        room=room,
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
    st.sampled_from(Restart),
    st.integers(0, 1_000_000),
    st.lists(lines, max_size=3),
    words,
    st.lists(words, max_size=3),
)
orders = st.builds(Order, instance_ids, st.integers(1, 2**60), specs, st.sampled_from(Desired))
reports = st.builds(
    Report,
    instance_ids,
    st.integers(0, 2**60),
    st.sampled_from(Status),
    moments,
    lines,
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**31),
    st.just("") | st.just("10.64.0.2"),
    rooms,
)


members = st.builds(
    Member,
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
    st.integers(1, MOST),
    st.none() | st.integers(1, MOST),
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
    reader = messages.Reader()
    parts = [pb.ToNode.FromString(part.SerializeToString()) for part in messages.told(message)]
    read = [reader.read(part) for part in parts]
    assert read[:-1] == [None] * (len(read) - 1)
    return read[-1], len(parts)


@given(
    st.builds(
        Hello,
        lines,
        st.builds(Facts, lines, lines, lines, lines),
        rooms,
        st.dictionaries(words, lines, max_size=5),
        st.just("10.64.0.0/24"),
        st.none() | members,
    )
)
def test_a_hello_comes_out_as_it_went_in(hello):
    assert messages.hello_of(pb.Hello.FromString(messages.told_hello(hello).SerializeToString())) == hello


@given(st.integers(1, 2**60), st.lists(reports, max_size=5))
def test_reports_come_out_as_they_went_in(sequence, batch):
    told = messages.told_reports(Reports(sequence, tuple(batch)))
    assert messages.reports_of(pb.Reports.FromString(told.SerializeToString())) == Reports(
        sequence, tuple(batch)
    )


def test_a_welcome_comes_out_as_it_went_in():
    welcome = Welcome(NodeId("n1"), "10.64.0.0/24", 2.0, 1.0, 60.0, 600.0, 8.0)
    told = pb.ToNode.FromString(messages.told_welcome(welcome).SerializeToString())
    assert messages.welcome_of(told.welcome) == welcome


@given(st.integers(1, 2**60), st.booleans(), st.lists(orders, max_size=4), st.lists(instance_ids, max_size=3))
def test_orders_come_out_as_they_went_in(sequence, is_whole, some, gone):
    sent = Orders(sequence, is_whole=is_whole, orders=tuple(some), gone=tuple(gone))
    assert through(sent) == (sent, 1)


@given(st.lists(members, max_size=4))
def test_members_come_out_as_they_went_in(some):
    assert through(Members(tuple(some))) == (Members(tuple(some)), 1)


@given(st.booleans(), st.lists(functions, max_size=4), st.lists(words.map(FunctionName), max_size=3))
def test_functions_come_out_as_they_went_in(is_whole, some, gone):
    sent = Functions(is_whole=is_whole, functions=tuple(some), gone=tuple(gone))
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
    sent = Functions(is_whole=False, functions=(one,) * 10, gone=(FunctionName("g"),))
    read, count = through(sent)
    assert read == sent
    assert 3 <= count <= 10
    everybody = Members(tuple(Member(NodeId(f"n{n}"), "x" * 200, "edge") for n in range(6000)))
    read, count = through(everybody)
    assert read == everybody
    assert count == 2


def test_many_orders_go_in_parts_and_come_out_as_one_set():
    spec = Spec(
        name="web", uri="example.org/web:1", environment=tuple(f"K{n}={'x' * 9000}" for n in range(60))
    )
    sent = Orders(
        3,
        is_whole=True,
        orders=tuple(Order(InstanceId(f"i{n}"), 1, spec, Desired.RUNNING) for n in range(10)),
    )
    read, parts = through(sent)
    assert read == sent
    assert 5 <= parts <= 10
    assert all(part.ByteSize() < 2 * PART_BYTES for part in messages.told(sent))


@pytest.mark.parametrize(
    "message",
    [
        Acknowledged(7),
        Servers(("server-1.example:8081", "[fd00::2]:8081")),
        Heartbeat(),
        Goodbye("this server stops"),
        OpenTunnel("id", InstanceId("i1"), LogsAsk(tail=10)),
        OpenTunnel("id", InstanceId("i1"), ExecAsk(("sh",))),
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
        messages.Reader().read(rubbish)


def test_parts_of_different_sets_do_not_become_one():
    reader = messages.Reader()
    assert reader.read(pb.ToNode(orders=pb.Orders(sequence=1, whole=True, more=True))) is None
    with pytest.raises(errors.Invalid):
        reader.read(pb.ToNode(orders=pb.Orders(sequence=2, whole=False)))
    assert reader.read(pb.ToNode(functions=pb.Functions(whole=True, more=True))) is None
    with pytest.raises(errors.Invalid):
        reader.read(pb.ToNode(functions=pb.Functions(whole=False)))


def test_every_status_has_a_number_of_its_own():
    assert len({messages._STATUS[status] for status in Status}) == len(Status)
    assert 0 not in messages._STATUS_OF
    assert 0 not in messages._DESIRED_OF


def test_orders_in_more_parts_than_are_bearable_are_given_up() -> None:
    reader = messages.Reader(most_bytes=1000)
    part = pb.ToNode(orders=pb.Orders(sequence=1, whole=True, more=True, gone=["a" * 100]))
    assert [reader.read(part) for _ in range(9)] == [None] * 9
    with pytest.raises(errors.TooLarge):
        reader.read(part)
    counting = messages.Reader(most_orders=4)
    assert counting.read(part) is None
    assert counting.read(part) is None
    with pytest.raises(errors.TooLarge):
        counting.read(part)
    fresh = messages.Reader(most_bytes=1000, most_orders=4)
    whole = pb.ToNode(orders=pb.Orders(sequence=1, gone=["a" * 100]))
    assert all(isinstance(fresh.read(whole), Orders) for _ in range(20))  # each is counted on its own
