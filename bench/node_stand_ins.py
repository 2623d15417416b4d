"""Stand-ins for nodes, in a process of their own: the real session of a node, on instances that are numbers.

`python -m bench.node_stand_ins FILE` runs as many as the file says. Each has the agent, the session and the
gRPC client of a real node (`skerry.node.agent`, `skerry.transport.links.nodes.client`), with TLS and a
certificate of the cloud's CA, and the real back-off; only containers are missing. Commands come as lines on
standard input, and each is answered with a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import structlog
import uvloop

from skerry.kit import fd_limit, tls
from skerry.kit.clock import SystemClock
from skerry.model.container_options import NodeFeature
from skerry.model.ids import InstanceId
from skerry.model.node_messages import InstanceClaim, NodeHello, SessionConfig, TunnelRequest
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.streams import LogStreamRequest, TunnelChannel, TunnelFrame, TunnelStream
from skerry.node.agent import agent
from skerry.node.agent.instances.state import PendingReport
from skerry.node.agent.server_addresses import ServerAddressCache
from skerry.node.agent.session import AgentHooks
from skerry.transport.links.nodes.client import GrpcControlDialer

INSTANCES_PER_NODE: Final = 10
RESOURCES: Final = Resources(Millicores(100 * INSTANCES_PER_NODE), Megabytes(32768), Gigabytes(1000))
_LINE_S: Final = 0.5  # between two lines of a log that is followed
_STATUS: Final = {
    DesiredStatus.RUNNING: InstanceStatus.RUNNING,
    DesiredStatus.STOPPED: InstanceStatus.STOPPED,
    DesiredStatus.DESTROYED: InstanceStatus.TERMINATED,
}
_CLOCK: Final = SystemClock()


class StandInNode(msgspec.Struct):
    """What one of them needs: its name, and the files of its certificate and key."""

    name: str
    certificate: str
    key: str


class StandInPlan(msgspec.Struct):
    """What a process of them is started with."""

    authority: str
    grpc: str
    nodes: list[StandInNode]


class StandInInstances:
    """The instances of one stand-in, in place of `NodeInstances`: each runs as soon as it is ordered."""

    def __init__(self) -> None:
        self._last: dict[InstanceId, InstanceReport] = {}
        self._pending: dict[int, PendingReport] = {}
        self._number = 0
        self._has_reports = asyncio.Event()
        self.connected_at = 0.0

    def __len__(self) -> int:
        return len(self._last)

    @property
    def unacknowledged(self) -> int:
        return len(self._pending)

    def restart_all(self) -> None:
        """Have every instance restart once, which is reported."""
        for report in list(self._last.values()):
            self._report(msgspec.structs.replace(report, restarts=report.restarts + 1, at=_CLOCK.now()))

    def claims(self, ordered: Collection[InstanceId] = ()) -> list[InstanceClaim]:
        return []

    async def set_config(self, config: SessionConfig) -> None:
        self.connected_at = time.time()

    async def apply(
        self,
        orders: Sequence[InstanceOrder],
        *,
        is_full: bool,
        removed: Collection[InstanceId] = (),
        claimed: Collection[InstanceId] = (),
    ) -> None:
        for order in orders:
            known = self._last.get(order.instance)
            if known is None or known.generation != order.generation:
                status = _STATUS[order.desired]
                self._report(InstanceReport(order.instance, order.generation, status, _CLOCK.now()))
        for id in removed:
            self._last.pop(id, None)

    def reports(self, after: int, limit: int) -> list[PendingReport]:
        return [one for number, one in self._pending.items() if number > after][:limit]

    def acknowledge(self, number: int) -> None:
        for each in [one for one in self._pending if one <= number]:
            del self._pending[each]

    def inventory(self) -> list[InstanceReport]:
        return list(self._last.values())

    def take_usage(self) -> list[InstanceReport]:
        return []

    async def wait_for_reports(self) -> None:
        await self._has_reports.wait()
        self._has_reports.clear()

    def _report(self, report: InstanceReport) -> None:
        self._number += 1
        self._last[report.instance] = report
        self._pending[self._number] = PendingReport(self._number, report)
        self._has_reports.set()


class _LogTunnels:
    """Serves logs that are followed: a numbered line twice a second, until the client leaves."""

    async def serve(self, request: TunnelRequest, tunnel: TunnelStream) -> None:
        assert isinstance(request.stream, LogStreamRequest), "nothing else is asked of a stand-in"
        number = 0
        while True:
            line = f"{number} of {request.instance}\n".encode()
            await tunnel.send(TunnelFrame(TunnelChannel.OUTPUT, line).pack())
            number += 1
            await asyncio.sleep(_LINE_S)


def _agent(node: StandInNode, plan: StandInPlan, instances: StandInInstances) -> agent.NodeAgent:
    context = tls.client(Path(plan.authority).read_bytes())
    tls.load(context, Path(node.certificate), Path(node.key))
    facts = agent.facts()
    hello = NodeHello(
        node.name,
        msgspec.structs.replace(facts, features=(*facts.features, NodeFeature.SECRETS, NodeFeature.VOLUMES)),
        RESOURCES,
        takes_revocations=True,
        makes_claims=True,
    )
    return agent.NodeAgent(
        ServerAddressCache(plan.grpc, Path(f"{node.key}.servers")),
        lambda server: GrpcControlDialer(server, context),
        cast(Any, instances),
        cast(Any, _LogTunnels()),
        AgentHooks(describe=lambda: hello),
        _CLOCK,
    )


async def _run(plan: StandInPlan) -> None:
    nodes = [StandInInstances() for _ in plan.nodes]
    agents = [_agent(node, plan, instances) for node, instances in zip(plan.nodes, nodes, strict=True)]
    tasks = [asyncio.ensure_future(each.run()) for each in agents]
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while (command := (await reader.readline()).decode().strip()) not in ("", "stop"):
        if command == "restart":
            for instances in nodes:
                instances.restart_all()
        usage = os.times()
        answer = {
            "connected": sum(each.is_connected for each in agents),
            "connected_at": max(each.connected_at for each in nodes),
            "instances": sum(map(len, nodes)),
            "unacknowledged": sum(each.unacknowledged for each in nodes),
            "cpu_s": usage.user + usage.system,
        }
        print(json.dumps(answer), flush=True)
    for failed in [task for task in tasks if task.done()]:
        failed.result()
    os._exit(0)  # connections need no goodbye


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    logging.disable(logging.CRITICAL)  # connections that a server which is killed leaves behind
    fd_limit.raise_fd_limit()
    uvloop.run(_run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=StandInPlan)))


if __name__ == "__main__":
    main()
