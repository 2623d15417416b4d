"""`skerry secret`, `skerry config` and `skerry registry`: values for what runs, and logins for its images."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import click

from skerry.cli import object_kinds, options
from skerry.cli import output as printing
from skerry.cli.options import AliasGroup
from skerry.client.api import ApiClient, JsonObject

_ALIASES = {"ls": "list", "rm": "delete"}
_name = click.argument("name", metavar="NAME")
_file = click.argument("file", metavar="FILE|-")
_every = click.option("-A", "--all-namespaces", is_flag=True, help="List those of all namespaces.")


@click.group(cls=AliasGroup, aliases={**_ALIASES, "create": "set"})
def secret() -> None:
    """Store secrets for instances, services, jobs and functions.

    A secret is a value with a name in a namespace. It is encrypted in the store, never shown again, and sent
    only to nodes that run something that uses it. There it is a file in /run/secrets, in memory.

    \b
      printf %s "$PASSWORD" | skerry secret set db-password -
      skerry service create web --secret db-password example.org/web:1
      skerry secret versions db-password
    """


@secret.command(name="set")
@_name
@_file
@object_kinds.namespace
@options.server
@printing.option
def set_secret(server: ApiClient, name: str, file: str, namespace: str | None, output: str) -> None:
    """Set a secret to the content of FILE, or of standard input.

    The bytes are stored as they are, also a line break at the end: use printf %s, not echo. Another value is
    a new version; services, workloads and functions that use the secret are updated to it.

    \b
      printf %s "$PASSWORD" | skerry secret set db-password -
      skerry secret set tls.key ./server.key -n shop
    """
    _set(server, "secret", name, file, namespace, output)


@secret.command(name="list")
@object_kinds.namespace
@_every
@options.server
@printing.option
def list_secrets(server: ApiClient, namespace: str | None, all_namespaces: bool, output: str) -> None:
    """List secrets, without their values."""
    _list(server, "secret", namespace, all_namespaces, output)


@secret.command(name="versions")
@_name
@object_kinds.namespace
@options.server
@printing.option
def secret_versions(server: ApiClient, name: str, namespace: str | None, output: str) -> None:
    """List the versions of a secret, and what uses each.

    \b
      skerry secret versions db-password
    """
    _versions(server, "secret", name, namespace, output)


@secret.command(name="delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@object_kinds.namespace
@options.server
def delete_secret(server: ApiClient, names: tuple[str, ...], namespace: str | None) -> None:
    """Delete secrets with all versions; refused while something uses them.

    \b
      skerry secret delete db-password
    """
    _delete(server, "secret", names, namespace)


@secret.command(name="rotate-key")
@click.option("--prepare", is_flag=True, help="Only make the new key, to be copied to the other servers.")
@click.option("--copied", is_flag=True, help="The file with the new key was copied to all other servers.")
@click.option(
    "--discard-lost", is_flag=True, help="First remove the values whose keys are lost, to be set anew."
)
@options.server
@printing.option
def rotate_key(server: ApiClient, prepare: bool, copied: bool, discard_lost: bool, output: str) -> None:
    """Encrypt all secrets, configs and registry logins anew, under a new key.

    The key is in pki/secrets.key in the data folder of the server; the old one is removed when nothing needs
    it. A rotation that is interrupted continues when the server starts again. If several servers share a
    store: --prepare on one, copy its pki/secrets.key to the others, then --copied. If the file is lost and
    there is no backup of it, --discard-lost begins anew: secrets stay, and their values have to be set again.

    \b
      skerry secret rotate-key
    """
    body = {"prepare": prepare, "is_copied": copied}
    if discard_lost:
        body["discard_lost"] = True
    done = server.post("secret-key", "rotate", body=body, timeout=None)
    if output == "json":
        printing.as_json(done)
    elif done["is_prepared"]:
        click.echo(
            f"made key {done['key']}: copy pki/secrets.key to the other servers, then run this with --copied"
        )
    else:
        lost = f"; {done['discarded']} values whose keys are lost were removed" if discard_lost else ""
        click.echo(f"key {done['key']} is in use; {done['sealed']} values were encrypted anew{lost}")


@click.group(cls=AliasGroup, aliases={**_ALIASES, "create": "set", "cat": "get"})
def config() -> None:
    """Store files that are no secrets, for instances, services, jobs and functions.

    \b
      skerry config set app.conf ./app.conf
      skerry service create web --config app.conf:/etc/app.conf example.org/web:1
      skerry config get app.conf
    """


@config.command(name="set")
@_name
@_file
@object_kinds.namespace
@options.server
@printing.option
def set_config(server: ApiClient, name: str, file: str, namespace: str | None, output: str) -> None:
    """Set a config to the content of FILE, or of standard input.

    Other content is a new version; services, workloads and functions that use the config are updated to it.

    \b
      skerry config set app.conf ./app.conf
    """
    _set(server, "config", name, file, namespace, output)


@config.command(name="get")
@_name
@click.option("--version", metavar="N", type=click.IntRange(min=1), help="Version.  [default: the newest]")
@object_kinds.namespace
@options.server
@options.raw
def get_config(server: ApiClient, name: str, version: int | None, namespace: str | None) -> None:
    """Print a config as it is.

    \b
      skerry config get app.conf > app.conf
    """
    query = {"namespace": namespace, "version": None if version is None else str(version)}
    found = server.get("config", name, "data", **query)
    data = base64.b64decode(found["data"])
    if sys.stdout.isatty():
        click.echo(data.decode("utf-8", "replace"), nl=False)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@config.command(name="list")
@object_kinds.namespace
@_every
@options.server
@printing.option
def list_configs(server: ApiClient, namespace: str | None, all_namespaces: bool, output: str) -> None:
    """List configs."""
    _list(server, "config", namespace, all_namespaces, output)


@config.command(name="versions")
@_name
@object_kinds.namespace
@options.server
@printing.option
def config_versions(server: ApiClient, name: str, namespace: str | None, output: str) -> None:
    """List the versions of a config, and what uses each.

    \b
      skerry config versions app.conf
    """
    _versions(server, "config", name, namespace, output)


@config.command(name="delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@object_kinds.namespace
@options.server
def delete_config(server: ApiClient, names: tuple[str, ...], namespace: str | None) -> None:
    """Delete configs with all versions; refused while something uses them.

    \b
      skerry config delete app.conf
    """
    _delete(server, "config", names, namespace)


@click.group(cls=AliasGroup, aliases=_ALIASES)
def registry() -> None:
    """Log in to private registries of images.

    A login belongs to a namespace. It is used for the images of that namespace alone, on every node, and is
    stored as secrets are.

    \b
      printf %s "$TOKEN" | skerry registry login registry.example.org -u robot -n shop
      skerry run -n shop registry.example.org/web:1
    """


@registry.command()
@click.argument("host", metavar="HOST")
@click.option("-u", "--user", metavar="USER", required=True, help="User name.")
@click.option(
    "--password-file",
    "file",
    metavar="FILE|-",
    default="-",
    help="File with the password.  [default: standard input, or a prompt]",
)
@object_kinds.namespace
@options.server
@printing.option
def login(server: ApiClient, host: str, user: str, file: str, namespace: str | None, output: str) -> None:
    """Set the login for the registry HOST, as images name it: docker.io, registry.example.org:5000.

    The password is read from standard input; a line break at its end is not part of it.

    \b
      printf %s "$TOKEN" | skerry registry login registry.example.org -u robot -n shop
    """
    if file == "-" and sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, err=True)
    else:
        password = _read(file).decode("utf-8", "replace").rstrip("\r\n")
    body = {"user": user, "password": password}
    made = server.put("registry", host, body=body, namespace=namespace)
    printing.as_json(made) if output == "json" else click.echo(
        f"login for {made['registry']} in the namespace {made['namespace']}"
    )


@registry.command(name="list")
@object_kinds.namespace
@_every
@options.server
@printing.option
def list_registries(server: ApiClient, namespace: str | None, all_namespaces: bool, output: str) -> None:
    """List logins, without their passwords."""
    found = _pages(server, "registry", "registries", namespace, all_namespaces)
    if output == "json":
        printing.as_json({"count": len(found), "registries": found})
        return
    columns: tuple[str, ...] = ("registry", "user", "age")
    rows: list[tuple[str, ...]] = [
        (one["registry"], one["user"] or "-", printing.age(one["updated_at"])) for one in found
    ]
    if all_namespaces:
        columns = ("namespace", *columns)
        rows = [(one["namespace"], *row) for one, row in zip(found, rows, strict=True)]
    printing.table(columns, rows)


@registry.command()
@click.argument("host", metavar="HOST")
@object_kinds.namespace
@options.server
def logout(server: ApiClient, host: str, namespace: str | None) -> None:
    """Delete the login for a registry.

    What runs goes on; images of that registry that are pulled again have no login.

    \b
      skerry registry logout registry.example.org -n shop
    """
    server.delete("registry", host, namespace=namespace)
    click.echo(f"deleted the login for {host}")


def _read(file: str) -> bytes:
    """The content of a file, or of standard input."""
    if file == "-":
        if sys.stdin.isatty():
            raise click.UsageError("Pipe the value to this command, or name a file: nothing is typed in.")
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from None


def _set(server: ApiClient, kind: str, name: str, file: str, namespace: str | None, output: str) -> None:
    body = {"data": base64.b64encode(_read(file)).decode()}
    made = server.put(kind, name, body=body, namespace=namespace)
    if output == "json":
        printing.as_json(made)
    else:
        click.echo(f"{kind} {made['name']} has version {made['version']}")


def _pages(
    server: ApiClient, kind: str, field: str, namespace: str | None, all_namespaces: bool
) -> list[JsonObject]:
    wanted = object_kinds.EVERY_NAMESPACE if all_namespaces else namespace
    found: list[JsonObject] = []
    cursor: str | None = None
    while True:
        page = server.get(kind, "", namespace=wanted, limit="0", cursor=cursor)
        found += page[field]
        cursor = page["cursor"]
        if cursor is None:
            return found


def _list(server: ApiClient, kind: str, namespace: str | None, all_namespaces: bool, output: str) -> None:
    found = _pages(server, kind, f"{kind}s", namespace, all_namespaces)
    if output == "json":
        printing.as_json({"count": len(found), f"{kind}s": found})
        return
    columns: tuple[str, ...] = ("name", "version", "size", "updated", "age")
    rows: list[tuple[str, ...]] = [
        (
            one["name"],
            str(one["version"]),
            printing.size(one["size"]),
            printing.age(one["updated_at"]),
            printing.age(one["created_at"]),
        )
        for one in found
    ]
    if all_namespaces:
        columns = ("namespace", *columns)
        rows = [(one["namespace"], *row) for one, row in zip(found, rows, strict=True)]
    printing.table(columns, rows)


def _versions(server: ApiClient, kind: str, name: str, namespace: str | None, output: str) -> None:
    found = server.get(kind, name, namespace=namespace)
    if output == "json":
        printing.as_json(found)
        return
    rows = [
        (
            str(one["version"]),
            printing.size(one["size"]),
            printing.age(one["created_at"]),
            one["actor"],
            ", ".join(_user(user) for user in found["users"] if one["version"] in user["versions"]) or "-",
        )
        for one in reversed(found["versions"])
    ]
    printing.table(("version", "size", "age", "set by", "used by"), rows)


def _user(user: dict[str, Any]) -> str:
    past = " (earlier revision)" if user["is_past"] else ""
    return f"{user['kind']} {user['name']}{past}"


def _delete(server: ApiClient, kind: str, names: tuple[str, ...], namespace: str | None) -> None:
    for name in names:
        server.delete(kind, name, namespace=namespace)
        click.echo(f"deleted {kind} {name}")
