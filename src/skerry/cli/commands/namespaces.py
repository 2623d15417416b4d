"""`skerry namespace`: namespaces, their quotas and what is used of them, and their network policies."""

from __future__ import annotations

from typing import Any, Final

import click

from skerry.cli import amounts, options
from skerry.cli import output as printing
from skerry.cli.errors import ErrorCollector
from skerry.cli.options import AliasGroup
from skerry.client.api import ApiClient, JsonObject

_LIMITS: Final = ("cpu", "memory", "disk", "instances", "functions", "volumes")
_UNITS: Final = {"cpu": "m", "memory": "MB", "disk": "GB"}
_UNLIMITED: Final = "none"

_name = click.argument("name", metavar="NAMESPACE")


class _Limit(click.ParamType["int | str", str]):
    """An amount or a count; `none` removes the limit."""

    def __init__(self, resource: str) -> None:
        self.name = resource

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if str(value).lower() == _UNLIMITED:
            return _UNLIMITED
        if self.name in _UNITS:
            return amounts.Amount(self.name).convert(value, param, ctx)
        return int(click.IntRange(min=0).convert(value, param, ctx))


_limits = options.option_group(
    click.option("--cpu", metavar="MILLI|CORES", type=_Limit("cpu"), help="4000, 4000m or 4.0: four cores."),
    click.option("--memory", metavar="MB|SIZE", type=_Limit("memory"), help="8192 or 8g."),
    click.option("--disk", metavar="GB|SIZE", type=_Limit("disk"), help="100 or 100g."),
    *(
        click.option(f"--{kind}", metavar="N", type=_Limit(kind), help=f"How many {kind}.")
        for kind in _LIMITS[3:]
    ),
)


@click.group(cls=AliasGroup, aliases={"ls": "list", "rm": "delete", "show": "describe"})
def namespace() -> None:
    """Show namespaces, limit what they may use, and isolate them from each other.

    \b
      skerry namespace list
      skerry namespace quota shop --cpu 4.0 --memory 8g --instances 20
      skerry namespace policy shop --isolate --allow-from front
      skerry namespace describe shop
    """


@namespace.command(name="list")
@options.server
@printing.option
def list_namespaces(server: ApiClient, output: str) -> None:
    """List namespaces: those that were created, and those that are in use.

    Each column shows what is used, and the quota if there is one.
    """
    printing.show(
        server.get("namespace"),
        output,
        columns=("name", *_LIMITS, "age", "status"),
        rows=lambda found: [_row(one) for one in found["namespaces"]],
    )


@namespace.command()
@_name
@options.server
@printing.option
def describe(server: ApiClient, name: str, output: str) -> None:
    """Show a namespace: its quota, what is used of it, what is in it, and its network policy."""
    found = server.get("namespace", name)
    if output == "json":
        printing.as_json(found)
        return
    objects = ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in found["objects"].items())
    printing.table(
        printing.DETAILS,
        [
            ("name", found["name"]),
            ("created", "-" if found["created_at"] is None else printing.ago(found["created_at"])),
            ("objects", objects or "-"),
            *_policy_rows(found["policy"]),
        ],
    )
    click.echo()
    printing.table(
        ("resource", "used", "quota", "free", "over"),
        [
            (
                part,
                _amount(part, found["used"][part]),
                _amount(part, found["quota"][part]),
                _amount(part, _free(found, part)),
                _amount(part, found["over"].get(part)),
            )
            for part in _LIMITS
        ],
    )


@namespace.command()
@_name
@_limits
@options.server
@printing.option
def create(server: ApiClient, name: str, output: str, **limits: int | str | None) -> None:
    """Create a namespace, with a quota or without.

    A namespace also exists by being used: creating it is needed only to limit it.

    \b
      skerry namespace create shop --cpu 4.0 --memory 8g
    """
    made = server.put("namespace", body={"name": name, "quota": _given(limits)})
    printing.as_json(made) if output == "json" else click.echo(f"created namespace {name}")


@namespace.command()
@_name
@_limits
@click.option("--clear", is_flag=True, help="Remove all limits.")
@options.server
@printing.option
def quota(server: ApiClient, name: str, clear: bool, output: str, **limits: int | str | None) -> None:
    """Set the quota of a namespace: the most that all in it may use together.

    Limits that are not given stay; 'none' removes one. A quota below what is used stops nothing: nothing more
    is admitted until less is used.

    \b
      skerry namespace quota shop --cpu 4.0 --memory 8g --instances 20
      skerry namespace quota shop --cpu none
      skerry namespace quota shop --clear
    """
    given = _given(limits)
    if clear is bool(given):
        raise click.UsageError("Give limits, such as --cpu 4.0, or --clear.")
    changed = server.patch("namespace", name, body={"quota": None if clear else given})
    if output == "json":
        printing.as_json(changed)
        return
    set_to = ", ".join(
        f"{part} {_amount(part, limit)}" for part, limit in changed["quota"].items() if limit is not None
    )
    click.echo(f"quota of namespace {name}: {set_to or 'unlimited'}")
    if changed["over"]:
        click.echo(f"It uses more than that now: {_over(changed)}. Nothing is stopped.", err=True)


@namespace.command()
@_name
@click.option("--isolate/--open", "isolated", default=None, help="Who may connect to what is in it.")
@click.option(
    "--allow-from",
    metavar="NAMESPACE,...",
    help="Other namespaces that may connect to it while it is isolated; 'none': no others.",
)
@click.option(
    "--egress",
    type=click.Choice(["all", "internet", "mesh", "none", "default"]),
    help="What its workloads may reach; 'default': as the setting fleet.egress says.",
)
@options.server
@printing.option
def policy(
    server: ApiClient,
    name: str,
    isolated: bool | None,
    allow_from: str | None,
    egress: str | None,
    output: str,
) -> None:
    """Set the network policy of a namespace, or show it.

    An isolated namespace accepts connections from nodes, from itself and from the namespaces that are
    allowed; ports that it publishes stay open to the outside. What is not given stays as it is. A policy
    applies to running instances at once, without a restart.

    \b
      skerry namespace policy shop --isolate --allow-from front,admin
      skerry namespace policy batch --egress mesh
      skerry namespace policy shop --open
    """
    change: JsonObject = {}
    if isolated is not None:
        change["isolated"] = isolated
    if allow_from is not None:
        names = [each.strip() for each in allow_from.split(",") if each.strip()]
        change["allow_from"] = [] if names == [_UNLIMITED] else names
    if egress is not None:
        change["egress"] = None if egress == "default" else egress
    if change:
        found = server.patch("namespace", name, body={"policy": change})
    else:
        found = server.get("namespace", name)
    if output == "json":
        printing.as_json(found)
        return
    printing.table(printing.DETAILS, [("name", found["name"]), *_policy_rows(found["policy"])])


@namespace.command()
@click.argument("names", metavar="NAMESPACE...", nargs=-1, required=True)
@options.server
def delete(server: ApiClient, names: tuple[str, ...]) -> None:
    """Delete namespaces that have nothing in them, with their quotas."""
    with ErrorCollector() as failures:
        for name in names:
            with failures.collect():
                server.delete("namespace", name)
                click.echo(f"deleted namespace {name}")


def _policy_rows(policy: JsonObject) -> list[tuple[str, str]]:
    allowed = ", ".join(policy["allow_from"])
    sources = f"nodes, itself{allowed and ', '}{allowed}" if policy["isolated"] else "all"
    egress = f"{policy['egress']} (fleet.egress)" if policy["is_default_egress"] else policy["egress"]
    return [
        ("isolated", "yes" if policy["isolated"] else "no"),
        ("connections from", sources),
        ("egress", egress),
    ]


def _given(limits: dict[str, int | str | None]) -> JsonObject:
    return {
        part: None if limit == _UNLIMITED else limit for part, limit in limits.items() if limit is not None
    }


def _row(one: JsonObject) -> tuple[str, ...]:
    cells = []
    for part in _LIMITS:
        used, limit = one["used"][part], one["quota"][part]
        cells.append(_amount(part, used) if limit is None else f"{used}/{_amount(part, limit)}")
    created = one["created_at"]
    age = "-" if created is None else printing.age(created)
    return (one["name"], *cells, age, f"over quota: {_over(one)}" if one["over"] else "")


def _over(one: JsonObject) -> str:
    return ", ".join(f"{part} by {_amount(part, amount)}" for part, amount in one["over"].items())


def _free(one: JsonObject, part: str) -> int | None:
    limit = one["quota"][part]
    return None if limit is None else max(0, limit - one["used"][part])


def _amount(part: str, amount: int | None) -> str:
    return "-" if amount is None else f"{amount}{_UNITS.get(part, '')}"
