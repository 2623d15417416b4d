"""`skerry certificate`: what the CA gave out, and taking it back."""

from __future__ import annotations

import time
from typing import Any

import click

from skerry.cli import client
from skerry.cli import output as printing


@click.group()
def certificate() -> None:
    """List and revoke certificates of nodes, servers and local clients."""


@certificate.command(name="list")
@client.options
@printing.option
def list_certificates(server: client.ApiClient, output: str) -> None:
    """List certificates that have not expired."""
    printing.show(
        server.get("certificate"),
        output,
        columns=("serial", "role", "name", "ends", "state"),
        rows=lambda value: [
            (c["serial"], c["role"], c["name"], printing.ago(c["not_after"]), _state(c))
            for c in value["certificates"]
        ],
    )


@certificate.command()
@click.argument("serial")
@client.options
def revoke(server: client.ApiClient, serial: str) -> None:
    """Refuse a certificate from now on; a node whose certificate is revoked cannot renew it."""
    server.post("certificate", serial, "revoke")
    click.echo(f"revoked {serial}")


def _state(record: dict[str, Any]) -> str:
    if record["revoked_at"] is not None:
        return "revoked"
    return "expired" if record["not_after"] < time.time() else "good"
