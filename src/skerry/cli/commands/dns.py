"""`skerry dns`: names as the containers of this machine find them."""

from __future__ import annotations

import click

from skerry.cli import output as printing
from skerry.client import discovery, name_lookup


@click.group()
def dns() -> None:
    """Look up names as the containers of this machine do.

    Every node has a name server for its containers: web.shop.skerry is the service 'web' of the namespace
    'shop', or the instance of that name.
    """


@dns.command()
@click.argument("name", metavar="NAME")
@click.option(
    "-t",
    "--type",
    "type",
    metavar="TYPE",
    default="A",
    show_default=True,
    help="Record type: A, AAAA, SRV, PTR.",
)
@click.option("--server", metavar="ADDRESS", help="Name server.  [default: that of the node on this machine]")
@click.option(
    "--data", metavar="DIR", envvar="SKERRY_DATA", help="Data folder of the node. [env: SKERRY_DATA]"
)
@printing.option
def lookup(name: str, type: str, server: str | None, data: str | None, output: str) -> None:
    """Ask the name server of the node on this machine.

    Exits with 1 if there is no such record. SERVFAIL means that the node cannot know: it has not been in
    touch with a server, or no resolver answers.

    \b
      skerry dns lookup web.shop.skerry
      skerry dns lookup --type SRV _http._tcp.web.shop.skerry
      skerry dns lookup --type PTR 3.0.64.10.in-addr.arpa
    """
    address = server or name_lookup.server_of(discovery.data_folder(data))
    found = name_lookup.look_up(name, type, address)
    if output == "json":
        records = [each._asdict() for each in found.records]
        printing.as_json({"server": found.server, "status": found.status, "records": records})
    elif found.records:
        rows = [(each.name, each.type, str(each.ttl_s), each.value) for each in found.records]
        printing.table(("name", "type", "ttl", "value"), rows)
    else:
        click.echo(f"{name}: {found.status}, no {type.upper()} record", err=True)
    if not found.records:
        raise SystemExit(1)
