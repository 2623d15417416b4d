"""`skerry top`: nodes, instances, services and functions, live or once."""

from __future__ import annotations

import sys
import time

import click

from skerry.cli import object_kinds, options
from skerry.cli import output as printing
from skerry.client.api import ApiClient

_SAMPLE_S = 1.0  # of --once, for calls per second


@click.command()
@click.option("--once", is_flag=True, help="Print it once, for scripts, and exit.")
@click.option("--json", "is_json", is_flag=True, help="The same as --once --output json.")
@click.option(
    "--interval",
    metavar="DURATION",
    type=printing.Duration(),
    default="2s",
    show_default=True,
    help="How often to refresh.",
)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    envvar="SKERRY_NAMESPACE",
    default=object_kinds.EVERY_NAMESPACE,
    help="Only this namespace.  [default: all that you may see] [env: SKERRY_NAMESPACE]",
)
@options.server
@printing.option
def top(server: ApiClient, once: bool, is_json: bool, interval: float, namespace: str, output: str) -> None:
    """Show nodes, instances, services and functions with their usage, live.

    Keys: 1 to 4 and Tab choose what is listed, arrows select, Enter shows details, / filters, c m n sort by
    cpu, memory and name, r reverses, p pauses, ? helps, q quits. CPU% is of one core. With --once, or if the
    output is not a terminal, it is printed once.

    \b
      skerry top
      skerry top --once
      skerry top --json
    """
    if once or is_json or output == "json" or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print_once(server, namespace, "json" if is_json else output)
        return
    from skerry.cli.top import screen

    screen.run(server, namespace, interval)


def _print_once(server: ApiClient, namespace: str, output: str) -> None:
    from skerry.cli.top import snapshots
    from skerry.cli.top.tables import TABLES, arranged

    first = snapshots.read(server, namespace, None)
    if first.functions:
        time.sleep(_SAMPLE_S)  # rates need two readings
    snapshot = snapshots.read(server, namespace, first)
    listed = {table: table.rows(snapshot) for table in TABLES}
    if output == "json":
        printing.as_json(
            {f"{table.kind}s": rows and [row.cells for row in rows] for table, rows in listed.items()}
        )
        return
    for number, (table, rows) in enumerate(listed.items()):
        if rows is None:
            continue
        if number:
            click.echo()
        click.echo(table.title)
        shown = arranged(table, rows, table.sort, "", is_reversed=False)
        texts = [[column.show(row.cells[column.name]) for column in table.columns] for row in shown]
        printing.table([column.title for column in table.columns], texts)
