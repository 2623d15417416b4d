"""`skerry node leave`: take this machine out of its cloud, and everything of Skerry off it.

Asks for confirmation on a terminal; what is done is `skerry.daemon.node_leave`, imported only then.
"""

from __future__ import annotations

import asyncio
import sys

import click

from skerry.cli import output as printing
from skerry.cli import paths


@click.command()
@click.option("--no-drain", is_flag=True, help="Do not wait until what runs here is placed elsewhere.")
@click.option(
    "--timeout",
    "within",
    metavar="DURATION",
    type=printing.Duration(),
    help="For the drain; what is left then is given up at once: 90s, 15m.  [default: the server's "
    "fleet.drain_s]",
)
@click.option(
    "--force", is_flag=True, help="Also if no server can be reached, or none takes the certificate."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--data",
    metavar="DIR",
    envvar="SKERRY_DATA",
    help="Data folder of the node. [env: SKERRY_DATA] [default: /var/lib/skerry as root]",
)
def leave(no_drain: bool, within: float | None, force: bool, yes: bool, data: str | None) -> None:
    """Take this machine out of its cloud, and everything of Skerry off it.

    Run on the node's own machine. Its instances are drained to other nodes; the server unregisters it and
    revokes its certificate; its process is stopped; and containers, cells, networks, mounts, images and
    all else in its data folder are removed. It may be repeated if something fails. A service manager that
    starts Skerry again must be told not to.

    \b
      skerry node leave
      skerry node leave --timeout 5m --yes
      skerry node leave --force           when the server is gone for good
    """
    from skerry.cli import settings as reading
    from skerry.daemon import node_leave
    from skerry.kit import logs
    from skerry.kit.clock import SystemClock
    from skerry.model import errors

    folder = paths.data_folder(data)
    clock = SystemClock()
    logs.setup("error")
    options = node_leave.LeaveOptions(not no_drain, within or 0.0, force)
    try:
        place = node_leave.find(folder, clock)
        settings = node_leave.read_settings(folder, reading.load({}, None))
        if not yes and sys.stdin.isatty():
            who = f"node {place.name} ({place.node}) of {place.url}" if place else "what is left of a node"
            click.confirm(f"Remove {who} and everything of it in {folder}?", abort=True, err=True)
        asyncio.run(node_leave.leave(settings, folder, clock, options, _tell))
    except errors.SkerryError as error:
        raise click.ClickException(error.message) from None


def _tell(sentence: str) -> None:
    click.echo(sentence, err=True)
