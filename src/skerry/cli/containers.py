"""`skerry container`: containers on this machine.

The verbs talk to the node over its unix socket (`dialling`); `run` in the foreground is in `attending`,
`exec` in `attaching` and `lines`, what a container is to be in `specs`. gRPC is imported by the verbs when
they run, never by this module.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import attaching, attending, dialling, following, lines, progress, shapes, specs
from skerry.cli import output as printing
from skerry.cli.options import Aliases

if TYPE_CHECKING:
    from skerry.wire.proto import containers_pb2 as pb
    from skerry.wire.proto.containers_grpc import ContainerServiceStub


@click.group(cls=Aliases, aliases={"ls": "list", "ps": "list", "rm": "remove"})
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
@specs.arguments
@click.option("-d", "--detach", is_flag=True, help="Print its name and leave it running.")
@click.option("--rm", "removes", is_flag=True, help="Remove it when it has ended.")
@specs.options
@dialling.options
def run(door: dialling.Door, detach: bool, removes: bool, **spec: Any) -> None:
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
    request = specs.request(**spec)
    with specs.failures_told_apart():
        if detach:
            click.echo(_make(door, request, starts=True).spec.name)
            return
        with following.reader_may_go():
            code = asyncio.run(attending.run(door, request, removes=removes))
    raise SystemExit(code)


@container.command(context_settings={"allow_interspersed_args": False})
@specs.arguments
@specs.options
@dialling.options
def create(door: dialling.Door, **spec: Any) -> None:
    """Make a container from IMAGE without starting it, and print its name."""
    click.echo(_make(door, specs.request(**spec), starts=False).spec.name)


@container.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@dialling.options
def start(door: dialling.Door, names: tuple[str, ...]) -> None:
    """Start containers that were created or have exited."""
    from skerry.wire.proto.containers_pb2 import StartRequest

    async def starting(stub: ContainerServiceStub, name: str) -> str:
        await stub.Start(StartRequest(container=name), timeout=dialling.CALL_S)
        return f"started {name}"

    dialling.ask_each(door, dialling.containers, names, starting)


@container.command(name="list")
@dialling.options
@printing.option
def list_containers(door: dialling.Door, output: str) -> None:
    """List containers, also those that do not run."""
    printing.show(
        {"containers": [shapes.plain(each) for each in _all(door)]},
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
@dialling.options
def stop(door: dialling.Door, names: tuple[str, ...], grace: float | None) -> None:
    """Stop containers and say how each ended.

    They stay, with their files and logs, until they are started again or removed.
    """
    from skerry.wire.proto.containers_pb2 import StopRequest

    async def stopping(stub: ContainerServiceStub, name: str) -> str:
        # Without a limit: how long it may take is the container's word, which we do not know.
        told = shapes.plain(await stub.Stop(StopRequest(container=name, grace_s=grace)))
        return f"stopped {name}: {_state_line(told)}"

    dialling.ask_each(door, dialling.containers, names, stopping)


@container.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("-f", "--force", is_flag=True, help="Also if it runs: it is stopped first.")
@dialling.options
def remove(door: dialling.Door, names: tuple[str, ...], force: bool) -> None:
    """Remove containers with all that they have written."""
    from skerry.wire.proto.containers_pb2 import RemoveRequest

    async def removing(stub: ContainerServiceStub, name: str) -> str:
        # Without a limit, as for a stop.
        await stub.Remove(RemoveRequest(container=name, force=force))
        return f"removed {name}"

    dialling.ask_each(door, dialling.containers, names, removing)


@container.command()
@click.argument("name", metavar="NAME")
@following.options
@dialling.options
@printing.option
def logs(
    door: dialling.Door, name: str, follow: bool, tail: int | None, only: str | None, output: str
) -> None:
    """Show what the last run has written: its output as output, its errors as errors.

    With --output json each line is one object.
    """
    from skerry.wire.proto.containers_pb2 import GetRequest, LogsRequest

    request = LogsRequest(container=name, channel=following.channel(only), follow=follow, tail=tail)

    async def show(stub: ContainerServiceStub) -> None:
        # Whoever answered once may go away for a moment; who never did is not waited for.
        await stub.Get(GetRequest(container=name), timeout=dialling.CALL_S)
        await following.show(door, stub.Logs, request, output)

    with following.reader_may_go():
        dialling.ask(door, dialling.containers, show)


@container.command(name="exec", context_settings={"allow_interspersed_args": False})
@click.argument("name", metavar="NAME")
@attaching.options
@dialling.options
def exec_(door: dialling.Door, name: str, program: attaching.Program) -> None:
    """Run a COMMAND in a container that runs, and end with its exit code.

    125 is the exit code if it could not be run, 126 if it cannot be executed, 127 if it is not there. Ctrl-C
    is passed on, a second one kills it.

    \b
      skerry container exec -it web sh
      skerry container exec web cat /etc/hosts
      echo 'select 1' | skerry container exec -i db psql
    """
    with specs.failures_told_apart(), following.reader_may_go():
        code = asyncio.run(lines.execute_in_container(door, name, program))
    raise SystemExit(code)


@container.command()
@click.argument("names", metavar="[NAME...]", nargs=-1)
@dialling.options
@printing.option
def stats(door: dialling.Door, names: tuple[str, ...], output: str) -> None:
    """Show what containers use; without a NAME, of all that run."""
    from skerry.wire.proto.containers_pb2 import STATE_RUNNING, StatsRequest

    chosen = names or [each.spec.name for each in _all(door) if each.state == STATE_RUNNING]

    async def asking(stub: ContainerServiceStub) -> list[pb.StatsReply]:
        requests = [StatsRequest(container=name) for name in chosen]
        return await asyncio.gather(*(stub.Stats(each, timeout=dialling.CALL_S) for each in requests))

    found = dialling.ask(door, dialling.containers, asking)
    printing.show(
        {
            "containers": [
                {"name": name, **shapes.plain(each)} for name, each in zip(chosen, found, strict=True)
            ]
        },
        output,
        columns=("name", "cpu", "throttled", "memory", "peak", "pids", "read", "written", "disk", "of"),
        rows=lambda value: [
            (
                each["name"],
                *shapes.usage_cells(each["usage"]),
                printing.size(each["disk_bytes"]),
                "-" if each["disk_limit_bytes"] is None else printing.size(each["disk_limit_bytes"]),
            )
            for each in value["containers"]
        ],
    )


@container.command()
@click.argument("name", metavar="NAME")
@dialling.options
@printing.option
def wait(door: dialling.Door, name: str, output: str) -> None:
    """Wait until a container has exited, and print its exit code.

    128 and the number of the signal if one ended it; --output json says more.
    """
    from skerry.wire.proto.containers_pb2 import WaitRequest

    [reply] = dialling.ask(door, dialling.containers, lambda stub: stub.Wait(WaitRequest(container=name)))
    if output == "json":
        printing.as_json(shapes.plain(reply.exit))
    else:
        click.echo(shapes.exit_code(reply.exit))


@container.command()
@click.argument("name", metavar="NAME")
@dialling.options
def inspect(door: dialling.Door, name: str) -> None:
    """Print everything that is known of a container, as JSON."""
    from skerry.wire.proto.containers_pb2 import GetRequest

    request = GetRequest(container=name)
    told = dialling.ask(door, dialling.containers, lambda stub: stub.Get(request, timeout=dialling.CALL_S))
    printing.as_json(shapes.plain(told))


def _make(door: dialling.Door, request: pb.CreateRequest, *, starts: bool) -> pb.Container:
    async def making(stub: ContainerServiceStub) -> pb.Container:
        with progress.shown() as show:
            method = stub.Run if starts else stub.Create
            return (await progress.to_the_end(method, request, show)).container

    return dialling.ask(door, dialling.containers, making)


def _all(door: dialling.Door) -> list[pb.Container]:
    from skerry.wire.proto.containers_pb2 import ListRequest

    return dialling.ask(
        door, dialling.containers, lambda stub: stub.List(ListRequest(), timeout=dialling.CALL_S)
    )


def _state_line(shown: dict[str, Any]) -> str:
    """Its state, and what one would ask next."""
    why = shown["reason"] or (shapes.exit_line(shown["exit"]) if shown["exit"] is not None else "")
    return f"{shown['state']} ({why})" if why else str(shown["state"])
