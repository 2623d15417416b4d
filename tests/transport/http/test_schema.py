"""The OpenAPI document says what is served, and nothing that is generated from it makes the server fail."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any

import pytest
import requests
import schemathesis
import structlog
import uvloop
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from skerry.daemon.openapi import openapi_document
from skerry.kit import pki
from skerry.kit.clock import ManualClock, SystemClock
from skerry.market.terms.keys import SigningKey
from skerry.transport.access import rules
from tests.support.deals import OPEN
from tests.support.waiting import PATIENCE_S
from tests.transport.http.conftest import serving
from tests.wire.own.market.conftest import desk_of
from tests.wire.rear.conftest import market_of
from tests.wire.serverledge.fakes import Fakes

DOCUMENT = openapi_document()
EXAMPLES = 3  # for each operation
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture
def url(authority: pki.CertificateAuthority) -> Iterator[str]:
    """A server in a thread of its own, since what generates the requests waits for each answer."""
    started: Future[tuple[str, Callable[[], None]]] = Future()

    async def live() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        clock = ManualClock()
        async with AsyncExitStack() as undo:
            ledger, rear = await undo.enter_async_context(market_of(SigningKey.generate(), clock, OPEN))
            desk = desk_of(ledger, rear.provider)
            functions = Fakes(SystemClock()).bundle
            site = await undo.enter_async_context(
                serving(authority, serverledge=functions, rear=rear, desk=desk)
            )
            started.set_result((site.url, lambda: loop.call_soon_threadsafe(stop.set) and None))
            await stop.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(live())

    with structlog.testing.capture_logs():
        thread = threading.Thread(target=run, name="server")
        thread.start()
        base, stop = started.result(timeout=PATIENCE_S)
        yield base
        stop()
        thread.join(timeout=PATIENCE_S)


def operations() -> dict[str, Any]:
    return {
        f"{method.upper()} {path}": operation
        for path, verbs in DOCUMENT["paths"].items()
        for method, operation in verbs.items()
    }


def test_every_route_is_described_with_the_roles_of_its_row() -> None:
    described = operations()
    assert set(described) == set(rules.HTTP_RULES)
    for name, operation in described.items():
        row = rules.HTTP_RULES[name]
        assert operation["x-skerry-roles"] == (["anybody"] if row.anybody else sorted(row.roles))
        assert bool(operation["security"]) is not row.anybody
        assert operation["summary"]
        assert operation["description"]
        assert "default" in operation["responses"]


def test_every_reference_leads_somewhere() -> None:
    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"]
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) == known


def test_operation_ids_are_unique() -> None:
    names = [operation["operationId"] for operation in operations().values()]
    assert len(set(names)) == len(names)


def operations_to_try() -> list[Any]:
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    return [result.ok() for result in schema.get_all_operations()]


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as made:
        yield made


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_nothing_made_from_the_description_makes_the_server_fail(
    url: str, session: requests.Session, mode: GenerationMode
) -> None:
    tried = Counter[str]()

    def attempt(case: Any) -> None:
        if case.operation.path in ("/events", "/function/{name}/logs"):
            case.query = {**(case.query or {}), "follow": "false"}
        case.call_and_validate(base_url=url, checks=CHECKS, timeout=PATIENCE_S, session=session)
        tried[case.operation.label] += 1

    for operation in operations_to_try():
        bounded = settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        try:
            bounded(given(operation.as_strategy(generation_mode=mode))(attempt))()
        except Unsatisfiable:
            continue  # it takes nothing that could be wrong
    takes_input = {name for name, o in operations().items() if "parameters" in o or "requestBody" in o}
    assert set(tried) >= takes_input
    assert sum(tried.values()) * 3 > EXAMPLES * 2 * len(takes_input)
