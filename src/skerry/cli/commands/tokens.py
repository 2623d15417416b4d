"""`skerry token`: access tokens for people, scripts and joining nodes."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import click

from skerry.cli import options
from skerry.cli import output as printing
from skerry.client.api import ApiClient

ROLES = ("admin", "deployer", "invoker", "viewer", "node")


@click.group(cls=options.AliasGroup, aliases={"ls": "list", "delete": "revoke", "rm": "revoke"})
def token() -> None:
    """Create, list and revoke access tokens.

    The secret is shown once, when the token is created; the server stores only its hash.
    """


@token.command()
@click.option("--role", type=click.Choice(ROLES), required=True, help="Role of the bearer.")
@click.option(
    "--ttl",
    type=printing.Duration(),
    help="Lifetime: 15m, 2h, 7d. [default: unlimited; node: 1h; --offline: 30d]",
)
@click.option(
    "--offline",
    is_flag=True,
    help="Sign the token, so that nodes verify it without a server; for the roles invoker and viewer.",
)
@click.option("--note", default="", help="Note.")
@options.bound_namespaces
@options.server
@printing.option
def create(
    server: ApiClient,
    role: str,
    ttl: float | None,
    offline: bool,
    note: str,
    namespaces: tuple[str, ...],
    output: str,
) -> None:
    """Create a token and print it.

    For the role node an invitation is printed: one line that lets one machine join once with 'skerry node
    --join'. --output json also has the token itself.

    \b
    A deployer that sees and touches only what is in the namespace shop:
      skerry token create --role deployer --namespace shop

    \b
    For a device that calls functions on the node of its network, also while no server can be reached:
      skerry token create --offline --role invoker --ttl 30d --note thermostat
    """
    body: dict[str, Any] = {"role": role, "note": note}
    if ttl is not None:
        body["ttl_s"] = ttl
    if offline:  # a server of an earlier version refuses what it does not know
        body["offline"] = True
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
    if offline:
        click.echo(
            "Devices send it to servers and to nodes with 'skerry node --http'. A node refuses it once it "
            "has heard of its revocation.",
            err=True,
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
        columns=("id", "kind", "role", "namespaces", "created", "expires", "status", "note"),
        rows=lambda value: [
            (
                t["id"],
                t.get("kind", ""),  # a server of an earlier version does not say
                t["role"],
                _bound_to(t),
                printing.ago(t["created_at"]),
                _until(t["expires_at"]),
                _status(t),
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


@token.command(name="rotate-key")
@click.option("--revoke", is_flag=True, help="Refuse all offline tokens that were created before.")
@options.server
def rotate_key(server: ApiClient, revoke: bool) -> None:
    """Sign offline tokens with a new key.

    Tokens of the previous key stay valid until they expire, unless --revoke is given.
    """
    made = server.post("token-key", "rotate", body={"revoke": revoke})
    click.echo(f"offline tokens are signed with the key {made['id']}")


def _status(token: dict[str, Any]) -> str:
    if token.get("revoked_at") is not None:
        return "revoked"
    if token["expires_at"] is not None and token["expires_at"] <= time.time():
        return "expired"
    return "used" if token["used_at"] is not None else "valid"


def _until(expires_at: float | None) -> str:
    return "never" if expires_at is None else printing.ago(expires_at)


def _bound_to(token: dict[str, Any]) -> str:
    return ",".join(token.get("namespaces") or ["*"])
