"""`skerry tls`: TLS certificates of routes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

import click

from skerry.cli import object_kinds, options
from skerry.cli import output as printing
from skerry.cli.errors import ErrorCollector
from skerry.cli.options import AliasGroup
from skerry.client.api import ApiClient, JsonObject

_POLL_S: Final = 0.5
_WAIT_S: Final = 300.0
_name = click.argument("name", metavar="NAME")


@click.group(cls=AliasGroup, aliases={"ls": "list", "rm": "delete", "show": "describe"})
def tls() -> None:
    """Import and issue TLS certificates for routes.

    The host names of routes get certificates by themselves: by ACME (Let's Encrypt) if an admin has set
    tls.acme_terms_agreed, and from the cloud's own CA if they are internal (*.skerry). These commands are for
    certificates of your own, and to see how the others are. Private keys are encrypted in the store, never
    shown again, and sent to edge nodes alone.

    \b
      skerry tls list
      skerry tls import shop.example.org --cert fullchain.pem --key key.pem
      skerry tls issue shop.example.org
    """


@tls.command(name="import")
@_name
@click.option(
    "--cert",
    "certificate",
    metavar="FILE",
    required=True,
    help="PEM: the certificate, and behind it those of its issuers.",
)
@click.option("--key", metavar="FILE|-", required=True, help="PEM: its private key, without a password.")
@object_kinds.namespace
@options.server
@printing.option
def import_certificate(
    server: ApiClient, name: str, certificate: str, key: str, namespace: str | None, output: str
) -> None:
    """Import a certificate with its private key.

    It is served for all host names of routes of its namespace that it is for. Import the next one under the
    same name before it expires. One with the name of a domain takes the place of the one that Skerry gets for
    it.

    \b
      skerry tls import shop.example.org --cert fullchain.pem --key key.pem
      skerry tls import wildcard --cert fullchain.pem --key key.pem -n shop
    """
    body = {"certificate": _read(certificate), "key": _read(key)}
    made = server.put("tls", name, body=body, namespace=namespace)
    if output == "json":
        printing.as_json(made)
    else:
        click.echo(
            f"certificate {made['name']} is for {', '.join(made['domains'])} and ends "
            f"{printing.ago(made['not_after'])}"
        )


@tls.command()
@click.argument("domain", metavar="DOMAIN")
@click.option("-d", "--detach", is_flag=True, help="Do not wait until there is a certificate.")
@object_kinds.namespace
@options.server
@printing.option
def issue(server: ApiClient, domain: str, detach: bool, namespace: str | None, output: str) -> None:
    """Issue a certificate for DOMAIN, without a route; renew the one that is there.

    By ACME, or by the cloud's own CA if the domain is an internal one. It is renewed until it is deleted.
    Quote wildcards.

    \b
      skerry tls issue shop.example.org
      skerry tls issue '*.example.org'
      skerry tls issue web.shop.skerry -n shop
    """
    body: dict[str, Any] = {"domain": domain}
    if namespace:
        body["namespace"] = namespace
    made = server.post("tls", "", body=body)
    if not detach:
        made = _wait_until_issued(server, made)
    if output == "json":
        printing.as_json(made)
    elif detach:
        click.echo(made["name"])
    else:
        click.echo(f"certificate {made['name']} by {made['issuer']} ends {printing.ago(made['not_after'])}")


@tls.command(name="list")
@object_kinds.namespace
@click.option("-A", "--all-namespaces", is_flag=True, help="List certificates of all namespaces.")
@options.server
@printing.option
def list_certificates(server: ApiClient, namespace: str | None, all_namespaces: bool, output: str) -> None:
    """List certificates."""
    wanted = object_kinds.EVERY_NAMESPACE if all_namespaces else namespace
    found: list[JsonObject] = []
    cursor: str | None = None
    while True:
        page = server.get("tls", "", namespace=wanted, limit="0", cursor=cursor)
        found += page["certificates"]
        cursor = page["cursor"]
        if cursor is None:
            break
    if output == "json":
        printing.as_json({"count": len(found), "certificates": found})
        return
    columns: tuple[str, ...] = ("name", "status", "source", "domains", "ends", "renewal", "age")
    rows: list[tuple[str, ...]] = [
        (
            one["name"],
            one["state"],
            one["source"],
            _shortened(one["domains"]),
            printing.ago(one["not_after"]) if one["not_after"] else "-",
            printing.next_try(one["renew_at"]) if one["renew_at"] else "-",
            printing.age(one["created_at"]),
        )
        for one in found
    ]
    if all_namespaces:
        columns = ("namespace", *columns)
        rows = [(one["namespace"], *row) for one, row in zip(found, rows, strict=True)]
    printing.table(columns, rows)


@tls.command()
@_name
@object_kinds.namespace
@options.server
@printing.option
def describe(server: ApiClient, name: str, namespace: str | None, output: str) -> None:
    """Show a certificate: its domains, issuer and times, and the last error."""
    one = server.get("tls", name, namespace=namespace)
    if output == "json":
        printing.as_json(one)
        return
    order = one["order"]
    rows = [
        ("name", one["name"]),
        ("namespace", one["namespace"]),
        ("status", one["state"]),
        ("source", one["source"]),
        ("domains", " ".join(one["domains"])),
        ("hosts of routes", " ".join(one["hosts"])),
        ("issuer", one["issuer"]),
        ("key", one["key_type"]),
        ("serial", one["serial"]),
        ("fingerprint", one["fingerprint"]),
        ("version", str(one["version"]) if one["version"] else ""),
        ("begins", _moment(one["not_before"])),
        ("ends", _moment(one["not_after"])),
        ("renewal", _moment(one["renew_at"])),
        ("order", _order(order) if order else ""),
        ("waiting", one["waiting"]),
        ("last error", f"{one['error']} ({printing.ago(one['failed_at'])})" if one["error"] else ""),
        ("attempts", str(one["attempts"]) if one["attempts"] else ""),
        ("next attempt", printing.next_try(one["retry_at"]) if one["error"] and one["retry_at"] else ""),
        ("created", printing.ago(one["created_at"])),
    ]
    printing.table(printing.DETAILS, [(key, text) for key, text in rows if text])


@tls.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Also while routes use it.")
@object_kinds.namespace
@options.server
def delete(server: ApiClient, names: tuple[str, ...], force: bool, namespace: str | None) -> None:
    """Delete certificates with their private keys; refused while routes use them.

    \b
      skerry tls delete shop.example.org
    """
    with ErrorCollector() as failures:
        for name in names:
            with failures.collect():
                server.delete("tls", name, namespace=namespace, force="true" if force else None)
                click.echo(f"deleted certificate {name}")


def _wait_until_issued(server: ApiClient, made: JsonObject) -> JsonObject:
    """The certificate once there is a newer version than in `made`; fails with the error of the attempt."""
    deadline, one = time.monotonic() + _WAIT_S, made
    while time.monotonic() < deadline:
        if one["version"] > made["version"] and not one["order"]:
            return one
        if one["error"] and one["failed_at"] > made["failed_at"]:
            raise click.ClickException(
                f"{one['error']}; it is tried again {printing.next_try(one['retry_at'])}"
            )
        time.sleep(_POLL_S)
        one = server.get("tls", made["name"], namespace=made["namespace"])
    raise click.ClickException(
        f"there is no certificate yet: {one['waiting'] or one['error'] or 'the order is under way'}; see "
        f"'skerry tls describe {made['name']}'"
    )


def _read(file: str) -> str:
    """The content of a file, or of standard input."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("ascii")
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(
            f"{file} is not PEM; convert it: openssl x509 -inform DER -in {file}"
        ) from None


def _shortened(domains: list[str]) -> str:
    more = f" and {len(domains) - 2} more" if domains[2:] else ""
    return " ".join(domains[:2]) + more


def _moment(at: float) -> str:
    if not at:
        return ""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(at))} UTC ({printing.ago(at)})"


def _order(order: JsonObject) -> str:
    step = f"checks {order['challenge']}" if order["challenge"] else "is placed" if order["url"] else "begins"
    return f"{step}, since {printing.ago(order['begun_at'])}, at {order['directory']}"
