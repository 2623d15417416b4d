"""Cells that are lent as they are: the kernel's limits, containers in them, agents that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from skerry.model.devices import DeviceRequest
from skerry.model.health_checks import CheckRole, parse
from skerry.model.ids import InstanceId
from skerry.model.node_messages import TunnelRequest
from skerry.model.streams import (
    ExecStreamRequest,
    GuestStreamRequest,
    LogStreamRequest,
    StreamRequest,
    TunnelChannel,
)
from skerry.node.containers import state
from tests.node.agent.instances.driver import shorten_waits
from tests.node.agent.instances.far_ends import FakeTunnel
from tests.node.agent.instances.worlds import ID
from tests.node.cells.real import is_alive
from tests.node.containers.conftest import busybox, ground
from tests.node.containers.real import Ground, needs_runc, printed
from tests.node.guests.ground import BOUGHT, CELL, CONTRACT, OWN, contract
from tests.node.guests.real import Lender, group_of, guests_order, lender
from tests.support.drivers import Drivers
from tests.support.waiting import eventually, eventually_sync

__all__ = ["busybox", "ground"]
pytestmark = [needs_runc, pytest.mark.root]

GREEDY = "x=aaaaaaaaaaaaaaaa; while true; do x=$x$x; done"
MEGABYTE = 1024**2


def limits(ground: Ground) -> tuple[float, int, int]:
    """Cores, bytes and processes, as the kernel has them written down for the cell."""
    cpu, memory, pids = (group_of(ground, OWN, name) for name in ("cpu", "memory", "pids"))
    if (cpu / "cpu.max").exists():
        quota, period = (cpu / "cpu.max").read_text().split()
        limit = (memory / "memory.max").read_text()
    else:
        quota, period = ((cpu / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        limit = (memory / "memory.limit_in_bytes").read_text()
    return int(quota) / int(period), int(limit), int((pids / "pids.max").read_text())


async def request(here: Lender, request: StreamRequest) -> FakeTunnel:
    """All that is answered to it."""
    tunnel = FakeTunnel()
    serving = asyncio.ensure_future(here.tunnels.serve(TunnelRequest("t", CONTRACT, request), tunnel))
    await eventually(lambda: tunnel.is_ended)
    tunnel.hang_up()
    await serving
    return tunnel


async def test_instances_of_a_guest_are_checked_by_the_node_that_lends(ground: Ground) -> None:
    shorten_waits(ground)
    async with lender(ground) as here:
        await here.lend()
        buyer = here.buyer()
        hello = await buyer.welcomed()
        assert hello.facts.runs_checks
        checks = (
            parse("http:80/health,interval=100ms"),
            parse("exec:ls /tmp/health", CheckRole.STARTUP),
        )
        serve = "echo >/tmp/health; exec httpd -f -p 127.0.0.1:80 -h /tmp"
        await buyer.order(guests_order("sh", "-c", serve, checks=checks))
        await eventually(lambda: (last := buyer.last()) and last.status == "RUNNING" and last.has_passed)
        await here.clear()


async def test_a_guest_lives_in_a_cell_of_exactly_what_was_bought_and_leaves_nothing(ground: Ground) -> None:
    shorten_waits(ground)
    async with lender(ground) as here:
        await here.lend()
        assert limits(ground) == (0.5, BOUGHT.memory * MEGABYTE, ground.settings.container_pids)
        buyer = here.buyer()
        await buyer.order(guests_order("sh", "-c", "echo hello; sleep 1000"))
        await buyer.until("RUNNING")
        (view,) = here.agent.containers.list()
        assert view.pid is not None
        groups = Path(f"/proc/{view.pid}/cgroup").read_text()
        assert f"{ground.root}/{OWN}/{view.spec.name}" in groups

        async def has_greeted() -> bool:
            logs = await request(here, GuestStreamRequest(InstanceId(ID), LogStreamRequest()))
            assert logs.failure is None
            return logs.received() == b"hello\n"

        await eventually(has_greeted)  # RUNNING comes before the first command of its shell
        program = await request(
            here, GuestStreamRequest(InstanceId(ID), ExecStreamRequest(("sh", "-c", "echo up; exit 4")))
        )
        assert (program.received(), program.received(TunnelChannel.EXIT)) == (b"up\n", b"4")

        await here.clear()
        assert not is_alive(view.pid)
        assert list((ground.folder / "lent").iterdir()) == []
    # The rest is for the ground, which finds whatever is left of groups, mounts, links and files.


async def test_too_much_memory_is_too_much_for_the_cell_though_the_container_has_no_limit(
    ground: Ground,
) -> None:
    shorten_waits(ground)
    async with lender(ground) as here:
        await here.lend()
        buyer = here.buyer()
        silent, greedy = guests_order(), guests_order("sh", "-c", GREEDY, id="greedy", restart="never")
        await buyer.order(silent, greedy)
        report = await buyer.until("FAILED", "greedy")
        assert report.exit_code == 128 + signal.SIGKILL
        assert "memory" in report.reason
        assert here.agent.cells.usage(OWN).memory_peak_bytes <= BOUGHT.memory * MEGABYTE
        last = buyer.last()
        assert last is not None
        assert (str(last.status), last.restarts) == ("RUNNING", 0)
        await here.clear()


async def test_guests_write_no_more_together_than_was_bought_though_they_ask_for_no_limit(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_waits(ground)
    monkeypatch.setattr(state, "_GIGABYTE", 16 * MEGABYTE)
    bought = BOUGHT.disk * 16 * MEGABYTE
    fill = (
        "(exec 3>/file; rm /file; dd if=/dev/zero bs=1M count=100 >&3; fallocate -l 8G /more) 2>&1; echo ok"
    )
    async with lender(ground) as here:
        await here.lend()
        buyer = here.buyer()
        await buyer.order(*(guests_order(id=id) for id in ("one", "two")))
        for id in ("one", "two"):
            await buyer.until("RUNNING", id)
        for id in ("one", "two"):
            output = (
                await request(here, GuestStreamRequest(InstanceId(id), ExecStreamRequest(("sh", "-c", fill))))
            ).received()
            assert output.count(b"No space left") == 2, output
            assert output.endswith(b"ok\n")
        stats = await here.leased.stats(CELL)
        assert stats.disk_limit_kind == "filesystem"
        assert bought * 0.9 < stats.disk_bytes <= bought
        (image,) = ground.folder.glob("containers/filesystems/*.ext4")
        assert image.stat().st_blocks * 512 <= bought
        assert not list(ground.folder.glob("containers/all/*/*.ext4"))
        await here.clear()


async def test_an_agent_that_was_killed_is_followed_by_one_that_finds_all(
    drivers: Drivers, ground: Ground
) -> None:
    arguments = (str(ground.folder), str(ground.image), ground.root)
    killed = await asyncio.to_thread(drivers.run, "tests.node.guests.driver", *arguments)
    assert killed.returncode == -signal.SIGKILL
    output = json.loads(killed.stdout)
    eventually_sync(lambda: not is_alive(output["launcher"]))
    assert is_alive(output["pid"])
    shorten_waits(ground)
    async with lender(ground) as here:
        assert here.instances.copy(CONTRACT).history.restarts == 0
        buyer = here.buyer()
        await buyer.until("RUNNING")
        (view,) = here.agent.containers.list()
        assert view.pid == output["pid"]
        os.kill(output["pid"], signal.SIGKILL)  # and takes care of it from now on
        await eventually(lambda: (last := buyer.last()) is not None and last.restarts == 1)
        await here.clear()


async def test_a_machine_that_went_down_has_the_cell_and_its_guest_again(ground: Ground) -> None:
    shorten_waits(ground)
    async with lender(ground) as here:
        await here.lend()
        buyer = here.buyer()
        await buyer.order(guests_order())
        await buyer.until("RUNNING")
    await ground.reboot()
    async with lender(ground) as here:
        await eventually(lambda: here.instances.copy(CONTRACT).history.restarts == 1)
        await eventually(
            lambda: any(view.pid is not None for view in here.agent.containers.list()), within=60
        )
        assert limits(ground)[1] == BOUGHT.memory * MEGABYTE
        await here.clear()


async def test_the_devices_of_a_contract_are_its_guest_s_and_no_others(ground: Ground) -> None:
    shorten_waits(ground)
    folder = ground.folder / "cdi"
    folder.mkdir(parents=True)
    edits = {"deviceNodes": [{"path": "/dev/gpu", "hostPath": "/dev/fuse"}], "env": ["GPU=yes"]}
    devices = [{"name": name, "containerEdits": edits} for name in ("0", "1")]
    content = {"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": devices}
    (folder / "gpu.json").write_text(json.dumps(content))
    mine, another = (DeviceRequest("example.com/gpu", name=name) for name in ("0", "1"))
    async with lender(ground) as here:
        await here.lend(contract(devices=(mine,)))
        buyer = here.buyer()
        hello = await buyer.welcomed()
        assert hello.facts.devices == ("example.com/gpu=0",)
        assert "devices" in hello.facts.features
        script = "exec 3<>/dev/gpu && echo opened $GPU; exec sleep 1000"
        await buyer.order(guests_order("sh", "-c", script, devices=(mine,)))
        await eventually(lambda: (last := buyer.last()) and last.status == "RUNNING")
        name = container_name_of(here)
        await eventually(lambda: printed(here.agent.containers, name) == b"opened yes\n")
        await buyer.order(guests_order("sh", "-c", script, devices=(another,), generation=2))
        await eventually(lambda: (last := buyer.last()) and "is not of this contract" in last.reason)
        await here.clear()


def container_name_of(here: Lender) -> str:
    [view] = here.agent.containers.list()
    return view.spec.name
