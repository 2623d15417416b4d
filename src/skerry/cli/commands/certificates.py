"""`skerry certificate`: certificates that the CA has issued, and their revocation."""

from __future__ import annotations

import time
from typing import Any

import click

from skerry.cli import options
from skerry.cli import output as printing
from skerry.client.api import ApiClient


@click.group()
def certificate() -> None:
    """List and revoke certificates of nodes, servers and local clients."""


@certificate.command(name="list")
@options.server
@printing.option
def list_certificates(server: ApiClient, output: str) -> None:
    """List certificates that have not expired."""
    printing.show(
        server.get("certificate"),
        output,
        columns=("serial", "role", "name", "expires", "status"),
        rows=lambda value: [
            (c["serial"], c["role"], c["name"], printing.ago(c["not_after"]), _state(c))
            for c in value["certificates"]
        ],
    )


@certificate.command()
@click.argument("serial")
@options.server
def revoke(server: ApiClient, serial: str) -> None:
    """Revoke a certificate at once; a node cannot renew a revoked one."""
    server.post("certificate", serial, "revoke")
    click.echo(f"revoked {serial}")


def _state(record: dict[str, Any]) -> str:
    if record["revoked_at"] is not None:
        return "revoked"
    return "expired" if record["not_after"] < time.time() else "valid"
