"""`skerry cell`: cells on this machine and their executables.

The commands talk to the node over its unix socket (`node_socket`); output is shown by `log_output`, and `run`
has a module of its own. gRPC is imported by the commands when they run, never by this module.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skerry.cli import amounts, log_output, message_format, options
from skerry.cli import output as printing
from skerry.cli.commands import cell_run
from skerry.cli.options import option_group, raw
from skerry.cli.output import size
from skerry.client import node_socket

if TYPE_CHECKING:
    from skerry.transport.proto import cells_pb2
    from skerry.transport.proto.cells_grpc import CellServiceStub

F = TypeVar("F", bound=Callable[..., Any])

_LIMITS = option_group(
    amounts.option("memory", least=1, help="Memory limit: 256 (MB), 256m, 1g."),
    amounts.option("cpu", least=1, help="CPU limit: 0.2 or 200 (millicores) is a fifth of a core."),
    click.option(
        "--weight",
        metavar="N",
        type=click.IntRange(1, 10_000),
        help="CPU weight: the share of busy processors; the default is 100.",
    ),
    click.option("--cpus", metavar="LIST", default="", help="CPU set, such as 0-3,6."),
    click.option("--mems", metavar="LIST", default="", help="NUMA memory nodes, such as 0."),
    click.option("--pids", metavar="N", type=click.IntRange(min=1), help="Limit of processes and threads."),
    click.option("--net", is_flag=True, help="Own network namespace with loopback only."),
)
_SANDBOX = option_group(
    click.option("-e", "--env", multiple=True, metavar="KEY=VALUE", help="Environment variable; repeatable."),
    click.option("--folder", metavar="DIR", default="", help="Working directory.  [default: /]"),
    click.option(
        "--uid", metavar="N", type=click.IntRange(min=0), help="User id.  [default: the cell's own]"
    ),
    click.option(
        "--gid", metavar="N", type=click.IntRange(min=0), help="Group id.  [default: the cell's own]"
    ),
)


@click.group()
def cell() -> None:
    """Create cells on this machine and run programs in them.

    A cell is a control group with limits and namespaces of its own. Cells nest: 'a/b' is inside 'a' and
    also bound by the limits of 'a'.
    """


@cell.command(name="list")
@click.argument("name", metavar="[CELL]", default="")
@options.node
@printing.option
def list_cells(node: node_socket.NodeSocket, name: str, output: str) -> None:
    """List cells and their executables; with CELL, that cell and the cells inside it."""
    from skerry.transport.proto.cells_pb2 import ListRequest

    request = ListRequest(cell=name, usage=True)
    found = node_socket.call_node(
        node, node_socket.cells, lambda stub: stub.List(request, timeout=node_socket.CALL_S)
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
@options.node
@printing.option
def allocate(node: node_socket.NodeSocket, name: str, output: str, **limits: Any) -> None:
    """Create a cell with limits. A limit that is not given is that of the parent."""
    request = _allocation(name, **limits)
    reply = node_socket.call_node(
        node, node_socket.cells, lambda stub: stub.Allocate(request, timeout=node_socket.CALL_S)
    )
    if output == "json":
        printing.as_json({"cell": name, "cgroup_v2": reply.cgroup_v2})
    else:
        click.echo(f"allocated {name}")


@cell.command()
@click.argument("name", metavar="CELL")
@options.node
def free(node: node_socket.NodeSocket, name: str) -> None:
    """Remove a cell and the cells inside it, and end everything that runs in them."""
    from skerry.transport.proto.cells_pb2 import FreeRequest

    request = FreeRequest(cell=name)
    node_socket.call_node(
        node, node_socket.cells, lambda stub: stub.Free(request, timeout=node_socket.CALL_S)
    )
    click.echo(f"freed {name}")


@cell.command()
@click.argument("name", metavar="CELL")
@click.argument("executable", metavar="NAME")
@click.argument("arguments", metavar="[-- PROGRAM [ARGUMENT]...]", nargs=-1, type=click.UNPROCESSED)
@click.option("-c", "--command", metavar="LINE", default="", help="Shell command line instead of a program.")
@click.option("--description", default="", help="Description.")
@_SANDBOX
@options.node
@printing.option
def start(
    node: node_socket.NodeSocket,
    name: str,
    executable: str,
    arguments: tuple[str, ...],
    command: str,
    description: str,
    output: str,
    **sandbox: Any,
) -> None:
    """Start a program in a cell as the executable NAME.

    It keeps running when this command ends: see 'skerry cell logs' and 'skerry cell stop'.
    """
    if bool(command) == bool(arguments):
        raise click.UsageError("Give either a program after '--', or a shell command line with -c.")
    request = _start(name, executable, **sandbox)
    request.command, request.description = command, description
    request.arguments.extend(arguments)
    reply = node_socket.call_node(
        node, node_socket.cells, lambda stub: stub.Start(request, timeout=node_socket.CALL_S)
    )
    if output == "json":
        printing.as_json(
            {"cell": name, "executable": executable, "pid": reply.pid, "started_at": reply.started_at}
        )
    else:
        click.echo(f"started {executable} in {name}, pid {reply.pid}")


@cell.command()
@click.argument("name", metavar="CELL")
@click.argument("executable", metavar="NAME")
@click.option(
    "--grace",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="Time between SIGTERM and SIGKILL.  [default: the node's]",
)
@options.node
@printing.option
def stop(node: node_socket.NodeSocket, name: str, executable: str, grace: float | None, output: str) -> None:
    """Stop an executable with all its children, and print how it ended."""
    from skerry.transport.proto.cells_pb2 import StopRequest

    request = StopRequest(cell=name, executable=executable, grace_s=grace)
    reply = node_socket.call_node(
        node, node_socket.cells, lambda stub: stub.Stop(request, timeout=node_socket.CALL_S + (grace or 0.0))
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
@options.node
@printing.option
def logs(
    node: node_socket.NodeSocket,
    name: str,
    executable: str,
    follow: bool,
    tail: int | None,
    only: str | None,
    output: str,
) -> None:
    """Show the output of an executable: stdout on stdout, stderr on stderr.

    With --output json each line is an object.
    """
    from skerry.transport.proto.cells_pb2 import LogsRequest, UsageRequest

    request = LogsRequest(
        cell=name, executable=executable, channel=log_output.channel(only), follow=follow, tail=tail
    )

    async def show(stub: CellServiceStub) -> None:
        # A node that answered once is retried when it goes away; one that never did is not.
        await stub.Usage(UsageRequest(cell=name), timeout=node_socket.CALL_S)
        await log_output.show(node, stub.Logs, request, output)

    with log_output.exit_on_closed_output():
        node_socket.call_node(node, node_socket.cells, show)


@cell.command(context_settings={"allow_interspersed_args": False})
@click.argument(
    "arguments", metavar="[--] PROGRAM [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED
)
@_LIMITS
@_SANDBOX
@raw
@options.node
def run(
    node: node_socket.NodeSocket,
    arguments: tuple[str, ...],
    env: tuple[str, ...],
    folder: str,
    uid: int | None,
    gid: int | None,
    **limits: Any,
) -> None:
    """Run a program in a temporary cell, which is removed afterwards.

    Prints its output and exits with its exit code: 128 and the signal number if a signal ended it. If a
    program writes faster than its output is read, output is lost; this is reported, and the exit code is
    not 0.
    """
    name = f"run-{secrets.token_hex(4)}"
    request = _start(name, "program", env=env, folder=folder, uid=uid, gid=gid)
    request.arguments.extend(arguments)
    with log_output.exit_on_closed_output():
        code = asyncio.run(cell_run.run(node, _allocation(name, **limits), request))
    raise SystemExit(code)


@cell.command()
@click.argument("name", metavar="[CELL]", default="")
@options.node
@printing.option
def usage(node: node_socket.NodeSocket, name: str, output: str) -> None:
    """Show the resource usage of the node and its cells; with CELL, of that cell and the cells inside it."""
    from skerry.transport.proto.cells_pb2 import ListRequest, NodeRequest

    request = ListRequest(cell=name, usage=True)
    about = node_socket.call_node(
        node, node_socket.cells, lambda stub: stub.Node(NodeRequest(), timeout=node_socket.CALL_S)
    )
    found = node_socket.call_node(
        node, node_socket.cells, lambda stub: stub.List(request, timeout=node_socket.CALL_S)
    )
    if output == "table":
        click.echo(
            f"node: {about.cpus} processors ({about.architecture}), {about.cgroups} cgroups, "
            f"{about.runtime or 'no container runtime'}, "
            f"load {about.load[0]:.2f}, "
            f"memory {size(about.memory_available_bytes)} of {size(about.memory_bytes)} free, "
            f"disk {size(about.disk_free_bytes)} of {size(about.disk_bytes)} free"
        )
    printing.show(
        {
            "node": message_format.message_to_dict(about),
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


def _cell_shown(status: cells_pb2.CellStatus) -> dict[str, Any]:
    return {
        "cell": status.cell,
        "limits": {field.name: value for field, value in status.limits.ListFields()},
        "own_network": status.own_network,
        "usage": message_format.message_to_dict(status.usage),
        "executables": [message_format.message_to_dict(each) for each in status.executables],
    }


def _executable_line(shown: dict[str, Any]) -> str:
    state = f"pid {shown['pid']}" if shown["exit"] is None else message_format.exit_line(shown["exit"])
    return f"{shown['name']} ({state})"
