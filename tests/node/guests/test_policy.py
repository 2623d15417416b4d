"""What a guest may have: names that nobody else has, specs that stay in the cell, times that cost little."""

from __future__ import annotations

import base64
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.cells import CellLimits
from skerry.model.containers import ContainerSpec
from skerry.model.devices import DeviceRequest
from skerry.model.ids import InstanceId, Namespace, NodeId, ServiceId, VolumeId
from skerry.model.mesh import MeshEncryption, MeshPeer
from skerry.model.mounts import parse_volume
from skerry.model.network_objects import (
    InstanceAddress,
    NetworkObject,
    NodeLocation,
    ServiceAddress,
    ServiceEndpoint,
    ServicePort,
    ServiceSubnet,
)
from skerry.model.network_policies import IsolatedNamespace, JobAddress
from skerry.model.offline_tokens import TokenKey
from skerry.model.ports import PortMapping
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.workloads import UserNamespaceMode, WorkloadKind
from skerry.node.agent.instances.container_specs import container_name
from skerry.node.guests import policy
from skerry.node.guests.policy import LeasedCapacity
from tests.node.agent.instances.worlds import TERMS, spec
from tests.node.guests.ground import BOUGHT, CELL, OWN

LEASED = LeasedCapacity(BOUGHT, ("example.com/gpu=1",))
IDS = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True)
CELLS = IDS.map(lambda id: container_name(InstanceId(id)))


class TestTheCell:
    def test_is_held_to_exactly_what_was_bought(self) -> None:
        cell = policy.parent_cell(ContainerSpec(CELL, "contract:1", resources=BOUGHT), pids=100)
        assert (cell.name, cell.limits) == (
            OWN,
            CellLimits(cpu_weight=50, cpu_quota=500, memory=64, pids=100),
        )

    @pytest.mark.parametrize("resources", [Resources(memory=Megabytes(64)), Resources(cpu=Millicores(500))])
    def test_without_a_limit_cannot_be(self, resources: Resources) -> None:
        with pytest.raises(errors.Invalid, match="cpu and memory limits"):
            policy.parent_cell(ContainerSpec(CELL, "contract:1", resources=resources), pids=100)


class TestNames:
    @given(CELLS, IDS, CELLS, IDS)
    def test_are_never_another_s(self, cell: str, id: str, other_cell: str, other: str) -> None:
        name = policy.guest_name(cell, InstanceId(id))
        assert name != container_name(InstanceId(other))
        is_same = (cell, id) == (other_cell, other)
        assert (name == policy.guest_name(other_cell, InstanceId(other))) is is_same

    def test_do_not_run_into_each_other_where_ids_do(self) -> None:
        one = policy.guest_name("i-a", InstanceId("b-c"))
        assert one != policy.guest_name("i-a-b", InstanceId("c"))


class TestSpecs:
    def test_are_inside_of_the_cell_and_apart(self) -> None:
        created = policy.guest_spec(CELL, LEASED, InstanceId("web"), spec(environment=("A=1",)))
        assert (created.inside, created.is_isolated, created.read_only) == (CELL, True, False)
        assert (created.image, created.environment, created.host_name) == ("web:1", ("A=1",), "web")

    def test_without_a_disk_of_their_own_have_that_of_the_cell(self) -> None:
        resources = Resources(Millicores(100), Megabytes(16))
        created = policy.guest_spec(CELL, LEASED, InstanceId("web"), spec(resources=resources))
        assert created.resources == replace(resources, disk=BOUGHT.disk)
        assert created.shared_disk == BOUGHT.disk
        assert policy.guest_spec(CELL, LEASED, InstanceId("web"), spec(resources=BOUGHT)).resources == BOUGHT

    def test_can_write_nothing_where_no_disk_was_bought(self) -> None:
        assert policy.guest_spec(
            CELL, LeasedCapacity(replace(BOUGHT, disk=0)), InstanceId("web"), spec()
        ).read_only

    def test_have_no_more_cpu_than_the_cell(self) -> None:
        def limit(requested: int | None) -> int | None:
            wanted = spec(cpu_limit=None if requested is None else Millicores(requested))
            return policy.guest_spec(CELL, LEASED, InstanceId("web"), wanted).cpu_limit

        assert [limit(requested) for requested in (None, 0, 400, 9000)] == [None, 0, 400, BOUGHT.cpu]

    def test_have_the_devices_that_were_bought(self) -> None:
        wanted = spec(devices=(DeviceRequest("example.com/gpu", name="1"),))
        assert policy.guest_spec(CELL, LEASED, InstanceId("web"), wanted).devices == ("example.com/gpu=1",)

    @pytest.mark.parametrize(
        ("wanted", "why"),
        [
            (spec(ports=(PortMapping(8080, 80),)), "cannot publish ports"),
            (spec(kind=WorkloadKind.CELL), "cannot lease cells"),
            (spec(userns=UserNamespaceMode.HOST), "always have a user namespace"),
            (spec(resources=replace(BOUGHT, cpu=Millicores(501))), "lacks 1 milli-cores of cpu"),
            (spec(resources=replace(BOUGHT, memory=Megabytes(65))), "lacks 1 MB of memory"),
            (spec(resources=replace(BOUGHT, disk=Gigabytes(3))), "lacks 1 GB of disk"),
            (spec(devices=(DeviceRequest("example.com/gpu", name="0"),)), "gpu=0 is not of this contract"),
            (spec(devices=(DeviceRequest("example.com/gpu"),)), "example.com/gpu is not of this contract"),
        ],
    )
    def test_that_reach_out_of_the_cell_are_refused(self, wanted: object, why: str) -> None:
        with pytest.raises(errors.Invalid, match=why):
            policy.guest_spec(CELL, LEASED, InstanceId("web"), wanted)  # type: ignore[arg-type]


class TestTerms:
    @pytest.mark.parametrize("text", ["/:/mnt", "db:/data"])
    def test_have_no_mounts_of_the_provider(self, text: str) -> None:
        mount = replace(parse_volume(text), is_granted=True, volume=VolumeId("01v"))
        with pytest.raises(errors.Invalid, match="no volumes"):
            policy.guest_spec(CELL, LEASED, InstanceId("web"), spec(mounts=(mount,)))
        with pytest.raises(errors.Invalid, match="cannot have mounts"):
            ContainerSpec("g-1", "example.org/web:1", is_isolated=True, mounts=(mount,))

    def test_that_are_usual_stay_as_they_are(self) -> None:
        assert policy.clamp_session_config(TERMS) == TERMS

    @given(st.lists(st.floats(), min_size=5, max_size=5))
    def test_of_a_stranger_cost_no_more_than_others(self, times: list[float]) -> None:
        names = ("report_s", "restart_base_s", "restart_cap_s", "restart_reset_s", "silence_s")
        terms = policy.clamp_session_config(replace(TERMS, **dict(zip(names, times, strict=True))))
        assert all(math.isfinite(getattr(terms, name)) for name in names)
        assert terms.report_s >= 0.5
        assert 0.1 <= terms.restart_base_s <= terms.restart_cap_s
        assert terms.silence_s == 0 or terms.silence_s >= 1


KEY = base64.b64encode(bytes(32)).decode()
PEER = MeshPeer(NodeId("a"), "a", KEY, ("10.64.1.0/24",), ("192.0.2.1:51825",))
COPY = ServiceEndpoint(InstanceId("1"), NodeId("a"), "10.64.1.2")
SERVICE = ServiceAddress(ServiceId("1"), "web", Namespace("shop"), "10.63.0.1", endpoints=(COPY,))


class TestNetworkObjects:
    """Of a buyer: parts of them become commands that root runs."""

    @pytest.mark.parametrize(
        "value",
        [
            PEER,
            SERVICE,
            NodeLocation(NodeId("a"), "a", "", ("10.64.1.0/24",)),
            ServiceSubnet("10.63.0.0/16"),
            InstanceAddress(Namespace("shop"), COPY),
            IsolatedNamespace(Namespace("shop"), (Namespace("front"),)),
        ],
    )
    def test_of_the_mesh_are_taken(self, value: NetworkObject) -> None:
        assert policy.is_for_guests(value)
        policy.check_object(value)

    @pytest.mark.parametrize(
        "value",
        [
            replace(PEER, node=NodeId("a\nlink delete dev eth0")),
            replace(PEER, public_key="AAAA"),
            replace(PEER, next_key=f"{KEY}\nPrivateKey = {KEY}"),
            replace(PEER, subnets=("10.64.1.0/24 dev eth0",)),
            replace(PEER, subnets=("10.64.1.7/24",)),
            replace(PEER, endpoints=("example.org:51825",)),
            replace(PEER, endpoints=("[fe80::1%x\ny]:51825",)),
            replace(PEER, endpoints=("192.0.2.1:1",) * 13),
            replace(PEER, encryption=MeshEncryption.VXLAN),
            replace(SERVICE, namespace=Namespace("shop { }")),
            replace(SERVICE, address="10.63.0.1; flush ruleset"),
            replace(SERVICE, ports=(ServicePort(70000),)),
            replace(SERVICE, endpoints=(replace(COPY, address="10.64.1.2\n"),)),
            ServiceSubnet("10.63.0.0/16 }"),
            NodeLocation(NodeId("a"), "a\x1b[2J"),
            IsolatedNamespace(Namespace("shop"), (Namespace("-"),)),
            JobAddress(InstanceId("1"), Namespace("shop"), NodeId("a"), "everybody"),
            TokenKey("1", "x"),
        ],
    )
    def test_that_are_not_what_they_should_be_are_refused(self, value: NetworkObject) -> None:
        with pytest.raises(errors.Invalid):
            policy.check_object(value)

    def test_are_no_routes_or_tokens(self) -> None:
        assert not policy.is_for_guests(TokenKey("1", "x"))

    def test_name_the_node_and_its_subnet(self) -> None:
        config = replace(TERMS, node=NodeId("borrowed-1"), subnet="10.64.9.0/24")
        assert policy.guest_node(config).subnet == "10.64.9.0/24"
        with pytest.raises(errors.Invalid, match="no IPv4 network"):
            policy.guest_node(replace(config, subnet="10.64.9.0/24 dev lo"))
