"""The commands for instances: `skerry run`, `start`, `stop`, `logs`, `exec` and `explain`.

They talk to a server, which places instances on nodes; containers of this machine alone are managed by
`skerry container`. An instance is named by its id, or by its name if it is the only one in its namespace.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click

from skerry.cli import (
    check_options,
    container_options,
    exec_session,
    image_references,
    instance_options,
    log_output,
    object_kinds,
    options,
    service_progress,
    watch,
)
from skerry.cli import output as printing
from skerry.cli.errors import ErrorCollector
from skerry.cli.object_kinds import INSTANCE, NodeNames
from skerry.client import exec_streams
from skerry.client.api import ApiClient, JsonObject

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
    help="Restart policy.",
)
@check_options.checks
@instance_options.options
@instance_options.constraints
@click.option(
    "--replicas",
    metavar="N",
    type=click.IntRange(min=1),
    help="Run N copies, as a service: 'skerry service' manages it.",
)
@watch.detach
@object_kinds.namespace
@options.server
@printing.option
def run(
    server: ApiClient,
    image: str,
    arguments: tuple[str, ...],
    name: str,
    namespace: str | None,
    detach: bool,
    output: str,
    **spec: Any,
) -> None:
    """Run IMAGE on a node with enough resources; arguments after -- replace the image's command.

    Prints its status until it is RUNNING, then its id. The instance keeps running when this command ends;
    Ctrl-C ends only this command. Without a feasible node it stays SCHEDULING; 'skerry explain' shows why.

    \b
      skerry run --name web -p 8080:80 docker.io/library/nginx
      skerry run --cpu 0.5 --memory 256m --constraint zone=edge example.org/sensor:3
      skerry run --node edge-1 --user 1000 --read-only --stop-grace 1m example.org/sensor:3
      skerry run --name web --check http:80/ --liveness tcp:80,grace=30s docker.io/library/nginx
      skerry run --name web --replicas 3 docker.io/library/nginx
      skerry run --restart never docker.io/library/busybox -- sh -c 'echo once'
    """
    replicas = spec.pop("replicas")
    checks = check_options.take(spec)
    body = {
        "name": name or container_options.name_for(image),
        "uri": image_references.resolve(image),
        "arguments": arguments,
        "environment": container_options.variables(spec.pop("env"), spec.pop("env_file")),
        "ports": spec.pop("ports"),
        "resources": {part: spec.pop(part) or 0 for part in ("cpu", "memory", "disk")},
        **({} if checks is None else {"checks": checks}),
        **instance_options.take(spec),
        **spec,
    }
    if replicas is not None:
        made = server.put("service", body={**body, "replicas": replicas}, namespace=namespace)
        made = made if detach else service_progress.wait(server, made)
        printing.as_json(made) if output == "json" else click.echo(made["name"])
        return
    made = server.put("instance", body=body, namespace=namespace)
    if not detach:
        made = _wait_until(server, made, _UP)
        _print_location(made, NodeNames(server))
    printing.as_json(made) if output == "json" else click.echo(made["id"])


@click.command()
@click.argument("names", metavar="INSTANCE...", nargs=-1, required=True)
@watch.detach
@object_kinds.namespace
@options.server
def start(server: ApiClient, names: tuple[str, ...], namespace: str | None, detach: bool) -> None:
    """Start stopped instances, and wait until they run."""
    _set_desired(server, names, namespace, "RUNNING", None if detach else _UP)


@click.command()
@click.argument("names", metavar="INSTANCE...", nargs=-1, required=True)
@watch.detach
@object_kinds.namespace
@options.server
def stop(server: ApiClient, names: tuple[str, ...], namespace: str | None, detach: bool) -> None:
    """Stop instances, and wait until they have stopped.

    They keep their node, resources and ports until they are started again or deleted.
    """
    _set_desired(server, names, namespace, "STOPPED", None if detach else _DOWN)


@click.command()
@click.argument("name", metavar="INSTANCE")
@log_output.options_in_namespace
@log_output.previous
@object_kinds.namespace
@options.server
def logs(
    server: ApiClient,
    name: str,
    namespace: str | None,
    follow: bool,
    tail: int | None,
    only: str | None,
    previous: bool,
) -> None:
    """Show the output of the last run of an instance, stdout and stderr in order.

    With -f, follow the output across restarts until the instance ends. With --previous, show the run before
    the last one, as after a crash.

    \b
      skerry logs web
      skerry logs -f --tail 20 web
      skerry logs --previous web
    """
    log_output.check_previous(previous=previous, follow=follow)
    instance = object_kinds.find(server, INSTANCE, name, namespace)
    log_output.print_logs(server, instance["id"], follow=follow, tail=tail, only=only, previous=previous)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("name", metavar="INSTANCE")
@exec_session.options
@object_kinds.namespace
@options.server
def exec(server: ApiClient, name: str, namespace: str | None, command: exec_streams.ExecCommand) -> None:
    """Run a COMMAND in a running instance, and exit with its exit code.

    Exit code 125: it could not be run; 126: not executable; 127: not found. Ctrl-C is passed on; a second one
    kills the command.

    \b
      skerry exec -it web sh
      skerry exec web cat /etc/hosts
      echo 'select 1' | skerry exec -i db psql
    """
    with container_options.container_exit_codes(), log_output.exit_on_closed_output():
        instance = object_kinds.find(server, INSTANCE, name, namespace)
        code = asyncio.run(
            exec_session.execute(exec_streams.exec_in_instance(server, instance["id"], command), command)
        )
    raise SystemExit(code)


@click.command()
@click.argument("name", metavar="[INSTANCE]", required=False)
@click.option("--from", "source", metavar="NAME", help="Who connects.")
@click.option("--to", "destination", metavar="NAME", help="To whom.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the destination.")
@click.option("--protocol", type=click.Choice(["tcp", "udp"]), default="tcp", show_default=True)
@object_kinds.namespace
@options.server
@printing.option
def explain(
    server: ApiClient,
    name: str | None,
    source: str | None,
    destination: str | None,
    port: int | None,
    protocol: str,
    namespace: str | None,
    output: str,
) -> None:
    """Explain the placement of an instance, or whether a connection is allowed.

    With INSTANCE: for every node whether it fits, and otherwise why not and how much is missing. With --from,
    --to and --port: which rule allows or denies the connection, and on which node. Both ends are the name of
    an instance or a service, [NAMESPACE/]NAME, or node/NAME, an IP address, or internet; exit code 1 if it
    is denied.

    \b
      skerry explain web
      skerry explain --from front/web --to db --port 5432 -n shop
      skerry explain --from db --to internet --port 443
    """
    if name is None:
        if source is None or destination is None or port is None:
            raise click.UsageError("Give an INSTANCE, or --from, --to and --port.")
        _explain_connection(server, namespace, output, source, destination, port, protocol)
        return
    if (source, destination, port) != (None, None, None):
        raise click.UsageError("Give either an INSTANCE, or --from, --to and --port.")
    instance = object_kinds.find(server, INSTANCE, name, namespace)
    verdicts = explanation(server, instance)
    if output == "json":
        printing.as_json(verdicts)
        return
    click.echo(f"{instance['name']}: {watch.describe(verdicts)}")
    click.echo(f"{verdicts['fit']} of {verdicts['count']} nodes are feasible now.")
    show_verdicts(verdicts, NodeNames(server))


def _explain_connection(
    server: ApiClient,
    namespace: str | None,
    output: str,
    source: str,
    destination: str,
    port: int,
    protocol: str,
) -> None:
    if namespace is None:
        own = server.get("about").get("namespaces")  # null: the whole cloud
        namespace = own[0] if own else "default"
    found = server.get(
        "namespace",
        namespace,
        "explain",
        **{"from": source, "to": destination, "port": str(port), "protocol": protocol},
    )
    if output == "json":
        printing.as_json(found)
    else:
        printing.table(
            ("from", "to", "allowed", "rule", "node", "reason"),
            [
                (
                    one["from"],
                    one["to"],
                    "yes" if one["allowed"] else "no",
                    one["rule"],
                    one["node"] or "-",
                    one["reason"],
                )
                for one in found["connections"]
            ],
        )
    if not found["allowed"]:
        raise SystemExit(1)


def explanation(server: ApiClient, instance: JsonObject) -> JsonObject:
    """The feasibility of every node, page by page."""
    verdicts = server.get("instance", instance["id"], "explain", limit="0")
    while len(verdicts["nodes"]) < verdicts["count"]:
        page = server.get(
            "instance", instance["id"], "explain", limit="0", offset=str(len(verdicts["nodes"]))
        )
        if not page["nodes"]:
            break  # nodes have left meanwhile
        verdicts["nodes"] += page["nodes"]
    return verdicts


def show_verdicts(verdicts: JsonObject, names: NodeNames) -> None:
    if verdicts["nodes"]:
        printing.table(
            ("node", "feasible", "reason"),
            [
                (names.of(one["node_id"]), "yes" if one["fits"] else "no", one["text"])
                for one in verdicts["nodes"]
            ],
        )


def _print_location(instance: JsonObject, names: NodeNames) -> None:
    if instance["status"] == "RUNNING":
        ports = f", ports {' '.join(instance['ports'])}" if instance["ports"] else ""
        click.echo(
            f"{instance['name']}: node {names.of(instance['node_id'])}, ip {instance['ip']}{ports}", err=True
        )


def _set_desired(
    server: ApiClient,
    names: tuple[str, ...],
    namespace: str | None,
    status: str,
    until: frozenset[str] | None,
) -> None:
    """Set the desired status of all before waiting for any, then print the status of each."""
    with ErrorCollector() as failures:
        changed = []
        for name in names:
            with failures.collect():
                instance = object_kinds.find(server, INSTANCE, name, namespace)
                changed.append(server.patch("instance", instance["id"], body={"status": status}))
        for one in changed:
            with failures.collect():
                seen = _wait_until(server, one, until) if until else one
                is_there = seen["status"] == seen["desired"]
                click.echo(f"{seen['name']}: {seen['status']}{'' if is_there else f' (desired: {status})'}")


def _wait_until(server: ApiClient, instance: JsonObject, wanted: frozenset[str]) -> JsonObject:
    """The instance once its status is one of `wanted`; an error if it failed instead."""
    id, name = instance["id"], instance["name"]
    try:
        seen = watch.wait_until(server, instance, wanted)
    except KeyboardInterrupt:
        click.echo(
            f"{name} is not stopped by this: 'skerry describe instance {id}' shows its status, "
            f"'skerry delete instance {id}' deletes it.",
            err=True,
        )
        raise
    if seen is None:
        raise click.ClickException(f"{name} was deleted by another client.")
    if seen["status"] == "FAILED" and wanted == _UP:
        raise click.ClickException(
            f"{name} has failed: {seen['reason']}. 'skerry describe instance {id}' shows its events, "
            f"'skerry delete instance {id}' deletes it."
        )
    return seen
