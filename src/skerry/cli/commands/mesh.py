"""`skerry mesh`: how the nodes of a cloud reach each other."""

from __future__ import annotations

import click

from skerry.cli import options
from skerry.cli import output as printing
from skerry.cli.options import AliasGroup
from skerry.client.api import ApiClient, JsonObject


@click.group(cls=AliasGroup, aliases={})
def mesh() -> None:
    """Show how nodes reach each other.

    \b
      skerry mesh status
    """


@mesh.command()
@options.server
@printing.option
def status(server: ApiClient, output: str) -> None:
    """Show every pair of nodes: direct or relayed, and by whom.

    The round trip of a relayed pair is the sum of its links; bytes are those of the direct link, sent by the
    first node and received by it. The endpoint is where the first node reaches the second.

    \b
      skerry mesh status
      skerry mesh status -o json
    """
    found = server.get("mesh")
    if output == "json":
        printing.as_json(found)
        return
    if found["encryption"] == "none":
        click.echo("There is no mesh: the setting mesh.encryption of the server is none.")
        return
    if not found["pairs"]:
        click.echo("There are no two nodes in the mesh to connect.")
    else:
        borrowed = {node["name"] for node in found["nodes"] if node["borrowed"]}
        printing.table(
            ("from", "to", "path", "relay", "endpoint", "round trip", "handshake", "sent", "received"),
            [_row(pair, borrowed) for pair in found["pairs"]],
        )
    _show_absent(found)


def _show_absent(found: JsonObject) -> None:
    for name in found["absent"]:
        click.echo(f"The node {name} is not in the mesh; 'skerry describe node {name}' shows its warnings.")


def _row(pair: JsonObject, borrowed: set[str]) -> tuple[str, ...]:
    round_trip, handshake = pair["round_trip_ms"], pair["handshake_age_s"]
    ends = [f"{name} (borrowed)" if name in borrowed else name for name in (pair["from"], pair["to"])]
    return (
        *ends,
        pair["path"],
        ", ".join(pair["relays"]) or "-",
        pair["endpoint"] or "-",
        "-" if round_trip is None else f"{round_trip:.1f} ms",
        "-" if handshake is None else f"{printing.duration(handshake)} ago",
        printing.size(pair["bytes_sent"]),
        printing.size(pair["bytes_received"]),
    )
