"""`skerry node`: run this machine as a node, and manage the nodes of a server.

Without a subcommand it becomes a daemon (`daemon`); a subcommand talks to a server.
"""

from __future__ import annotations

from typing import Any, Final

import click

from skerry.cli import object_kinds, options, watch
from skerry.cli import output as printing
from skerry.cli.commands import daemon, node_leave
from skerry.cli.object_kinds import INSTANCE, NODE, NodeNames
from skerry.cli.options import AliasGroup
from skerry.client.api import ApiClient, JsonObject

_OVER: Final = ("drained", "left", "lost")


@click.group(
    cls=AliasGroup,
    aliases={"ls": "list", "rm": "remove", "delete": "remove"},
    invoke_without_command=True,
    subcommand_metavar="[COMMAND [ARGS]...]",
)
@daemon.joining
@click.pass_context
def node(context: click.Context, /, **given: Any) -> None:
    """Join this machine to a server as a node; or manage the nodes of a server.

    Without a COMMAND this machine becomes a node. INVITATION is the line that 'skerry token create --role
    node' prints on the server's machine: it contains the addresses of the server, the fingerprint of its CA
    and a token. It is needed once; after that the node has a certificate and renews it. With a new
    invitation it joins again, also when the server has moved.

    \b
      skerry node --join INVITATION
      skerry node --join @FILE          keeps it out of the process list

    A COMMAND manages the nodes of a server, which the options of the COMMAND select:

    \b
      skerry node list
      skerry node drain edge-1
    """
    if context.invoked_subcommand is None:
        daemon.join(**given)
        return
    options.refuse_before_verb(context)


@node.command(name="list")
@options.server
@printing.option
def list_nodes(server: ApiClient, output: str) -> None:
    """List the nodes of a server; the same as 'skerry get nodes', which can also watch."""
    printing.show(
        {"nodes": object_kinds.everything(server, NODE)},
        output,
        columns=NODE.columns,
        rows=lambda value: [NODE.row(one, NodeNames(server)) for one in value["nodes"]],
    )


@node.command()
@click.argument("name", metavar="NODE")
@options.server
@printing.option
def cells(server: ApiClient, name: str, output: str) -> None:
    """List all cells of a node with what they use now: instances, workers of functions, contracts, and cells
    of clients. On the machine itself, 'skerry cell list' shows more.

    \b
      skerry node cells edge-1
    """
    printing.show(
        server.get("node", name, "cells"),
        output,
        columns=("cell", "owner", "runs", "cpu", "memory", "pids", "executables"),
        rows=lambda value: [
            (
                one["name"],
                one["owner"] or "-",
                one["instance_id"] or one.get("function") or "-",
                _of_limit(f"{one['cpu']}m", f"{one['cpu_limit']}m" if one["cpu_limit"] else ""),
                _of_limit(
                    printing.size(one["memory_bytes"]),
                    f"{one['memory_limit']}MB" if one["memory_limit"] else "",
                ),
                str(one["pids"]),
                ", ".join(one["executables"]) or "-",
            )
            for one in value["cells"]
        ],
    )


def _of_limit(used: str, limit: str) -> str:
    return f"{used} of {limit}" if limit else used


@node.command()
@click.argument("name", metavar="NODE")
@click.option("--reason", metavar="TEXT", default="", help="Reason, shown with the node.")
@options.server
def cordon(server: ApiClient, name: str, reason: str) -> None:
    """Mark a node unschedulable: it keeps its instances and gets no new ones."""
    _print_status(server.post("node", name, "cordon", body={"reason": reason}))


@node.command()
@click.argument("name", metavar="NODE")
@options.server
def uncordon(server: ApiClient, name: str) -> None:
    """Mark a node schedulable again; this also cancels a drain."""
    _print_status(server.post("node", name, "uncordon"))


@node.command()
@click.argument("name", metavar="NODE")
@click.option(
    "--within",
    metavar="DURATION",
    type=printing.Duration(),
    help="Drain deadline, 90s or 15m; evict remaining instances after it.  [default: fleet.drain_s]",
)
@watch.detach
@options.server
def drain(server: ApiClient, name: str, within: float | None, detach: bool) -> None:
    """Move all instances off a node, and wait until it is empty.

    They are stopped and placed on other nodes; the node gets no new ones until 'skerry node uncordon'.
    """
    found = server.post("node", name, "drain", body={"within_s": within})
    if not detach:
        found = _until_drained(server, found)
    _print_status(found)


@node.command()
@click.argument("name", metavar="NODE")
@click.argument("changes", metavar="LABEL=VALUE|LABEL-...", nargs=-1, required=True)
@options.server
def label(server: ApiClient, name: str, changes: tuple[str, ...]) -> None:
    """Set labels of a node; LABEL- removes one. Constraints of instances select nodes by label.

    Instances that run there stay, whatever their constraints.

    \b
      skerry node label edge-1 zone=edge disk-
    """
    changed = server.patch("node", name, body={"labels": dict(map(_label, changes))})
    click.echo(f"{changed['name']}: {object_kinds.labels(changed) or 'no labels'}")


@node.command()
@click.argument("name", metavar="NODE")
@click.option("--force", is_flag=True, help="Unregister with instances; they are rescheduled.")
@options.server
def remove(server: ApiClient, name: str, force: bool) -> None:
    """Unregister a node; drain it first.

    A machine that still runs Skerry as a node of this server registers again: stop Skerry there, and revoke
    its certificate if it must not return.
    """
    server.delete("node", name, force=str(force).lower())
    click.echo(f"removed {name}")


node.add_command(node_leave.leave)


def _until_drained(server: ApiClient, found: JsonObject) -> JsonObject:
    """Print how many instances are left, until none is."""

    def read() -> tuple[JsonObject, int]:
        left: int = server.get(
            INSTANCE.word, node=found["id"], namespace=object_kinds.EVERY_NAMESPACE, limit="1"
        )["count"]
        return server.get(NODE.word, found["id"]), left

    shown = None
    for seen, left in watch.poll_forever(read):
        if seen["status"] in _OVER and not left:
            return seen
        if seen["drain_by"] is None:
            raise click.ClickException(f"The drain of {seen['name']} was cancelled by another client.")
        if left != shown:
            click.echo(
                f"{seen['name']}: {left} left; deadline {printing.ago(seen['drain_by'])}, "
                "when instances that no other node can take are evicted",
                err=True,
            )
        shown = left
    raise AssertionError("watching does not end by itself")


def _label(text: str) -> tuple[str, str | None]:
    key, equals, value = text.partition("=")
    if equals:
        return key, value
    if text.endswith("-"):
        return text[:-1], None
    raise click.UsageError(f"'{text}' is not a label; write zone=edge, or zone- to remove it.")


def _print_status(node: JsonObject) -> None:
    click.echo(f"{node['name']}: {object_kinds.node_status_text(node)}")
