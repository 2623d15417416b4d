"""`skerry certificate`: certificates that the CA has issued, and their revocation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import click

from skerry.cli import options
from skerry.cli import output as printing
from skerry.client.api import ApiClient

_ROLES: Final = ("admin", "deployer", "invoker", "viewer")


@click.group()
def certificate() -> None:
    """Create certificates for clients; list and revoke those of clients, nodes and servers."""


@certificate.command()
@click.argument("name")
@click.option("--role", type=click.Choice(_ROLES), required=True, help="Role of the holder.")
@options.bound_namespaces
@click.option("--ttl", type=printing.Duration(), help="Lifetime: 12h, 90d. [default: 30d]")
@click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    help="Folder for NAME.key, NAME.crt and ca.crt. [default: .]",
)
@options.server
@printing.option
def create(
    server: ApiClient,
    name: str,
    role: str,
    namespaces: tuple[str, ...],
    ttl: float | None,
    folder: Path,
    output: str,
) -> None:
    """Create a certificate for a client of gRPC or HTTPS, such as an Aurae client.

    The key is created here and never sent; its file is for its owner alone. A certificate that is bound to
    namespaces is refused by the cells, containers and images of nodes, which have none.

    \b
      skerry certificate create ann --role viewer --ttl 90d
      skerry certificate create ci --role deployer --namespace shop --out ~/.skerry/ci
    """
    from skerry.kit import files, pki

    paths = {kind: folder / f"{name}.{kind}" for kind in ("key", "crt")}
    for path in paths.values():
        if path.exists():
            raise click.ClickException(f"{path} exists; remove it, or choose another name or folder.")
    key = pki.new_key()
    body: dict[str, Any] = {"name": name, "role": role, "csr": pki.make_request(key).decode()}
    if namespaces:
        body["namespaces"] = list(namespaces)
    if ttl is not None:
        body["ttl_s"] = ttl
    made = server.post("certificate", body=body)
    certificate, ca = made["certificate"].encode(), made["ca"].encode()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write_atomically(paths["key"], key, files.PRIVATE)
        files.write_atomically(paths["crt"], certificate)
        files.write_atomically(folder / "ca.crt", ca)
    except OSError as error:
        raise click.ClickException(
            f"{folder} cannot be written ({error.strerror}); revoke the certificate: "
            f"'skerry certificate revoke {made['serial']}'."
        ) from None
    if output == "json":
        printing.as_json({**made, "files": {kind: str(path) for kind, path in paths.items()}})
        return
    click.echo(f"{paths['crt']} and {paths['key']}: role {role}, serial {made['serial']}")


@certificate.command(name="list")
@options.server
@printing.option
def list_certificates(server: ApiClient, output: str) -> None:
    """List certificates that have not expired."""
    printing.show(
        server.get("certificate"),
        output,
        columns=("serial", "role", "namespaces", "name", "expires", "status"),
        rows=lambda value: [
            (
                c["serial"],
                c["role"],
                ",".join(c.get("namespaces") or ["*"]),
                c["name"],
                printing.ago(c["not_after"]),
                _state(c),
            )
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


@certificate.command(name="rotate-ca")
@click.option("--finish", is_flag=True, help="Drop the old CA; refused while somebody still needs it.")
@click.option("--force", is_flag=True, help="With --finish: lock out who still needs the old CA.")
@click.option("--status", is_flag=True, help="Show how far it is, and who still needs the old CA.")
@click.option(
    "--ca-out", metavar="FILE", help="Write the CAs that are trusted now to FILE, for other clients."
)
@options.server
@printing.option
def rotate_ca(
    server: ApiClient, finish: bool, force: bool, status: bool, ca_out: str | None, output: str
) -> None:
    """Replace the CA of the cloud, while everything runs.

    A new CA is created, and both are trusted. Nodes learn it and renew their certificates; servers keep
    showing certificates of the old one until --finish, which drops it. Between the two, give the new CA to
    clients that have a copy of the old one (contexts, --ca, peers of the market), and create their
    certificates again.

    \b
      skerry certificate rotate-ca
      skerry certificate rotate-ca --status
      skerry certificate rotate-ca --finish
    """
    if finish and status:
        raise click.UsageError("Give --finish or --status, not both.")
    if force and not finish:
        raise click.UsageError("--force goes with --finish.")
    if finish:
        found = server.post("certificate", "authority", "finish", body={"force": force})
    elif status or ca_out:
        found = server.get("certificate", "authority")
    else:
        found = server.post("certificate", "authority", "rotate")
    if ca_out:
        from skerry.kit import files

        files.write_atomically(Path(ca_out), server.get_text("ca.pem").encode())
    if output == "json":
        printing.as_json(found)
        return
    click.echo(f"CA {found['fingerprint']}, expires {printing.ago(found['not_after'])}")
    if found["phase"]:
        click.echo(f"is being replaced by {found['successor']}: {found['phase']}")
        for one in found["pending"]:
            click.echo(f"still needs the old CA: {one}")


def _state(record: dict[str, Any]) -> str:
    if record["revoked_at"] is not None:
        return "revoked"
    return "expired" if record["not_after"] < time.time() else "valid"
