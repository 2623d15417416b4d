"""`skerry container`: containers on this machine.

The commands talk to the node over its unix socket (`node_socket`); `run` in the foreground is in
`container_run`, `exec` in `exec_session` and `exec_streams`, the spec of a container in
`container_options`. gRPC is imported by the commands when they run, never by this module.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import container_options, exec_session, log_output, message_format, options, pull_progress
from skerry.cli import output as printing
from skerry.cli.commands import container_run
from skerry.cli.errors import call_node_each
from skerry.cli.options import AliasGroup, raw
from skerry.client import exec_streams, node_socket

if TYPE_CHECKING:
    from skerry.transport.proto import containers_pb2 as pb
    from skerry.transport.proto.containers_grpc import ContainerServiceStub


@click.group(cls=AliasGroup, aliases={"ls": "list", "ps": "list", "rm": "remove"})
def container() -> None:
    """Run containers on this machine.

    A container is an image that runs in a cell, with its own files, IP address and ports. It keeps running
    while Skerry is stopped or restarted.

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
@click.option("-d", "--detach", is_flag=True, help="Detach: print the name and leave it running.")
@click.option("--rm", "removes", is_flag=True, help="Remove the container when it has exited.")
@container_options.options
@raw
@options.node
def run(node: node_socket.NodeSocket, detach: bool, removes: bool, **spec: Any) -> None:
    """Create and run a container from IMAGE; arguments after IMAGE are its COMMAND.

    Prints its output and exits with its exit code: 128 and the signal number if a signal ended it, 125 if
    it could not be run, 126 if its program is not executable, 127 if its program was not found. Ctrl-C
    stops it, a second one kills it. With -d it keeps running when this command ends.

    \b
      skerry container run --rm docker.io/library/alpine cat /etc/os-release
      skerry container run -d --name web -p 8080:80 docker.io/library/nginx
      skerry container run --rm --memory 64 --cpu 500 -e NAME=you oci-archive:greeter.tar
    """
    if detach and removes:
        raise click.UsageError(
            "--rm cannot be combined with -d; remove the container later with 'skerry container remove'."
        )
    request = container_options.request(**spec)
    with container_options.container_exit_codes():
        if detach:
            click.echo(_make(node, request, starts=True).spec.name)
            return
        with log_output.exit_on_closed_output():
            code = asyncio.run(container_run.run(node, request, removes=removes))
    raise SystemExit(code)


@container.command(context_settings={"allow_interspersed_args": False})
@container_options.arguments
@container_options.options
@options.node
def create(node: node_socket.NodeSocket, **spec: Any) -> None:
    """Create a container from IMAGE without starting it, and print its name."""
    click.echo(_make(node, container_options.request(**spec), starts=False).spec.name)


@container.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@options.node
def start(node: node_socket.NodeSocket, names: tuple[str, ...]) -> None:
    """Start created or exited containers."""
    from skerry.transport.proto.containers_pb2 import StartRequest

    async def starting(stub: ContainerServiceStub, name: str) -> str:
        await stub.Start(StartRequest(container=name), timeout=node_socket.CALL_S)
        return f"started {name}"

    call_node_each(node, node_socket.containers, names, starting)


@container.command(name="list")
@options.node
@printing.option
def list_containers(node: node_socket.NodeSocket, output: str) -> None:
    """List containers, running or not."""
    printing.show(
        {"containers": [message_format.message_to_dict(each) for each in _all(node)]},
        output,
        columns=("name", "image", "status", "ip", "ports", "age"),
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
    help="Time between the stop signal and SIGKILL.  [default: the container's]",
)
@options.node
def stop(node: node_socket.NodeSocket, names: tuple[str, ...], grace: float | None) -> None:
    """Stop containers, and print how each ended.

    They keep their files and logs until they are started again or removed.
    """
    from skerry.transport.proto.containers_pb2 import StopRequest

    async def stopping(stub: ContainerServiceStub, name: str) -> str:
        # Without a timeout: the stop grace of the container, which we do not know, decides.
        reply = message_format.message_to_dict(await stub.Stop(StopRequest(container=name, grace_s=grace)))
        return f"stopped {name}: {_state_line(reply)}"

    call_node_each(node, node_socket.containers, names, stopping)


@container.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("-f", "--force", is_flag=True, help="Stop running containers first.")
@options.node
def remove(node: node_socket.NodeSocket, names: tuple[str, ...], force: bool) -> None:
    """Remove containers with their files and logs."""
    from skerry.transport.proto.containers_pb2 import RemoveRequest

    async def removing(stub: ContainerServiceStub, name: str) -> str:
        # Without a timeout, as for a stop.
        await stub.Remove(RemoveRequest(container=name, force=force))
        return f"removed {name}"

    call_node_each(node, node_socket.containers, names, removing)


@container.command()
@click.argument("name", metavar="NAME")
@log_output.options
@log_output.previous
@options.node
@printing.option
def logs(
    node: node_socket.NodeSocket,
    name: str,
    follow: bool,
    tail: int | None,
    only: str | None,
    previous: bool,
    output: str,
) -> None:
    """Show the output of the last run: stdout on stdout, stderr on stderr.

    With --output json each line is an object. With --previous, show the run before the last one.
    """
    log_output.check_previous(previous=previous, follow=follow)
    from skerry.transport.proto.containers_pb2 import GetRequest, LogsRequest

    request = LogsRequest(
        container=name, channel=log_output.channel(only), follow=follow, tail=tail, previous=previous
    )

    async def show(stub: ContainerServiceStub) -> None:
        # A node that answered once is retried when it goes away; one that never did is not.
        await stub.Get(GetRequest(container=name), timeout=node_socket.CALL_S)
        await log_output.show(node, stub.Logs, request, output)

    with log_output.exit_on_closed_output():
        node_socket.call_node(node, node_socket.containers, show)


@container.command(name="exec", context_settings={"allow_interspersed_args": False})
@click.argument("name", metavar="NAME")
@exec_session.options
@options.node
def exec_(node: node_socket.NodeSocket, name: str, command: exec_streams.ExecCommand) -> None:
    """Run a COMMAND in a running container, and exit with its exit code.

    Exit code 125: it could not be run; 126: not executable; 127: not found. Ctrl-C is passed on; a second one
    kills the command.

    \b
      skerry container exec -it web sh
      skerry container exec web cat /etc/hosts
      echo 'select 1' | skerry container exec -i db psql
    """
    with container_options.container_exit_codes(), log_output.exit_on_closed_output():
        code = asyncio.run(exec_session.execute(exec_streams.exec_in_container(node, name, command), command))
    raise SystemExit(code)


@container.command()
@click.argument("names", metavar="[NAME...]", nargs=-1)
@options.node
@printing.option
def stats(node: node_socket.NodeSocket, names: tuple[str, ...], output: str) -> None:
    """Show the resource usage of containers; without a NAME, of all running ones."""
    from skerry.transport.proto.containers_pb2 import STATE_RUNNING, StatsRequest

    chosen = names or [each.spec.name for each in _all(node) if each.state == STATE_RUNNING]

    async def requests(stub: ContainerServiceStub) -> list[pb.StatsReply]:
        requests = [StatsRequest(container=name) for name in chosen]
        return await asyncio.gather(*(stub.Stats(each, timeout=node_socket.CALL_S) for each in requests))

    found = node_socket.call_node(node, node_socket.containers, requests)
    printing.show(
        {
            "containers": [
                {"name": name, **message_format.message_to_dict(each)}
                for name, each in zip(chosen, found, strict=True)
            ]
        },
        output,
        columns=(
            "name",
            "cpu",
            "throttled",
            "memory",
            "peak",
            "pids",
            "read",
            "written",
            "disk",
            "disk limit",
        ),
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
@options.node
@printing.option
def wait(node: node_socket.NodeSocket, name: str, output: str) -> None:
    """Wait until a container has exited, and print its exit code.

    128 and the signal number if a signal ended it; --output json has the details.
    """
    from skerry.transport.proto.containers_pb2 import WaitRequest

    [reply] = node_socket.call_node(
        node, node_socket.containers, lambda stub: stub.Wait(WaitRequest(container=name))
    )
    if output == "json":
        printing.as_json(message_format.message_to_dict(reply.exit))
    else:
        click.echo(message_format.exit_code(reply.exit))


@container.command()
@click.argument("name", metavar="NAME")
@options.node
def inspect(node: node_socket.NodeSocket, name: str) -> None:
    """Print the details of a container as JSON."""
    from skerry.transport.proto.containers_pb2 import GetRequest

    request = GetRequest(container=name)
    reply = node_socket.call_node(
        node, node_socket.containers, lambda stub: stub.Get(request, timeout=node_socket.CALL_S)
    )
    printing.as_json(message_format.message_to_dict(reply))


def _make(node: node_socket.NodeSocket, request: pb.CreateRequest, *, starts: bool) -> pb.Container:
    async def creating(stub: ContainerServiceStub) -> pb.Container:
        with pull_progress.show_progress() as show:
            method = stub.Run if starts else stub.Create
            return (await pull_progress.run_with_progress(method, request, show)).container

    return node_socket.call_node(node, node_socket.containers, creating)


def _all(node: node_socket.NodeSocket) -> list[pb.Container]:
    from skerry.transport.proto.containers_pb2 import ListRequest

    return node_socket.call_node(
        node, node_socket.containers, lambda stub: stub.List(ListRequest(), timeout=node_socket.CALL_S)
    )


def _state_line(shown: dict[str, Any]) -> str:
    """Its state, with the reason or exit code."""
    why = shown["reason"] or (message_format.exit_line(shown["exit"]) if shown["exit"] is not None else "")
    return f"{shown['state']} ({why})" if why else str(shown["state"])
