"""Many clients at several fronts, few workers: one queue, whatever the number of fronts.

Each scenario runs in simulated time over the real invoker and the real links. What the clients of several
fronts see must be what they would see at one.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from typing import NamedTuple, cast

import pytest

from skerry.model import errors
from skerry.model.calls import CallReport, CallRequest
from skerry.model.ids import FunctionName
from skerry.transport.http import front_frames as frames
from skerry.transport.http.front_pool import FrontLink
from tests.support.simulated import passes
from tests.support.workers import Site, function, in_simulated_time

WORKERS = 2
ROUNDS = 5


class _Unwritten(asyncio.WriteTransport):
    """The front reads nothing of it: clients are answered by the scenario."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        pass


class Step(NamedTuple):
    """What a client saw of one call, in milliseconds."""

    client: str
    arrived: int
    ended: int


class Client:
    """A connection at a front, that calls again and again as soon as it is answered."""

    def __init__(self, site: Site, name: str, qos_class: int, think_s: float, steps: list[Step]) -> None:
        self._site = site
        self._name = name
        self._qos_class = qos_class
        self._think_s = think_s
        self._steps = steps
        self._loop = asyncio.get_running_loop()
        self.left = ROUNDS
        self.running: list[str] = []

    def join(self, link: FrontLink, sock: socket.socket) -> None:
        lease = link.assign(self, sock, [b"head"])
        assert lease is not None
        self._link, self._number = link, lease.number
        self.send()

    def send(self) -> None:
        """The front has read a request."""
        self.left -= 1
        self._link.data_received(frames.encode_request(self._number, 0, b"{}"))

    def front_request(self, head: int, body: bytes) -> None:
        request = CallRequest(FunctionName("f"), params=body, qos_class=self._qos_class)
        self._arrived = self._loop.time()
        assert self._site.invoker.begin(request, self._done) is not None

    def _done(self, outcome: CallReport | errors.SkerryError) -> None:
        assert isinstance(outcome, CallReport)
        assert outcome.answer.failure is None
        now = self._loop.time()
        self._steps.append(Step(self._name, round(self._arrived * 1000), round(now * 1000)))
        if self.left:
            self._loop.call_later(self._think_s, self.send)

    def front_returned(self, data: bytes) -> None:
        raise AssertionError("nothing is returned here")

    def front_closed(self) -> None:
        pass


async def contend(fronts: int, clients: list[tuple[str, int, float]]) -> list[Step]:
    """What the `clients`, each with a name, a class and a time to think, see at so many fronts."""
    steps: list[Step] = []
    async with Site(function("f", memory=512), memory_mb=512 * WORKERS) as site:
        site.host.run_s = 0.01
        await site.invoker.prewarm("f", WORKERS)
        began = asyncio.get_running_loop().time()
        with ExitStack() as undo:
            links = []
            for _ in range(fronts):
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                undo.enter_context(ours)
                undo.enter_context(theirs)
                links.append(FrontLink(ours))
                links[-1].connection_made(cast(asyncio.BaseTransport, _Unwritten()))
            sock = undo.enter_context(socket.socket())
            for index, (name, qos_class, think_s) in enumerate(clients):
                Client(site, name, qos_class, think_s, steps).join(links[index % fronts], sock)
            await passes(10.0)
            for link in links:
                link.connection_lost(None)
        assert max(worker.calls for worker in site.host.spawned) < len(steps), "all workers took part"
    offset = round(began * 1000)
    return [Step(step.client, step.arrived - offset, step.ended - offset) for step in steps]


@pytest.mark.parametrize("fronts", [2, 3, 8])
def test_clients_of_several_fronts_see_what_they_would_see_at_one(fronts: int) -> None:
    clients = [(f"c{index}", 0, 0.001 * (index % 3)) for index in range(24)]
    clients += [(f"urgent{index}", 2, 0.005) for index in range(3)]
    seen: dict[int, list[Step]] = {}

    @in_simulated_time
    async def run(count: int) -> None:
        seen[count] = await contend(count, clients)

    run(1)
    run(fronts)
    assert len(seen[1]) == len(clients) * ROUNDS
    assert seen[fronts] == seen[1]


@in_simulated_time
async def test_a_crowded_front_does_not_delay_the_clients_of_another() -> None:
    """Without classes calls are served as they arrive: nobody is overtaken by a front with more clients."""
    crowd = [(f"c{index}", 0, 0.0) for index in range(20)]
    steps = await contend(2, crowd)
    served = [step.arrived for step in steps]
    assert served == sorted(served)
    waits = {
        name: [step.ended - step.arrived for step in steps if step.client == name] for name, _, _ in crowd
    }
    whole_queue = 10 * len(crowd) // WORKERS + 10
    assert max(max(each) for each in waits.values()) <= whole_queue
    assert {len(each) for each in waits.values()} == {ROUNDS}
