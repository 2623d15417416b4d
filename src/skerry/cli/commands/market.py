"""`skerry market`: buying capacity from other clouds, and the contracts of both sides.

Peers are managed in `market_peers`, own offers in `market_sell`. The server makes a purchase; the command
prints its steps, and breaking it off before the signature buys nothing.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import click

from skerry.cli import market_options, options, watch
from skerry.cli import output as printing
from skerry.cli.commands import market_buyers, market_peers, market_sell
from skerry.cli.errors import ErrorCollector
from skerry.cli.market_options import DurationParam
from skerry.cli.options import DefaultCommandGroup, option_object
from skerry.client.api import ApiClient, JsonObject
from skerry.client.errors import ApiError, ServerUnreachable

_DONE: Final = "done"
_ENDED: Final = "ended"


def _query(
    cpu: int,
    memory: int,
    disk: int,
    count: int,
    gpus: int,
    max_price: str | None,
    currency: str | None,
    given: tuple[str, ...],
) -> JsonObject:
    return {
        **({"gpus": gpus} if gpus else {}),  # an older server does not know it
        "cpu": cpu,
        "memory": memory,
        "disk": disk,
        "count": count,
        "max_price": max_price or "",
        "currency": currency or "",
        **market_options.offer_filter(given),
    }


# Which offers are wanted; a command gets them as `query`.
_query_options = option_object(
    "query",
    _query,
    market_options.amounts,
    click.option(
        "--count",
        metavar="N",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of units of that amount.",
    ),
    click.option(
        "--gpus",
        metavar="N",
        type=click.IntRange(min=0),
        default=0,
        help="Minimum number of GPUs, with all of it.",
    ),
    click.option("--max-price", metavar="AMOUNT", help="Maximum total price per hour: 0.50."),
    click.option(
        "--currency",
        metavar="CODE",
        type=market_options.CurrencyParam(),
        help="Only offers in this currency, such as EUR.",
    ),
    market_options.where,
)


@click.group(cls=DefaultCommandGroup, default="status", aliases={"ls": "offers"})
def market() -> None:
    """Buy capacity from other clouds, and sell your own; without a COMMAND, show the status.

    Bought capacity becomes a node of this cloud, on which instances are placed as on any other.

    \b
      skerry market peers add north https://north.example:1323 --cloud key.kPrK_qmx... --ca north.pem
      skerry market offers --cpu 4 --memory 8192
      skerry market buy --cpu 4 --memory 8192 --for 2h
      skerry market contracts
      skerry market release 01m7h3n5...
    """


market.add_command(market_peers.peers)
market.add_command(market_buyers.buyers)
market.add_command(market_sell.sell)
market.add_command(market_sell.reprice)
market.add_command(market_sell.withdraw)
market.add_command(market_sell.reclaim)
market.add_command(market_sell.ledger)
market.add_command(market_sell.holds)


@market.command()
@options.server
@printing.option
def status(server: ApiClient, output: str) -> None:
    """Show the id of this cloud, which its buyers need, and counts of offers, holds, contracts and peers.

    \b
      skerry market
      skerry market status -o json
    """
    printing.show(
        server.get("market"),
        output,
        columns=printing.DETAILS,
        rows=lambda value: [
            ("id", value["cloud"]),
            ("own offers", str(value["flavors"])),
            ("holds", str(value["holds"])),
            ("live contracts sold", str(value["sold"])),
            ("live contracts bought", str(value["borrowed"])),
            ("peers", str(value["peers"])),
        ],
    )


@market.command()
@_query_options
@click.option("--own", is_flag=True, help="Include the offers of this cloud.")
@options.server
@printing.option
def offers(server: ApiClient, query: JsonObject, own: bool, output: str) -> None:
    """Show the offers of all peers, cheapest first; peers that do not answer are named.

    PRICE is that of the requested amount; without one, that of all free resources, or of one unit of an offer
    that is sold whole.

    \b
      skerry market offers
      skerry market offers --cpu 4 --memory 8192 --max-price 0.50 --where Torino
    """
    parameters = {name: str(value) or None for name, value in query.items()}
    found = server.get("market", "offers", **parameters, own=str(own).lower())
    printing.show(
        found,
        output,
        columns=("peer", "flavor", "cpu", "memory", "disk", "sold as", "price", "period", "location", "arch"),
        rows=lambda value: [_offer(one) for one in value["offers"]],
    )
    for failure in found["failures"]:
        click.echo(failure["message"], err=True)
    if not found["offers"] and not found["failures"] and not server.get("market", "peers")["peers"]:
        click.echo("There are no peers yet; add one with 'skerry market peers add'.", err=True)


@market.command()
@click.option(
    "--for",
    "duration_s",
    metavar="DURATION",
    type=DurationParam(),
    help="Duration: 90s, 30m, 2h, 1d or PT2H.  [default: the provider's]",
)
@_query_options
@options.server
@printing.option
def buy(server: ApiClient, query: JsonObject, duration_s: float | None, output: str) -> None:
    """Buy the cheapest sufficient offer of all peers, and print the contract's id once its node is there.

    The offer is reserved, purchased, signed and activated. If a step fails, or on Ctrl-C before the
    signature, the purchase is rolled back.

    \b
      skerry market buy --cpu 4 --memory 8192 --for 2h
      skerry market buy --cpu 2 --memory 2048 --max-price 0.20 --currency EUR --where architecture=arm64
    """
    body = {**query, "duration_s": duration_s}
    try:
        bought = _purchase(server, body, is_verbose=output != "json")
    except KeyboardInterrupt:
        click.echo(
            "Cancelled: the purchase is rolled back, unless it was signed; see 'skerry market contracts'.",
            err=True,
        )
        raise
    if output == "json":
        printing.as_json(bought)
        return
    cost = f"{market_options.price(bought['price'])} per {bought['price']['period']}"
    whole = f"{bought['total']} {bought['price']['currency']} in total"
    click.echo(
        f"{market_options.format_resources(bought['room'], bought['count'])} from {bought['peer']} "
        f"as node {bought['node']}; "
        f"ends {market_options.format_end(bought)}, {cost}, {whole}",
        err=True,
    )
    click.echo(bought["id"])


@market.command()
@market_options.limit
@options.server
@printing.option
def contracts(server: ApiClient, limit: int, output: str) -> None:
    """Show sold and bought contracts: live ones first, then those that ended recently.

    'skerry market document' prints the signed contract; 'skerry contract verify' verifies it.

    \b
      skerry market contracts
    """
    sold, sold_count = market_options.first_items(server, "contracts", limit)
    bought, bought_count = market_options.first_items(server, "borrowed", limit)
    both = [*({"side": "bought", **one} for one in bought), *({"side": "sold", **one} for one in sold)]
    printing.show(
        {"contracts": both},
        output,
        columns=("side", "id", "counterparty", "resources", "price", "period", "ends", "status", "reason"),
        rows=lambda value: [_contract(one) for one in value["contracts"]],
    )
    market_options.print_remaining_count(limit, sold_count, bought_count)


@market.command()
@click.argument("contract", metavar="CONTRACT")
@options.server
@printing.option
def document(server: ApiClient, contract: str, output: str) -> None:
    """Print the signed document of a contract.

    \b
      skerry market document 01m7h3n5... | skerry contract verify -
    """
    for side in ("borrowed", "contracts"):
        try:
            found = server.get("market", side, contract)
            break
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    else:
        raise click.ClickException(
            f"There is no contract '{contract}'. 'skerry market contracts' lists them."
        )
    printing.as_json(found) if output == "json" else click.echo(found["document"])


@market.command()
@click.argument("contracts", metavar="CONTRACT...", nargs=-1, required=True)
@watch.detach
@options.server
@printing.option
def release(server: ApiClient, contracts: tuple[str, ...], detach: bool, output: str) -> None:
    """Release bought contracts: the node is drained, then removed.

    \b
      skerry market release 01m7h3n5...
    """
    with ErrorCollector() as failures:
        for id in contracts:
            with failures.collect():
                found = server.post("market", "borrowed", id, "release")
                if not detach:
                    found = _until_ended(server, found)
                market_options.print_result(found, f"{id}: {found['state']}", output)


@market.command()
@click.argument("contract", metavar="CONTRACT")
@click.option(
    "--for",
    "duration_s",
    metavar="DURATION",
    type=DurationParam(),
    required=True,
    help="Additional duration: 90s, 30m, 2h, 1d or PT2H.",
)
@options.server
@printing.option
def renew(server: ApiClient, contract: str, duration_s: float, output: str) -> None:
    """Extend a bought contract.

    The additional time has the current price of the provider; it is refused if that is higher than before.

    \b
      skerry market renew 01m7h3n5... --for 2h
    """
    found = server.post("market", "borrowed", contract, "renew", body={"duration_s": duration_s})
    if output == "json":
        printing.as_json(found)
        return
    click.echo(
        f"{contract} ends {market_options.format_end(found)}; "
        f"{found['total']} {found['price']['currency']} in total"
    )


def _purchase(server: ApiClient, body: JsonObject, *, is_verbose: bool) -> JsonObject:
    """The bought contract; its steps are printed if `is_verbose`."""
    for step in server.steps("market", "buy", body=body):
        if "error" in step:
            raise ApiError(0, step["error"], step["code"], step)
        if step["step"] == _DONE:
            bought: JsonObject = step["borrowed"]
            return bought
        if is_verbose:
            click.echo(f"{step['step']}: {step['message']}", err=True)
    raise ServerUnreachable("The server ended the purchase without a result; see 'skerry market contracts'.")


def _until_ended(server: ApiClient, found: JsonObject) -> JsonObject:
    shown = None
    for seen in watch.poll_forever(lambda: server.get("market", "borrowed", found["id"])["contract"]):
        if seen["state"] == _ENDED:
            ended: JsonObject = seen
            return ended
        if seen["state"] != shown:
            click.echo(f"{found['id']}: {seen['state']}", err=True)
        shown = seen["state"]
    raise AssertionError("watching does not end by itself")


def _offer(one: JsonObject) -> tuple[str, ...]:
    flavor = one["flavor"]
    return (
        one["peer"] or "(own)",
        flavor["id"],
        *_available(flavor, one["free"]),
        market_options.price(one["price"]),
        one["price"]["period"],
        flavor["location"] or "-",
        flavor["architecture"] or "-",
    )


def _available(flavor: JsonObject, free: JsonObject) -> tuple[str, ...]:
    """All free resources if parts are sold; else one unit, and how many are left."""
    if flavor["parts"] is not None:
        return *market_options.columns(free), "parts"
    resources = flavor["room"]
    left = min(int(free[name] // amount) for name, amount in resources.items() if amount)
    gpus = f", {flavor['gpus']} GPUs each" if flavor.get("gpus") else ""  # an older server sends none
    return *market_options.columns(resources), f"{left} whole{gpus}"


def _contract(one: JsonObject) -> tuple[str, ...]:
    return (
        one["side"],
        one["id"],
        one["buyer"] if one["side"] == "sold" else one["peer"],
        market_options.format_resources(one["room"], one["count"]),
        market_options.price(one["price"]),
        one["price"]["period"],
        market_options.format_end(one),
        one["state"],
        one["reason"],
    )
