"""Ten thousand calls of every kind at once, while workers are killed and functions change under them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.functions.registry import tarballs
from tests.support.functions import begin, body, create, delete, groups, outcome, processes
from tests.support.remains import groups_of, left_of
from tests.support.skerry import PREPARED_WORKERS, Skerry, running
from tests.support.waiting import PATIENCE_S, eventually, eventually_sync

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(900),  # a minute on a machine that has nothing else to do, and many if it has
]

CALLS = 10_000
AT_ONCE = 64
# Out of a thousand calls; all others are answered at once.
SHARES = {"async": 100, "raise": 30, "exit": 8, "hang": 8, "print": 30}
UPDATES = 8
SEED = 6
# What is said of a worker that is killed from outside, in the middle of a call or before its first.
KILLED = re.compile("by SIGKILL|ended as soon as it had loaded")

PYTHON = """
import os, time
def handler(params, context):
    do, nonce = params["do"], params["nonce"]
    if do == "raise":
        raise ValueError(nonce)
    if do == "exit":
        os._exit(3)
    if do == "hang":
        time.sleep(60)
    if do == "print":
        print(nonce)
    return {"nonce": nonce, "version": VERSION, "told": context["version"]}
"""
NODE = """
exports.handler = async ({ do: what, nonce }, context) => {
  if (what === "raise") throw new Error(nonce);
  if (what === "exit") process.reallyExit(3);
  if (what === "hang") await new Promise((done) => setTimeout(done, 60000));
  if (what === "print") console.log(nonce);
  return { nonce, version: VERSION, told: context.version };
};
"""


def python(version: int) -> bytes:
    return tarballs.of(main=f"VERSION = {version}\n{PYTHON}")


def node(version: int) -> bytes:
    return tarballs.tar(tarballs.member("main.js", f"const VERSION = {version};\n{NODE}"))


FUNCTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "one": (python, {}),
    "many": (python, {"MaxConcurrency": 4}),
    "node": (node, {"Runtime": "nodejs17", "MemoryMB": 96}),
}


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skerry]:
    # More time than any machine needs: whoever waits longer is lost.
    flags = ("--set", "functions.memory_mb=768", "--set", "functions.queue_wait_s=100")
    # A front starts with the first connection that calls repeatedly, and stays: with two descriptors.
    no_fronts = ("--set", "functions.fronts=0")
    with running(tmp_path_factory.mktemp("crowds"), *PREPARED_WORKERS, *flags, *no_fronts) as one:
        yield one
    assert left_of(one) == []


class Caller:
    """One connection that is kept, with as little around it as there can be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, verb: str, path: str, document: Any = None) -> tuple[int, Any]:
        data = b"" if document is None else json.dumps(document).encode()
        head = f"{verb} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        told = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", told)
        assert length is not None, told
        said = await self._reader.readexactly(int(length[1]))
        return int(told.split(b" ", 2)[1]), json.loads(said) if said else None


@contextlib.asynccontextmanager
async def caller(skerry: Skerry) -> AsyncIterator[Caller]:
    split = urlsplit(skerry.ready["http"])
    reader, writer = await asyncio.open_connection(split.hostname, split.port, limit=1 << 22)
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class Crowd:
    """What was asked and what came back; a wrong answer is an assertion at once."""

    def __init__(self, skerry: Skerry) -> None:
        self._skerry = skerry
        self._chance = random.Random(SEED)
        self._kinds = random.Random(SEED).choices(
            [*SHARES, "echo"], [*SHARES.values(), 1000 - sum(SHARES.values())], k=CALLS
        )
        self._numbers = iter(range(CALLS))
        self.latest = dict.fromkeys(FUNCTIONS, 1)  # the version that the last reply to an update told of
        self.outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
        self.cold: collections.Counter[str] = collections.Counter()
        self.ended = 0
        self.killed = 0

    async def call_for_a_while(self) -> None:
        """One of many callers: the next call as soon as the last one is answered."""
        async with caller(self._skerry) as one:
            for number in self._numbers:
                name = self._chance.choice(list(FUNCTIONS))
                kind = self._kinds[number]
                nonce = f"{name} {number} {'x' * self._chance.randrange(300)}"
                oldest = self.latest[name]
                wish: dict[str, Any] = {"Params": {"do": kind, "nonce": nonce}, "ReturnOutput": True}
                if kind == "hang":
                    wish["QoSMaxRespT"] = 0.2
                if kind == "async":
                    report = await self._later(one, name, wish)
                else:
                    status, report = await one.ask("POST", f"/invoke/{name}", wish)
                    in_queue = report["TimedOut"] and report["Duration"] == 0.0
                    assert status == (200 if report["Success"] else 429 if in_queue else 500), report
                self._check(name, kind, nonce, oldest, report)
                self.ended += 1

    async def _later(self, one: Caller, name: str, wish: dict[str, Any]) -> dict[str, Any]:
        status, accepted = await one.ask("POST", f"/invoke/{name}", {**wish, "Async": True})
        assert status == 200, accepted
        for pause in itertools.count(1):
            status, report = await one.ask("GET", f"/poll/{accepted['ReqId']}")
            if report["State"] not in ("queued", "running"):
                assert status == 200, report
                return dict(report)
            await asyncio.sleep(0.01 * pause)
        raise AssertionError

    def _check(self, name: str, kind: str, nonce: str, oldest: int, report: dict[str, Any]) -> None:
        self.outcomes[name, report["ErrorType"] or "Success"] += 1
        self.cold[name] += report["InitTime"] > 0
        if report["ErrorType"] in ("WorkerDied", "LoadError") and KILLED.search(report["Error"]):
            return  # by us, which may be any call's fate
        if report["ErrorType"] == "WorkerDied":
            assert "exited with 3" in report["Error"], report
            assert kind == "exit" or name == "many", "nobody else was in there"
        elif kind == "raise":
            assert report["ErrorType"] == "HandlerError", report
            assert f"Error: {nonce}\n" in report["Error"]
        elif kind == "hang":
            assert (report["ErrorType"], report["TimedOut"]) == ("Timeout", True), report
        else:
            assert kind != "exit", report
            assert report["Success"], report["ErrorType"] + report["Error"]
            told = json.loads(report["Result"])
            assert told["nonce"] == nonce
            assert told["version"] == told["told"] >= oldest
            assert report["Output"] == (f"{nonce}\n" if kind == "print" else "")

    async def update(self) -> None:
        """Now and then a new version of every function, while calls of it run."""
        async with caller(self._skerry) as one:
            for version in range(2, UPDATES + 2):
                reached = CALLS * (version - 1) // (UPDATES + 1)
                await eventually(lambda reached=reached: self.ended >= reached, within=100)
                for name, (code, more) in FUNCTIONS.items():
                    await self._update(one, body(name, code(version), **more))
                    self.latest[name] = version

    async def _update(self, one: Caller, function: dict[str, Any]) -> None:
        status, said = await one.ask("POST", "/update", function)
        # Again if the worker that tried it out was killed, by us.
        while status == 422 and KILLED.search(said["message"]):
            status, said = await one.ask("POST", "/update", function)
        assert status == 200, said

    async def kill(self) -> None:
        """Now and then a worker of this node is killed from outside, whatever it does."""
        chance = random.Random(SEED)
        for victim in itertools.count(1):
            await eventually(lambda victim=victim: self.ended >= victim * CALLS // 100, within=100)
            pids = sorted({pid for group in groups(self._skerry) for pid in processes(group)})
            if pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(pids), signal.SIGKILL)
                    self.killed += 1


def holdings(skerry: Skerry) -> dict[str, int]:
    """What a Skerry has of everything that could be lost count of."""
    pid = skerry.process.pid
    prefix = f"s{groups_of(skerry)[0].name.removeprefix('skerry-')}"
    links = subprocess.run(["ip", "-br", "link"], check=True, capture_output=True, text=True).stdout
    # Without the elements of sets: those of an address stay for the next worker that gets it, so that there
    # are at most as many as the subnet has addresses.
    rules = subprocess.run(
        ["nft", "-t", "list", "ruleset"], check=True, capture_output=True, text=True
    ).stdout
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "mounts": Path(f"/proc/{pid}/mountinfo").read_text().count(str(skerry.data)),
        "workers": len(groups(skerry)),
        "processes": sum(len(processes(group)) for group in groups(skerry)),
        "cells": len(list((skerry.data / "cells").iterdir())),
        "namespaces": len(list((skerry.data / "containers" / "boot" / "network" / "ns").iterdir())),
        "links": links.count(f"\n{prefix}"),
        "rules": rules.count(skerry.subnet.rpartition(".")[0] + "."),
        "logs": len(list((skerry.data / "functions" / "logs").glob("[!.]*"))),
    }


def settled(skerry: Skerry) -> dict[str, int]:
    """The same, once it has stopped changing: stocks are filled in the background."""
    looks = collections.deque([holdings(skerry)], maxlen=10)

    def is_still() -> bool:
        looks.append(holdings(skerry))
        return len(looks) == looks.maxlen and all(look == looks[0] for look in looks)

    eventually_sync(is_still, within=3 * PATIENCE_S)  # a look takes seconds on a busy machine
    return looks[0]


def more_than(before: dict[str, int], skerry: Skerry) -> dict[str, int]:
    """By how much it has more of what than before."""
    return dict(collections.Counter(holdings(skerry)) - collections.Counter(before))


def counted(skerry: Skerry, metric: str) -> dict[tuple[str, ...], int]:
    """The values of a counter by its labels; those that are nothing left out."""
    text = skerry.call("GET", "/metrics")[1]
    found = re.findall(rf"^{metric}{{(.*)}} (\S+)$", text, flags=re.M)
    return {
        tuple(re.findall(r'="([^"]*)"', labels)): int(float(value)) for labels, value in found if float(value)
    }


def deploy_all(skerry: Skerry) -> None:
    for name, (code, more) in FUNCTIONS.items():
        create(skerry, name, code(1), **more)


def at_rest(skerry: Skerry) -> bool:
    status = skerry.call("GET", "/status")[1]
    return (status["Workers"], status["QueueLength"], status["UsedCPU"]) == (0, 0, 0) and (
        status["FreeMemory"] == status["AvailableMemory"] == status["TotalMemory"]
    )


async def test_ten_thousand_calls_of_every_kind_each_get_their_own_answer_and_leave_nothing(
    skerry: Skerry,
) -> None:
    deploy_all(skerry)  # once before, so that what is made once is there
    for name in FUNCTIONS:
        outcome(skerry, begin(skerry, name, {"do": "echo", "nonce": ""}))
    delete(skerry, *FUNCTIONS)
    eventually_sync(lambda: at_rest(skerry))
    before = settled(skerry)

    deploy_all(skerry)
    crowd = Crowd(skerry)
    killing = asyncio.ensure_future(crowd.kill())
    try:
        await asyncio.gather(crowd.update(), *(crowd.call_for_a_while() for _ in range(AT_ONCE)))
    finally:
        killing.cancel()
        await asyncio.wait([killing])
    assert crowd.ended == CALLS == crowd.outcomes.total()
    assert crowd.killed > 5
    happened = {outcome for _, outcome in crowd.outcomes}
    assert happened >= {"Success", "HandlerError", "WorkerDied", "Timeout"}
    assert counted(skerry, "skerry_function_calls_total") == dict(crowd.outcomes)
    assert counted(skerry, "skerry_function_cold_starts_total") == {
        (name,): count for name, count in crowd.cold.items()
    }

    delete(skerry, *FUNCTIONS)
    eventually_sync(lambda: at_rest(skerry))
    # Workers that were prestarted for the crowd are removed at the next check of the pool, within seconds.
    eventually_sync(lambda: not more_than(before, skerry), within=2 * PATIENCE_S)
    assert "Traceback" not in skerry.said()
