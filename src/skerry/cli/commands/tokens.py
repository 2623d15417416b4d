"""`skerry token`: access tokens for people, scripts and joining nodes."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import click

from skerry.cli import options
from skerry.cli import output as printing
from skerry.client.api import ApiClient

ROLES = ("admin", "deployer", "invoker", "viewer", "node")


@click.group()
def token() -> None:
    """Create, list and revoke access tokens.

    The secret is shown once, when the token is created; the server stores only its hash.
    """


@token.command()
@click.option("--role", type=click.Choice(ROLES), required=True, help="Role of the bearer.")
@click.option(
    "--ttl",
    type=printing.Duration(),
    help="Lifetime: 15m, 2h, 7d. [default: unlimited; node: 1h]",
)
@click.option("--note", default="", help="Note.")
@options.bound_namespaces
@options.server
@printing.option
def create(
    server: ApiClient, role: str, ttl: float | None, note: str, namespaces: tuple[str, ...], output: str
) -> None:
    """Create a token and print it.

    For the role node an invitation is printed: one line that lets one machine join once with 'skerry node
    --join'. --output json also has the token itself.

    \b
    A deployer that sees and touches only what is in the namespace shop:
      skerry token create --role deployer --namespace shop
    """
    body: dict[str, Any] = {"role": role, "note": note}
    if ttl is not None:
        body["ttl_s"] = ttl
    if namespaces:
        body["namespaces"] = list(namespaces)
    made = server.post("token", body=body)
    if output == "json":
        printing.show(made, output, columns=(), rows=lambda _: [])
        return
    # A server of an earlier version knows of no invitations.
    click.echo(made.get("invitation") or made["token"])
    bound = f", bound to {_bound_to(made)}" if made.get("namespaces") else ""
    click.echo(
        f"This is shown once. Role {made['role']}{bound}, expires {_until(made['expires_at'])}.", err=True
    )
    if made.get("invitation"):
        _explain_invitation(made["invitation"])


def _explain_invitation(text: str) -> None:
    """Print how to use it."""
    from skerry.model.invitations import Invitation

    urls = Invitation.parse(text).urls
    click.echo(
        "On the new machine: skerry node --join INVITATION, where INVITATION is the line above.", err=True
    )
    if all(urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost") for url in urls):
        click.echo(
            "This server listens on loopback only, so other machines cannot reach it. Start it with "
            "--http 0.0.0.0:1323 --tls, and create a new invitation.",
            err=True,
        )


@token.command(name="list")
@options.server
@printing.option
def list_tokens(server: ApiClient, output: str) -> None:
    """List tokens, without their secrets."""
    printing.show(
        server.get("token"),
        output,
        columns=("id", "role", "namespaces", "created", "expires", "note"),
        rows=lambda value: [
            (
                t["id"],
                t["role"],
                _bound_to(t),
                printing.ago(t["created_at"]),
                _until(t["expires_at"]),
                t["note"],
            )
            for t in value["tokens"]
        ],
    )


@token.command()
@click.argument("token_id", metavar="ID")
@options.server
def revoke(server: ApiClient, token_id: str) -> None:
    """Revoke a token at once."""
    server.delete("token", token_id)
    click.echo(f"revoked {token_id}")


def _until(expires_at: float | None) -> str:
    return "never" if expires_at is None else printing.ago(expires_at)


def _bound_to(token: dict[str, Any]) -> str:
    return ",".join(token.get("namespaces") or ["*"])
