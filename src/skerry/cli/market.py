"""`skerry market`: capacity bought of other clouds, and the contracts on both sides.

Which clouds is `peering`'s, and what this one sells `selling`'s. A purchase is made by the server; the verb
tells of its steps, and whoever breaks it off has bought nothing.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import click

from skerry.cli import bargains, client, peering, selling, watching
from skerry.cli import output as printing
from skerry.cli.bargains import Document, Span, Where
from skerry.cli.options import Default, together

_DONE: Final = "done"
_ENDED: Final = "ended"

_terms = together(
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
        "--currency", metavar="CODE", type=bargains.Currency(), help="Only offers in it, as in EUR."
    ),
    bargains.where,
)


@click.group(cls=Default, default="status", aliases={"ls": "offers"})
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


market.add_command(peering.peers)
market.add_command(selling.sell)
market.add_command(selling.withdraw)
market.add_command(selling.reclaim)
market.add_command(selling.ledger)
market.add_command(selling.holds)


@market.command()
@client.options
@printing.option
def status(server: client.Server, output: str) -> None:
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
@bargains.amounts
@_terms
@click.option("--own", is_flag=True, help="What this cloud sells itself, too.")
@client.options
@printing.option
def offers(
    server: client.Server,
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
    wanted = Where.of(given)
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
@bargains.amounts
@click.option(
    "--for",
    "duration_s",
    metavar="DURATION",
    type=Span(),
    help="How long: 90s, 30m, 2h, 1d or PT2H.  [default: as the provider has it]",
)
@_terms
@client.options
@printing.option
def buy(
    server: client.Server,
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
    wanted = Where.of(given)
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
    cost = f"{bargains.price(bought['price'])} for each {bought['price']['period']}"
    whole = f"{bought['total']} {bought['price']['currency']} in all"
    click.echo(
        f"{bargains.room(bought['room'], bought['count'])} of {bought['peer']} as the node {bought['node']}; "
        f"ends {bargains.until(bought)}, {cost}, {whole}",
        err=True,
    )
    click.echo(bought["id"])


@market.command()
@bargains.limit
@client.options
@printing.option
def contracts(server: client.Server, limit: int, output: str) -> None:
    """Show contracts, sold and bought: live ones first, then those that ended not long ago.

    'skerry contract verify' checks what was signed; 'skerry market document' prints it.

    \b
      skerry market contracts
    """
    sold, sold_count = bargains.some(server, "contracts", limit)
    bought, bought_count = bargains.some(server, "borrowed", limit)
    both = [*({"side": "bought", **one} for one in bought), *({"side": "sold", **one} for one in sold)]
    printing.show(
        {"contracts": both},
        output,
        columns=("side", "id", "with", "room", "price", "period", "until", "state", "why"),
        rows=lambda value: [_contract(one) for one in value["contracts"]],
    )
    bargains.tell_of_more(limit, sold_count, bought_count)


@market.command()
@click.argument("contract", metavar="CONTRACT")
@client.options
@printing.option
def document(server: client.Server, contract: str, output: str) -> None:
    """Print a contract that was bought or sold, as it was signed.

    \b
      skerry market document 01m7h3n5... | skerry contract verify -
    """
    for side in ("borrowed", "contracts"):
        try:
            found = server.get("market", side, contract)
            break
        except client.ServerSaidNo as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    else:
        raise click.ClickException(
            f"There is no contract '{contract}'. 'skerry market contracts' shows those there are."
        )
    printing.as_json(found) if output == "json" else click.echo(found["document"])


@market.command()
@click.argument("contracts", metavar="CONTRACT...", nargs=-1, required=True)
@watching.detach
@client.options
@printing.option
def release(server: client.Server, contracts: tuple[str, ...], detach: bool, output: str) -> None:
    """Give back what was bought: its work moves away first, and then its node is gone.

    \b
      skerry market release 01m7h3n5...
    """
    with client.Failures() as failures:
        for id in contracts:
            with failures.told():
                found: Document = server.post("market", "borrowed", id, "release")
                if not detach:
                    found = _until_ended(server, found)
                bargains.tell(found, f"{id} is {found['state']}", output)


@market.command()
@click.argument("contract", metavar="CONTRACT")
@click.option(
    "--for",
    "duration_s",
    metavar="DURATION",
    type=Span(),
    required=True,
    help="So much longer than it does: 90s, 30m, 2h, 1d or PT2H.",
)
@client.options
@printing.option
def renew(server: client.Server, contract: str, duration_s: float, output: str) -> None:
    """Let what was bought last longer.

    The time that is added is at the provider's price of now; it is refused if that is higher than before.

    \b
      skerry market renew 01m7h3n5... --for 2h
    """
    found: Document = server.post("market", "borrowed", contract, "renew", body={"duration_s": duration_s})
    if output == "json":
        printing.as_json(found)
        return
    click.echo(
        f"{contract} ends {bargains.until(found)}; {found['total']} {found['price']['currency']} in all"
    )


def _to_the_end(server: client.Server, wish: Document, *, is_told: bool) -> Document:
    """What was bought; the steps on the way are told."""
    for step in server.steps("market", "buy", body=wish):
        if "error" in step:
            raise client.ServerSaidNo(0, step["error"], step["code"], step)
        if step["step"] == _DONE:
            bought: Document = step["borrowed"]
            return bought
        if is_told:
            click.echo(f"{step['step']}: {step['message']}", err=True)
    raise client.NoServer("The server ended the purchase without a result. 'skerry market contracts' tells.")


def _until_ended(server: client.Server, found: Document) -> Document:
    said = None
    for seen in watching.again(lambda: server.get("market", "borrowed", found["id"])["contract"]):
        if seen["state"] == _ENDED:
            ended: Document = seen
            return ended
        if seen["state"] != said:
            click.echo(f"{found['id']}: {seen['state']}", err=True)
        said = seen["state"]
    raise AssertionError("watching does not end by itself")


def _offer(one: Document) -> tuple[str, ...]:
    flavor = one["flavor"]
    return (
        one["peer"] or "(ours)",
        flavor["id"],
        *_had(flavor, one["free"]),
        bargains.price(one["price"]),
        one["price"]["period"],
        flavor["location"] or "-",
        flavor["architecture"] or "-",
    )


def _had(flavor: Document, free: Document) -> tuple[str, ...]:
    """All that is free, if parts of it may be had; else a whole one, and how many are left."""
    if flavor["parts"] is not None:
        return *bargains.columns(free), "parts"
    room = flavor["room"]
    left = min(int(free[name] // amount) for name, amount in room.items() if amount)
    return *bargains.columns(room), f"{left} whole"


def _contract(one: Document) -> tuple[str, ...]:
    return (
        one["side"],
        one["id"],
        one["buyer"] if one["side"] == "sold" else one["peer"],
        bargains.room(one["room"], one["count"]),
        bargains.price(one["price"]),
        one["price"]["period"],
        bargains.until(one),
        one["state"],
        one["reason"],
    )
