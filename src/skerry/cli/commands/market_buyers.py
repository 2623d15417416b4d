"""`skerry market buyers`: the clouds that may buy from this one."""

from __future__ import annotations

import click

from skerry.cli import market_options, options
from skerry.cli import output as printing
from skerry.cli.errors import ErrorCollector
from skerry.cli.options import DefaultCommandGroup
from skerry.client.api import ApiClient, JsonObject


@click.group(cls=DefaultCommandGroup, default="list", aliases={"ls": "list", "rm": "remove"})
def buyers() -> None:
    """Manage the clouds that may buy from this one; without a COMMAND, list them.

    A buyer is identified by its id on the market, which its own 'skerry market' shows. The setting
    market.unknown_buyers decides what other keys may do: by default, nothing.

    \b
      skerry market buyers add key.kPrK_qmx... --note home
      skerry market buyers
      skerry market buyers remove key.kPrK_qmx...
    """


@buyers.command(name="list")
@options.server
@printing.option
def list_(server: ApiClient, output: str) -> None:
    """List buyers.

    \b
      skerry market buyers
      skerry market buyers list -o json
    """
    printing.show(
        server.get("market", "buyers"),
        output,
        columns=("id", "added", "note"),
        rows=lambda value: [_row(one) for one in value["buyers"]],
    )


@buyers.command()
@click.argument("id", metavar="ID")
@click.option("--note", metavar="TEXT", default="", help="Note, such as the owner of the key.")
@options.server
@printing.option
def add(server: ApiClient, id: str, note: str, output: str) -> None:
    """Allow a buyer, at once and at every server of this cloud.

    \b
      skerry market buyers add key.kPrK_qmx... --note home
    """
    added = server.put("market", "buyers", id, body={"note": note})
    market_options.print_result(added, f"added {id}", output)


@buyers.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@options.server
@printing.option
def remove(server: ApiClient, ids: tuple[str, ...], output: str) -> None:
    """Remove buyers from the list. Their contracts continue, unless they are reclaimed.

    \b
      skerry market buyers remove key.kPrK_qmx...
    """
    with ErrorCollector() as failures:
        for id in ids:
            with failures.collect():
                server.delete("market", "buyers", id)
                market_options.print_result({"removed": id}, f"removed {id}", output)


def _row(one: JsonObject) -> tuple[str, ...]:
    added = "market.buyers" if one["added_at"] is None else printing.ago(one["added_at"])
    return one["id"], added, one["note"]
