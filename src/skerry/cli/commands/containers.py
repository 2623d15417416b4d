"""`skerry container`: containers on this machine.

The verbs talk to the node over its unix socket (`node_socket`); `run` in the foreground is in
`container_run`, `exec` in `exec_session` and `exec_streams`, what a container is to be in
`container_options`. gRPC is imported by the verbs when they run, never by this module.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import (
    container_options,
    exec_session,
    exec_streams,
    log_output,
    message_format,
    node_socket,
    pull_progress,
)
from skerry.cli import output as printing
from skerry.cli.commands import container_run
from skerry.cli.options import AliasGroup, raw

if TYPE_CHECKING:
    from skerry.transport.proto import containers_pb2 as pb
    from skerry.transport.proto.containers_grpc import ContainerServiceStub


@click.group(cls=AliasGroup, aliases={"ls": "list", "ps": "list", "rm": "remove"})
def container() -> None:
    """Run images in containers on this machine.

    A container is an image run in a cell of its own, with its own files, address and ports. It goes on when
    Skerry stops, and is there again when Skerry is.

    \b
      skerry container run --rm docker.io/library/busybox echo hello
      skerry container run -d --name web -p 8080:80 --memory 256 docker.io/library/nginx
      skerry container logs -f web
      skerry container exec -it web sh
      skerry container stop web
      skerry container remove web
    """


@container.command(context_settings={"allow_interspersed_args": False})
@container_options.arguments
@click.option("-d", "--detach", is_flag=True, help="Print its name and leave it running.")
@click.option("--rm", "removes", is_flag=True, help="Remove it when it has ended.")
@container_options.options
@raw
@node_socket.options
def run(door: node_socket.NodeSocket, detach: bool, removes: bool, **spec: Any) -> None:
    """Make a container from IMAGE and run it; what comes after IMAGE is its COMMAND.

    Shows what it writes and ends with its exit code: 128 and the number of the signal if one ended it, 125 if
    it could not be run, 126 if its program cannot be executed, 127 if there is no such program in it. Ctrl-C
    stops it, a second one kills it. With -d it goes on when this command ends.

    \b
      skerry container run --rm docker.io/library/alpine cat /etc/os-release
      skerry container run -d --name web -p 8080:80 docker.io/library/nginx
      skerry container run --rm --memory 64 --cpu 500 -e NAME=you oci-archive:greeter.tar
    """
    if detach and removes:
        raise click.UsageError("--rm needs somebody who waits for the end; leave out -d, or remove it later.")
    request = container_options.request(**spec)
    with container_options.container_exit_codes():
        if detach:
            click.echo(_make(door, request, starts=True).spec.name)
            return
        with log_output.exit_on_closed_output():
            code = asyncio.run(container_run.run(door, request, removes=removes))
    raise SystemExit(code)


@container.command(context_settings={"allow_interspersed_args": False})
@container_options.arguments
@container_options.options
@node_socket.options
def create(door: node_socket.NodeSocket, **spec: Any) -> None:
    """Make a container from IMAGE without starting it, and print its name."""
    click.echo(_make(door, container_options.request(**spec), starts=False).spec.name)


@container.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@node_socket.options
def start(door: node_socket.NodeSocket, names: tuple[str, ...]) -> None:
    """Start containers that were created or have exited."""
    from skerry.transport.proto.containers_pb2 import StartRequest

    async def starting(stub: ContainerServiceStub, name: str) -> str:
        await stub.Start(StartRequest(container=name), timeout=node_socket.CALL_S)
        return f"started {name}"

    node_socket.call_node_each(door, node_socket.containers, names, starting)


@container.command(name="list")
@node_socket.options
@printing.option
def list_containers(door: node_socket.NodeSocket, output: str) -> None:
    """List containers, also those that do not run."""
    printing.show(
        {"containers": [message_format.message_to_dict(each) for each in _all(door)]},
        output,
        columns=("name", "image", "state", "address", "ports", "age"),
        rows=lambda value: [
            (
                each["spec"]["name"],
                each["spec"]["image"],
                _state_line(each),
                each["address"] or "-",
                " ".join(each["spec"]["ports"]) or "-",
                printing.age(each["created_at"]),
            )
            for each in value["containers"]
        ],
    )


@container.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--grace",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="Time to end by itself before it is killed.  [default: the container's]",
)
@node_socket.options
def stop(door: node_socket.NodeSocket, names: tuple[str, ...], grace: float | None) -> None:
    """Stop containers and say how each ended.

    They stay, with their files and logs, until they are started again or removed.
    """
    from skerry.transport.proto.containers_pb2 import StopRequest

    async def stopping(stub: ContainerServiceStub, name: str) -> str:
        # Without a limit: how long it may take is the container's word, which we do not know.
        told = message_format.message_to_dict(await stub.Stop(StopRequest(container=name, grace_s=grace)))
        return f"stopped {name}: {_state_line(told)}"

    node_socket.call_node_each(door, node_socket.containers, names, stopping)


@container.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("-f", "--force", is_flag=True, help="Also if it runs: it is stopped first.")
@node_socket.options
def remove(door: node_socket.NodeSocket, names: tuple[str, ...], force: bool) -> None:
    """Remove containers with all that they have written."""
    from skerry.transport.proto.containers_pb2 import RemoveRequest

    async def removing(stub: ContainerServiceStub, name: str) -> str:
        # Without a limit, as for a stop.
        await stub.Remove(RemoveRequest(container=name, force=force))
        return f"removed {name}"

    node_socket.call_node_each(door, node_socket.containers, names, removing)


@container.command()
@click.argument("name", metavar="NAME")
@log_output.options
@node_socket.options
@printing.option
def logs(
    door: node_socket.NodeSocket, name: str, follow: bool, tail: int | None, only: str | None, output: str
) -> None:
    """Show what the last run has written: its output as output, its errors as errors.

    With --output json each line is one object.
    """
    from skerry.transport.proto.containers_pb2 import GetRequest, LogsRequest

    request = LogsRequest(container=name, channel=log_output.channel(only), follow=follow, tail=tail)

    async def show(stub: ContainerServiceStub) -> None:
        # Whoever answered once may go away for a moment; who never did is not waited for.
        await stub.Get(GetRequest(container=name), timeout=node_socket.CALL_S)
        await log_output.show(door, stub.Logs, request, output)

    with log_output.exit_on_closed_output():
        node_socket.call_node(door, node_socket.containers, show)


@container.command(name="exec", context_settings={"allow_interspersed_args": False})
@click.argument("name", metavar="NAME")
@exec_session.options
@node_socket.options
def exec_(door: node_socket.NodeSocket, name: str, program: exec_session.ExecCommand) -> None:
    """Run a COMMAND in a container that runs, and end with its exit code.

    125 is the exit code if it could not be run, 126 if it cannot be executed, 127 if it is not there. Ctrl-C
    is passed on, a second one kills it.

    \b
      skerry container exec -it web sh
      skerry container exec web cat /etc/hosts
      echo 'select 1' | skerry container exec -i db psql
    """
    with container_options.container_exit_codes(), log_output.exit_on_closed_output():
        code = asyncio.run(exec_streams.execute_in_container(door, name, program))
    raise SystemExit(code)


@container.command()
@click.argument("names", metavar="[NAME...]", nargs=-1)
@node_socket.options
@printing.option
def stats(door: node_socket.NodeSocket, names: tuple[str, ...], output: str) -> None:
    """Show what containers use; without a NAME, of all that run."""
    from skerry.transport.proto.containers_pb2 import STATE_RUNNING, StatsRequest

    chosen = names or [each.spec.name for each in _all(door) if each.state == STATE_RUNNING]

    async def asking(stub: ContainerServiceStub) -> list[pb.StatsReply]:
        requests = [StatsRequest(container=name) for name in chosen]
        return await asyncio.gather(*(stub.Stats(each, timeout=node_socket.CALL_S) for each in requests))

    found = node_socket.call_node(door, node_socket.containers, asking)
    printing.show(
        {
            "containers": [
                {"name": name, **message_format.message_to_dict(each)}
                for name, each in zip(chosen, found, strict=True)
            ]
        },
        output,
        columns=("name", "cpu", "throttled", "memory", "peak", "pids", "read", "written", "disk", "of"),
        rows=lambda value: [
            (
                each["name"],
                *message_format.usage_cells(each["usage"]),
                printing.size(each["disk_bytes"]),
                "-" if each["disk_limit_bytes"] is None else printing.size(each["disk_limit_bytes"]),
            )
            for each in value["containers"]
        ],
    )


@container.command()
@click.argument("name", metavar="NAME")
@node_socket.options
@printing.option
def wait(door: node_socket.NodeSocket, name: str, output: str) -> None:
    """Wait until a container has exited, and print its exit code.

    128 and the number of the signal if one ended it; --output json says more.
    """
    from skerry.transport.proto.containers_pb2 import WaitRequest

    [reply] = node_socket.call_node(
        door, node_socket.containers, lambda stub: stub.Wait(WaitRequest(container=name))
    )
    if output == "json":
        printing.as_json(message_format.message_to_dict(reply.exit))
    else:
        click.echo(message_format.exit_code(reply.exit))


@container.command()
@click.argument("name", metavar="NAME")
@node_socket.options
def inspect(door: node_socket.NodeSocket, name: str) -> None:
    """Print everything that is known of a container, as JSON."""
    from skerry.transport.proto.containers_pb2 import GetRequest

    request = GetRequest(container=name)
    told = node_socket.call_node(
        door, node_socket.containers, lambda stub: stub.Get(request, timeout=node_socket.CALL_S)
    )
    printing.as_json(message_format.message_to_dict(told))


def _make(door: node_socket.NodeSocket, request: pb.CreateRequest, *, starts: bool) -> pb.Container:
    async def making(stub: ContainerServiceStub) -> pb.Container:
        with pull_progress.show_progress() as show:
            method = stub.Run if starts else stub.Create
            return (await pull_progress.run_with_progress(method, request, show)).container

    return node_socket.call_node(door, node_socket.containers, making)


def _all(door: node_socket.NodeSocket) -> list[pb.Container]:
    from skerry.transport.proto.containers_pb2 import ListRequest

    return node_socket.call_node(
        door, node_socket.containers, lambda stub: stub.List(ListRequest(), timeout=node_socket.CALL_S)
    )


def _state_line(shown: dict[str, Any]) -> str:
    """Its state, and what one would ask next."""
    why = shown["reason"] or (message_format.exit_line(shown["exit"]) if shown["exit"] is not None else "")
    return f"{shown['state']} ({why})" if why else str(shown["state"])
