"""A caller that is bound to one namespace gets the same answers for what is in another as for what is
nowhere, by every RPC."""

from __future__ import annotations

import pytest
from grpclib.const import Status

from skerry.model.ids import Namespace
from skerry.model.workloads import InstanceSpec
from skerry.transport.access import rules
from skerry.transport.access.namespaces import METADATA
from skerry.transport.access.rules import AccessScope
from skerry.transport.proto import kudo_scheduler_pb2 as pb
from tests.transport.grpc.fakes import FakeIdentity
from tests.transport.grpc.raw import RawClient, framed
from tests.transport.grpc.test_access import NobodyKnown, everything
from tests.wire.kudo.grpc_fakes import FakeInstances

SPEC = InstanceSpec("web", "example.org/web:1")
NAMESPACED = sorted(path for path, row in rules.GRPC_RULES.items() if row.scope is AccessScope.NAMESPACED)
CLUSTER = sorted(path for path, row in rules.GRPC_RULES.items() if row.scope is AccessScope.CLUSTER)


async def a_lab() -> FakeInstances:
    instances = FakeInstances()
    await instances.create(SPEC, actor="me", namespace=Namespace("lab"), id="in-lab")
    await instances.create(SPEC, actor="me", namespace=Namespace("shop"), id="shop.web")
    return instances


def about(path: str, id: str) -> bytes:
    """A message about the instance `id`, of the kind that the RPC takes."""
    if path.endswith("/Create"):
        return framed(pb.Instance(id=id, name="web", uri="example.org/web:1").SerializeToString())
    return framed(pb.InstanceIdentifier(id=id).SerializeToString())


@pytest.mark.parametrize("path", NAMESPACED)
async def test_a_caller_of_another_namespace_gets_the_answer_of_what_does_not_exist(serve, path, tmp_path):
    instances = await a_lab()
    before = dict(instances.all)
    gate = NobodyKnown(FakeIdentity(), own_uid=0)
    served = await serve(gate=gate, services=everything(tmp_path, instances))
    shown = ("authorization", "Bearer deployer@shop")
    async with RawClient(served.port) as raw:
        for named in ((), ((METADATA, "shop"),)):
            there = await raw.call(path, about(path, "in-lab"), shown, *named)
            nowhere = await raw.call(path, about(path, "absent"), shown, *named)
            assert there[0] == nowhere[0] != Status.OK.value
            assert there[1] == nowhere[1].replace("absent", "in-lab")
        lab = await raw.call(path, about(path, "in-lab"), shown, (METADATA, "lab"))
        nil = await raw.call(path, about(path, "in-lab"), shown, (METADATA, "nil"))
        assert lab[0] == nil[0] == Status.NOT_FOUND.value
        assert lab[1] == nil[1].replace("nil", "lab")
        for odd in ("", "*", "shop,lab", "LAB", "lab/../shop"):
            status, _ = await raw.call(path, about(path, "in-lab"), shown, (METADATA, odd))
            assert status == Status.INVALID_ARGUMENT.value, odd
        status, _ = await raw.call(path, about(path, "in-lab"), shown, (METADATA, "shop"), (METADATA, "lab"))
        assert status == Status.INVALID_ARGUMENT.value
        # Its own it has.
        assert await raw.first_status(path, about(path, "shop.web"), shown) == Status.OK.value
    assert instances.all["in-lab"] is before["in-lab"]


@pytest.mark.parametrize("role", ["deployer", "viewer", "invoker"])
async def test_a_bound_caller_is_refused_whatever_is_of_a_whole_node_or_cloud(serve, role, tmp_path):
    served = await serve(gate=NobodyKnown(FakeIdentity(), own_uid=0), services=everything(tmp_path))
    for path in CLUSTER:
        async with RawClient(served.port) as raw:
            answers = {
                await raw.call(path, framed(message), ("authorization", f"Bearer {role}@shop"))
                for message in (b"", b"\x0a\x06in-lab", b"\x0a\x06absent")
            }
        assert len(answers) == 1, path
        assert answers.pop()[0] == Status.PERMISSION_DENIED.value, path


def test_every_rpc_has_a_scope_and_only_instances_have_a_namespace():
    assert {path.split("/")[1] for path in NAMESPACED} == {"InstanceService", "scheduler.InstanceService"}
    assert all(not rules.GRPC_RULES[path].anybody for path in NAMESPACED)
