"""The verbs for instances: `skerry run`, `start`, `stop`, `logs`, `exec` and `explain`.

They talk to a server, which places instances on nodes; containers that belong to this machine alone are
`skerry container`'s. An instance is named by its id, or by its name if no other in its namespace has it.
"""

from __future__ import annotations

import asyncio
from typing import Final

import click

from skerry.cli import (
    client,
    container_options,
    exec_session,
    exec_streams,
    image_references,
    log_output,
    object_kinds,
    watch,
)
from skerry.cli import output as printing
from skerry.cli.object_kinds import INSTANCE, JsonObject, NodeNames

_UP: Final = frozenset({"RUNNING", *object_kinds.TERMINAL})
_DOWN: Final = frozenset({"STOPPED", *object_kinds.TERMINAL})


@click.command()
@click.argument("image", metavar="IMAGE")
@click.argument("arguments", metavar="[-- ARGUMENT...]", nargs=-1, type=click.UNPROCESSED)
@container_options.essentials
@click.option(
    "--restart",
    type=click.Choice(["always", "on-failure", "never"]),
    default="always",
    show_default=True,
    help="What happens when it ends by itself.",
)
@click.option(
    "--constraint",
    "constraints",
    multiple=True,
    metavar="LABEL=VALUE",
    help="Only on nodes with this label; LABEL!=VALUE without it; repeatable.",
)
@watch.detach
@object_kinds.namespace
@client.options
@printing.option
def run(
    server: client.ApiClient,
    image: str,
    arguments: tuple[str, ...],
    name: str,
    env: tuple[str, ...],
    env_file: tuple[str, ...],
    publish: tuple[str, ...],
    cpu: int | None,
    memory: int | None,
    disk: int | None,
    userns: str,
    restart: str,
    constraints: tuple[str, ...],
    namespace: str | None,
    detach: bool,
    output: str,
) -> None:
    """Run IMAGE on whichever node has room; what comes after -- replaces the image's command.

    Tells how it gets on until it is RUNNING, and then prints its id. It goes on when this command ends, and
    Ctrl-C only ends the telling. If no node has room it waits for one; 'skerry explain' says what is missing.

    \b
      skerry run --name web -p 8080:80 docker.io/library/nginx
      skerry run --cpu 500 --memory 256 --constraint zone=edge example.org/sensor:3
      skerry run --restart never docker.io/library/busybox -- sh -c 'echo once'
    """
    wish = {
        "name": name or container_options.name_for(image),
        "uri": image_references.resolve(image),
        "arguments": arguments,
        "environment": container_options.variables(env, env_file),
        "ports": publish,
        "resources": {"cpu": cpu or 0, "memory": memory or 0, "disk": disk or 0},
        "restart": restart,
        "constraints": constraints,
        "userns": userns,
    }
    made = server.put("instance", body=wish, namespace=namespace)
    if not detach:
        made = _told_until(server, made, _UP)
        _tell_where(made, NodeNames(server))
    printing.as_json(made) if output == "json" else click.echo(made["id"])


@click.command()
@click.argument("names", metavar="INSTANCE...", nargs=-1, required=True)
@watch.detach
@object_kinds.namespace
@client.options
def start(server: client.ApiClient, names: tuple[str, ...], namespace: str | None, detach: bool) -> None:
    """Start instances that were stopped, and wait until they run."""
    _wish(server, names, namespace, "RUNNING", None if detach else _UP)


@click.command()
@click.argument("names", metavar="INSTANCE...", nargs=-1, required=True)
@watch.detach
@object_kinds.namespace
@client.options
def stop(server: client.ApiClient, names: tuple[str, ...], namespace: str | None, detach: bool) -> None:
    """Stop instances, and wait until they have.

    They keep their node, their room and their ports there, until they are started again or deleted.
    """
    _wish(server, names, namespace, "STOPPED", None if detach else _DOWN)


@click.command()
@click.argument("name", metavar="INSTANCE")
@log_output.options_in_namespace
@object_kinds.namespace
@client.options
def logs(
    server: client.ApiClient,
    name: str,
    namespace: str | None,
    follow: bool,
    tail: int | None,
    only: str | None,
) -> None:
    """Show what an instance has written in its last run, output and errors as they came.

    With -f it goes on over restarts, until the instance is over.

    \b
      skerry logs web
      skerry logs -f --tail 20 web
    """
    instance = object_kinds.find(server, INSTANCE, name, namespace)
    pieces = server.output(
        "instance",
        instance["id"],
        "logs",
        follow=str(follow).lower(),
        tail=None if tail is None else str(tail),
        stream=only,
    )
    for data in pieces:
        click.echo(data, nl=False)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("name", metavar="INSTANCE")
@exec_session.options
@object_kinds.namespace
@client.options
def exec(
    server: client.ApiClient, name: str, namespace: str | None, program: exec_session.ExecCommand
) -> None:
    """Run a COMMAND in an instance that runs, and end with its exit code.

    125 is the exit code if it could not be run, 126 if it cannot be executed, 127 if it is not there. Ctrl-C
    is passed on, a second one kills it.

    \b
      skerry exec -it web sh
      skerry exec web cat /etc/hosts
      echo 'select 1' | skerry exec -i db psql
    """
    with container_options.container_exit_codes(), log_output.exit_on_closed_output():
        instance = object_kinds.find(server, INSTANCE, name, namespace)
        code = asyncio.run(exec_streams.execute_in_instance(server, instance["id"], program))
    raise SystemExit(code)


@click.command()
@click.argument("name", metavar="INSTANCE")
@object_kinds.namespace
@client.options
@printing.option
def explain(server: client.ApiClient, name: str, namespace: str | None, output: str) -> None:
    """Show what every node says to an instance: that it fits, or what speaks against it and by how much."""
    instance = object_kinds.find(server, INSTANCE, name, namespace)
    told = explanation(server, instance)
    if output == "json":
        printing.as_json(told)
        return
    click.echo(f"{instance['name']} is {watch.describe(told)}")
    click.echo(f"{told['fit']} of {told['count']} nodes could take it now.")
    show_verdicts(told, NodeNames(server))


def explanation(server: client.ApiClient, instance: JsonObject) -> JsonObject:
    """What every node says, page after page."""
    told: JsonObject = server.get("instance", instance["id"], "explain", limit="0")
    while len(told["nodes"]) < told["count"]:
        page = server.get("instance", instance["id"], "explain", limit="0", offset=str(len(told["nodes"])))
        if not page["nodes"]:
            break  # nodes have left meanwhile
        told["nodes"] += page["nodes"]
    return told


def show_verdicts(told: JsonObject, names: NodeNames) -> None:
    if told["nodes"]:
        printing.table(
            ("node", "fits", "says"),
            [
                (names.of(one["node_id"]), "yes" if one["fits"] else "no", one["text"])
                for one in told["nodes"]
            ],
        )


def _tell_where(instance: JsonObject, names: NodeNames) -> None:
    if instance["status"] == "RUNNING":
        ports = f", ports {' '.join(instance['ports'])}" if instance["ports"] else ""
        click.echo(
            f"{instance['name']} runs on {names.of(instance['node_id'])} at {instance['ip']}{ports}", err=True
        )


def _wish(
    server: client.ApiClient,
    names: tuple[str, ...],
    namespace: str | None,
    status: str,
    until: frozenset[str] | None,
) -> None:
    """Tell each of them before any is waited for, and then say of each what came of it."""
    with client.ErrorCollector() as failures:
        wished = []
        for name in names:
            with failures.told():
                instance = object_kinds.find(server, INSTANCE, name, namespace)
                wished.append(server.patch("instance", instance["id"], body={"status": status}))
        for one in wished:
            with failures.told():
                seen = _told_until(server, one, until) if until else one
                is_there = seen["status"] == seen["desired"]
                click.echo(f"{seen['name']} is {seen['status']}{'' if is_there else f', to be {status}'}")


def _told_until(server: client.ApiClient, instance: JsonObject, wanted: frozenset[str]) -> JsonObject:
    """The instance when its status is as wanted, or when it is over and that is well, too."""
    id, name = instance["id"], instance["name"]
    try:
        seen = watch.wait_until(server, instance, wanted)
    except KeyboardInterrupt:
        click.echo(
            f"{name} goes on without this command: 'skerry describe instance {id}' shows how it does, "
            f"'skerry delete instance {id}' removes it.",
            err=True,
        )
        raise
    if seen is None:
        raise click.ClickException(f"{name} was deleted by somebody.")
    if seen["status"] == "FAILED" and wanted == _UP:
        raise click.ClickException(
            f"{name} has failed: {seen['reason']}. 'skerry describe instance {id}' shows what happened, "
            f"'skerry delete instance {id}' removes it."
        )
    return seen
