"""The selling side of `skerry market`: own offers (flavors), their ledger and holds."""

from __future__ import annotations

from typing import Any

import click

from skerry.cli import market_options, options
from skerry.cli import output as printing
from skerry.cli.errors import ErrorCollector
from skerry.client.api import ApiClient, JsonObject

_PARTS = ("capacity", "free", "held", "sold")
_EXPIRING = ("held", "expired")  # a hold that was purchased or cancelled expires no more


@click.command()
@market_options.amounts
@click.option("--price", required=True, metavar="AMOUNT", help="Price of all of it per period: 0.10.")
@click.option(
    "--currency",
    required=True,
    metavar="CODE",
    type=market_options.CurrencyParam(),
    help="ISO 4217 code, such as EUR.",
)
@click.option(
    "--period",
    default="PT1H",
    show_default=True,
    metavar="DURATION",
    help="Billing period, ISO 8601: PT1H, P1D, P1M.",
)
@click.option(
    "--cpu-min", metavar="CORES", type=click.IntRange(min=0), default=0, help="Minimum cores of a part."
)
@click.option(
    "--cpu-step", metavar="CORES", type=click.IntRange(min=0), default=0, help="Step between sizes of parts."
)
@click.option(
    "--memory-min", metavar="MB", type=click.IntRange(min=0), default=0, help="Minimum memory of a part."
)
@click.option(
    "--memory-step", metavar="MB", type=click.IntRange(min=0), default=0, help="Step between sizes of parts."
)
@click.option(
    "--max-count",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Maximum number of units, or of equal parts, per contract.",
)
@click.option(
    "--stock",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of units, if it is sold whole.",
)
@click.option(
    "--gpus",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    help="GPUs of each unit, if it is sold whole.",
)
@click.option("--location", metavar="TEXT", default="", help="Location, which buyers can filter by.")
@click.option("--architecture", metavar="TEXT", default="", help="CPU architecture: amd64, arm64.")
@click.option("--id", "name", metavar="TEXT", default="", help="Id of the flavor.  [default: generated]")
@options.server
@printing.option
def sell(server: ApiClient, output: str, name: str, **offer: Any) -> None:
    """Offer capacity for sale, and print the id of the offer (flavor).

    It is sold whole, unless a minimum or a step allows parts. Offers that follow the nodes are made by the
    setting market.sell_percent instead.

    \b
      skerry market sell --cpu 8 --memory 16384 --price 0.10 --currency EUR \\
          --cpu-min 1 --cpu-step 1 --memory-min 512 --memory-step 512
      skerry market sell --id small --cpu 2 --memory 4096 --price 3 --currency EUR --period P1D --stock 4
    """
    made = server.post("market", "flavors", body={"id": name, **offer})
    if output == "json":
        printing.as_json(made)
        return
    parts = "whole" if made["parts"] is None else "in parts"
    cost = f"{market_options.price(made['price'])} per {made['price']['period']}"
    click.echo(
        f"{market_options.format_resources(made['room'], made['stock'])}, {parts}, at {cost}", err=True
    )
    if made["warning"]:
        click.echo(f"Warning: {made['warning']}", err=True)
    click.echo(made["id"])


@click.command()
@click.argument("flavor", metavar="FLAVOR")
@click.argument("price", metavar="AMOUNT")
@click.option(
    "--currency",
    metavar="CODE",
    type=market_options.CurrencyParam(),
    help="ISO 4217 code, such as EUR.  [default: unchanged]",
)
@click.option(
    "--period", metavar="DURATION", help="Billing period, ISO 8601: PT1H, P1D, P1M.  [default: unchanged]"
)
@options.server
@printing.option
def reprice(
    server: ApiClient, flavor: str, price: str, currency: str | None, period: str | None, output: str
) -> None:
    """Change the price of an offer (flavor). Holds keep their price, contracts too until they are renewed.

    \b
      skerry market reprice small 0.12
    """
    body = {"price": price, "currency": currency or "", "period": period or ""}
    changed = server.patch("market", "flavors", flavor, body=body)
    cost = f"{market_options.price(changed['price'])} per {changed['price']['period']}"
    market_options.print_result(changed, f"{flavor}: {cost}", output)


@click.command()
@click.argument("flavors", metavar="FLAVOR...", nargs=-1, required=True)
@click.option("--reclaim", is_flag=True, help="Also reclaim its contracts, each after its notice period.")
@click.option("--reason", metavar="TEXT", default="", help="Reason; buyers are notified of it.")
@options.server
@printing.option
def withdraw(server: ApiClient, flavors: tuple[str, ...], reclaim: bool, reason: str, output: str) -> None:
    """Withdraw offers (flavors). Contracts run to their end, unless they are reclaimed.

    An offer that follows a node is made again; cordon the node instead.

    \b
      skerry market withdraw small
      skerry market withdraw small --reclaim --reason 'needed at home'
    """
    parameters = {"reclaim": str(reclaim).lower(), "reason": reason or None}
    with ErrorCollector() as failures:
        for flavor in flavors:
            with failures.collect():
                gone = server.delete("market", "flavors", flavor, **parameters)
                left = (
                    f"; {market_options.format_resources(gone['sold'])} of it remain sold"
                    if any(gone["sold"].values())
                    else ""
                )
                market_options.print_result(gone, f"withdrew {flavor}{left}", output)
                if gone["node"]:
                    click.echo(
                        f"It follows the node {gone['node']}, and is offered again while that is schedulable "
                        f"and market.sell_percent is set; 'skerry node cordon {gone['node']}' ends that.",
                        err=True,
                    )


@click.command()
@click.argument("contracts", metavar="CONTRACT...", nargs=-1, required=True)
@click.option("--reason", metavar="TEXT", default="", help="Reason; the buyer is notified of it.")
@options.server
@printing.option
def reclaim(server: ApiClient, contracts: tuple[str, ...], reason: str, output: str) -> None:
    """Reclaim sold contracts. The buyer is notified, and has the notice period to move its instances.

    \b
      skerry market reclaim 01m7h3n5... --reason 'needed at home'
    """
    with ErrorCollector() as failures:
        for contract in contracts:
            with failures.collect():
                contract_now = server.post(
                    "market", "contracts", contract, "reclaim", body={"reason": reason}
                )
                ends = "ends" if contract_now["ended_at"] is None else "ended"
                market_options.print_result(
                    contract_now, f"{contract} {ends} {market_options.format_end(contract_now)}", output
                )


@click.command()
@options.server
@printing.option
def ledger(server: ApiClient, output: str) -> None:
    """Show the capacity of each flavor, and whether it is balanced: free + held + sold = capacity.

    It is checked against every hold and every contract. The exit code is 1 if it is not balanced, which
    would be a bug in Skerry.

    \b
      skerry market ledger
    """
    found = _whole(server)
    if output == "json":
        printing.as_json(found)
    else:
        rows = [row for account in found["flavors"] for row in _rows(account)]
        printing.table(("flavor", "resource", *_PARTS, "status"), rows)
    if not found["is_balanced"]:
        wrong = [f"{flavor}: {'; '.join(why)}" for flavor, why in found["wrong"].items()]
        raise click.ClickException("The ledger is not balanced. " + " ".join(wrong))
    if output != "json":
        click.echo("Balanced: free + held + sold = capacity.")


@click.command()
@market_options.limit
@options.server
@printing.option
def holds(server: ApiClient, limit: int, output: str) -> None:
    """Show holds of buyers on own offers: live ones first, then those that ended recently.

    A hold becomes a contract if it is purchased before it expires.

    \b
      skerry market holds
    """
    found, count = market_options.first_items(server, "holds", limit)
    printing.show(
        {"count": count, "holds": found},
        output,
        columns=("id", "flavor", "buyer", "resources", "price", "period", "expires", "status"),
        rows=lambda value: [_hold(one) for one in value["holds"]],
    )
    market_options.print_remaining_count(limit, count)


def _whole(server: ApiClient) -> JsonObject:
    """The ledger, page by page."""
    whole: JsonObject = {}
    cursor: str | None = None
    while not whole or cursor is not None:
        page = server.get("market", "ledger", cursor=cursor)
        cursor = page["cursor"]
        del page["cursor"]
        whole = {**page, "flavors": [*whole.get("flavors", []), *page["flavors"]]}
    return whole


def _rows(account: JsonObject) -> list[tuple[str, ...]]:
    """A row for each resource that the flavor has."""
    gone = account["withdrawn"]
    state = "offered" if gone is None else f"withdrawn {printing.ago(gone['at'])}"
    rows: list[tuple[str, ...]] = []
    for name, unit in (("cpu", ""), ("memory", "MB"), ("disk", "GB")):
        if account["room"][name]:
            amounts = (f"{account[part][name]:g}{unit}" for part in _PARTS)
            rows.append((account["id"], name, *amounts, state))
    # The flavor only in its first row.
    return [row if place == 0 else ("", *row[1:-1], "") for place, row in enumerate(rows)]


def _hold(one: JsonObject) -> tuple[str, ...]:
    return (
        one["id"],
        one["flavor"],
        one["buyer"],
        market_options.format_resources(one["room"], one["count"]),
        market_options.price(one["price"]),
        one["price"]["period"],
        printing.ago(one["expires_at"]) if one["state"] in _EXPIRING else "-",
        one["state"],
    )
