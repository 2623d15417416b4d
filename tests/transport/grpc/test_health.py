"""Health follows the checks; reflection lists what is served, and whole descriptors of it."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_grpc import HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection.v1 import reflection_grpc as v1
from grpclib.reflection.v1 import reflection_pb2 as v1_pb2
from grpclib.reflection.v1alpha import reflection_grpc as v1alpha
from grpclib.reflection.v1alpha import reflection_pb2 as v1alpha_pb2

from skerry.transport.grpc import health
from skerry.wire.own.grpc_identity import IdentityService
from tests.transport.grpc.fakes import FakeIdentity

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


class Switch:
    """A check that fails while it is off."""

    def __init__(self, *, on: bool = True) -> None:
        self.on = on
        self.asked = 0

    async def __call__(self) -> None:
        self.asked += 1
        if not self.on:
            raise RuntimeError("the store is away")


@pytest.mark.parametrize("name", ["", "grpc.health.v1.Health", "skerry.identity.v1.IdentityService"])
async def test_the_server_and_each_service_serve_while_all_checks_pass(serve, name):
    served = await serve(checks={"store": Switch(), "leader": Switch()})
    assert await _check(served, name) == SERVING


async def test_one_failing_check_is_enough_and_only_the_log_says_which(serve, logged):
    served = await serve(checks={"store": Switch(on=False), "leader": Switch()})
    assert await _check(served) == NOT_SERVING
    [line] = [line for line in logged if line["event"] == "health.failing"]
    assert (line["check"], "store is away" in line["error"]) == ("store", True)


async def test_a_service_that_is_not_there_is_not_found(serve):
    with pytest.raises(GRPCError, match=r"no service 'no\.such'") as caught:
        await _check(await serve(), "no.such")
    assert caught.value.status is Status.NOT_FOUND


async def test_many_askers_make_one_round_of_checks(serve):
    switch = Switch()
    served = await serve(checks={"store": switch})
    stub = HealthStub(served.channel())
    replies = await asyncio.gather(*(stub.Check(HealthCheckRequest()) for _ in range(50)))
    assert {reply.status for reply in replies} == {SERVING}
    assert switch.asked < 10


async def test_a_watcher_hears_of_every_change_and_of_nothing_else(serve):
    switch = Switch()
    checks = health.ReadinessChecks({"store": switch}, fresh_s=0.0)
    served = await serve(health=health.HealthService([], checks, watch_every_s=0.01))
    heard = []
    async with HealthStub(served.channel()).Watch.open() as stream:
        await stream.send_message(HealthCheckRequest(), end=True)
        for on in (True, False, True):
            switch.on = on
            heard.append((await stream.recv_message()).status)
        await stream.cancel()
    assert heard == [SERVING, NOT_SERVING, SERVING]


async def test_watching_a_service_that_is_not_there_says_so_and_waits(serve):
    served = await serve()
    async with HealthStub(served.channel()).Watch.open() as stream:
        await stream.send_message(HealthCheckRequest(service="no.such"), end=True)
        assert (await stream.recv_message()).status == HealthCheckResponse.SERVICE_UNKNOWN
        await stream.cancel()


@pytest.mark.parametrize(("grpc", "pb2"), [(v1, v1_pb2), (v1alpha, v1alpha_pb2)], ids=["v1", "v1alpha"])
async def test_reflection_describes_what_is_served(serve, grpc, pb2):
    served = await serve()
    method = grpc.ServerReflectionStub(served.channel()).ServerReflectionInfo
    listed, described, missing = await method(
        [
            pb2.ServerReflectionRequest(list_services=""),
            pb2.ServerReflectionRequest(file_containing_symbol="skerry.identity.v1.IdentityService"),
            pb2.ServerReflectionRequest(file_by_filename="no/such.proto"),
        ]
    )
    names = [service.name for service in listed.list_services_response.service]
    assert "skerry.identity.v1.IdentityService" in names
    [data] = described.file_descriptor_response.file_descriptor_proto
    assert FileDescriptorProto.FromString(data).name == "skerry/transport/proto/identity.proto"
    assert missing.error_response.error_code == Status.NOT_FOUND.value


@pytest.mark.parametrize(
    ("token", "status"), [("invoker", Status.PERMISSION_DENIED), ("node", Status.PERMISSION_DENIED)]
)
async def test_reflection_is_for_readers(serve, token, status):
    served = await serve()
    stub = v1.ServerReflectionStub(served.channel())
    with pytest.raises(GRPCError) as caught:
        await stub.ServerReflectionInfo(
            [v1_pb2.ServerReflectionRequest(list_services="")], metadata={"authorization": f"Bearer {token}"}
        )
    assert caught.value.status is status


def test_services_without_methods_are_listed_too():
    services = health.with_health_and_reflection(
        [IdentityService(FakeIdentity())], {}, empty_services=["schedule.ScheduleService"]
    )
    reflections = [service for service in services if type(service).__name__ == "ServerReflection"]
    assert len(reflections) == 2
    assert all("schedule.ScheduleService" in service._service_names for service in reflections)


async def _check(served, name: str = "") -> int:
    return (await HealthStub(served.channel()).Check(HealthCheckRequest(service=name))).status
