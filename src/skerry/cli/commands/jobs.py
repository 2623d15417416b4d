"""`skerry job`: run an image to completion, so many times, with retries, and read the logs of every try."""

from __future__ import annotations

from typing import Any

import click

from skerry.cli import (
    container_options,
    instance_options,
    job_options,
    log_output,
    object_kinds,
    options,
    watch,
)
from skerry.cli import output as printing
from skerry.cli.errors import ErrorCollector
from skerry.cli.job_options import JOB
from skerry.cli.object_kinds import NodeNames
from skerry.cli.options import AliasGroup, without_dashes
from skerry.client.api import ApiClient, JsonObject
from skerry.client.errors import ApiError

_name = click.argument("name", metavar="JOB")


@click.group(cls=AliasGroup, aliases={"ls": "list", "rm": "delete", "show": "describe", "create": "run"})
def job() -> None:
    """Run an image to completion, with retries.

    \b
      skerry job run --wait docker.io/library/busybox -- echo done
      skerry job run --name sums --completions 10 --parallelism 3 --retries 2 example.org/sums:1
      skerry job logs sums
    """


@job.command()
@click.argument("image", metavar="IMAGE")
@click.argument(
    "arguments", metavar="[-- ARGUMENT...]", nargs=-1, type=click.UNPROCESSED, callback=without_dashes
)
@click.option("--name", metavar="NAME", default="", help="Name.  [default: generated from the image's name]")
@instance_options.publish("each try")
@job_options.spec
@click.option("--wait", is_flag=True, help="Wait for the end, and exit with 1 if the job fails.")
@object_kinds.namespace
@options.server
@printing.option
def run(
    server: ApiClient,
    image: str,
    arguments: tuple[str, ...],
    name: str,
    wait: bool,
    namespace: str | None,
    output: str,
    **given: Any,
) -> None:
    """Run IMAGE to completion; arguments after -- replace the image's command.

    A try that ends with exit code 0 is a completion; others are retried, 10 s later at first, then after
    twice as long each time. Programs find SKERRY_JOB_INDEX (from 0) and SKERRY_JOB_ATTEMPT in their
    environment. Prints the job's name; with --wait also progress, until it ends.

    \b
      skerry job run --wait docker.io/library/busybox -- echo done
      skerry job run --name sums --completions 10 --parallelism 3 --deadline 5m example.org/sums:1
    """
    body = {
        "name": name or container_options.name_for(image),
        "ports": list(given["ports"]),
        **job_options.body(image, arguments, given),
    }
    made = server.put("job", body=body, namespace=namespace)
    if wait:
        made = _wait(server, made)
    printing.as_json(made) if output == "json" else click.echo(made["name"])
    if has_failed(made):
        raise SystemExit(1)


@job.command(name="list")
@object_kinds.namespace
@click.option("-A", "--all-namespaces", is_flag=True, help="List jobs of all namespaces.")
@click.option("--schedule", metavar="NAME", help="Only runs of this schedule.")
@options.server
@printing.option
def list_jobs(
    server: ApiClient, namespace: str | None, all_namespaces: bool, schedule: str | None, output: str
) -> None:
    """List jobs; ended ones are listed until they expire."""
    object_kinds.print_list(server, JOB, namespace, all_namespaces, output, schedule=schedule)


@job.command()
@_name
@object_kinds.namespace
@options.server
@printing.option
def describe(server: ApiClient, name: str, namespace: str | None, output: str) -> None:
    """Show a job and its tries."""
    found = server.get(*job_options.path(JOB, name, namespace))
    tries = _tries(server, found)
    if output == "json":
        printing.as_json(found | {"tries": tries})
        return
    deadline = "-" if found["deadline_s"] is None else printing.duration(found["deadline_s"])
    rows = [
        ("name", found["name"]),
        ("namespace", found["namespace"]),
        ("status", found["status"]),
        ("reason", found["reason"] or "-"),
        ("completions", f"{found['succeeded']} of {found['completions']}"),
        ("parallelism", str(found["parallelism"])),
        ("retries", f"{found['retries']} of each; failed tries: {found['failures']}"),
        ("deadline", deadline),
        ("image", found["image"]),
        ("arguments", " ".join(found["arguments"]) or "-"),
        *instance_options.describe(found),
        ("created", printing.ago(found["created_at"])),
        ("ended", "-" if found["ended_at"] is None else printing.ago(found["ended_at"])),
        ("kept for", printing.duration(found["keep_for_s"])),
    ]
    printing.table(printing.DETAILS, rows)
    if tries:
        names = NodeNames(server)
        click.echo()
        printing.table(
            ("try", "index", "attempt", "status", "exit", "node", "age", "instance", "reason"),
            [_try_row(each, names) for each in tries],
        )


@job.command()
@_name
@click.option(
    "--try",
    "number",
    metavar="N",
    type=click.IntRange(min=1),
    help="Only this try, as 'job describe' counts them.  [default: all]",
)
@log_output.options_in_namespace
@object_kinds.namespace
@options.server
def logs(
    server: ApiClient,
    name: str,
    namespace: str | None,
    number: int | None,
    follow: bool,
    tail: int | None,
    only: str | None,
) -> None:
    """Show the output of the tries of a job, stdout and stderr in order.

    With -f, follow the output of the last try that was chosen until it ends.

    \b
      skerry job logs sums
      skerry job logs sums --try 2 --tail 20
    """
    tries = _tries(server, server.get(*job_options.path(JOB, name, namespace)))
    if number is not None and number > len(tries):
        raise click.ClickException(f"Job '{name}' has {len(tries)} tries; 'skerry job describe' lists them.")
    chosen = tries if number is None else [tries[number - 1]]
    with ErrorCollector() as failures:
        for each in chosen:
            with failures.collect():
                if len(tries) > 1:
                    click.echo(_heading(each), err=True)
                is_followed = follow and each is chosen[-1]
                _print_logs(server, each, follow=is_followed, tail=tail, only=only)


@job.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@object_kinds.namespace
@options.server
def cancel(server: ApiClient, names: tuple[str, ...], namespace: str | None) -> None:
    """Cancel jobs now: running tries are stopped. Logs are kept."""
    with ErrorCollector() as failures:
        for name in names:
            with failures.collect():
                seen = server.post(*job_options.path(JOB, name, namespace, "cancel"))
                click.echo(f"{seen['name']}: {seen['status']}")


@job.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@object_kinds.namespace
@options.server
def delete(server: ApiClient, names: tuple[str, ...], namespace: str | None) -> None:
    """Delete jobs, their tries and their logs."""
    with ErrorCollector() as failures:
        for name in names:
            with failures.collect():
                server.delete(*job_options.path(JOB, name, namespace))
                click.echo(f"deleted job {name}")


def has_failed(seen: JsonObject) -> bool:
    """True if it is over and was not done; one that is kept for no time is DELETING then."""
    return bool(seen["status"] != "RUNNING" and seen["succeeded"] < seen["completions"])


def _tries(server: ApiClient, found: JsonObject) -> list[JsonObject]:
    path = job_options.path(JOB, found["name"], found["namespace"], "tries")
    return list(server.get(*path)["tries"])


def _try_row(each: JsonObject, names: NodeNames) -> tuple[str, ...]:
    return (
        str(each["number"]),
        str(each["index"]),
        str(each["attempt"]),
        each["status"],
        "-" if each["exit_code"] is None else str(each["exit_code"]),
        names.of(each["node_id"]),
        printing.age(each["created_at"]),
        each["instance_id"],
        each["reason"],
    )


def _heading(each: JsonObject) -> str:
    code = "" if each["exit_code"] is None else f", exit code {each['exit_code']}"
    return f"==> try {each['number']} (index {each['index']}): {each['status']}{code} <=="


def _print_logs(
    server: ApiClient, each: JsonObject, *, follow: bool, tail: int | None, only: str | None
) -> None:
    if each["node_id"] is None:
        click.echo(f"try {each['number']} has not run: {each['reason']}", err=True)
        return
    log_output.print_logs(server, each["instance_id"], follow=follow, tail=tail, only=only)


def _wait(server: ApiClient, made: JsonObject) -> JsonObject:
    """Print progress until the job is over."""
    path = job_options.path(JOB, made["name"], made["namespace"])
    shown = ""

    def read() -> JsonObject | None:
        try:
            return server.get(*path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    try:
        for seen in watch.poll_forever(read):
            if seen is None or seen["id"] != made["id"]:
                raise click.ClickException(
                    f"{made['name']} was deleted before its end was seen; --keep-for keeps it longer."
                )
            line = _progress(seen)
            if line != shown:
                click.echo(line, err=True)
                shown = line
            if seen["status"] != "RUNNING":
                return seen
    except KeyboardInterrupt:
        click.echo(
            f"{made['name']} is not stopped by this: 'skerry job describe {made['name']}' shows its status, "
            f"'skerry job cancel {made['name']}' ends it.",
            err=True,
        )
        raise
    raise AssertionError("watching does not end by itself")


def _progress(seen: JsonObject) -> str:
    parts = [f"{seen['succeeded']}/{seen['completions']} done"]
    parts += [f"{seen['active']} active"] if seen["active"] else []
    parts += [f"{seen['failures']} failed"] if seen["failures"] else []
    parts += [seen["reason"]] if seen["reason"] else []
    return f"{seen['name']}: {seen['status']}, {', '.join(parts)}"
