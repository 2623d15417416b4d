"""`skerry node leave`: unregister this machine, and remove everything of Skerry from it.

Asks for confirmation on a terminal; `skerry.daemon.node_leave`, imported only then, does the work.
"""

from __future__ import annotations

import asyncio
import sys

import click

from skerry.cli import output as printing
from skerry.client import discovery


@click.command()
@click.option("--no-drain", is_flag=True, help="Do not drain the node first.")
@click.option(
    "--timeout",
    "within",
    metavar="DURATION",
    type=printing.Duration(),
    help="Drain deadline, 90s or 15m; evict remaining instances after it.  [default: fleet.drain_s]",
)
@click.option(
    "--force", is_flag=True, help="Continue if no server is reachable, or none accepts the certificate."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--data",
    metavar="DIR",
    envvar="SKERRY_DATA",
    help="Data folder of the node. [env: SKERRY_DATA] [default: /var/lib/skerry as root]",
)
def leave(no_drain: bool, within: float | None, force: bool, yes: bool, data: str | None) -> None:
    """Unregister this machine, and remove everything of Skerry from it.

    Run it on the node itself. Its instances are drained to other nodes; the server unregisters the node and
    revokes its certificate; its process is stopped; and containers, cells, networks, mounts, images and all
    else in its data folder are removed. Repeat it if something fails. Disable a service manager that would
    start Skerry again.

    \b
      skerry node leave
      skerry node leave --timeout 5m --yes
      skerry node leave --force           when the server is gone for good
    """
    from skerry.cli import settings as reading
    from skerry.daemon import node_leave, rootless
    from skerry.kit import logs
    from skerry.kit.clock import SystemClock
    from skerry.model import errors

    folder = discovery.data_folder(data)
    clock = SystemClock()
    logs.setup("error")
    options = node_leave.LeaveOptions(not no_drain, within or 0.0, force)
    try:
        place = node_leave.find(folder, clock)
        settings = node_leave.read_settings(folder, reading.load({}, None))
        if not yes and sys.stdin.isatty():
            subject = f"node {place.name} ({place.node}) of {place.url}" if place else "the remains of a node"
            click.confirm(f"Remove {subject} and all its data in {folder}?", abort=True, err=True)
        with rootless.removing(folder) as enforcement:
            leaving = node_leave.leave(settings, folder, clock, options, _print_step, enforcement=enforcement)
            asyncio.run(leaving)
    except errors.SkerryError as error:
        raise click.ClickException(error.message) from None


def _print_step(sentence: str) -> None:
    click.echo(sentence, err=True)
