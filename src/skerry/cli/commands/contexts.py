"""`skerry context`: servers by name, with their credentials, so that commands need no --url."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from skerry.cli import output as printing
from skerry.cli.options import AliasGroup
from skerry.client import contexts, discovery
from skerry.client.api import ApiClient, JsonObject
from skerry.client.contexts import LOCAL, ContextFile, ServerContext
from skerry.client.errors import ClientError

_CHECK_S: Final = 5.0
_COLUMNS: Final = ("current", "name", "url", "token", "ca")


@click.group(cls=AliasGroup, aliases={"ls": "list", "rm": "remove", "delete": "remove", "create": "add"})
def context() -> None:
    """Name servers, with their credentials, and choose the one that commands use.

    The context 'local' always exists: the Skerry of this machine. Contexts are in the file
    ~/.config/skerry/contexts.json, which only you can read; tokens are never printed.

    A server is chosen by, in this order: --url or --context; SKERRY_URL; --data; SKERRY_CONTEXT; SKERRY_DATA;
    the current context; the Skerry of this machine.

    \b
      skerry context add prod --url https://hub.example:1323 --ca ca.crt --token -
      skerry context use prod
      skerry get nodes --context local
    """


@context.command()
@click.argument("name", metavar="NAME")
@click.option("--url", metavar="URL", required=True, help="Server: https://hub.example:1323, unix:/PATH.")
@click.option(
    "--token",
    metavar="TEXT|-|@FILE",
    default="",
    help="Access token; '-' reads it from standard input, '@FILE' from a file.",
)
@click.option("--ca", metavar="FILE", help="CA certificate of the server; a copy of it is kept.")
@click.option("--use", "is_used", is_flag=True, help="Use it from now on.")
@click.option("--replace", "replaces", is_flag=True, help="Replace a context of the same name.")
def add(name: str, url: str, token: str, ca: str | None, is_used: bool, replaces: bool) -> None:
    """Add a context, and check whether its server answers.

    The first context that is added is used from then on. A server that does not answer is added all the same.

    \b
      skerry context add prod --url https://hub.example:1323 --ca ca.crt --token -
    """
    contexts.check_name(name)
    discovery.check_url(url)
    made = ServerContext(name, url, _read_token(token), _read_ca(ca))
    path = discovery.contexts_file()
    with contexts.changing(path) as file:
        if name in file.contexts and not replaces:
            raise click.ClickException(f"There is a context '{name}'; --replace replaces it.")
        current = name if is_used or not file.contexts else file.current
        contexts.write(path, ContextFile({**file.contexts, name: made}, current))
    click.echo(f"added {name}{', which is used from now on' if current == name else ''}")
    click.echo(_check(made), err=True)


@context.command()
@click.argument("name", metavar="CONTEXT")
def use(name: str) -> None:
    """Use a context from now on; 'local' is the Skerry of this machine.

    \b
      skerry context use prod
      skerry context use local
    """
    path = discovery.contexts_file()
    with contexts.changing(path) as file:
        found = file.find(name, "The command")
        contexts.write(path, file._replace(current=name))
    click.echo(f"{name}: {'the Skerry of this machine' if found is None else found.url}")


@context.command(name="list")
@printing.option
def list_contexts(output: str) -> None:
    """List contexts; the current one has a star. A token is shown as 'yes'."""
    file = discovery.read_contexts()
    known = [_document(file, name) for name in (LOCAL, *sorted(file.contexts))]
    printing.show(
        {"contexts": known},
        output,
        columns=_COLUMNS,
        rows=lambda value: [_row(one) for one in value["contexts"]],
    )


@context.command()
@click.argument("name", metavar="[CONTEXT]", required=False)
@printing.option
def show(name: str | None, output: str) -> None:
    """Show a context: the current one, or CONTEXT. The token is not shown."""
    file = discovery.read_contexts()
    chosen = name or file.current
    file.find(chosen, "The command" if name else str(discovery.contexts_file()))
    printing.show(
        _document(file, chosen),
        output,
        columns=printing.DETAILS,
        rows=lambda one: list(_details(one).items()),
    )


@context.command()
@click.argument("names", metavar="CONTEXT...", nargs=-1, required=True)
def remove(names: tuple[str, ...]) -> None:
    """Remove contexts with their tokens. Without the current one, the Skerry of this machine is used."""
    path = discovery.contexts_file()
    with contexts.changing(path) as file:
        for name in names:
            contexts.check_name(name)
            file.find(name, "The command")
        left = {name: each for name, each in file.contexts.items() if name not in names}
        current = file.current if file.current in left else LOCAL
        contexts.write(path, ContextFile(left, current))
    for name in names:
        click.echo(f"removed {name}")
    if current != file.current:
        click.echo("The Skerry of this machine is used from now on.", err=True)


def _read_token(given: str) -> str:
    if given == "-":
        # Unseen at a terminal, as every secret.
        token = (
            click.prompt("Token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
        )
        given = str(token).strip()
    elif given.startswith("@"):
        given = _read_file(given[1:], "--token").strip()
    if given and not (given.isascii() and given.isprintable() and " " not in given):
        raise click.UsageError("--token: the token has invalid characters; give it as it was printed.")
    return given


def _read_ca(path: str | None) -> str:
    if not path:
        return ""
    text = _read_file(path, "--ca")
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise click.UsageError(f"--ca: {path} contains no certificate in PEM.")
    return text


def _read_file(path: str, option: str) -> str:
    try:
        return Path(path).expanduser().read_text()
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        raise click.UsageError(f"{option}: the file {path} cannot be read: {error}") from None


def _check(made: ServerContext) -> str:
    """Whether its server answers, and who we are to it."""
    target = discovery.find(discovery.TargetOptions(context=made.name))
    try:
        about = ApiClient(target, timeout_s=_CHECK_S).get("about")
    except ClientError as error:
        return f"It does not work yet: {error.message}"
    return f"{made.url} answers: version {about['version']}; you are {about['caller']}, role {about['role']}."


def _document(file: ContextFile, name: str) -> JsonObject:
    one = file.contexts.get(name, ServerContext(LOCAL, ""))
    return {
        "name": name,
        "url": one.url,
        "is_current": name == file.current,
        "has_token": bool(one.token),
        "has_ca": bool(one.ca),
    }


def _row(one: JsonObject) -> tuple[str, ...]:
    return (
        "*" if one["is_current"] else "",
        one["name"],
        one["url"] or "the Skerry of this machine",
        "yes" if one["has_token"] else "-",
        "yes" if one["has_ca"] else "-",
    )


def _details(one: JsonObject) -> dict[str, str]:
    current, *rest = _row(one)
    return {"current": "yes" if current else "no", **dict(zip(_COLUMNS[1:], rest, strict=True))}
