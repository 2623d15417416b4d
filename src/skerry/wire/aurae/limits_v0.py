"""Translates the limits of a cell to and from Aurae's controllers; pure.

Aurae counts microseconds per period and bytes, a cell has millicores and megabytes. Values are rounded down,
so that a cell never has more than was requested, and `List` returns the limits that are in force.
"""

from __future__ import annotations

from typing import Final

from skerry.model import errors
from skerry.model.cells import CellLimits
from skerry.model.resources import MAX_AMOUNT, Megabytes, Millicores
from skerry.node.cgroups.limits import weight_from_shares
from skerry.transport.proto.aurae_cells_pb2 import (
    Cell,
    CpuController,
    CpusetController,
    MemoryController,
)

_PERIOD_US: Final = 100_000  # the kernel's
_MEGABYTE: Final = 1 << 20
# Fields of a cell whose names in the contract differ from the model's.
FIELDS: Final = {
    "cell_name": "name",
    "cpu_weight": "cpu.weight",
    "cpu_quota": "cpu.max",
    "cpus": "cpuset.cpus",
    "mems": "cpuset.mems",
    "memory": "memory.max",
}


def limits_of(cell: Cell) -> CellLimits:
    """The limits of `cell`. Raises `Invalid` with the contract's field."""
    for kind, value in (("min", cell.memory.min), ("low", cell.memory.low), ("high", cell.memory.high)):
        if value:
            raise errors.Invalid(
                "Skerry holds cells to memory.max alone; leave it out", field=f"memory.{kind}"
            )
    return CellLimits(
        cpu_weight=cell.cpu.weight if cell.cpu.HasField("weight") else None,
        cpu_quota=_quota_of(cell.cpu),
        cpus=cell.cpuset.cpus,
        mems=cell.cpuset.mems,
        memory=_memory_of(cell.memory),
    )


def _quota_of(cpu: CpuController) -> Millicores | None:
    if not cpu.HasField("max"):
        if cpu.HasField("period"):
            raise errors.Invalid("a period means nothing without cpu.max", field="cpu.period")
        return None
    period = cpu.period if cpu.HasField("period") else _PERIOD_US
    if not 1000 <= period <= 1_000_000:
        raise errors.Invalid(
            f"a period must be 1000 to 1000000 micro-seconds, not {period}", field="cpu.period"
        )
    quota = cpu.max * 1000 // period
    if not 1 <= quota <= MAX_AMOUNT:
        raise errors.Invalid(
            f"{cpu.max} of {period} micro-seconds must be a thousandth of a processor or more, and at most "
            f"{MAX_AMOUNT}",
            field="cpu.max",
        )
    return Millicores(quota)


def _memory_of(memory: MemoryController) -> Megabytes | None:
    if not memory.HasField("max"):
        return None
    megabytes = memory.max // _MEGABYTE
    if not 1 <= megabytes <= MAX_AMOUNT:
        raise errors.Invalid(
            f"memory.max must be {_MEGABYTE} bytes or more, not {memory.max}", field="memory.max"
        )
    return Megabytes(megabytes)


def controllers_of(limits: CellLimits) -> dict[str, CpuController | CpusetController | MemoryController]:
    """The fields of a `Cell` for `limits`; controllers without a limit are left out."""
    controllers: dict[str, CpuController | CpusetController | MemoryController] = {}
    weight = limits.cpu_weight
    if weight is None and limits.cpu_shares is not None:
        weight = weight_from_shares(limits.cpu_shares)
    if weight is not None or limits.cpu_quota is not None:
        controllers["cpu"] = CpuController(
            weight=weight,
            max=None if limits.cpu_quota is None else limits.cpu_quota * _PERIOD_US // 1000,
            period=None if limits.cpu_quota is None else _PERIOD_US,
        )
    if limits.cpus or limits.mems:
        controllers["cpuset"] = CpusetController(cpus=limits.cpus or None, mems=limits.mems or None)
    if limits.memory is not None:
        controllers["memory"] = MemoryController(max=limits.memory * _MEGABYTE)
    return controllers
