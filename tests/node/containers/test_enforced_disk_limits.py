"""Disk limits where the kernel holds them, and what is refused where it cannot; on a machine in memory."""

from __future__ import annotations

import threading

import msgspec
import pytest

from skerry.model import errors
from skerry.model.containers import ContainerState
from skerry.model.resources import Gigabytes, Resources
from skerry.node.containers.writable_layers import DiskLimitKind, SharedDisk
from tests.node.containers.nodes import Node, running, spec


async def test_who_writes_more_than_it_may_where_limits_are_measured_is_killed_and_told_why(
    node: Node,
) -> None:
    node.disks.kind = DiskLimitKind.MEASURED
    node.settings = msgspec.structs.replace(node.settings, measured_disk_limits=True)
    containers = await running(node, resources=Resources(disk=Gigabytes(1)))
    layer = node.folder / "web" / "layer"
    node.machine.used[layer] = 1024**3
    await containers._maintenance.check()
    assert containers.get("web").state is ContainerState.RUNNING
    node.machine.used[layer] = 1024**3 + 1
    stats = await containers.stats("web")
    assert (stats.disk_bytes, stats.disk_limit_bytes, stats.disk_limit_kind) == (
        1024**3 + 1,
        1024**3,
        "measured",
    )
    assert stats.usage.cpu_ns == 7
    await containers._maintenance.check()
    view = containers.get("web")
    assert view.state is ContainerState.EXITED
    assert node.machine.main("web").signals == []
    assert view.reason == "it had written 1024 MB, over its limit of 1024; it was killed"
    assert (await containers.start("web")).reason == ""


async def test_what_the_kernel_holds_is_measured_for_people_only(node: Node) -> None:
    containers = await running(node, resources=Resources(disk=Gigabytes(1)))
    layer = node.folder / "web" / "layer"
    node.machine.used[layer] = 1024**3 + 1
    await containers._maintenance.check()
    assert containers.get("web").state is ContainerState.RUNNING
    assert (await containers.stats("web")).disk_bytes == 1024**3 + 1
    assert node.disks.given_back == [layer]


async def test_a_layer_in_a_shared_file_system_is_not_opened_on_the_event_loop(node: Node) -> None:
    containers = await running(node, is_isolated=True, inside="lent")
    assert node.disks.opened_in.isdisjoint({threading.main_thread().name})
    await containers.create(spec("own"))
    await containers.start("own")
    assert threading.main_thread().name in node.disks.opened_in  # without a limit there is nothing to mount


class TestWhereTheKernelCannotHoldDisks:
    @pytest.fixture(autouse=True)
    def measured(self, node: Node) -> None:
        node.disks.kind = DiskLimitKind.MEASURED

    async def test_a_limit_is_refused_with_what_to_do(self, node: Node) -> None:
        containers = await node.agent()
        with pytest.raises(errors.FailedPrecondition, match=r"no loop devices; .*node.measured_disk_limits"):
            await containers.create(spec(resources=Resources(disk=Gigabytes(1))))
        assert not containers.takes_disk_limits
        (sentence,) = [each for each in containers.lacking() if "disk limits" in each]
        assert "cannot be enforced, and are refused, since there are no loop devices" in sentence
        assert node.leftovers() == []

    async def test_who_has_no_limit_runs(self, node: Node) -> None:
        containers = await running(node)
        assert containers.get("web").state is ContainerState.RUNNING

    async def test_strangers_are_refused_whatever_the_setting(self, node: Node) -> None:
        node.settings = msgspec.structs.replace(node.settings, measured_disk_limits=True)
        containers = await node.agent()
        with pytest.raises(errors.FailedPrecondition, match="leases no cells"):
            await containers.create(spec(is_isolated=True, inside="lent"))
        with pytest.raises(errors.FailedPrecondition, match="leases no cells"):
            containers.check_guests()

    async def test_one_from_better_days_is_not_started(self, node: Node) -> None:
        node.disks.kind = DiskLimitKind.FILE_SYSTEM
        containers = await node.agent()
        await containers.create(spec(resources=Resources(disk=Gigabytes(1))))
        await node.leave()
        node.disks.kind = DiskLimitKind.MEASURED
        containers = await node.agent()
        with pytest.raises(errors.FailedPrecondition, match="cannot enforce disk limits"):
            await containers.start("web")
        await containers.remove("web")


async def test_strangers_in_one_cell_share_a_disk_which_goes_with_the_last(node: Node) -> None:
    containers = await node.agent()
    for name in ("one", "two"):
        await containers.create(spec(name, is_isolated=True, inside="lent", shared_disk=3))
        await containers.start(name)
    assert node.disks.shared == {SharedDisk("lent", 3 * 1024**3): {"one", "two"}}
    node.machine.used[node.folder / "one" / "layer"] = 5
    assert containers.shared_disk_usage("lent") == 5
    await containers.remove("one", force=True)
    await node.leave()
    containers = await node.agent()
    assert len(node.disks.shared) == 1
    await containers.remove("two", force=True)
    assert node.disks.shared == {}
