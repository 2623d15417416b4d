"""Async calls that run elsewhere: written down where they were accepted, run once, and found anywhere."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.model.calls import CallFailure, CallRequest, CallState
from skerry.model.ids import FunctionName
from tests.functions.continuum.simulated_members import Fault, Resident, Town, accepting
from tests.support.waiting import eventually
from tests.support.workers import function

F = replace(function("f", memory=16), policy="cloudonly")


async def test_every_async_call_is_run_at_most_once_and_its_end_is_found_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.functions.asynchronous.runner._RETRY_AFTER_S", 0.01)
    async with AsyncExitStack() as stack:
        town = await stack.enter_async_context(Town(F, timeout_s=0.01))
        here = town.join("here", remote_area="cloud", ping_s=0.02)
        there = town.join("there", remote_area="cloud", ping_s=0.02)
        town.join("cloud", area="cloud", ping_s=0.02)
        for resident in (here, there):
            await stack.enter_async_context(accepting(resident, tmp_path / resident.member.name))
        await town.meet()
        await eventually(lambda: here.continuum.places.remote and here.continuum.places.remote[0].is_up)
        faults = itertools.cycle([None, *Fault])
        town.fault = lambda _here, _there: next(faults)
        asked = {
            await resident.polls.accept(CallRequest(FunctionName("f"), b"%d" % number)): b"%d" % number
            for number, resident in enumerate([here, there] * 15)
        }

        async def told(asker: Resident, id: str) -> AsyncCallResult | None:
            polled = await asker.polls.poll(id)
            assert polled is not None
            return polled if polled.report is not None else None

        for id, params in asked.items():
            one, other = [
                await eventually(lambda asker=asker, id=id: told(asker, id)) for asker in (here, there)
            ]
            assert one == other
            assert town.runs[params] <= 1
            if one.state is CallState.DONE:
                assert (one.report.answer.result, town.runs[params]) == (params, 1)
            else:
                assert one.report.answer.failure is CallFailure.INTERRUPTED
        assert sum(town.runs.values()) >= 20


async def test_while_no_member_can_be_reached_a_server_keeps_async_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.functions.asynchronous.runner._RETRY_AFTER_S", 0.01)
    async with Town(F) as town:
        server = town.join("server", memory=0, cpus=0.0, is_server=True)
        async with accepting(server, tmp_path / "server"):
            id = await server.polls.accept(CallRequest(FunctionName("f"), b"1"))
            waiting = server.continuum.route
            tries = 0

            async def settle(*args: object) -> object:
                nonlocal tries
                tries += 1
                return await waiting(*args)  # type: ignore[arg-type]

            server.continuum.route = settle  # type: ignore[method-assign,assignment]
            await eventually(lambda: tries > 2)
            assert await server.polls.poll(id) == AsyncCallResult(CallState.QUEUED)
            town.join("node")
            await town.meet()

            async def is_done() -> bool:
                polled = await server.polls.poll(id)
                return polled is not None and polled.state is CallState.DONE

            await eventually(is_done)
            assert town.runs[b"1"] == 1
