"""`skerry service`: replicas of an image that are kept ready, updated without a gap and scaled.

Options and the request body are in `skerry.cli.service_options`, waiting and progress in
`skerry.cli.service_progress`, plans in `skerry.cli.service_plans`, details in `skerry.cli.service_details`.
"""

from __future__ import annotations

from typing import IO, Any

import click

from skerry.cli import (
    image_references,
    object_kinds,
    options,
    service_details,
    service_options,
    service_plans,
    volume_details,
)
from skerry.cli import output as printing
from skerry.cli import service_progress as progress
from skerry.cli.errors import ErrorCollector
from skerry.cli.object_kinds import SERVICE, NodeNames
from skerry.cli.options import AliasGroup, without_dashes
from skerry.client.api import ApiClient, JsonObject

_name = click.argument("name", metavar="SERVICE")
_arguments = click.argument(
    "arguments", metavar="[-- ARGUMENT...]", nargs=-1, type=click.UNPROCESSED, callback=without_dashes
)


@click.group(
    cls=AliasGroup, aliases={"ls": "list", "rm": "delete", "show": "describe", "revisions": "history"}
)
def service() -> None:
    """Run an image in several copies, check them, and update them without a gap.

    \b
      skerry service create web --replicas 3 --check http:80/health docker.io/library/nginx
      skerry service update web --image docker.io/library/nginx:1.29
      skerry service scale web 5
    """


@service.command()
@_name
@click.argument("image", metavar="IMAGE")
@_arguments
@click.option("--replicas", metavar="N", type=click.IntRange(min=0), help="Number of copies.  [default: 1]")
@service_options.settings
@progress.no_wait
@object_kinds.namespace
@options.server
@printing.option
def create(
    server: ApiClient,
    name: str,
    image: str,
    namespace: str | None,
    is_detached: bool,
    output: str,
    **given: Any,
) -> None:
    """Create SERVICE, with copies of IMAGE; arguments after -- replace the image's command.

    Waits until all copies are ready, and shows progress. Ctrl-C ends only this command.

    \b
      skerry service create web --replicas 3 --check http:80/health docker.io/library/nginx
      skerry service create api --replicas 4 --spread zone --max-per-node 1 example.org/api:2
      skerry service create api --min 2 --max 10 --cpu 500 --target-cpu 70 example.org/api:2
    """
    body = {
        "name": name,
        "image": image_references.resolve(image),
        "arguments": given.pop("arguments"),
        "replicas": given.pop("replicas"),
        **service_options.body(given),
    }
    made = server.put("service", body=body, namespace=namespace)
    _finish(server, made, is_detached, output, "created")


@service.command(name="list")
@object_kinds.namespace
@click.option(
    "-A", "--all-namespaces", is_flag=True, help="List services of all namespaces, with a NAMESPACE column."
)
@options.server
@printing.option
def list_services(server: ApiClient, namespace: str | None, all_namespaces: bool, output: str) -> None:
    """List services."""
    object_kinds.print_list(server, SERVICE, namespace, all_namespaces, output)


@service.command()
@_name
@object_kinds.namespace
@options.server
@printing.option
def describe(server: ApiClient, name: str, namespace: str | None, output: str) -> None:
    """Show a service with its copies and its latest events."""
    service_details.show(server, object_kinds.find(server, SERVICE, name, namespace), output)


@service.command()
@_name
@click.argument("replicas", metavar="REPLICAS", type=click.IntRange(min=0))
@progress.no_wait
@object_kinds.namespace
@options.server
@printing.option
def scale(
    server: ApiClient, name: str, replicas: int, namespace: str | None, is_detached: bool, output: str
) -> None:
    """Change the number of copies, and wait until they are ready.

    \b
      skerry service scale web 5
    """
    _finish(
        server, _post(server, name, namespace, "scale", {"replicas": replicas}), is_detached, output, "scaled"
    )


@service.command()
@_name
@click.option("--image", metavar="IMAGE", help="The image to run.")
@click.option("--replicas", metavar="N", type=click.IntRange(min=0), help="Number of copies.")
@service_options.settings
@_arguments
@progress.no_wait
@object_kinds.namespace
@options.server
@printing.option
def update(
    server: ApiClient, name: str, namespace: str | None, is_detached: bool, output: str, **given: Any
) -> None:
    """Change a service, and wait until all copies are updated.

    Options that are not given keep their values. -e adds variables; checks replace those of the same kind;
    other lists are replaced. A copy is stopped when its successor is ready. If the update fails, it is rolled
    back to the last good revision, and the exit code is 1.

    \b
      skerry service update web --image docker.io/library/nginx:1.29 --deadline 5m
      skerry service update web --canary 1 --promote-after 10m --image example.org/web:3
      skerry service update web --min 2 --max 8 --target-cpu 70
    """
    before = object_kinds.find(server, SERVICE, name, namespace)
    body = _changes(given, before)
    if not body:
        raise click.UsageError("Nothing to change; see 'skerry service update --help' for what can be.")
    made = server.patch("service", before["name"], body=body, namespace=before["namespace"])
    _finish(server, made, is_detached, output, "updated")


@service.command()
@_name
@click.option(
    "--min", metavar="N", type=click.IntRange(min=0), help="Minimum number of copies; 0 needs --requests."
)
@click.option("--max", metavar="N", type=click.IntRange(min=1), help="Maximum number of copies.")
@click.option(
    "--cpu", "target_cpu", metavar="PERCENT", type=float, help="Target: CPU usage in percent of the limit."
)
@click.option(
    "--memory",
    "target_memory",
    metavar="PERCENT",
    type=float,
    help="Target: memory usage in percent of the limit.",
)
@click.option(
    "--metric",
    "target_metric",
    metavar="NAME:PORT[/PATH]=TARGET",
    type=service_options.MetricTarget(),
    help="Target: the mean of a Prometheus metric of the copies.",
)
@click.option(
    "--requests",
    "target_requests",
    metavar="N",
    type=float,
    help="Target: requests under way per copy, by routes.",
)
@service_options.IDLE
@click.option("--off", is_flag=True, help="Turn autoscaling off; the number of copies stays.")
@object_kinds.namespace
@options.server
@printing.option
def autoscale(
    server: ApiClient, name: str, namespace: str | None, off: bool, output: str, **given: Any
) -> None:
    """Scale a service by CPU, memory or a metric of its own.

    \b
      skerry service autoscale web --min 2 --max 10 --cpu 70
      skerry service autoscale web --min 2 --max 10 --metric in_flight:9000/metrics=20
      skerry service autoscale web --min 0 --max 10 --requests 20 --idle 10m
      skerry service autoscale web --off
    """
    body: JsonObject = service_options.autoscale(given)
    if off == bool(body):
        raise click.UsageError("Give --min, --max and a target; or --off.")
    there = object_kinds.find(server, SERVICE, name, namespace)
    body = {"autoscale": None} if off else body
    made = server.patch("service", there["name"], body=body, namespace=there["namespace"])
    _print(made, output, "changed")


@service.command()
@click.argument("name", metavar="[SERVICE]", required=False)
@click.option(
    "-f",
    "--file",
    type=click.File("rb"),
    metavar="FILE",
    help="Manifest with services; - reads stdin.",
)
@click.option("--image", metavar="IMAGE", help="The image to run.")
@click.option("--replicas", metavar="N", type=click.IntRange(min=0), help="Number of copies.")
@service_options.settings
@_arguments
@object_kinds.namespace
@options.server
@printing.option
def plan(
    server: ApiClient,
    name: str | None,
    file: IO[bytes] | None,
    namespace: str | None,
    output: str,
    **given: Any,
) -> None:
    """Show what a change would do, and where copies would be placed; nothing is changed.

    With -f, for all services of a manifest as 'skerry apply' takes it; otherwise for SERVICE and the options
    of 'skerry service update'.

    \b
      skerry service plan -f shop.yaml
      skerry service plan web --image docker.io/library/nginx:1.29
    """
    if (name is None) == (file is None):
        raise click.UsageError("Give SERVICE with options, or -f FILE.")
    if file is not None:
        plans = service_plans.of_manifest(server, file, namespace)
    else:
        before = object_kinds.find(server, SERVICE, str(name), namespace)
        plans = [service_plans.request(server, before["name"], before["namespace"], _changes(given, before))]
    if output == "json":
        printing.as_json({"plans": plans})
        return
    names = NodeNames(server)
    for each in plans:
        service_plans.show(each, names)


@service.command()
@_name
@click.option("--to", "revision", metavar="N", type=click.IntRange(min=1), help="The revision to go back to.")
@progress.no_wait
@object_kinds.namespace
@options.server
@printing.option
def rollback(
    server: ApiClient, name: str, revision: int | None, namespace: str | None, is_detached: bool, output: str
) -> None:
    """Roll back to the last good revision, or to another, and wait until all copies are updated.

    \b
      skerry service rollback web
      skerry service rollback web --to 4
    """
    made = _post(server, name, namespace, "rollback", {"revision": revision})
    _finish(server, made, is_detached, output, "rolled back")


@service.command()
@_name
@progress.no_wait
@object_kinds.namespace
@options.server
@printing.option
def promote(server: ApiClient, name: str, namespace: str | None, is_detached: bool, output: str) -> None:
    """Update all copies to the revision of the canaries, and wait."""
    _finish(server, _post(server, name, namespace, "promote"), is_detached, output, "promoted")


@service.command()
@_name
@object_kinds.namespace
@options.server
@printing.option
def history(server: ApiClient, name: str, namespace: str | None, output: str) -> None:
    """List the revisions of a service that are kept."""
    there = object_kinds.find(server, SERVICE, name, namespace)
    known = server.get("service", there["name"], "revisions", namespace=there["namespace"])
    marks = {there["stable_revision"]: "stable", there["revision"]: "current"}
    printing.show(
        known,
        output,
        columns=("revision", "outcome", "image", "actor", "age", "state"),
        rows=lambda value: [
            (
                str(one["revision"]),
                one["outcome"],
                one["image"],
                one["actor"],
                printing.age(one["created_at"]),
                marks.get(one["revision"], "-"),
            )
            for one in value["revisions"]
        ],
    )


@service.command()
@_name
@object_kinds.namespace
@options.server
@printing.option
def pause(server: ApiClient, name: str, namespace: str | None, output: str) -> None:
    """Pause updates: copies stay as they are, and those that fail are still replaced."""
    _print(_post(server, name, namespace, "pause"), output, "paused")


@service.command()
@_name
@object_kinds.namespace
@options.server
@printing.option
def resume(server: ApiClient, name: str, namespace: str | None, output: str) -> None:
    """Resume an update that is paused, or that failed and waits."""
    _print(_post(server, name, namespace, "resume"), output, "resumed")


@service.command()
@_name
@object_kinds.namespace
@options.server
@printing.option
def wait(server: ApiClient, name: str, namespace: str | None, output: str) -> None:
    """Wait until all copies are ready, of the current revision.

    Use it after 'skerry apply', a new secret or config, or a command with --no-wait. The exit code is 1 if
    the update fails.

    \b
      skerry apply -f web.yaml && skerry service wait web
    """
    _finish(server, object_kinds.find(server, SERVICE, name, namespace), False, output, "finished")


@service.command()
@click.argument("given", metavar="SERVICE...", nargs=-1, required=True)
@progress.no_wait
@click.option(
    "--delete-volumes", is_flag=True, help="Also delete the volumes of its templates, with their data."
)
@object_kinds.namespace
@options.server
def delete(
    server: ApiClient,
    given: tuple[str, ...],
    namespace: str | None,
    is_detached: bool,
    delete_volumes: bool,
) -> None:
    """Delete services with their copies, and wait until they are gone. This cannot be undone.

    Volumes stay; with --delete-volumes those of the service's templates are deleted, too.
    """
    if delete_volumes and is_detached:
        raise click.UsageError("--delete-volumes waits until the copies are gone; leave out --detach.")
    with ErrorCollector() as failures:
        going = []
        for name in given:
            with failures.collect():
                there = object_kinds.find(server, SERVICE, name, namespace)
                going.append(server.delete("service", there["name"], namespace=there["namespace"]))
        for one in going:
            with failures.collect():
                if not is_detached:
                    progress.wait_until_gone(server, one)
                click.echo(f"{'deleting' if is_detached else 'deleted'} service {one['name']}")
                if delete_volumes:
                    volume_details.delete_of_service(server, one["name"], one["namespace"])


def _changes(given: JsonObject, before: JsonObject) -> JsonObject:
    """The fields that the options of an update change."""
    image, replicas, arguments = (given.pop(name) for name in ("image", "replicas", "arguments"))
    body = service_options.body(given, before)
    if image:
        body["image"] = image_references.resolve(image)
    if replicas is not None:
        body["replicas"] = replicas
    if arguments:
        body["arguments"] = arguments
    return body


def _post(
    server: ApiClient, name: str, namespace: str | None, verb: str, body: JsonObject | None = None
) -> JsonObject:
    within = ("namespace", namespace) if namespace else ()
    return server.post(*within, "service", name, verb, body=body)


def _finish(server: ApiClient, made: JsonObject, is_detached: bool, output: str, done: str) -> None:
    """Wait, unless that is not wanted, and print the result."""
    if not is_detached:
        made = progress.wait(server, made)
    _print(made, output, done)


def _print(made: JsonObject, output: str, done: str) -> None:
    if output == "json":
        printing.as_json(made)
        return
    click.echo(f"{done} service {made['name']}: {progress.summary(made)}")
