"""`skerry cell`: cells on this machine, and what runs in them.

The verbs talk to the node over its unix socket (`node_socket`); output is shown by `log_output`, and `run`
has a module of its own. gRPC is imported by the verbs when they run, never by this module.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skerry.cli import log_output, message_format, node_socket
from skerry.cli import output as printing
from skerry.cli.commands import cell_run
from skerry.cli.options import option_group, raw
from skerry.cli.output import size

if TYPE_CHECKING:
    from skerry.transport.proto import cells_pb2
    from skerry.transport.proto.cells_grpc import CellServiceStub

F = TypeVar("F", bound=Callable[..., Any])

_LIMITS = option_group(
    click.option("--memory", metavar="MB", type=click.IntRange(min=1), help="Memory, at most."),
    click.option(
        "--cpu",
        metavar="MILLI",
        type=click.IntRange(min=1),
        help="Thousandths of a processor, at most: 200 is a fifth of one.",
    ),
    click.option(
        "--weight",
        metavar="N",
        type=click.IntRange(1, 10_000),
        help="Share of the processors while they are busy; 100 is usual.",
    ),
    click.option("--cpus", metavar="LIST", default="", help="Only on these processors: 0-3,6."),
    click.option("--mems", metavar="LIST", default="", help="Only in the memory of these nodes: 0."),
    click.option(
        "--pids", metavar="N", type=click.IntRange(min=1), help="Processes and threads at once, at most."
    ),
    click.option("--net", is_flag=True, help="A network of its own, with nothing but loopback."),
)
_SANDBOX = option_group(
    click.option(
        "-e", "--env", multiple=True, metavar="KEY=VALUE", help="Set in its environment; repeatable."
    ),
    click.option("--folder", metavar="DIR", default="", help="Where it starts.  [default: /]"),
    click.option(
        "--uid", metavar="N", type=click.IntRange(min=0), help="User to run as.  [default: the cell's own]"
    ),
    click.option(
        "--gid", metavar="N", type=click.IntRange(min=0), help="Group to run as.  [default: the cell's own]"
    ),
)


@click.group()
def cell() -> None:
    """Make cells on this machine and run programs in them.

    A cell is a control group with limits and namespaces of its own. Cells nest: 'a/b' is inside 'a' and can
    never use more than 'a' may.
    """


@cell.command(name="list")
@click.argument("name", metavar="[CELL]", default="")
@node_socket.options
@printing.option
def list_cells(door: node_socket.NodeSocket, name: str, output: str) -> None:
    """List cells and what runs in them; with CELL, that one and those inside it."""
    from skerry.transport.proto.cells_pb2 import ListRequest

    request = ListRequest(cell=name, usage=True)
    found = node_socket.call_node(
        door, node_socket.cells, lambda stub: stub.List(request, timeout=node_socket.CALL_S)
    )
    printing.show(
        {"cells": [_cell_shown(each) for each in found]},
        output,
        columns=("cell", "limits", "memory", "pids", "executables"),
        rows=lambda value: [
            (
                each["cell"],
                " ".join(f"{name}={limit}" for name, limit in each["limits"].items()) or "none",
                size(each["usage"]["memory_bytes"]),
                str(each["usage"]["pids"]),
                ", ".join(_executable_line(one) for one in each["executables"]) or "none",
            )
            for each in value["cells"]
        ],
    )


@cell.command()
@click.argument("name", metavar="CELL")
@_LIMITS
@node_socket.options
@printing.option
def allocate(door: node_socket.NodeSocket, name: str, output: str, **limits: Any) -> None:
    """Make a cell with its limits. A limit that is not given is the parent's."""
    request = _allocation(name, **limits)
    reply = node_socket.call_node(
        door, node_socket.cells, lambda stub: stub.Allocate(request, timeout=node_socket.CALL_S)
    )
    if output == "json":
        printing.as_json({"cell": name, "cgroup_v2": reply.cgroup_v2})
    else:
        click.echo(f"allocated {name}")


@cell.command()
@click.argument("name", metavar="CELL")
@node_socket.options
def free(door: node_socket.NodeSocket, name: str) -> None:
    """End everything in a cell and in the cells inside it, and remove them."""
    from skerry.transport.proto.cells_pb2 import FreeRequest

    request = FreeRequest(cell=name)
    node_socket.call_node(
        door, node_socket.cells, lambda stub: stub.Free(request, timeout=node_socket.CALL_S)
    )
    click.echo(f"freed {name}")


@cell.command()
@click.argument("name", metavar="CELL")
@click.argument("executable", metavar="NAME")
@click.argument("arguments", metavar="[-- PROGRAM [ARGUMENT]...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-c", "--command", metavar="LINE", default="", help="A line for the shell instead of a program."
)
@click.option("--description", default="", help="A word on what it is.")
@_SANDBOX
@node_socket.options
@printing.option
def start(
    door: node_socket.NodeSocket,
    name: str,
    executable: str,
    arguments: tuple[str, ...],
    command: str,
    description: str,
    output: str,
    **sandbox: Any,
) -> None:
    """Start a program in a cell, under a NAME of its own.

    It goes on when this command ends: see 'skerry cell logs' and 'skerry cell stop'.
    """
    if bool(command) == bool(arguments):
        raise click.UsageError("Give a program after '--', or a line for the shell with -c.")
    request = _start(name, executable, **sandbox)
    request.command, request.description = command, description
    request.arguments.extend(arguments)
    reply = node_socket.call_node(
        door, node_socket.cells, lambda stub: stub.Start(request, timeout=node_socket.CALL_S)
    )
    if output == "json":
        printing.as_json(
            {"cell": name, "executable": executable, "pid": reply.pid, "started_at": reply.started_at}
        )
    else:
        click.echo(f"started {executable} in {name}, process {reply.pid}")


@cell.command()
@click.argument("name", metavar="CELL")
@click.argument("executable", metavar="NAME")
@click.option(
    "--grace",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="Time to end by itself before it is killed.  [default: the node's]",
)
@node_socket.options
@printing.option
def stop(door: node_socket.NodeSocket, name: str, executable: str, grace: float | None, output: str) -> None:
    """End a program with all its children, say how it ended, and forget it."""
    from skerry.transport.proto.cells_pb2 import StopRequest

    request = StopRequest(cell=name, executable=executable, grace_s=grace)
    reply = node_socket.call_node(
        door, node_socket.cells, lambda stub: stub.Stop(request, timeout=node_socket.CALL_S + (grace or 0.0))
    )
    if output == "json":
        printing.as_json(
            {"cell": name, "executable": executable, "exit": message_format.message_to_dict(reply.exit)}
        )
    else:
        ended = message_format.exit_line(message_format.message_to_dict(reply.exit))
        click.echo(f"stopped {executable} in {name}: {ended}")


@cell.command()
@click.argument("name", metavar="CELL")
@click.argument("executable", metavar="NAME")
@log_output.options
@node_socket.options
@printing.option
def logs(
    door: node_socket.NodeSocket,
    name: str,
    executable: str,
    follow: bool,
    tail: int | None,
    only: str | None,
    output: str,
) -> None:
    """Show what a program has written: its output as output, its errors as errors.

    With --output json each line is one object.
    """
    from skerry.transport.proto.cells_pb2 import LogsRequest, UsageRequest

    request = LogsRequest(
        cell=name, executable=executable, channel=log_output.channel(only), follow=follow, tail=tail
    )

    async def show(stub: CellServiceStub) -> None:
        # Whoever answered once may go away for a moment; who never did is not waited for.
        await stub.Usage(UsageRequest(cell=name), timeout=node_socket.CALL_S)
        await log_output.show(door, stub.Logs, request, output)

    with log_output.exit_on_closed_output():
        node_socket.call_node(door, node_socket.cells, show)


@cell.command(context_settings={"allow_interspersed_args": False})
@click.argument(
    "arguments", metavar="[--] PROGRAM [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED
)
@_LIMITS
@_SANDBOX
@raw
@node_socket.options
def run(
    door: node_socket.NodeSocket,
    arguments: tuple[str, ...],
    env: tuple[str, ...],
    folder: str,
    uid: int | None,
    gid: int | None,
    **limits: Any,
) -> None:
    """Run a program in a cell of its own, which is gone afterwards.

    Its output is this command's, and its exit code, too: 128 and the number of the signal if one ended it. A
    program that writes faster than it can be read loses output, which is told and never exit code 0.
    """
    name = f"run-{secrets.token_hex(4)}"
    request = _start(name, "program", env=env, folder=folder, uid=uid, gid=gid)
    request.arguments.extend(arguments)
    with log_output.exit_on_closed_output():
        code = asyncio.run(cell_run.run(door, _allocation(name, **limits), request))
    raise SystemExit(code)


@cell.command()
@click.argument("name", metavar="[CELL]", default="")
@node_socket.options
@printing.option
def usage(door: node_socket.NodeSocket, name: str, output: str) -> None:
    """Show what the node and each cell have used; with CELL, that one and those inside it."""
    from skerry.transport.proto.cells_pb2 import ListRequest, NodeRequest

    request = ListRequest(cell=name, usage=True)
    node = node_socket.call_node(
        door, node_socket.cells, lambda stub: stub.Node(NodeRequest(), timeout=node_socket.CALL_S)
    )
    found = node_socket.call_node(
        door, node_socket.cells, lambda stub: stub.List(request, timeout=node_socket.CALL_S)
    )
    if output == "table":
        click.echo(
            f"node: {node.cpus} processors ({node.architecture}), {node.cgroups} cgroups, "
            f"{node.runtime or 'no runtime for containers'}, "
            f"load {node.load[0]:.2f}, "
            f"memory {size(node.memory_available_bytes)} of {size(node.memory_bytes)} free, "
            f"disk {size(node.disk_free_bytes)} of {size(node.disk_bytes)} free"
        )
    printing.show(
        {
            "node": message_format.message_to_dict(node),
            "cells": [{"cell": each.cell, **message_format.message_to_dict(each.usage)} for each in found],
        },
        output,
        columns=("cell", "cpu", "throttled", "memory", "peak", "pids", "read", "written", "oom kills"),
        rows=lambda value: [
            (
                each["cell"],
                *message_format.usage_cells(each),
                str(each["oom_kills"]),
            )
            for each in value["cells"]
        ],
    )


def _allocation(
    name: str,
    *,
    memory: int | None,
    cpu: int | None,
    weight: int | None,
    cpus: str,
    mems: str,
    pids: int | None,
    net: bool,
) -> cells_pb2.AllocateRequest:
    from skerry.transport.proto.cells_pb2 import AllocateRequest, Limits

    limits = Limits(cpu_weight=weight, cpu_milli=cpu, cpus=cpus, mems=mems, memory_mb=memory, pids=pids)
    return AllocateRequest(cell=name, limits=limits, own_network=net)


def _start(
    name: str, executable: str, *, env: tuple[str, ...], folder: str, uid: int | None, gid: int | None
) -> cells_pb2.StartRequest:
    from skerry.transport.proto.cells_pb2 import Sandbox, StartRequest

    sandbox = Sandbox(environment=env, folder=folder, uid=uid, gid=gid)
    return StartRequest(cell=name, executable=executable, sandbox=sandbox)


def _cell_shown(told: cells_pb2.CellStatus) -> dict[str, Any]:
    return {
        "cell": told.cell,
        "limits": {field.name: value for field, value in told.limits.ListFields()},
        "own_network": told.own_network,
        "usage": message_format.message_to_dict(told.usage),
        "executables": [message_format.message_to_dict(each) for each in told.executables],
    }


def _executable_line(shown: dict[str, Any]) -> str:
    state = f"process {shown['pid']}" if shown["exit"] is None else message_format.exit_line(shown["exit"])
    return f"{shown['name']} ({state})"
