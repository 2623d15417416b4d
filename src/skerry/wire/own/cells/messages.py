"""Translates the types of `skerry.model.cells` to and from messages of `skerry.cells.v1`.

Pure and total: a message gives a value, or `Invalid` with the contract's name of the field.
"""

from __future__ import annotations

import shlex
from typing import Final

import msgspec

from skerry.kit.field_copy import copy_fields
from skerry.model import cells, errors
from skerry.model.ids import CellName, ExecutableName
from skerry.model.resources import Megabytes, Millicores
from skerry.node.cells.ports import CellDescription
from skerry.node.host import HostInfo, HostUsage
from skerry.transport.proto import cells_pb2
from skerry.wire.field_names import contract_fields

# Fields whose names in the contract differ from the model's.
FIELDS: Final = {"cell_name": "cell", "name": "executable", "cpu_quota": "cpu_milli", "memory": "memory_mb"}


def decode_cell(request: cells_pb2.AllocateRequest) -> cells.Cell:
    """The request of `Allocate`."""
    with contract_fields(FIELDS):
        return cells.Cell(
            name=CellName(request.cell),
            limits=decode_limits(request.limits),
            isolates_network=request.own_network,
        )


def decode_limits(message: cells_pb2.Limits) -> cells.CellLimits:
    has = message.HasField
    return cells.CellLimits(
        cpu_weight=message.cpu_weight if has("cpu_weight") else None,
        cpu_shares=message.cpu_shares if has("cpu_shares") else None,
        cpu_quota=Millicores(message.cpu_milli) if has("cpu_milli") else None,
        cpus=message.cpus,
        mems=message.mems,
        memory=Megabytes(message.memory_mb) if has("memory_mb") else None,
        pids=message.pids if has("pids") else None,
    )


def decode_executable(request: cells_pb2.StartRequest) -> cells.Executable:
    """The request of `Start`; a program that is given by its arguments also has a command, for people."""
    if request.command and request.arguments:
        raise errors.Invalid("give either a command for the shell or arguments, not both", field="command")
    with contract_fields(FIELDS):
        return cells.Executable(
            name=ExecutableName(request.executable),
            cell=cells.parse_name(request.cell),
            command=request.command or shlex.join(request.arguments),
            description=request.description,
        )


def decode_sandbox(request: cells_pb2.StartRequest) -> cells.Sandbox:
    message = request.sandbox
    default = cells.Sandbox()
    with contract_fields(FIELDS):
        return cells.Sandbox(
            uid=message.uid if message.HasField("uid") else None,
            gid=message.gid if message.HasField("gid") else None,
            root_capabilities=message.root_capabilities,
            environment=tuple(message.environment),
            folder=message.folder or default.folder,
            open_files=message.open_files if message.HasField("open_files") else default.open_files,
            arguments=tuple(request.arguments),
        )


def encode_status(view: CellDescription, usage: cells.CellUsage | None) -> cells_pb2.CellStatus:
    """A cell in the answer of `List`."""
    return cells_pb2.CellStatus(
        cell=view.cell.name,
        limits=_encode_limits(view.cell.limits),
        own_network=view.cell.isolates_network,
        executables=[_encode_executable(each) for each in view.executables],
        usage=None if usage is None else encode_usage(usage),
    )


def encode_exit(status: cells.ExitStatus) -> cells_pb2.Exit:
    return copy_fields(cells_pb2.Exit, status)


def encode_usage(usage: cells.CellUsage) -> cells_pb2.Usage:
    return copy_fields(cells_pb2.Usage, usage)


def encode_node(host: HostInfo, usage: HostUsage) -> cells_pb2.NodeReply:
    return copy_fields(cells_pb2.NodeReply, host, **msgspec.structs.asdict(usage))


def _encode_limits(limits: cells.CellLimits) -> cells_pb2.Limits:
    return copy_fields(cells_pb2.Limits, limits, cpu_milli=limits.cpu_quota, memory_mb=limits.memory)


def _encode_executable(state: cells.ExecutableState) -> cells_pb2.ExecutableStatus:
    return copy_fields(
        cells_pb2.ExecutableStatus, state, exit=None if state.exit is None else encode_exit(state.exit)
    )
