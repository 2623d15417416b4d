"""Functions and cells of an ordinary user's Skerry against those of root's, in the same run and in turns.

Both have the same interpreter, environment, flags and folders of one file system. The client is a third user
with a token of the same role at each, since the kernel shows root as nobody to a Skerry in a user namespace;
so both know it by the same evidence. The user has ids assigned, /dev/net/tun, and no delegated cgroup, which
is the mode in which the limits are watched.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.ordinary_users import IDS, OrdinaryUser, ordinary_user

from bench.cells import Times, client_tls, cycle
from bench.figures import Figure
from bench.functions import PYTHON, Client, Load, write_script, wrk
from bench.lean import LeanClient
from bench.serving import percentile, skerry
from skerry.model.callers import NODE_TLS_NAME

CALLER_UID = 1_999_999
ROUNDS = 9
LOAD_S = 1
CONNECTIONS = 32
WORKERS = 2
COLD_ROUNDS = 10
COLD_PER_ROUND = 4
CELL_ROUNDS = 10
CELLS_PER_ROUND = 5
IDLE_WORKERS = 10
IDLE_S = 10.0
FLAGS = ("--set", "functions.memory_mb=4096")
OURS, ROOT = "ours", "root"


class Side(NamedTuple):
    """A running Skerry and its client."""

    ready: dict[str, Any]
    client: Client
    script: Path


def measure() -> Iterator[Figure]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skerry-rootless-")))
        folder.chmod(0o755)
        (folder / "home").mkdir()
        user = stack.enter_context(ordinary_user(ids=IDS, devices=("/dev/net/tun",)))
        root = OrdinaryUser(0, folder / "home", user.python, ())
        sides = {}
        for who, one in ((ROOT, root), (OURS, user)):
            ready = stack.enter_context(start(one))
            token = create_token(one, ready)
            script = write_script(folder, token, f"{who}.lua")
            sides[who] = Side(ready, stack.enter_context(as_caller(ready["http"], token)), script)
        yield from warm(sides)
        yield from cold(sides)
        yield from cells(sides)
        yield from idle(sides)


def start(user: OrdinaryUser) -> contextlib.AbstractContextManager[dict[str, Any]]:
    python = (*user.prefix, *user.python)
    flags = ("--set", f"network.subnet=10.{87 if user.uid else 88}.0.0/16", *FLAGS)
    return skerry(
        *flags, data=user.home / "data", within=user.home, python=python, environment=user.environment
    )


def create_token(user: OrdinaryUser, ready: dict[str, Any]) -> str:
    command = ("token", "create", "--role", "admin", "--url", ready["http"])
    done = user.run(*user.python, "-m", "skerry", *command)
    if done.returncode:
        raise RuntimeError(f"no token: {done.stderr}")
    return done.stdout.split()[0]


@contextlib.contextmanager
def as_caller(url: str, token: str) -> Iterator[Client]:
    """A connection of the third user, which both know by its token alone."""
    codecs.lookup("idna")  # of names of hosts; the third user may not be able to read this Python
    os.seteuid(CALLER_UID)
    try:
        client = Client(url, token)
    finally:
        os.seteuid(0)
    with client:
        yield client


def warm(sides: dict[str, Side]) -> Iterator[Figure]:
    become = ("setpriv", f"--reuid={CALLER_UID}", f"--regid={CALLER_UID}", "--clear-groups", "--")
    loads: dict[str, list[Load]] = {who: [] for who in sides}
    alone: dict[str, list[Load]] = {who: [] for who in sides}
    for side in sides.values():
        side.client.create("noop", "python310", "noop.handler", PYTHON)
        side.client.post("/prewarm", {"Function": "noop", "Instances": WORKERS})
        wrk(f"{side.client.url}/invoke/noop", side.script, CONNECTIONS, 1, prefix=become)
    for turn in range(ROUNDS):
        for who in in_turn(sides, turn):
            url = f"{sides[who].client.url}/invoke/noop"
            loads[who].append(wrk(url, sides[who].script, CONNECTIONS, LOAD_S, prefix=become))
            alone[who].append(wrk(url, sides[who].script, 1, LOAD_S, prefix=become))
    note = f"no-op Python function, {CONNECTIONS} connections"
    root_rate = percentile([load.rate for load in loads[ROOT]], 0.5)
    yield Figure("warm calls as root", root_rate, "calls/s", note=note)
    yield Figure(
        "warm calls",
        _median_ratio(loads, "rate"),
        "x as root",
        at_least=0.9,
        peer=root_rate,
        peer_unit="calls/s",
        peer_name="root",
    )
    yield Figure("warm call, one after the other, p50", _median_ratio(alone, "p50_s"), "x as root")


def in_turn(sides: dict[str, Side], turn: int) -> list[str]:
    """Who comes first changes: the one after a pause may find another clock rate."""
    return list(sides) if turn % 2 else list(reversed(sides))


def _median_ratio(loads: dict[str, list[Load]], field: str) -> float:
    pairs = zip(loads[OURS], loads[ROOT], strict=True)
    return percentile([getattr(ours, field) / getattr(theirs, field) for ours, theirs in pairs], 0.5)


def cold(sides: dict[str, Side]) -> Iterator[Figure]:
    times: dict[str, list[float]] = {who: [] for who in sides}
    for turn in range(COLD_ROUNDS):
        names = [f"cold-{turn}-{number}" for number in range(COLD_PER_ROUND)]
        for who in in_turn(sides, turn):
            client = sides[who].client
            for name in names:
                client.create(name, "python310", "noop.handler", PYTHON)
            times[who] += [client.first_call(name) for name in names]
            for name in names:
                client.post("/delete", {"Name": name})
    yield Figure("cold call of a Python function as root, p50", percentile(times[ROOT], 0.5) * 1e3, "ms")
    yield from _compared("cold call of a Python function", times, at_most=1.5)


def _compared(name: str, times: dict[str, list[float]], at_most: float | None = None) -> Iterator[Figure]:
    """p50, and p99 for information."""
    for share, bound in ((0.5, at_most), (0.99, None)):
        ours, theirs = percentile(times[OURS], share), percentile(times[ROOT], share)
        yield Figure(
            f"{name}, p{share * 100:.0f}",
            ours / theirs,
            "x as root",
            at_most=bound,
            peer=theirs * 1e3,
            peer_unit="ms",
            peer_name="root",
        )


def cells(sides: dict[str, Side]) -> Iterator[Figure]:
    """Allocate and Start over the socket, one after the other."""
    times = {who: Times() for who in sides}
    with contextlib.ExitStack() as stack:
        clients = {}
        for who, side in sides.items():
            client = LeanClient(side.ready["socket"], client_tls(side.ready), NODE_TLS_NAME)
            clients[who] = stack.enter_context(closing(client))
            cycle(client, "warm-up", Times())
        for turn in range(CELL_ROUNDS):
            for who in in_turn(sides, turn):
                for number in range(CELLS_PER_ROUND):
                    cycle(clients[who], f"b{turn}-{number}", times[who])
        for client in clients.values():
            client.check()
    yield Figure("cold start of a cell as root, p50", percentile(times[ROOT].both, 0.5) * 1e3, "ms")
    yield from _compared("cold start of a cell", {who: each.both for who, each in times.items()})
    yield from _compared("Stop and Free of a cell", {who: _ends(each) for who, each in times.items()})


def _ends(times: Times) -> list[float]:
    return [sum(pair) for pair in zip(times.stop, times.free, strict=True)]


def idle(sides: dict[str, Side]) -> Iterator[Figure]:
    """What the processes of an agent use while its workers wait for calls."""
    shares = {}
    for side in sides.values():
        side.client.create("idle", "python310", "noop.handler", PYTHON)
        side.client.post("/prewarm", {"Function": "idle", "Instances": IDLE_WORKERS})
    time.sleep(1)
    before = {who: cpu_s(side.ready["pid"]) for who, side in sides.items()}
    time.sleep(IDLE_S)
    shares = {who: (cpu_s(side.ready["pid"]) - before[who]) / IDLE_S for who, side in sides.items()}
    yield Figure(
        f"processor share of the agent with {IDLE_WORKERS} idle workers",
        shares[OURS] * 100,
        "% of a core",
        at_most=1.0,
        peer=shares[ROOT] * 100,
        peer_unit="% of a core",
        peer_name="root",
    )


def cpu_s(pid: int) -> float:
    """What all threads of the process have used."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
