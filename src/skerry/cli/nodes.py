"""`skerry node`: this machine as a node of a cloud, and looking after the nodes of one.

Bare, with its options, the verb becomes a daemon (`serve`); with a verb of its own it talks to a server.
"""

from __future__ import annotations

from typing import Any, Final

import click

from skerry.cli import client, kinds, options, serve, watching
from skerry.cli import output as printing
from skerry.cli.kinds import INSTANCE, NODE, Document, Names
from skerry.cli.options import Aliases

_OVER: Final = ("drained", "left", "lost")


@click.group(
    cls=Aliases,
    aliases={"ls": "list", "rm": "remove"},
    invoke_without_command=True,
    subcommand_metavar="[COMMAND [ARGS]...]",
)
@serve.joining
@click.pass_context
def node(context: click.Context, /, **given: Any) -> None:
    """Join this machine to a server and stay a node of it; or look after the nodes of a server.

    Without a COMMAND this machine becomes a node. The token is needed once; after that the node has its own
    certificate and renews it by itself. A token given in SKERRY_TOKEN does not show in the list of processes.

    \b
      skerry node --join https://server.example:1323 --token skerry_...

    With a COMMAND a server is asked, which the COMMAND's own options name:

    \b
      skerry node list
      skerry node drain edge-1
    """
    if context.invoked_subcommand is None:
        serve.join(**given)
        return
    options.refuse_before_verb(context)


@node.command(name="list")
@client.options
@printing.option
def list_nodes(server: client.Server, output: str) -> None:
    """List the nodes of a server; the same as 'skerry get nodes', which can also watch."""
    printing.show(
        {"nodes": kinds.everything(server, NODE)},
        output,
        columns=NODE.columns,
        rows=lambda value: [NODE.row(one, Names(server)) for one in value["nodes"]],
    )


@node.command()
@click.argument("name", metavar="NODE")
@click.option("--reason", metavar="TEXT", default="", help="A word on why, for those who look.")
@client.options
def cordon(server: client.Server, name: str, reason: str) -> None:
    """Give a node nothing new; it keeps what it has."""
    _tell(server.post("node", name, "cordon", body={"reason": reason}))


@node.command()
@click.argument("name", metavar="NODE")
@client.options
def uncordon(server: client.Server, name: str) -> None:
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
@watching.detach
@client.options
def drain(server: client.Server, name: str, within: float | None, detach: bool) -> None:
    """Take everything off a node, and wait until that is done.

    Its instances are stopped and placed elsewhere, and it takes nothing new until 'skerry node uncordon'.
    """
    found: Document = server.post("node", name, "drain", body={"within_s": within})
    if not detach:
        found = _until_drained(server, found)
    _tell(found)


@node.command()
@click.argument("name", metavar="NODE")
@click.argument("changes", metavar="LABEL=VALUE|LABEL-...", nargs=-1, required=True)
@client.options
def label(server: client.Server, name: str, changes: tuple[str, ...]) -> None:
    """Set labels of a node; LABEL- takes one away. Constraints of instances are about these.

    What runs there stays, whatever its constraints say now.

    \b
      skerry node label edge-1 zone=edge disk-
    """
    told: Document = server.patch("node", name, body={"labels": dict(map(_label, changes))})
    click.echo(f"{told['name']}: {kinds.labels(told) or 'no labels'}")


@node.command()
@click.argument("name", metavar="NODE")
@click.option("--force", is_flag=True, help="Although it has instances, which are then placed elsewhere.")
@client.options
def remove(server: client.Server, name: str, force: bool) -> None:
    """Take a node out of the cloud; drain it first.

    A machine that still runs Skerry as a node of this server comes back: stop it there, and revoke its
    certificate if it is not to return.
    """
    server.delete("node", name, force=str(force).lower())
    click.echo(f"removed {name}")


def _until_drained(server: client.Server, found: Document) -> Document:
    """Tell how many are left to go, until none is."""

    def read() -> tuple[Document, int]:
        left: int = server.get(INSTANCE.word, node=found["id"], namespace=kinds.EVERY_NAMESPACE, limit="1")[
            "count"
        ]
        return server.get(NODE.word, found["id"]), left

    said = None
    for seen, left in watching.again(read):
        if seen["status"] in _OVER and not left:
            return seen
        if seen["drain_by"] is None:
            raise click.ClickException(f"{seen['name']} is no longer drained, by somebody's word.")
        if left != said:
            click.echo(
                f"{seen['name']}: {left} to go, at the latest {printing.ago(seen['drain_by'])}", err=True
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


def _tell(told: Document) -> None:
    click.echo(f"{told['name']} is {kinds.standing(told)}")
