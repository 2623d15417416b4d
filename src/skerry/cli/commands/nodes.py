"""`skerry node`: this machine as a node of a cloud, and looking after the nodes of one.

Bare, with its options, the verb becomes a daemon (`daemon`); with a verb of its own it talks to a server.
"""

from __future__ import annotations

from typing import Any, Final

import click

from skerry.cli import client, object_kinds, options, watch
from skerry.cli import output as printing
from skerry.cli.commands import daemon, node_leave
from skerry.cli.object_kinds import INSTANCE, NODE, JsonObject, NodeNames
from skerry.cli.options import AliasGroup

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
    """Join this machine to a server and stay a node of it; or look after the nodes of a server.

    Without a COMMAND this machine becomes a node. INVITATION is the line that 'skerry token create --role
    node' prints on the server's machine: it holds the server's addresses, the fingerprint of its CA and a
    token. It is needed once; after that the node has its own certificate and renews it by itself. With a new
    invitation it joins again, also when the server has moved, and says what it did.

    \b
      skerry node --join INVITATION
      skerry node --join @FILE          so that it is not in the list of processes

    With a COMMAND a server is asked, which the COMMAND's own options name:

    \b
      skerry node list
      skerry node drain edge-1
    """
    if context.invoked_subcommand is None:
        daemon.join(**given)
        return
    options.refuse_before_verb(context)


@node.command(name="list")
@client.options
@printing.option
def list_nodes(server: client.ApiClient, output: str) -> None:
    """List the nodes of a server; the same as 'skerry get nodes', which can also watch."""
    printing.show(
        {"nodes": object_kinds.everything(server, NODE)},
        output,
        columns=NODE.columns,
        rows=lambda value: [NODE.row(one, NodeNames(server)) for one in value["nodes"]],
    )


@node.command()
@click.argument("name", metavar="NODE")
@click.option("--reason", metavar="TEXT", default="", help="A word on why, for those who look.")
@client.options
def cordon(server: client.ApiClient, name: str, reason: str) -> None:
    """Give a node nothing new; it keeps what it has."""
    _tell(server.post("node", name, "cordon", body={"reason": reason}))


@node.command()
@click.argument("name", metavar="NODE")
@client.options
def uncordon(server: client.ApiClient, name: str) -> None:
    """Let a node take instances again; ends a drain, too."""
    _tell(server.post("node", name, "uncordon"))


@node.command()
@click.argument("name", metavar="NODE")
@click.option(
    "--within",
    metavar="DURATION",
    type=printing.Duration(),
    help="What is left then is given up at once: 90s, 15m.  [default: the server's fleet.drain_s]",
)
@watch.detach
@client.options
def drain(server: client.ApiClient, name: str, within: float | None, detach: bool) -> None:
    """Take everything off a node, and wait until that is done.

    Its instances are stopped and placed elsewhere, and it takes nothing new until 'skerry node uncordon'.
    """
    found: JsonObject = server.post("node", name, "drain", body={"within_s": within})
    if not detach:
        found = _until_drained(server, found)
    _tell(found)


@node.command()
@click.argument("name", metavar="NODE")
@click.argument("changes", metavar="LABEL=VALUE|LABEL-...", nargs=-1, required=True)
@client.options
def label(server: client.ApiClient, name: str, changes: tuple[str, ...]) -> None:
    """Set labels of a node; LABEL- takes one away. Constraints of instances are about these.

    What runs there stays, whatever its constraints say now.

    \b
      skerry node label edge-1 zone=edge disk-
    """
    told: JsonObject = server.patch("node", name, body={"labels": dict(map(_label, changes))})
    click.echo(f"{told['name']}: {object_kinds.labels(told) or 'no labels'}")


@node.command()
@click.argument("name", metavar="NODE")
@click.option("--force", is_flag=True, help="Although it has instances, which are then placed elsewhere.")
@client.options
def remove(server: client.ApiClient, name: str, force: bool) -> None:
    """Take a node out of the cloud; drain it first.

    A machine that still runs Skerry as a node of this server comes back: stop it there, and revoke its
    certificate if it is not to return.
    """
    server.delete("node", name, force=str(force).lower())
    click.echo(f"removed {name}")


node.add_command(node_leave.leave)


def _until_drained(server: client.ApiClient, found: JsonObject) -> JsonObject:
    """Tell how many are left to go, until none is."""

    def read() -> tuple[JsonObject, int]:
        left: int = server.get(
            INSTANCE.word, node=found["id"], namespace=object_kinds.EVERY_NAMESPACE, limit="1"
        )["count"]
        return server.get(NODE.word, found["id"]), left

    said = None
    for seen, left in watch.poll_forever(read):
        if seen["status"] in _OVER and not left:
            return seen
        if seen["drain_by"] is None:
            raise click.ClickException(f"{seen['name']} is no longer drained, by somebody's word.")
        if left != said:
            click.echo(
                f"{seen['name']}: {left} to go, at the latest {printing.ago(seen['drain_by'])}, "
                "which is when those go that no other node can take",
                err=True,
            )
        said = left
    raise AssertionError("watching does not end by itself")


def _label(text: str) -> tuple[str, str | None]:
    key, equals, value = text.partition("=")
    if equals:
        return key, value
    if text.endswith("-"):
        return text[:-1], None
    raise click.UsageError(f"'{text}' is no label; write zone=edge, or zone- to take it away.")


def _tell(told: JsonObject) -> None:
    click.echo(f"{told['name']} is {object_kinds.node_status_text(told)}")
