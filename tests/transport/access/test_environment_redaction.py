"""Values of environment variables in answers: for whoever deploys, and for nobody who only looks or calls."""

from __future__ import annotations

import ast
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from google.protobuf.message import Message

import skerry
from skerry.kit import json_codec, pki
from skerry.kit.clock import SystemClock
from skerry.model import errors, workloads
from skerry.model.callers import ANONYMOUS, AuthMethod, Caller, Role
from skerry.transport.access import environment_redaction
from skerry.transport.grpc.channels import dial
from skerry.transport.proto import containers_pb2 as pb
from skerry.transport.proto.containers_grpc import ContainerServiceStub, ImageServiceStub
from skerry.wire.kudo.envelope import ENVELOPE
from tests.support.certificates import SERVER_NAME, TestAuthority
from tests.support.containers import FakeContainers, container_server
from tests.transport.http.conftest import serving
from tests.wire.kudo.rest_client import WEB, Rest
from tests.wire.own.containers.test_images import WEB as IMAGE
from tests.wire.serverledge.fakes import Fakes

SECRET = "hunter2"
VARIABLES = ["PASSWORD=" + SECRET, "EMPTY="]
MASKED = ["PASSWORD=<hidden>", "EMPTY=<hidden>"]
LOOKING = [Role.VIEWER, Role.INVOKER, None]
SEEING = [Role.DEPLOYER, Role.ADMIN, Role.NODE]


def caller(role: Role | None) -> Caller:
    return ANONYMOUS if role is None else Caller(AuthMethod.TOKEN, "token:x", role)


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    """Everything over HTTP, with an instance, a workload and a function that have a secret."""
    authority = pki.CertificateAuthority.load_or_create(tmp_path, SystemClock())
    fakes = Fakes(SystemClock())
    fakes.functions.add("f", environment=tuple(VARIABLES))
    with structlog.testing.capture_logs():
        async with serving(authority, serverledge=fakes.bundle) as site:
            rest = Rest(site, await site.session())
            await rest.make("/instance/", {**WEB, "id": "i1", "environment": VARIABLES})
            await rest.make("/workload/", {**WEB, "id": "w1", "environment": VARIABLES})
            yield rest


PATHS = ["/instance/", "/instance/i1", "/workload/", "/workload/w1", "/function/f", "/function/f?pretty"]


@pytest.mark.parametrize("path", [*PATHS, "/namespace/default/instance/i1"])
@pytest.mark.parametrize("accept", ["application/json", ENVELOPE])
async def test_a_viewer_sees_names_over_http_and_a_deployer_values(
    rest: Rest, path: str, accept: str
) -> None:
    looks = (Role.VIEWER, MASKED, VARIABLES)
    for role, values, others in (looks, (Role.DEPLOYER, VARIABLES, MASKED), looks):
        headers = {**await rest.site.bearer(role), "Accept": accept}
        told = str(await rest.get(path, headers=headers))
        assert all(repr(variable) in told for variable in values)
        assert not any(repr(variable) in told for variable in others)


@pytest.mark.parametrize("path", ["/instance/i1", "/workload/w1"])
async def test_both_names_of_the_environment_are_masked(rest: Rest, path: str) -> None:
    for role, values in ((Role.VIEWER, MASKED), (Role.DEPLOYER, VARIABLES)):
        shown = await rest.get(path, headers=await rest.site.bearer(role))
        assert (shown["environment"], shown["env"]) == (values, values)


def test_a_label_that_is_called_env_is_no_variable() -> None:
    node = {"labels": {"env": "production"}, "environment": VARIABLES}
    assert environment_redaction.redact_value(caller(Role.VIEWER), node) == {**node, "environment": MASKED}


async def test_no_route_that_a_viewer_may_read_shows_a_value(rest: Rest) -> None:
    headers = await rest.site.bearer(Role.VIEWER)
    document = await rest.get("/openapi.json")
    asked = [path for path, verbs in document["paths"].items() if "get" in verbs and "exec" not in path]
    answered = 0
    for path in asked:
        parts = path.split("/")
        kind = parts[3] if parts[1] == "namespace" and len(parts) > 3 else parts[1]
        name = {"instance": "i1", "workload": "w1", "function": "f"}.get(kind, "x")
        filled = path.replace("{namespace}", "default").replace("{id}", name).replace("{name}", name)
        if filled.endswith(("/events", "/logs", "/door", "/tunnel", "/subscribe")):
            filled += "?follow=false"
        async with rest.session.get(filled, headers=headers) as reply:
            answered += reply.status == 200
            if reply.content_type == "application/json":
                assert SECRET not in await reply.text(), path
    assert answered >= len(PATHS)


async def test_what_a_deployer_reads_can_be_put_back(rest: Rest) -> None:
    headers = await rest.site.bearer(Role.DEPLOYER)
    read = await rest.get("/workload/w1", headers=headers)
    again = await rest.ask("PATCH", "/workload/w1", {"environment": read["environment"]}, headers=headers)
    assert (again.status, again.body["version"]) == (200, read["version"])


async def test_what_a_viewer_reads_cannot_be_put_back_by_mistake(rest: Rest) -> None:
    read = await rest.get("/workload/w1", headers=await rest.site.bearer(Role.VIEWER))
    headers = await rest.site.bearer(Role.DEPLOYER)
    refused = await rest.ask("PATCH", "/workload/w1", {"environment": read["environment"]}, headers=headers)
    assert (refused.status, "give the value itself" in refused.body["error"]) == (400, True)
    with pytest.raises(errors.Invalid, match=r"environment\[0\] holds what is shown instead"):
        workloads.check_environment(("A=<hidden>",))


@pytest.mark.parametrize("role", ["viewer", "deployer", "admin"])
async def test_a_viewer_sees_names_over_grpc_and_a_deployer_values(
    tmp_path: Path, authority: TestAuthority, role: str
) -> None:
    with closing(FakeContainers(tmp_path / "output")) as keeper:
        async with container_server(tmp_path, authority, keeper) as served:
            spec = pb.ContainerSpec(name="web", image=IMAGE, environment=VARIABLES)
            admin = dial(str(served.path), served.tls(), server_name=SERVER_NAME)
            await ContainerServiceStub(admin).Create(pb.CreateRequest(spec=spec))
            context = authority.client_context(authority.issue("somebody", role))
            line = dial(str(served.path), context, server_name=SERVER_NAME)
            shown = await ContainerServiceStub(line).Get(pb.GetRequest(container="web"))
            (listed,) = await ContainerServiceStub(line).List(pb.ListRequest())
            images = await ImageServiceStub(line).List(pb.ListImagesRequest())
            line.close()
            admin.close()
    for container in (shown, listed):
        assert list(container.spec.environment) == (MASKED if role == "viewer" else VARIABLES)
    assert images


@pytest.mark.parametrize("role", LOOKING)
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"environment": ["A=1"]}, {"environment": ["A=<hidden>"]}),
        ({"Env": ["A=b=c"], "x": 1}, {"Env": ["A=<hidden>"], "x": 1}),
        ([{"deep": [{"environnement": ["A"]}]}], [{"deep": [{"environnement": ["A=<hidden>"]}]}]),
        ({"environment": {"A": "1"}}, {"environment": "<hidden>"}),
        ({"environment": None}, {"environment": None}),
        ({"result": '{"environment": ["A=1"]}'}, {"result": '{"environment": ["A=1"]}'}),
    ],
)
def test_a_variable_is_known_by_its_field_at_any_depth(
    role: Role | None, value: object, shown: object
) -> None:
    encoded = json_codec.encode(environment_redaction.redact_value(caller(role), value))
    assert json_codec.decode(encoded, object) == shown


@pytest.mark.parametrize("role", SEEING)
def test_who_sees_values_gets_the_very_answer(role: Role) -> None:
    value, message = {"environment": ["A=1"]}, pb.ContainerSpec(environment=["A=1"])
    assert environment_redaction.redact_value(caller(role), value) is value
    assert environment_redaction.redact_message(caller(role), message) is message


@pytest.mark.parametrize("role", LOOKING)
def test_a_message_that_is_hidden_stays_as_it_was_for_others(role: Role | None) -> None:
    message = pb.Container(spec=pb.ContainerSpec(name="web", environment=VARIABLES))
    shown = environment_redaction.redact_message(caller(role), message)
    assert isinstance(shown, Message)
    assert list(shown.spec.environment) == MASKED
    assert list(message.spec.environment) == VARIABLES
    image = pb.Image(config=pb.ImageConfig(environment=VARIABLES))
    assert list(environment_redaction.redact_message(caller(role), image).config.environment) == MASKED
    progress = pb.Progress(message="pulling")
    assert environment_redaction.redact_message(caller(role), progress) is progress


REDACT = {
    "transport/access/environment_redaction.py",
    "transport/http/runner.py",
    "wire/serverledge/go_json.py",
}
BEFORE_REDACTION = {
    "wire/kudo/document_cache.py"
}  # what it encodes becomes a part of what the runner encodes
EVENTS = {"wire/own/backups.py", "wire/own/events.py", "wire/own/health_route.py", "daemon/openapi.py"}
# To targets of the operator: lines that programs wrote, and spans without parameters.
FORWARDED = {"transport/log_forwarding/formats.py", "transport/trace_export/otlp_json.py"}
PROBLEMS = {"transport/http/responses.py"}
MARKET = {
    "wire/own/market/quotes.py",
    "wire/rear/client.py",
    "wire/rear/contract_tunnels.py",
    "wire/rear/documents_v2.py",
    "wire/rear/messages.py",
    "wire/rear/offer_document_cache.py",
}


def test_whatever_turns_answers_into_bytes_is_known_here() -> None:
    """One more place that does must redact, or have nothing of an instance or function in it."""
    home = Path(skerry.__file__).parent
    found = {
        str(path.relative_to(home))
        for room in ("wire", "transport", "daemon/http.py", "daemon/openapi.py")
        for path in ((home / room).rglob("*.py") if (home / room).is_dir() else [home / room])
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("json_codec.encode", "msgspec.json.encode")
    }
    assert found == REDACT | BEFORE_REDACTION | EVENTS | FORWARDED | PROBLEMS | MARKET
