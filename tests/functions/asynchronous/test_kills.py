"""`kill -9` at random points: what was accepted is run once, or told as interrupted, and never lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from skerry.kit.clock import SystemClock
from skerry.model.calls import CallFailure, CallState
from tests.functions.asynchronous.call_driver import Noting
from tests.functions.asynchronous.callers import asynchronous, ended
from tests.support.waiting import PATIENCE_S, eventually

ROUNDS = 25
REPOSITORY = Path(__file__).resolve().parents[3]


def accept_and_kill(process: subprocess.Popen[bytes], chance: random.Random) -> dict[str, bytes]:
    """The calls that were acknowledged before the process was killed."""
    assert process.stdin is not None
    assert process.stdout is not None
    accepted: dict[str, bytes] = {}
    process.stdin.write(b"go\n")
    pid = int(process.stdout.readline().split()[1])

    def note(line: bytes) -> None:
        _, id, params = line.split()
        accepted[id.decode()] = params

    for _ in range(chance.choice([0, 1, 5, 40, 150])):
        note(process.stdout.readline())
    for _ in range(chance.randrange(20_000)):
        pass  # a moment of chance length, far shorter than any sleep
    os.kill(pid, signal.SIGKILL)
    while (line := process.stdout.readline()) != b"done\n":
        note(line)
    return accepted


async def test_a_kill_loses_no_accepted_call_and_runs_none_twice(tmp_path: Path) -> None:
    chance = random.Random(20261115)
    accepted: dict[str, bytes] = {}
    command = [sys.executable, "-m", "tests.functions.asynchronous.call_driver", str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=REPOSITORY
    ) as process:
        for _ in range(ROUNDS):
            accepted |= accept_and_kill(process, chance)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
    assert len(accepted) > ROUNDS
    invoker = Noting(tmp_path / "ran")
    interrupted = 0
    try:
        async with asynchronous(tmp_path, invoker, SystemClock()) as calls:
            told = {id: await eventually(lambda id=id: ended(calls, id)) for id in accepted}
    finally:
        os.close(invoker.file)
    ran = Counter((tmp_path / "ran").read_bytes().split())
    assert max(ran.values()) == 1
    for id, params in accepted.items():
        answer = told[id].report.answer
        if told[id].state is CallState.DONE:
            assert (answer.result, ran[params]) == (params, 1)
        else:
            interrupted += 1
            assert answer.failure is CallFailure.INTERRUPTED
    assert interrupted < len(accepted)
