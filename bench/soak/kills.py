"""Processes are killed at random while calls and writes go on: nothing is lost, doubled or left behind.

    python -m bench.soak kills [--count 200] [--seed N] [--minutes 60]

Server and agent are started again after a moment, as systemd would; for all others that is Skerry's business.
Kills come one by one or several at once. After each of these bursts the campaign waits until all is well: the
node is ready, what should run runs once, and a call is answered by a worker that is there and another by one
that has to be started. The seed decides which kinds are killed in which order, all about as often; how far
everything else has got at that moment is up to the machine.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.node.network.machines import machine
from tests.support import imagery

from bench.soak.cluster import AGENT, HOST, KINDS, SERVER, Supervisor, supervised
from bench.soak.traffic import Traffic
from bench.soak.witness import Witness

COUNT, MINUTES = 200, 60.0
_STEADY = 3
_MOST_AT_ONCE = 3
_WELL_WITHIN_S = 60.0
_BACK_WITHIN_S = 5.0
_GIVE_UP_AFTER = 3  # bursts in a row after which it was never well again


def plan(seed: int, count: int) -> Iterator[list[str]]:
    """Which kinds are killed, in bursts: each of them once before any of them again."""
    chance = random.Random(seed)
    order: list[str] = []
    while len(order) < count:
        order += chance.sample(KINDS, len(KINDS))
    del order[count:]
    while order:
        size = chance.randint(1, _MOST_AT_ONCE)
        yield order[:size]
        del order[:size]


class Campaign:
    """One run."""

    def __init__(self, supervisor: Supervisor, traffic: Traffic, seed: int, count: int) -> None:
        self._supervisor = supervisor
        self._traffic = traffic
        self._plan = plan(seed, count)
        self._chance = random.Random(seed)
        self._count = count
        self.killed: defaultdict[str, int] = defaultdict(int)
        self.recoveries: defaultdict[str, list[float]] = defaultdict(list)  # by the one kind that was killed

    def run(self, until: float) -> None:
        """Kill all that is planned, unless it gets late."""
        done, hopeless = 0, 0
        self._wait_until_well([])
        for burst in self._plan:
            if time.monotonic() > until or hopeless == _GIVE_UP_AFTER:
                self._traffic.record.violate(f"only {done} of {self._count} kills were done")
                return
            for kind in burst:
                time.sleep(self._chance.uniform(0, 0.5))
                self._kill_soon(kind)
            done += len(burst)
            hopeless = 0 if self._wait_until_well(burst) else hopeless + 1
            self._traffic.collect()
            seen = " ".join(f"{kind} {self.killed[kind]}" for kind in KINDS)
            print(f"  {done}/{self._count} killed: {seen}", flush=True)

    def _kill_soon(self, kind: str) -> None:
        """Kill one of that kind as soon as there is one: it may have to come back from another kill first. A
        launcher comes back when it is needed; if that takes long, another kind is killed in its place."""
        deadline = time.monotonic() + _BACK_WITHIN_S
        while not self._kill(kind):
            if time.monotonic() > deadline:
                kind = self._chance.choice(KINDS)
            time.sleep(0.01)

    def _kill(self, kind: str) -> bool:
        """Kill one of that kind, if there is any."""
        pids = self._supervisor.pids(kind)
        if not pids:
            return False
        pid = self._chance.choice(pids)
        try:
            self._supervisor.kill(pid)
        except ProcessLookupError:
            return False
        self.killed[kind] += 1
        return True

    def _wait_until_well(self, burst: list[str]) -> bool:
        began = time.monotonic()
        while wrong := self._what_is_wrong():
            if time.monotonic() > began + _WELL_WITHIN_S:
                self._traffic.record.violate(f"not well again after {', '.join(burst)}: {wrong}")
                return False
            time.sleep(0.05)
        if len(set(burst)) == 1:
            self.recoveries[burst[0]].append(time.monotonic() - began)
        return True

    def _what_is_wrong(self) -> str:
        for kind in (SERVER, AGENT):
            if not self._supervisor.pids(kind):
                return f"there is no {kind}"
        return self._traffic.what_is_wrong()

    def table(self) -> list[str]:
        """What was killed how often, and how soon all was well again where that kind alone was killed."""
        lines = [f"  {'killed':<12}{'times':>6}{'well again after, median':>28}{'at most':>10}"]
        for kind in KINDS:
            times = self.recoveries[kind]
            middle, most = (f"{f(times):.1f} s" if times else "-" for f in (statistics.median, max))
            lines.append(f"  {kind:<12}{self.killed[kind]:>6}{middle:>28}{most:>10}")
        return lines


def run(count: int = COUNT, seed: int | None = None, minutes: float = MINUTES) -> list[str]:
    """The whole campaign; what was violated."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"  seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if found := campaign(folder, count, seed, minutes):
            kept = tempfile.mkdtemp(prefix="skerry-soak-")
            for part in (SERVER, AGENT):
                shutil.copy(folder / part / "log", f"{kept}/{part}.log")
            print(f"  logs of {SERVER} and {AGENT} are kept in {kept}", flush=True)
        return found


def campaign(folder: Path, count: int, seed: int, minutes: float = MINUTES) -> list[str]:
    """On a machine of its own and in `folder`; what was violated."""
    until = time.monotonic() + minutes * 60
    image = f"oci-archive:{imagery.write_oci_archive(imagery.busybox(), folder / 'image.tar')}"
    with machine(folder) as here:
        here.run("ip", "address", "add", f"{HOST}/32", "dev", "lo")
        rules = here.run("nft", "list", "ruleset"), here.run("ip", "-brief", "link")
        witness = Witness(HOST)
        try:
            with supervised(folder) as supervisor:
                traffic = Traffic(image, witness, random.Random(seed))
                traffic.prepare(_STEADY)
                killing = Campaign(supervisor, traffic, seed, count)
                try:
                    traffic.start()
                    killing.run(until)
                finally:
                    traffic.stop()
                traffic.settle()
                found = [*traffic.record.violations, *supervisor.unexpected, *supervisor.stop()]
        finally:
            witness.close()
        if (here.run("nft", "list", "ruleset"), here.run("ip", "-brief", "link")) != rules:
            found.append(
                f"left behind: {here.run('nft', 'list', 'ruleset')}{here.run('ip', '-brief', 'link')}"
            )
    print("\n".join(killing.table()))
    counts = sorted(traffic.record.counts.items())
    print("  meanwhile: " + ", ".join(f"{name} {count}" for name, count in counts), flush=True)
    return found
