"""`skerry alert`: rules that notify somebody."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from skerry.cli import options
from skerry.cli import output as printing
from skerry.cli.errors import ErrorCollector
from skerry.cli.options import AliasGroup
from skerry.client.api import ApiClient, JsonObject

CONDITIONS: Final = (
    "node-lost",
    "service-not-ready",
    "crash-loop",
    "certificate-expires",
    "disk-low",
    "backup-old",
    "job-failed",
    "contract-ends",
    "spending",
)
_name = click.argument("name", metavar="ALERT")


@click.group(
    cls=AliasGroup,
    aliases={"ls": "list", "rm": "remove", "delete": "remove", "show": "describe", "create": "add"},
)
def alert() -> None:
    """Notify somebody when something is wrong.

    The leader evaluates every alert, and posts JSON as Alertmanager does to a webhook, or sends mail by the
    mail server of the settings alerts.smtp_*. Only admins can add alerts.

    \b
      skerry alert add nodes --on node-lost --to webhook https://hooks.example.org/TOKEN
      skerry alert add shop --on service-not-ready --for 5m --to mail ops@example.org
      skerry alert test nodes
      skerry alert list
    """


@alert.command()
@_name
@click.option("--on", "condition", type=click.Choice(CONDITIONS), required=True, help="Condition.")
@click.option(
    "--to",
    "receiver",
    type=(click.Choice(["webhook", "mail"]), str),
    metavar="webhook URL|mail ADDRESS,...",
    required=True,
    help="Receiver; - instead of the URL reads it from standard input. A URL is never shown again.",
)
@click.option(
    "--for",
    "for_s",
    type=printing.Duration(allows_zero=True),
    metavar="DURATION",
    help="How long the condition must hold before it fires: 30s, 5m.  [default: 0]",
)
@click.option(
    "--resolve-after",
    "resolve_after_s",
    type=printing.Duration(allows_zero=True),
    metavar="DURATION",
    help="How long it must not hold before it is resolved.  [default: 1m]",
)
@click.option(
    "--repeat",
    "repeat_s",
    type=printing.Duration(),
    metavar="DURATION",
    help="When to notify again while it fires.  [default: 4h]",
)
@click.option(
    "--threshold",
    type=float,
    metavar="NUMBER",
    help="Of crash-loop: restarts (3); certificate-expires: days (14); disk-low: percent free (10); "
    "backup-old, job-failed, contract-ends: hours (26, 1, 24); spending: money per hour.",
)
@click.option(
    "-n",
    "--namespace",
    metavar="NAMESPACE",
    help="Only services, instances or jobs of this namespace.  [default: all]",
)
@options.server
@printing.option
def add(
    server: ApiClient,
    name: str,
    condition: str,
    receiver: tuple[str, str],
    output: str,
    **given: Any,
) -> None:
    """Add an alert, or change the one that is called ALERT.

    \b
      skerry alert add nodes --on node-lost --to webhook https://hooks.example.org/TOKEN
      skerry alert add tls --on certificate-expires --threshold 21 --to mail ops@example.org,me@example.org
      skerry alert add jobs --on job-failed -n shop --to webhook - <url.txt
    """
    kind, destination = receiver
    if destination == "-":
        destination = sys.stdin.readline().strip()
    fields = {field: value for field, value in given.items() if value is not None}
    made = server.put("alert", name, body={"on": condition, kind: destination, **fields})
    printing.as_json(made) if output == "json" else click.echo(made["name"])


@alert.command(name="list")
@options.server
@printing.option
def list_alerts(server: ApiClient, output: str) -> None:
    """List alerts, and how many things each fires for."""
    found = server.get("alert")
    if output == "json":
        printing.as_json(found)
        return
    printing.table(
        ("name", "condition", "state", "firing", "to", "notified", "age", "error"),
        [
            (
                one["name"],
                one["on"],
                one["state"],
                str(sum(each["state"] == "firing" for each in one["alerts"])),
                one["destination"],
                printing.ago(one["notified_at"]),
                printing.age(one["created_at"]),
                one["error"],
            )
            for one in found["alerts"]
        ],
    )


@alert.command()
@_name
@options.server
@printing.option
def describe(server: ApiClient, name: str, output: str) -> None:
    """Show an alert: what fires, and whether its receiver could be notified."""
    one = server.get("alert", name)
    if output == "json":
        printing.as_json(one)
        return
    threshold = one["threshold"]
    rows = [
        ("name", one["name"]),
        ("condition", one["on"]),
        ("threshold", "" if threshold is None else f"{threshold:g}"),
        ("namespace", one["namespace"]),
        ("for", printing.duration(one["for_s"])),
        ("resolved after", printing.duration(one["resolve_after_s"])),
        ("repeated after", printing.duration(one["repeat_s"])),
        ("receiver", f"{one['receiver']} {one['destination']}"),
        ("state", one["state"]),
        *((_when(each), each["summary"]) for each in one["alerts"]),
        ("left out", str(one["left_out"]) if one["left_out"] else ""),
        ("notified", printing.ago(one["notified_at"])),
        ("last error", f"{one['error']} (attempt {one['attempts']})" if one["error"] else ""),
        ("created", printing.ago(one["created_at"])),
    ]
    printing.table(printing.DETAILS, [(key, text) for key, text in rows if text])


def _when(one: JsonObject) -> str:
    at = one["resolved_at"] or one["fired_at"] or one["since"]
    return f"{one['state']} {printing.ago(at)}"


@alert.command()
@_name
@options.server
def test(server: ApiClient, name: str) -> None:
    """Send a notification with an example now."""
    sent = server.post("alert", name, "test")
    click.echo(f"{sent['destination']} took the notification")


@alert.command()
@click.argument("names", metavar="ALERT...", nargs=-1, required=True)
@options.server
def remove(server: ApiClient, names: tuple[str, ...]) -> None:
    """Remove alerts. Their receivers are told nothing more."""
    with ErrorCollector() as failures:
        for name in names:
            with failures.collect():
                server.delete("alert", name)
