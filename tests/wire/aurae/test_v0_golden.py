"""The layout is Aurae's present one: bytes in and out, names in reflection and health."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpclib.const import Status
from grpclib.health.v1.health_grpc import HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection.v1.reflection_grpc import ServerReflectionStub
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest

from skerry import __version__
from skerry.transport.proto import aurae_cells_pb2, aurae_discovery_pb2, aurae_observe_pb2
from skerry.transport.proto.aurae_cells_pb2 import (
    Cell,
    CellGraphNode,
    CellServiceAllocateRequest,
    CellServiceAllocateResponse,
    CellServiceFreeRequest,
    CellServiceFreeResponse,
    CellServiceListRequest,
    CellServiceListResponse,
    CellServiceStartRequest,
    CellServiceStartResponse,
    CellServiceStopRequest,
    CellServiceStopResponse,
    CpuController,
    CpusetController,
    Executable,
    MemoryController,
)
from skerry.transport.proto.aurae_discovery_pb2 import DiscoverResponse
from skerry.transport.proto.aurae_observe_pb2 import (
    LOG_CHANNEL_TYPE_STDERR,
    WORKLOAD_TYPE_CELL,
    GetAuraeDaemonLogStreamResponse,
    GetPosixSignalsStreamRequest,
    GetPosixSignalsStreamResponse,
    GetSubProcessStreamRequest,
    LogItem,
    Signal,
    Workload,
)
from tests.wire.aurae.calls import PRESENT, assert_same_layout, raw

OURS = {"cells": aurae_cells_pb2, "observe": aurae_observe_pb2, "discovery": aurae_discovery_pb2}
SERVICES = (
    "aurae.cells.v0.CellService",
    "aurae.observe.v0.ObserveService",
    "aurae.discovery.v0.DiscoveryService",
)
GOLDEN = [
    (
        CellServiceAllocateRequest(
            cell=Cell(
                name="c",
                cpu=CpuController(weight=200, max=50_000, period=100_000),
                cpuset=CpusetController(cpus="0", mems="0"),
                memory=MemoryController(max=64 << 20),
                isolate_process=True,
                isolate_network=True,
            )
        ),
        "0a230a0163120b08c80110d0860318a08d061a060a01301201302205208080802050015801",
    ),
    (CellServiceAllocateResponse(cell_name="c", cgroup_v2=True), "0a01631001"),
    (
        CellServiceStartRequest(
            cell_name="c", executable=Executable(name="x", command="true", description="d"), uid=0, gid=7
        ),
        "0a0163120c0a017812047472756522016418002007",
    ),
    (CellServiceStartResponse(pid=4242, uid=60_000, gid=60_000), "08922110e0d40318e0d403"),
    (CellServiceStopRequest(cell_name="c", executable_name="x"), "0a0163120178"),
    (CellServiceStopRequest(executable_name="x"), "120178"),
    (CellServiceStopResponse(), ""),
    (CellServiceFreeRequest(cell_name="c"), "0a0163"),
    (CellServiceFreeResponse(), ""),
    (CellServiceListRequest(), ""),
    (
        CellServiceListResponse(
            cells=[CellGraphNode(cell=Cell(name="c"), children=[CellGraphNode(cell=Cell(name="c/d"))])]
        ),
        "0a0e0a030a016312070a050a03632f64",
    ),
    (
        GetSubProcessStreamRequest(channel_type=LOG_CHANNEL_TYPE_STDERR, process_id=42),
        "0802102a",
    ),
    (
        GetAuraeDaemonLogStreamResponse(item=LogItem(channel="skerry", line="INFO hi", timestamp=5)),
        "0a130a06736b657272791207494e464f2068691805",
    ),
    (
        GetPosixSignalsStreamRequest(workload=Workload(workload_type=WORKLOAD_TYPE_CELL, id="c")),
        "0a050801120163",
    ),
    (GetPosixSignalsStreamResponse(signal=Signal(signal=9, process_id=4242)), "0a050809109221"),
    (DiscoverResponse(healthy=True, version="1"), "0801120131"),
]


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_messages_have_the_golden_bytes_both_ways(message, golden):
    assert message.SerializeToString().hex() == golden
    assert type(message).FromString(bytes.fromhex(golden)) == message


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_file_is_the_present_one_in_all_but_its_place(name, tmp_path):
    assert_same_layout(OURS[name].DESCRIPTOR, PRESENT, name, tmp_path)


async def test_the_golden_bytes_on_the_wire_are_answered_with_golden_bytes(served):
    served.keeper.limits_in_v2 = True
    path = "/aurae.cells.v0.CellService"
    assert await raw(served, f"{path}/Allocate", GOLDEN[0][1]) == (0, "0a01631001")
    # Cell{name, cpu{200, 50000, 100000}, cpuset{"0", "0"}, memory{max}, isolate_process, isolate_network}
    assert await raw(served, f"{path}/List", "") == (0, "0a25" + GOLDEN[0][1])
    assert await raw(served, f"{path}/Start", "0a0163120c0a0178120474727565220164") == (
        0,
        "08922110e0d40318e0d403",
    )
    assert await raw(served, f"{path}/Stop", "0a0163120178") == (0, "")
    assert await raw(served, f"{path}/Free", "0a0163") == (0, "")
    assert await raw(served, f"{path}/List", "") == (0, "")


@pytest.mark.parametrize("scheme", ["hxxp", "https", "http"])
async def test_discover_says_that_it_is_healthy_and_which_version_it_is(served, scheme):
    version = f"12{len(__version__):02x}{__version__.encode().hex()}"
    told = await raw(
        served, "/aurae.discovery.v0.DiscoveryService/Discover", "", scheme=scheme, authority="null"
    )
    assert told == (0, "0801" + version)


async def test_fields_that_later_versions_added_are_passed_over(served):
    # GetSubProcessStreamRequest with a text in field 3.
    told = await raw(served, "/aurae.observe.v0.ObserveService/GetSubProcessStream", "080110071a0163")
    assert Status(told[0]) is Status.NOT_FOUND


async def test_reflection_lists_and_describes_the_services_and_health_knows_them(channel):
    listed, *described = await ServerReflectionStub(channel).ServerReflectionInfo(
        [
            ServerReflectionRequest(list_services=""),
            *(ServerReflectionRequest(file_containing_symbol=name) for name in SERVICES),
        ]
    )
    assert set(SERVICES) <= {service.name for service in listed.list_services_response.service}
    for name, reply in zip(SERVICES, described, strict=True):
        [data] = reply.file_descriptor_response.file_descriptor_proto
        file = FileDescriptorProto.FromString(data)
        assert name in {f"{file.package}.{service.name}" for service in file.service}
        health = await HealthStub(channel).Check(HealthCheckRequest(service=name))
        assert health.status == HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    "path",
    [
        "/aurae.vms.v0.VmService/List",
        "/runtime.v1.RuntimeService/Version",
        "/runtime.v1.ImageService/ListImages",
    ],
)
async def test_virtual_machines_and_the_cri_are_unimplemented(served, path):
    status, _ = await raw(served, path, "")
    assert Status(status) is Status.UNIMPLEMENTED
