"""`skerry route`: public host names and paths of services and functions."""

from __future__ import annotations

import secrets
import sys
from typing import Any, Final

import click

from skerry.cli import object_kinds, options
from skerry.cli import output as printing
from skerry.cli.errors import ErrorCollector
from skerry.cli.object_kinds import NodeNames, ObjectKind, TableRow
from skerry.cli.options import AliasGroup
from skerry.client.api import ApiClient, JsonObject


def _row(one: JsonObject, names: NodeNames) -> TableRow:
    return (
        one["name"],
        one["id"],
        place(one),
        one["to"] or one["redirect"],
        _rules(one),
        printing.age(one["created_at"]),
    )


def place(one: JsonObject) -> str:
    """`shop.example.org/api`."""
    return str(one["host"]) + ("" if one["path"] == "/" else str(one["path"]))


def _rules(one: JsonObject) -> str:
    rules = [*one["methods"], *(f"{name}={value}" for name, value in one["headers"].items())]
    rules += [one["rate"]] if one["rate"] else []
    rules += [one["protection"]["kind"]] if one["protection"] else []
    rules += ["public"] if one["public"] else []
    rules += ["to https"] if one["redirect"] == "https" else []
    return " ".join(rules) or "-"


ROUTE: Final = ObjectKind("route", ("name", "id", "place", "to", "rules", "age"), _row)
_place = click.argument("place", metavar="HOST[/PATH]")
_name = click.argument("name", metavar="ROUTE")


def _settings(command: Any) -> Any:
    """The options that `add` and `update` share."""
    for option in reversed(
        (
            click.option("--to", metavar="TARGET", help="service/NAME[:PORT] or fn/NAME."),
            click.option("--redirect", metavar="URL|https", help="Redirect to a URL, or from http to https."),
            click.option(
                "--methods",
                metavar="METHOD,...",
                help="Only these methods, such as GET,HEAD; others get 405.",
            ),
            click.option(
                "--header",
                "headers",
                multiple=True,
                metavar="NAME=VALUE",
                help="Only requests with this header; repeatable.",
            ),
            click.option("--rate", metavar="N/s", help="Limit of each client address: 10/s, 100/m, 1000/h."),
            click.option(
                "--cors",
                multiple=True,
                metavar="ORIGIN",
                help="Scripts of this origin may read answers; * for all; repeatable.",
            ),
            click.option(
                "--basic", metavar="USER", help="Ask for a user and password; the password is printed once."
            ),
            click.option(
                "--require-token",
                is_flag=True,
                help="Require a bearer token of this route; it is printed once.",
            ),
            click.option(
                "--credential-stdin",
                is_flag=True,
                help="Read the password or token from standard input instead of making one.",
            ),
            click.option(
                "--public/--no-public", default=None, help="Call the function without a token of Skerry."
            ),
            click.option(
                "--strip-prefix/--no-strip-prefix",
                default=None,
                help="Send paths without PATH to the target.",
            ),
            click.option(
                "--timeout", "timeout_s", type=float, metavar="SECONDS", help="For an answer.  [default: 60]"
            ),
            click.option(
                "--idle-timeout",
                "idle_timeout_s",
                type=float,
                metavar="SECONDS",
                help="Of a silent WebSocket.  [default: 3600]",
            ),
            click.option(
                "--protocol",
                type=click.Choice(["http1", "h2"]),
                help="What the copies speak; h2 for gRPC.  [default: http1]",
            ),
            click.option(
                "--http-only/--no-http-only", default=None, help="Not with TLS, and without a certificate."
            ),
        )
    ):
        command = option(command)
    return command


@click.group(cls=AliasGroup, aliases={"ls": "list", "rm": "delete", "show": "describe", "create": "add"})
def route() -> None:
    """Publish services and functions under host names and paths.

    Edge nodes serve routes with HAProxy, on the addresses of the settings routes.http and routes.https.

    \b
      skerry route add shop.example.org --to service/web
      skerry route add shop.example.org/api --to service/api:8080 --rate 10/s
      skerry route add hello.example.org --to fn/hello --public
      skerry route list
    """


@route.command()
@_place
@click.option("--name", help="Its name.  [default: made of host and path]")
@_settings
@object_kinds.namespace
@options.server
@printing.option
def add(
    server: ApiClient, place: str, name: str | None, namespace: str | None, output: str, **given: Any
) -> None:
    """Publish a service or function under HOST, a wildcard such as *.example.org, or * for all hosts.

    PATH is a prefix of whole segments. The most specific route answers.

    \b
      skerry route add shop.example.org --to service/web --redirect https
      skerry route add '*.example.org' --to service/web
      skerry route add old.example.org --redirect https://new.example.org
      skerry route add admin.example.org --to service/admin --basic ann
    """
    from skerry.model import errors
    from skerry.model.routes import parse_place

    try:
        host, path = parse_place(place)
    except errors.Invalid as error:
        raise click.ClickException(f"{error.message}.") from None
    fields, credential = _body(given)
    body = {"host": host, "path": path, **fields} | ({"name": name} if name else {})
    made = server.put("route", body=body, namespace=namespace)
    _show_result(made, output)
    _show_credential(credential)


@route.command()
@_name
@_settings
@click.option("--open", "is_open", is_flag=True, help="Remove the protection by --basic or --require-token.")
@object_kinds.namespace
@options.server
@printing.option
def update(
    server: ApiClient, name: str, namespace: str | None, is_open: bool, output: str, **given: Any
) -> None:
    """Change a route; options that are not given stay, empty ones are reset. Open connections stay.

    \b
      skerry route update shop.example.org --rate 100/s
      skerry route update shop.example.org --rate "" --open
    """
    fields, credential = _body(given)
    if is_open:
        fields |= {"basic": None, "token": None}
    changed = server.patch("route", _route_name(name), body=fields, namespace=namespace)
    _show_result(changed, output)
    _show_credential(credential)


@route.command(name="list")
@object_kinds.namespace
@click.option("-A", "--all-namespaces", is_flag=True, help="List routes of all namespaces.")
@options.server
@printing.option
def list_routes(server: ApiClient, namespace: str | None, all_namespaces: bool, output: str) -> None:
    """List routes."""
    object_kinds.print_list(server, ROUTE, namespace, all_namespaces, output)


@route.command()
@_name
@object_kinds.namespace
@options.server
@printing.option
def describe(server: ApiClient, name: str, namespace: str | None, output: str) -> None:
    """Show a route. ROUTE is its name, its id, or its HOST[/PATH]."""
    one = server.get("route", _route_name(name), namespace=namespace)
    if output == "json":
        printing.as_json(one)
        return
    for field, value in _details(one):
        click.echo(f"{field:<14}{value}")


@route.command()
@click.argument("names", metavar="ROUTE...", nargs=-1, required=True)
@object_kinds.namespace
@options.server
def delete(server: ApiClient, names: tuple[str, ...], namespace: str | None) -> None:
    """Delete routes.

    \b
      skerry route delete shop.example.org
    """
    with ErrorCollector() as failures:
        for name in names:
            with failures.collect():
                click.echo(server.delete("route", _route_name(name), namespace=namespace)["name"])


def _details(one: JsonObject) -> list[tuple[str, str]]:
    protection = one["protection"]
    found = {
        "name": one["name"],
        "id": one["id"],
        "namespace": one["namespace"],
        "place": place(one),
        "to": one["to"],
        "redirect": one["redirect"],
        "methods": " ".join(one["methods"]),
        "headers": " ".join(f"{name}={value}" for name, value in one["headers"].items()),
        "rate": one["rate"],
        "cors": " ".join(one["cors"]),
        "protection": f"{protection['kind']} {protection['user']}".strip() if protection else "",
        "public": "yes" if one["public"] else "",
        "strip prefix": "yes" if one["strip_prefix"] else "",
        "timeout": f"{one['timeout_s']:g}s",
        "idle timeout": f"{one['idle_timeout_s']:g}s",
        "protocol": one["protocol"],
        "http only": "yes" if one["http_only"] else "",
        "age": printing.age(one["created_at"]),
        "problem": one.get("problem", ""),
    }
    return [(field, value) for field, value in found.items() if value]


def _body(given: dict[str, Any]) -> tuple[JsonObject, str]:
    """The fields that are given, and the credential that was made for them."""
    basic, token, reads = given.pop("basic"), given.pop("require_token"), given.pop("credential_stdin")
    if basic and token:
        raise click.UsageError("A route has --basic or --require-token, not both.")
    if reads and not (basic or token):
        raise click.UsageError("--credential-stdin needs --basic or --require-token.")
    body: JsonObject = {name: value for name, value in given.items() if value is not None and value != ()}
    if "methods" in body:
        body["methods"] = [one.strip().upper() for one in body["methods"].split(",") if one.strip()]
    if "headers" in body:
        pairs = [one.partition("=") for one in body["headers"]]
        if not all(name and equals for name, equals, _ in pairs):
            raise click.UsageError("--header reads NAME=VALUE.")
        body["headers"] = {name: value for name, _, value in pairs}
    if "cors" in body:
        body["cors"] = [one for one in body["cors"] if one]
    credential = ""
    if basic or token:
        credential = sys.stdin.readline().strip() if reads else secrets.token_urlsafe(24)
        body |= {"basic": {"user": basic, "password": credential}} if basic else {"token": credential}
    return body, "" if reads else credential


def _show_result(one: JsonObject, output: str) -> None:
    printing.as_json(one) if output == "json" else click.echo(one["name"])
    if problem := one.get("problem"):
        click.echo(f"warning: {problem}", err=True)


def _show_credential(credential: str) -> None:
    if credential:
        click.echo(f"credential, which is not shown again: {credential}", err=True)


def _route_name(text: str) -> str:
    """The name of the route that people mean by its name, its id, or its place."""
    if "/" not in text and "*" not in text:
        return text
    from skerry.model import errors
    from skerry.model.routes import default_name, parse_place

    try:
        return default_name(*parse_place(text))
    except errors.Invalid as error:
        raise click.ClickException(f"{error.message}.") from None
