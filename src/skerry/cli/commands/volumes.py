"""`skerry volume`: data that outlives instances."""

from __future__ import annotations

from typing import Any

import click

from skerry.cli import object_kinds, options, volume_details
from skerry.cli import output as printing
from skerry.cli.amounts import Amount
from skerry.cli.commands import volume_snapshots
from skerry.cli.errors import ErrorCollector
from skerry.cli.object_kinds import VOLUME
from skerry.cli.options import AliasGroup
from skerry.client.api import ApiClient

_name = click.argument("name", metavar="VOLUME")


@click.group(cls=AliasGroup, aliases={"ls": "list", "rm": "delete", "show": "describe"})
def volume() -> None:
    """Create volumes: data that outlive the instances that use them.

    A volume is on one node: that of the first instance that uses it. From then on what uses it runs on that
    node only. It is deleted by 'skerry volume delete' alone.

    \b
      skerry volume create db --size 10
      skerry run -v db:/var/lib/postgresql/data docker.io/library/postgres:17
      skerry service create -v db:/var/lib/postgresql/data docker.io/library/postgres:17
      skerry volume list
      skerry volume snapshot db
    """


for _command in volume_snapshots.COMMANDS:
    volume.add_command(_command)


@volume.command()
@_name
@click.option(
    "--size",
    metavar="GB|SIZE",
    type=Amount("disk", least=1),
    required=True,
    help="Size: 10 (GB), 10g, 1t. It cannot change.",
)
@click.option("--node", metavar="NODE", help="The node that it is to be on.  [default: its first user's]")
@click.option(
    "--constraint",
    "constraints",
    multiple=True,
    metavar="LABEL=VALUE",
    help="Only on a node with this label; LABEL!=VALUE: without it; repeatable.",
)
@object_kinds.namespace
@options.server
@printing.option
def create(
    server: ApiClient,
    name: str,
    size: int,
    node: str | None,
    constraints: tuple[str, ...],
    namespace: str | None,
    output: str,
) -> None:
    """Create a volume. Its node creates the data when an instance uses it.

    \b
      skerry volume create db --size 10
      skerry volume create cache --size 2g --node edge-1
    """
    body: dict[str, Any] = {"name": name, "size": size, "constraints": list(constraints)}
    if node:
        body["node"] = node
    made = server.put("volume", body=body, namespace=namespace)
    printing.as_json(made) if output == "json" else click.echo(made["name"])


@volume.command(name="list")
@object_kinds.namespace
@click.option("-A", "--all-namespaces", is_flag=True, help="List volumes of all namespaces.")
@options.server
@printing.option
def list_volumes(server: ApiClient, namespace: str | None, all_namespaces: bool, output: str) -> None:
    """List volumes."""
    object_kinds.print_list(server, VOLUME, namespace, all_namespaces, output)


@volume.command()
@_name
@object_kinds.namespace
@options.server
@printing.option
def describe(server: ApiClient, name: str, namespace: str | None, output: str) -> None:
    """Show a volume: where it is, how full it is, and what uses it."""
    volume_details.show(server, object_kinds.find(server, VOLUME, name, namespace), output)


@volume.command()
@click.argument("names", metavar="VOLUME...", nargs=-1, required=True)
@click.option("-d", "--detach", is_flag=True, help="Do not wait until the data are removed.")
@object_kinds.namespace
@options.server
def delete(server: ApiClient, names: tuple[str, ...], detach: bool, namespace: str | None) -> None:
    """Delete volumes with their data. This cannot be undone.

    Refused while an instance, a service, a job or a schedule uses it. If its node is away, the data are
    removed when that is back.

    \b
      skerry volume delete db
    """
    with ErrorCollector() as failures:
        for name in names:
            with failures.collect():
                volume_details.delete(server, name, namespace, waits=not detach)
