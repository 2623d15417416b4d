"""`skerry market buyers`: who may buy of this cloud."""

from __future__ import annotations

import click

from skerry.cli import client, market_options
from skerry.cli import output as printing
from skerry.cli.market_options import JsonObject
from skerry.cli.options import DefaultCommandGroup


@click.group(cls=DefaultCommandGroup, default="list", aliases={"ls": "list", "rm": "remove"})
def buyers() -> None:
    """Say who may buy of this cloud; without a COMMAND, list them.

    A buyer is known by its id on the market, which its own 'skerry market' shows. What keys that are not on
    the list may do is the setting market.unknown_buyers: nothing, unless it says otherwise.

    \b
      skerry market buyers add key.kPrK_qmx... --note home
      skerry market buyers
      skerry market buyers remove key.kPrK_qmx...
    """


@buyers.command(name="list")
@client.options
@printing.option
def list_(server: client.ApiClient, output: str) -> None:
    """List who may buy.

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
@click.option("--note", metavar="TEXT", default="", help="For people: whose key it is.")
@client.options
@printing.option
def add(server: client.ApiClient, id: str, note: str, output: str) -> None:
    """Let a buyer in, at every server of this cloud, from now on.

    \b
      skerry market buyers add key.kPrK_qmx... --note home
    """
    added: JsonObject = server.put("market", "buyers", id, body={"note": note})
    market_options.print_result(added, f"added {id}", output)


@buyers.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@client.options
@printing.option
def remove(server: client.ApiClient, ids: tuple[str, ...], output: str) -> None:
    """Take buyers off the list. What they bought stays theirs, unless it is reclaimed.

    \b
      skerry market buyers remove key.kPrK_qmx...
    """
    with client.ErrorCollector() as failures:
        for id in ids:
            with failures.told():
                server.delete("market", "buyers", id)
                market_options.print_result({"removed": id}, f"removed {id}", output)


def _row(one: JsonObject) -> tuple[str, ...]:
    added = "market.buyers" if one["added_at"] is None else printing.ago(one["added_at"])
    return one["id"], added, one["note"]
