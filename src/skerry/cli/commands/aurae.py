"""`skerry aurae`: the configuration of Aurae clients for this node."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

import click

from skerry.cli import options
from skerry.client import node_socket


@click.group()
def aurae() -> None:
    """Use Aurae clients with the cells of this machine."""


@aurae.command()
@click.option("--write", is_flag=True, help="Write it to ~/.aurae/config, where the clients look first.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@options.node
def config(node: node_socket.NodeSocket, write: bool, force: bool) -> None:
    """Print the configuration of Aurae clients: certificates and socket of this node."""
    text = render(node)
    if not write:
        click.echo(text, nl=False)
        return
    path = Path.home() / ".aurae" / "config"
    try:
        if path.exists() and not force and path.read_text(errors="replace") != text:
            raise click.ClickException(f"{path} exists with other content; --force replaces it.")
        _write(path, text)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}.") from None
    click.echo(f"wrote {path}")


def render(node: node_socket.NodeSocket) -> str:
    """The file's text: TOML. Paths are absolute, because the clients expand nothing."""
    # A JSON string is a TOML string.
    quoted = {name: json.dumps(os.path.abspath(path)) for name, path in node._asdict().items()}
    lines = (
        "[auth]",
        f"ca_crt = {quoted['ca']}",
        f"client_crt = {quoted['certificate']}",
        f"client_key = {quoted['key']}",
        "",
        "[system]",
        f"socket = {quoted['socket']}",
    )
    return "".join(f"{line}\n" for line in lines)


def _write(path: Path, text: str) -> None:
    """Whole or not at all, for its owner alone."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_name(f".config.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            file.write(text)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
