"""`skerry market peers`: the clouds that this one may buy from."""

from __future__ import annotations

from pathlib import Path

import click

from skerry.cli import market_options, options
from skerry.cli import output as printing
from skerry.cli.errors import ErrorCollector
from skerry.cli.options import DefaultCommandGroup
from skerry.client.api import ApiClient, JsonObject

_MAX_CA = 32768


@click.group(cls=DefaultCommandGroup, default="list", aliases={"ls": "list", "rm": "remove"})
def peers() -> None:
    """Manage the clouds to buy from; without a COMMAND, list them.

    A peer is identified by its id on the market, which its own 'skerry market' shows and its signatures must
    match. Get the id from its operator, not over the network.

    \b
      skerry market peers add north https://north.example:1323 --cloud key.kPrK_qmx... --ca north.pem
      skerry market peers
      skerry market peers remove north
    """


@peers.command(name="list")
@options.server
@printing.option
def list_(server: ApiClient, output: str) -> None:
    """List peers, and whether each was reachable last.

    \b
      skerry market peers
      skerry market peers list -o json
    """
    printing.show(
        server.get("market", "peers"),
        output,
        columns=("name", "url", "cloud", "mesh", "reachable", "error"),
        rows=lambda value: [_row(one) for one in value["peers"]],
    )


@peers.command()
@click.argument("name", metavar="NAME")
@click.argument("address", metavar="URL")
@click.option("--cloud", required=True, metavar="ID", help="Id of the peer: key. and more.")
@click.option(
    "--ca",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="CA certificate of the peer, PEM.  [default: the CAs of the system]",
)
@click.option(
    "--mesh",
    is_flag=True,
    help="Let nodes that are borrowed from it take part in the mesh of this cloud, if it allows that.",
)
@options.server_without_ca
@printing.option
def add(
    server: ApiClient, name: str, address: str, cloud: str, ca: Path | None, mesh: bool, output: str
) -> None:
    """Add or update a peer, and request its offers.

    With --mesh, containers on nodes of the peer reach services of this cloud and are reached by them. Its
    operator can do on this cloud's network whatever a container there can.

    \b
      skerry market peers add north https://north.example:1323 --cloud key.kPrK_qmx... --ca north.pem
      skerry market peers add north https://north.example:1323 --cloud key.kPrK_qmx... --mesh
    """
    body = {"url": address, "cloud": cloud, "ca": "" if ca is None else _read(ca), "mesh": mesh}
    server.put("market", "peers", name, body=body)
    found = server.get("market", "offers", peer=name)
    added = server.get("market", "peers", name)
    if output == "json":
        printing.as_json(added)
        return
    click.echo(f"added {name}")
    if found["failures"]:
        click.echo(f"It is not reachable yet: {found['failures'][0]['message']}", err=True)
    else:
        count = len(found["offers"])
        click.echo(f"It is reachable and has {count} offer{'' if count == 1 else 's'}.", err=True)


@peers.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@options.server
@printing.option
def remove(server: ApiClient, names: tuple[str, ...], output: str) -> None:
    """Remove peers; contracts with them must be released first.

    \b
      skerry market peers remove north
    """
    with ErrorCollector() as failures:
        for name in names:
            with failures.collect():
                server.delete("market", "peers", name)
                market_options.print_result({"removed": name}, f"removed {name}", output)


def _row(one: JsonObject) -> tuple[str, ...]:
    match one["is_reached"]:
        case None:
            reachable = "not asked yet"
        case True:
            took = "" if one["latency_s"] is None else f", {one['latency_s'] * 1000:.0f}ms"
            reachable = f"yes, {printing.ago(one['at'])}{took}"
        case _:
            reachable = f"no, {printing.ago(one['at'])}"
    return (
        one["name"],
        one["url"],
        one["cloud"],
        "yes" if one["mesh"] else "no",
        reachable,
        one["message"],
    )


def _read(ca: Path) -> str:
    try:
        with ca.open() as opened:
            return opened.read(_MAX_CA + 1)  # the server says so if it is too long
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--ca {ca} cannot be read: {error}") from None
