"""The layouts are those of the documents: golden bytes of every message and number, and only additions."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc
from grpclib.reflection.v1.reflection_grpc import ServerReflectionStub
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest

from skerry.transport.proto import (
    kudo_controller_pb2,
    kudo_scheduler_pb2,
    kudo_services_grpc,
    kudo_services_packaged_grpc,
    kudo_services_packaged_pb2,
    kudo_services_pb2,
)
from skerry.wire.kudo.grpc_services import PackagedService
from tests.wire.kudo.grpc_serving import CONTROLLER, DOCUMENTS, SCHEDULER, well_known

OURS = {CONTROLLER: kudo_controller_pb2, SCHEDULER: kudo_scheduler_pb2}
ROOM = {"cpu": 500, "memory": 64, "disk": 1}
MOST = {"cpu": 2147483647}
GOLDEN = [
    (CONTROLLER, "ResourceSummary", ROOM, "08f40310401801"),
    (CONTROLLER, "ResourceSummary", MOST, "08ffffffff07"),
    (CONTROLLER, "Resource", {"max": ROOM, "usage": {}}, "0a0708f403104018011200"),
    (
        CONTROLLER,
        "InstanceStatus",
        {"id": "a", "status": "CRASHED", "description": "oh"},
        "0a016110061a026f68",
    ),
    (
        CONTROLLER,
        "NodeStatus",
        {
            "id": "n",
            "status": "FAILED",
            "description": "oh",
            "resource": {"max": ROOM},
            "instances": [{"id": "a"}],
        },
        "0a016e10071a026f6822090a0708f403104018012a030a0161",
    ),
    (
        CONTROLLER,
        "Instance",
        {
            "id": "a",
            "name": "b",
            "type": "CONTAINER",
            "status": "SCHEDULED",
            "uri": "u",
            "environnement": ["K=V"],
            "resource": {"max": {"cpu": 1}},
            "ports": ["8080", "8080:80"],
            "ip": "10.64.0.2",
        },
        "0a016112016220092a017532034b3d563a040a0208014204383038304207383038303a38304a0931302e36342e302e32",
    ),
    (SCHEDULER, "ResourceSummary", ROOM, "08f40310401801"),
    (SCHEDULER, "Resource", {"limit": ROOM, "usage": {}}, "0a0708f403104018011200"),
    (SCHEDULER, "Port", {"source": 8080, "destination": 80}, "08903f1050"),
    (
        SCHEDULER,
        "Instance",
        {
            "id": "a",
            "name": "b",
            "type": "CONTAINER",
            "status": "SCHEDULED",
            "uri": "u",
            "environnement": ["K=V"],
            "resource": {"limit": {"cpu": 1}},
            "ports": [{"source": 8080, "destination": 80}],
            "ip": "10.64.0.2",
        },
        "0a016112016220082a017532034b3d563a040a020801420508903f10504a0931302e36342e302e32",
    ),
    (
        SCHEDULER,
        "InstanceStatus",
        {"id": "a", "status": "FAILED", "statusDescription": "oh", "resource": {"limit": {"cpu": 1}}},
        "0a016110061a026f6822040a020801",
    ),
    (
        SCHEDULER,
        "NodeStatus",
        {"id": "n", "status": "FAILED", "statusDescription": "oh", "resource": {"limit": {"cpu": 1}}},
        "0a016e10061a026f6822040a020801",
    ),
    (SCHEDULER, "NodeRegisterRequest", {"certificate": "pem"}, "0a0370656d"),
    (
        SCHEDULER,
        "NodeRegisterResponse",
        {"code": 4, "description": "oh", "subnet": "10.64.0.0/24"},
        "080412026f681a0c31302e36342e302e302f3234",
    ),
    (SCHEDULER, "NodeUnregisterRequest", {"id": "n"}, "0a016e"),
    (SCHEDULER, "NodeUnregisterResponse", {"code": 1, "description": "oh"}, "080112026f68"),
    (SCHEDULER, "InstanceIdentifier", {"id": "a"}, "0a0161"),
]
NUMBERS = {
    CONTROLLER: [
        *("RUNNING", "STARTING", "STOPPED", "STOPPING", "DESTROYING", "TERMINATED"),
        *("CRASHED", "FAILED", "SCHEDULING", "SCHEDULED"),
    ],
    SCHEDULER: [
        *("RUNNING", "STARTING", "STOPPED", "STOPPING", "DESTROYING", "TERMINATED"),
        *("FAILED", "SCHEDULING", "SCHEDULED"),
    ],
}
ADDED = {
    CONTROLLER: {"InstanceStatus": {"resource": 4, "exit_code": 6}},
    SCHEDULER: {
        "InstanceStatus": {"reason": 5, "exit_code": 6},
        "NodeStatus": {"instances": 5},
        "NodeRegisterResponse": {"id": 4},
    },
}


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The file of each document, described in a pool of its own, as both use the same names."""
    found = {}
    for name in (CONTROLLER, SCHEDULER):
        described = tmp_path_factory.mktemp("described") / name
        options = [f"--proto_path={DOCUMENTS}", f"--proto_path={well_known()}", "--include_imports"]
        assert protoc.main(["protoc", *options, f"--descriptor_set_out={described}", f"{name}.proto"]) == 0
        pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(described.read_bytes()).file:
            pool.Add(file)
        found[name] = pool.FindFileByName(f"{name}.proto")
    return found


@pytest.mark.parametrize(("document", "name", "content", "golden"), GOLDEN)
def test_messages_have_the_golden_bytes_in_the_document_and_here(documents, document, name, content, golden):
    theirs = ParseDict(content, GetMessageClass(documents[document].message_types_by_name[name])())
    ours = ParseDict(content, getattr(OURS[document], name)())
    for message in (theirs, ours):
        assert message.SerializeToString(deterministic=True).hex() == golden
        assert type(message).FromString(bytes.fromhex(golden)) == message


def test_every_message_of_both_documents_has_golden_bytes(documents):
    golden = {(document, name) for document, name, _, _ in GOLDEN}
    assert golden == {
        (document, name) for document, file in documents.items() for name in file.message_types_by_name
    }


@pytest.mark.parametrize("document", NUMBERS)
def test_every_status_has_its_documents_number(documents, document):
    golden = [(name, number) for number, name in enumerate(NUMBERS[document])]
    assert OURS[document].Status.items() == golden
    theirs = documents[document].enum_types_by_name["Status"]
    assert [(value.name, value.number) for value in theirs.values] == golden
    for number, name in enumerate(NUMBERS[document]):
        message = OURS[document].InstanceStatus(id="a", status=name)
        assert message.SerializeToString().hex() == ("0a0161" if number == 0 else f"0a016110{number:02x}")


def shape(message: Descriptor) -> dict[str, tuple[int, bool, int, str]]:
    """Fields as the wire has them: numbers of any width are one type there."""

    def kind(field: FieldDescriptor) -> int:
        is_integer = field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64)
        return FieldDescriptor.TYPE_INT64 if is_integer else field.type

    return {
        field.name: (
            field.number,
            field.is_repeated,
            kind(field),
            (field.message_type or field.enum_type).name if field.message_type or field.enum_type else "",
        )
        for field in message.fields
    }


@pytest.mark.parametrize("document", OURS)
def test_our_messages_are_the_documents_with_the_known_additions(documents, document):
    ours = OURS[document].DESCRIPTOR.message_types_by_name
    theirs = documents[document].message_types_by_name
    assert set(ours) == set(theirs)
    for name, message in theirs.items():
        found, wanted = shape(ours[name]), shape(message)
        assert {field: found[field] for field in wanted} == wanted, name
        added = {field: found[field][0] for field in set(found) - set(wanted)}
        assert added == ADDED[document].get(name, {}), name


def test_our_services_are_the_documents_without_a_package_and_with_one(documents):
    def methods(files: Any) -> dict[str, list[Any]]:
        return {
            name: [
                (
                    one.name,
                    one.input_type.name,
                    one.output_type.name,
                    one.client_streaming,
                    one.server_streaming,
                )
                for one in service.methods
            ]
            for file in files
            for name, service in file.services_by_name.items()
        }

    theirs = methods(documents.values())
    assert list(theirs) == ["SchedulerService", "NodeService", "InstanceService"]
    for ours, package in ((kudo_services_pb2, ""), (kudo_services_packaged_pb2, "scheduler")):
        assert methods([ours.DESCRIPTOR]) == theirs
        assert ours.DESCRIPTOR.package == package


@pytest.mark.parametrize("name", ["SchedulerServiceBase", "NodeServiceBase", "InstanceServiceBase"])
def test_a_packaged_service_has_the_paths_of_the_package(name):
    def paths(stubs: Any) -> Any:
        base = getattr(stubs, name)
        return type(name, (base,), dict.fromkeys(base.__abstractmethods__))()

    bare, packaged = paths(kudo_services_grpc), paths(kudo_services_packaged_grpc)
    assert list(PackagedService(bare).__mapping__()) == list(packaged.__mapping__())


async def test_reflection_describes_the_services_at_both_paths(channel):
    names = [
        f"{prefix}{name}"
        for prefix in ("", "scheduler.")
        for name in ("SchedulerService", "NodeService", "InstanceService")
    ]
    listed, *described = await ServerReflectionStub(channel).ServerReflectionInfo(
        [
            ServerReflectionRequest(list_services=""),
            *(ServerReflectionRequest(file_containing_symbol=name) for name in names),
        ]
    )
    assert set(names) <= {service.name for service in listed.list_services_response.service}
    assert all(reply.HasField("file_descriptor_response") for reply in described)
