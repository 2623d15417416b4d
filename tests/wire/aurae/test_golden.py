"""The layout is the document's: bytes in and out, names, and what later layouts of the package would send."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpclib.const import Status
from grpclib.reflection.v1.reflection_grpc import ServerReflectionStub
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest

from skerry.transport.proto import observe_pb2, runtime_pb2, schedule_pb2
from skerry.transport.proto.runtime_grpc import CellServiceStub
from tests.wire.aurae.calls import DOCUMENT, assert_same_layout, raw

OURS = {"runtime": runtime_pb2, "observe": observe_pb2, "schedule": schedule_pb2}
SLEEP = runtime_pb2.Executable(
    name="sleep-4000", command="sleep 4000", description="Sleep for 4000 seconds", cell_name="my-cell"
)
GOLDEN = [
    (
        runtime_pb2.AllocateCellRequest(cell=runtime_pb2.Cell(name="my-cell", cpu_shares=2)),
        "0a0b0a076d792d63656c6c1002",
    ),
    (runtime_pb2.AllocateCellResponse(cell_name="my-cell", cgroup_v2=True), "0a076d792d63656c6c1001"),
    (runtime_pb2.FreeCellRequest(cell_name="my-cell"), "0a076d792d63656c6c"),
    (
        runtime_pb2.StartCellRequest(executable=SLEEP),
        "0a390a0a736c6565702d34303030120a736c65657020343030301a16536c65657020666f722034303030207365636f6e6473"
        "22076d792d63656c6c",
    ),
    (
        runtime_pb2.StopCellRequest(cell_name="my-cell", executable_name="sleep-4000"),
        "0a076d792d63656c6c120a736c6565702d34303030",
    ),
    (
        observe_pb2.GetSubProcessStreamRequest(channel_type=observe_pb2.CHANNEL_STDERR, process_id=42),
        "0801102a",
    ),
    (
        observe_pb2.LogItem(channel="rust-logs", line="INFO:auraed -- hi", timestamp=0),
        "0a09727573742d6c6f67731211494e464f3a617572616564202d2d206869",
    ),
    (runtime_pb2.FreeCellResponse(), ""),
    (runtime_pb2.StartCellResponse(), ""),
    (runtime_pb2.StopCellResponse(), ""),
]


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_messages_have_the_golden_bytes_both_ways(message, golden):
    assert message.SerializeToString().hex() == golden
    assert type(message).FromString(bytes.fromhex(golden)) == message


@pytest.mark.parametrize("name", ["runtime", "observe", "schedule"])
def test_our_file_is_the_documents_in_all_but_its_place(name, tmp_path):
    assert_same_layout(OURS[name].DESCRIPTOR, DOCUMENT, name, tmp_path)


async def test_the_golden_bytes_on_the_wire_are_answered_with_golden_bytes(served):
    served.keeper.limits_in_v2 = True
    bytes_of = {type(message).__name__: golden for message, golden in GOLDEN}
    for method in ("Allocate", "Start", "Stop", "Free"):
        told = await raw(served, f"/runtime.CellService/{method}", bytes_of[f"{method}CellRequest"])
        assert told == (0, bytes_of[f"{method}CellResponse"])


@pytest.mark.parametrize("scheme", ["hxxp", "https", "http"])
async def test_the_odd_scheme_and_authority_of_early_clients_are_taken(served, scheme):
    golden = GOLDEN[0][1]
    told = await raw(served, "/runtime.CellService/Allocate", golden, scheme=scheme, authority="null")
    assert told == (0, "0a076d792d63656c6c")  # cgroup_v2 is false, so it is not on the wire
    assert "my-cell" in served.keeper.cells


async def test_whether_limits_are_held_by_cgroup_v2_is_told_truthfully(served, channel):
    for name, is_v2 in (("one", True), ("two", False)):
        served.keeper.limits_in_v2 = is_v2
        reply = await CellServiceStub(channel).Allocate(
            runtime_pb2.AllocateCellRequest(cell=runtime_pb2.Cell(name=name))
        )
        assert (reply.cell_name, reply.cgroup_v2) == (name, is_v2)


async def test_a_text_where_the_shares_are_comes_from_a_later_layout_and_is_not_taken_for_shares(served):
    # Cell{name: "my-cell", cpu_cpus: "0-1"}: field 2, but of another wire type.
    told = await raw(served, "/runtime.CellService/Allocate", "0a0e0a076d792d63656c6c1203302d31")
    assert told[0] == 0
    assert served.keeper.cells["my-cell"].limits.cpu_shares is None


async def test_fields_that_are_unknown_are_passed_over(served):
    # Cell{name: "my-cell", ns_share_net(14): true}
    told = await raw(served, "/runtime.CellService/Allocate", "0a0b0a076d792d63656c6c7001")
    assert told[0] == 0


async def test_bytes_that_are_no_message_are_refused(served):
    status, text = await raw(served, "/runtime.CellService/Allocate", "0aff")
    assert Status(status) is Status.INVALID_ARGUMENT
    assert "same .proto" in text


async def test_reflection_lists_the_services_without_methods_and_describes_them(channel):
    stub = ServerReflectionStub(channel)
    wanted = ("runtime.Pods", "runtime.Instances", "runtime.Spawn", "runtime.CellService", "observe.Observe")
    listed, *described, scheduling = await stub.ServerReflectionInfo(
        [
            ServerReflectionRequest(list_services=""),
            *(ServerReflectionRequest(file_containing_symbol=name) for name in wanted),
            ServerReflectionRequest(file_by_filename="skerry/transport/proto/schedule.proto"),
        ]
    )
    assert set(wanted) <= {service.name for service in listed.list_services_response.service}
    for name, reply in zip(wanted, described, strict=True):
        [data] = reply.file_descriptor_response.file_descriptor_proto
        file = FileDescriptorProto.FromString(data)
        assert name.partition(".")[2] in {service.name for service in file.service}
    [data] = scheduling.file_descriptor_response.file_descriptor_proto
    assert FileDescriptorProto.FromString(data).package == "schedule"


async def test_a_method_of_a_service_without_methods_is_unimplemented(served):
    status, _ = await raw(served, "/runtime.Pods/List", "")
    assert Status(status) is Status.UNIMPLEMENTED
