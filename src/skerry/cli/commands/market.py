"""`skerry market`: capacity bought of other clouds, and the contracts on both sides.

Which clouds is `market_peers`', and what this one sells `market_sell`'s. A purchase is made by the server;
the verb tells of its steps, and whoever breaks it off has bought nothing.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import click

from skerry.cli import client, market_options, watch
from skerry.cli import output as printing
from skerry.cli.commands import market_buyers, market_peers, market_sell
from skerry.cli.market_options import DurationParam, JsonObject, OfferFilter
from skerry.cli.options import DefaultCommandGroup, option_group

_DONE: Final = "done"
_ENDED: Final = "ended"

_terms = option_group(
    click.option(
        "--count",
        metavar="N",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="So many of that amount.",
    ),
    click.option("--max-price", metavar="AMOUNT", help="The most for all of it, for each hour: 0.50."),
    click.option(
        "--currency",
        metavar="CODE",
        type=market_options.CurrencyParam(),
        help="Only offers in it, as in EUR.",
    ),
    market_options.where,
)


@click.group(cls=DefaultCommandGroup, default="status", aliases={"ls": "offers"})
def market() -> None:
    """Buy capacity of other clouds, and sell some; without a COMMAND, show who this cloud is there.

    What is bought becomes a node of this cloud, on which 'skerry run' places things as on any other.

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
@client.options
@printing.option
def status(server: client.ApiClient, output: str) -> None:
    """Show the id of this cloud, which its buyers need, and what goes on.

    \b
      skerry market
      skerry market status -o json
    """
    printing.show(
        server.get("market"),
        output,
        columns=("what", "is"),
        rows=lambda value: [
            ("id", value["cloud"]),
            ("offers", f"{value['flavors']} of ours"),
            ("held", str(value["holds"])),
            ("sold", f"{value['sold']} live"),
            ("bought", f"{value['borrowed']} live"),
            ("peers", str(value["peers"])),
        ],
    )


@market.command()
@market_options.amounts
@_terms
@click.option("--own", is_flag=True, help="What this cloud sells itself, too.")
@client.options
@printing.option
def offers(
    server: client.ApiClient,
    cpu: int,
    memory: int,
    disk: int,
    count: int,
    max_price: str | None,
    currency: str | None,
    given: tuple[str, ...],
    own: bool,
    output: str,
) -> None:
    """Show what peers offer, the cheapest first. All are asked at once; who does not answer is named.

    With an amount, the price is that of it; otherwise that of all that is free, or of one of those that are
    sold whole.

    \b
      skerry market offers
      skerry market offers --cpu 4 --memory 8192 --max-price 0.50 --where Torino
    """
    wanted = OfferFilter.of(given)
    found = server.get(
        "market",
        "offers",
        cpu=str(cpu),
        memory=str(memory),
        disk=str(disk),
        count=str(count),
        max_price=max_price,
        currency=currency,
        where=wanted.location or None,
        architecture=wanted.architecture or None,
        peer=wanted.peer or None,
        own=str(own).lower(),
    )
    printing.show(
        found,
        output,
        columns=("peer", "flavor", "cpu", "memory", "disk", "as", "price", "period", "location", "machine"),
        rows=lambda value: [_offer(one) for one in value["offers"]],
    )
    for failure in found["failures"]:
        click.echo(failure["message"], err=True)
    if not found["offers"] and not found["failures"] and not server.get("market", "peers")["peers"]:
        click.echo("There are no peers yet; add one with 'skerry market peers add'.", err=True)


@market.command()
@market_options.amounts
@click.option(
    "--for",
    "duration_s",
    metavar="DURATION",
    type=DurationParam(),
    help="How long: 90s, 30m, 2h, 1d or PT2H.  [default: as the provider has it]",
)
@_terms
@client.options
@printing.option
def buy(
    server: client.ApiClient,
    cpu: int,
    memory: int,
    disk: int,
    duration_s: float | None,
    count: int,
    max_price: str | None,
    currency: str | None,
    given: tuple[str, ...],
    output: str,
) -> None:
    """Buy the best offer of all peers, and print the contract's id once its node is there.

    The best is the cheapest of which at least that much can be had. It is reserved, bought, signed and
    opened; if a step fails, or you press Ctrl-C before it is signed, what was begun is undone.

    \b
      skerry market buy --cpu 4 --memory 8192 --for 2h
      skerry market buy --cpu 2 --memory 2048 --max-price 0.20 --currency EUR --where architecture=arm64
    """
    wanted = OfferFilter.of(given)
    wish = {
        "cpu": cpu,
        "memory": memory,
        "disk": disk,
        "count": count,
        "duration_s": duration_s,
        "max_price": max_price or "",
        "currency": currency or "",
        "where": wanted.location,
        "architecture": wanted.architecture,
        "peer": wanted.peer,
    }
    try:
        bought = _to_the_end(server, wish, is_told=output != "json")
    except KeyboardInterrupt:
        click.echo(
            "Broken off: what was begun is undone, unless it was signed; 'skerry market contracts' tells.",
            err=True,
        )
        raise
    if output == "json":
        printing.as_json(bought)
        return
    cost = f"{market_options.price(bought['price'])} for each {bought['price']['period']}"
    whole = f"{bought['total']} {bought['price']['currency']} in all"
    click.echo(
        f"{market_options.format_resources(bought['room'], bought['count'])} of {bought['peer']} "
        f"as the node {bought['node']}; "
        f"ends {market_options.format_end(bought)}, {cost}, {whole}",
        err=True,
    )
    click.echo(bought["id"])


@market.command()
@market_options.limit
@client.options
@printing.option
def contracts(server: client.ApiClient, limit: int, output: str) -> None:
    """Show contracts, sold and bought: live ones first, then those that ended not long ago.

    'skerry contract verify' checks what was signed; 'skerry market document' prints it.

    \b
      skerry market contracts
    """
    sold, sold_count = market_options.first_items(server, "contracts", limit)
    bought, bought_count = market_options.first_items(server, "borrowed", limit)
    both = [*({"side": "bought", **one} for one in bought), *({"side": "sold", **one} for one in sold)]
    printing.show(
        {"contracts": both},
        output,
        columns=("side", "id", "with", "room", "price", "period", "until", "state", "why"),
        rows=lambda value: [_contract(one) for one in value["contracts"]],
    )
    market_options.print_remaining_count(limit, sold_count, bought_count)


@market.command()
@click.argument("contract", metavar="CONTRACT")
@client.options
@printing.option
def document(server: client.ApiClient, contract: str, output: str) -> None:
    """Print a contract that was bought or sold, as it was signed.

    \b
      skerry market document 01m7h3n5... | skerry contract verify -
    """
    for side in ("borrowed", "contracts"):
        try:
            found = server.get("market", side, contract)
            break
        except client.ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    else:
        raise click.ClickException(
            f"There is no contract '{contract}'. 'skerry market contracts' shows those there are."
        )
    printing.as_json(found) if output == "json" else click.echo(found["document"])


@market.command()
@click.argument("contracts", metavar="CONTRACT...", nargs=-1, required=True)
@watch.detach
@client.options
@printing.option
def release(server: client.ApiClient, contracts: tuple[str, ...], detach: bool, output: str) -> None:
    """Give back what was bought: its work moves away first, and then its node is gone.

    \b
      skerry market release 01m7h3n5...
    """
    with client.ErrorCollector() as failures:
        for id in contracts:
            with failures.told():
                found: JsonObject = server.post("market", "borrowed", id, "release")
                if not detach:
                    found = _until_ended(server, found)
                market_options.print_result(found, f"{id} is {found['state']}", output)


@market.command()
@click.argument("contract", metavar="CONTRACT")
@click.option(
    "--for",
    "duration_s",
    metavar="DURATION",
    type=DurationParam(),
    required=True,
    help="So much longer than it does: 90s, 30m, 2h, 1d or PT2H.",
)
@client.options
@printing.option
def renew(server: client.ApiClient, contract: str, duration_s: float, output: str) -> None:
    """Let what was bought last longer.

    The time that is added is at the provider's price of now; it is refused if that is higher than before.

    \b
      skerry market renew 01m7h3n5... --for 2h
    """
    found: JsonObject = server.post("market", "borrowed", contract, "renew", body={"duration_s": duration_s})
    if output == "json":
        printing.as_json(found)
        return
    click.echo(
        f"{contract} ends {market_options.format_end(found)}; "
        f"{found['total']} {found['price']['currency']} in all"
    )


def _to_the_end(server: client.ApiClient, wish: JsonObject, *, is_told: bool) -> JsonObject:
    """What was bought; the steps on the way are told."""
    for step in server.steps("market", "buy", body=wish):
        if "error" in step:
            raise client.ApiError(0, step["error"], step["code"], step)
        if step["step"] == _DONE:
            bought: JsonObject = step["borrowed"]
            return bought
        if is_told:
            click.echo(f"{step['step']}: {step['message']}", err=True)
    raise client.ServerUnreachable(
        "The server ended the purchase without a result. 'skerry market contracts' tells."
    )


def _until_ended(server: client.ApiClient, found: JsonObject) -> JsonObject:
    said = None
    for seen in watch.poll_forever(lambda: server.get("market", "borrowed", found["id"])["contract"]):
        if seen["state"] == _ENDED:
            ended: JsonObject = seen
            return ended
        if seen["state"] != said:
            click.echo(f"{found['id']}: {seen['state']}", err=True)
        said = seen["state"]
    raise AssertionError("watching does not end by itself")


def _offer(one: JsonObject) -> tuple[str, ...]:
    flavor = one["flavor"]
    return (
        one["peer"] or "(ours)",
        flavor["id"],
        *_had(flavor, one["free"]),
        market_options.price(one["price"]),
        one["price"]["period"],
        flavor["location"] or "-",
        flavor["architecture"] or "-",
    )


def _had(flavor: JsonObject, free: JsonObject) -> tuple[str, ...]:
    """All that is free, if parts of it may be had; else a whole one, and how many are left."""
    if flavor["parts"] is not None:
        return *market_options.columns(free), "parts"
    room = flavor["room"]
    left = min(int(free[name] // amount) for name, amount in room.items() if amount)
    return *market_options.columns(room), f"{left} whole"


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
