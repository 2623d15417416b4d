"""`skerry schedule`: jobs and calls of functions at the times of a cron expression."""

from __future__ import annotations

import json
from typing import Any

import click

from skerry.cli import function_calls, job_options, object_kinds, options
from skerry.cli import output as printing
from skerry.cli.errors import ErrorCollector
from skerry.cli.job_options import SCHEDULE
from skerry.cli.options import AliasGroup, FieldOptions, without_dashes
from skerry.client.api import ApiClient, JsonObject

_name = click.argument("name", metavar="SCHEDULE")
_names = click.argument("names", metavar="SCHEDULE...", nargs=-1, required=True)
_settings = FieldOptions(
    click.option(
        "--tz", "timezone", metavar="ZONE", help="Time zone, such as Europe/Berlin.  [default: UTC]"
    ),
    click.option(
        "--overlap",
        type=click.Choice(["skip", "queue", "replace"]),
        help="Policy for a run that is due while the last one is running.  [default: skip]",
    ),
    click.option(
        "--window",
        "window_s",
        metavar="TIME",
        type=job_options.SECONDS,
        help="Start runs that were due while no server was running, if at most this late: 1h.  [default: 1h]",
    ),
)


@click.group(cls=AliasGroup, aliases={"ls": "list", "rm": "delete", "show": "describe", "create": "add"})
def schedule() -> None:
    """Run jobs, or call functions, at the times of a cron expression.

    \b
      skerry schedule add nightly '30 3 * * *' --tz Europe/Berlin docker.io/library/busybox -- echo night
      skerry schedule add report '0 8 * * MON-FRI' --fn report -p format:pdf
      skerry schedule describe nightly
    """


@schedule.command()
@_name
@click.argument("cron", metavar="CRON")
@click.argument("image", metavar="[IMAGE]", required=False)
@click.argument(
    "arguments", metavar="[-- ARGUMENT...]", nargs=-1, type=click.UNPROCESSED, callback=without_dashes
)
@click.option("--job", "from_job", metavar="JOB", help="Each run is a job with the spec of this one.")
@click.option("--fn", "function", metavar="FUNCTION", help="Each run is a call of this function.")
@click.option(
    "-p",
    "--param",
    "params",
    multiple=True,
    metavar="NAME:VALUE",
    help="Parameter of the call; NAME:=JSON for other values than text; repeatable.",
)
@_settings
@click.option("--paused", is_flag=True, help="Create it paused.")
@job_options.spec
@object_kinds.namespace
@options.server
@printing.option
def add(server: ApiClient, name: str, cron: str, namespace: str | None, output: str, **given: Any) -> None:
    """Add a schedule. CRON is 'minute hour day-of-month month day-of-week', in quotes.

    What runs is IMAGE, a copy of the job of --job, or a call of --fn. Prints the next due times.

    \b
      skerry schedule add nightly '30 3 * * *' --tz Europe/Berlin example.org/backup:2
      skerry schedule add sums '*/10 * * * *' --job sums --overlap queue
      skerry schedule add report '0 8 * * MON-FRI' --fn report -p format:pdf
    """
    body: JsonObject = {"name": name, "cron": cron, **_target(given), **_settings.take(given)}
    if given["paused"]:
        body["paused"] = True
    made = server.put("schedule", body=body, namespace=namespace)
    if output == "json":
        printing.as_json(made)
        return
    click.echo(made["name"])
    for at in made["next_local"]:
        click.echo(f"next: {at}", err=True)


@schedule.command(name="list")
@object_kinds.namespace
@click.option("-A", "--all-namespaces", is_flag=True, help="List schedules of all namespaces.")
@options.server
@printing.option
def list_schedules(server: ApiClient, namespace: str | None, all_namespaces: bool, output: str) -> None:
    """List schedules."""
    object_kinds.print_list(server, SCHEDULE, namespace, all_namespaces, output)


@schedule.command()
@_name
@object_kinds.namespace
@options.server
@printing.option
def describe(server: ApiClient, name: str, namespace: str | None, output: str) -> None:
    """Show a schedule, its next five due times and its latest runs."""
    found = server.get(*job_options.path(SCHEDULE, name, namespace))
    if output == "json":
        printing.as_json(found)
        return
    rows = [
        ("name", found["name"]),
        ("namespace", found["namespace"]),
        ("cron", found["cron"]),
        ("timezone", found["timezone"]),
        ("target", job_options.target_text(found)),
        ("overlap", found["overlap"]),
        ("window", printing.duration(found["window_s"])),
        ("paused", "yes" if found["paused"] else "no"),
        ("created", printing.ago(found["created_at"])),
        *(("next" if number == 0 else "", at) for number, at in enumerate(found["next_local"])),
    ]
    printing.table(printing.DETAILS, rows)
    if found["runs"]:
        click.echo()
        printing.table(
            ("due", "status", "target", "started", "ended", "reason"),
            [
                (
                    f"{run['due_at']}{' (manual)' if run['manual'] else ''}",
                    run["status"],
                    run["target"] or "-",
                    run["started_at"] or "-",
                    run["ended_at"] or "-",
                    run["reason"],
                )
                for run in found["runs"]
            ],
        )


@schedule.command()
@_names
@object_kinds.namespace
@options.server
def pause(server: ApiClient, names: tuple[str, ...], namespace: str | None) -> None:
    """Pause schedules; current runs continue."""
    _each(server, names, namespace, "pause", "paused")


@schedule.command()
@_names
@object_kinds.namespace
@options.server
def resume(server: ApiClient, names: tuple[str, ...], namespace: str | None) -> None:
    """Resume schedules; runs that were due meanwhile are skipped."""
    _each(server, names, namespace, "resume", "resumed")


@schedule.command()
@_name
@object_kinds.namespace
@options.server
@printing.option
def run(server: ApiClient, name: str, namespace: str | None, output: str) -> None:
    """Run a schedule now, in addition to its due times."""
    made = server.post(*job_options.path(SCHEDULE, name, namespace, "run"))
    printing.as_json(made) if output == "json" else click.echo(f"{name}: run of {made['due_at']} requested")


@schedule.command()
@_names
@object_kinds.namespace
@options.server
def delete(server: ApiClient, names: tuple[str, ...], namespace: str | None) -> None:
    """Delete schedules; their jobs stay."""
    with ErrorCollector() as failures:
        for name in names:
            with failures.collect():
                server.delete(*job_options.path(SCHEDULE, name, namespace))
                click.echo(f"deleted schedule {name}")


def _target(given: dict[str, Any]) -> JsonObject:
    """What runs: exactly one of three."""
    chosen = [given["image"], given["from_job"], given["function"]]
    if sum(one is not None for one in chosen) != 1:
        raise click.UsageError("Give one of IMAGE, --job JOB and --fn FUNCTION.")
    if given["params"] and given["function"] is None:
        raise click.UsageError("-p is for the parameters of --fn.")
    if given["function"] is not None:
        parameters = json.loads(function_calls.params(given["params"], None)) or {}
        return {"function": {"name": given["function"], "parameters": parameters}}
    if given["from_job"] is not None:
        return {"from_job": given["from_job"]}
    return {"job": job_options.body(given["image"], given["arguments"], given)}


def _each(server: ApiClient, names: tuple[str, ...], namespace: str | None, verb: str, done: str) -> None:
    with ErrorCollector() as failures:
        for name in names:
            with failures.collect():
                server.post(*job_options.path(SCHEDULE, name, namespace, verb))
                click.echo(f"{done} schedule {name}")
