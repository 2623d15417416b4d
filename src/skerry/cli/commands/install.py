"""`skerry install` and `skerry uninstall`: Skerry as a service of this machine, started at boot by systemd.

`skerry.cli.install`, imported only then, does the work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from skerry.cli import output as printing
from skerry.cli.commands import daemon
from skerry.cli.options import option_group

_root = click.option(
    "--root",
    metavar="DIR",
    help="Root of an image to install into, instead of this machine; implies --no-start.",
)
_common = option_group(
    click.option("--data", metavar="DIR", help="Data folder.  [default: /var/lib/skerry]"),
    click.option(
        "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Any setting of docs/settings.md."
    ),
    click.option("--no-start", is_flag=True, help="Write everything, start nothing: for images and tests."),
    _root,
)


@click.group()
def install() -> None:
    """Make Skerry a service of this machine, which systemd starts at boot and restarts.

    As root, on a machine with systemd. It writes /etc/skerry/skerry.toml, which has the settings; units in
    /etc/systemd/system; and a link /usr/local/bin/skerry if 'skerry' is not on the PATH. systemd holds the
    listening sockets, so that a restart refuses no connection; containers keep running during a restart.

    \b
      skerry install up                                   one machine: server and node
      skerry install server --http 0.0.0.0:1323 --tls     the control plane alone
      skerry token create --role node                     there, for each machine that joins
      skerry install node -                               on that machine; paste the invitation, then Enter
      systemctl status skerry; journalctl -u skerry -f    look at it
      skerry uninstall                                    remove the service; with --purge also the data

    Install again with other options to change them: options that are not given stay as they are.
    """


@install.command()
@daemon.listeners
@_common
def up(**given: Any) -> None:
    """Install a server and a node in one: everything on this machine.

    It listens on loopback only, unless --http and --tls are given.

    \b
      skerry install up
      skerry install up --http 0.0.0.0:1323 --tls
    """
    _install("up", given)


@install.command()
@daemon.listeners
@_common
def server(**given: Any) -> None:
    """Install the control plane alone; machines join it with 'skerry install node'.

    It runs no containers, and is confined by systemd to its data folder.

    \b
      skerry install server --http 0.0.0.0:1323 --tls
      skerry install server --http 0.0.0.0:1323 --tls --store etcd://10.0.0.7:2379
    """
    _install("server", given)


@install.command()
@click.argument("invitation", required=False)
@click.option("--name", metavar="NAME", help="Name of this node.  [default: the host name]")
@click.option(
    "--http",
    "node_http",
    metavar="HOST:PORT",
    help="HTTP address for functions; off loopback HTTPS, for devices with offline tokens.  [default: none]",
)
@daemon.socket
@_common
def node(invitation: str | None, **given: Any) -> None:
    """Install a node, which joins the cloud that INVITATION is from.

    '-' reads the invitation from standard input, '@FILE' from a file: then it is in no list of processes and
    in no history of a shell. It is kept in a file that only root can read, until the machine has joined. A
    machine that has joined needs none.

    \b
      skerry install node -
      skerry install node @invitation.txt --name edge-1
      skerry install node --http 0.0.0.0:8443             change an option later
    """
    _install("node", given, invitation or "")


@click.command()
@click.option("--purge", is_flag=True, help="Remove the data, too: the store, identity, images, volumes.")
@click.option("--no-drain", is_flag=True, help="With --purge, of a node: do not drain it first.")
@click.option(
    "--timeout",
    "within",
    metavar="DURATION",
    type=printing.Duration(),
    help="With --purge, of a node: drain deadline, 90s or 15m.  [default: fleet.drain_s]",
)
@click.option("--force", is_flag=True, help="With --purge, of a node: also if no server is reachable.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@_root
def uninstall(
    purge: bool, no_drain: bool, within: float | None, force: bool, yes: bool, root: str | None
) -> None:
    """Remove what 'skerry install' has made, and end everything that runs here.

    The service is stopped; containers, cells, their networks, rules and mounts are removed, and the units,
    the settings and the link of the command. The data folder stays, and another 'skerry install' continues
    with it, as after a reboot. --purge removes it, too; a node leaves its cloud first, like 'skerry node
    leave'.
    Files that 'skerry install' has not made are left. Repeat it if something fails.

    \b
      skerry uninstall
      skerry uninstall --purge
      skerry uninstall --purge --force     of a node whose server is gone for good
    """
    from skerry.cli.install import uninstaller
    from skerry.daemon.node_leave import LeaveOptions
    from skerry.kit import logs

    _check_root()
    logs.setup("error")
    layout = _layout(root)
    request = uninstaller.UninstallRequest(
        layout, purge, LeaveOptions(not no_drain, within or 0.0, force), is_image=root is not None
    )
    with _plain_errors():
        record = uninstaller.find(layout)
        if not yes and sys.stdin.isatty():
            data = f", and all data in {record.data}" if purge else f"; the data in {record.data} stay"
            click.confirm(f"Remove the service ({record.role}) and all it runs{data}?", abort=True, err=True)
        uninstaller.uninstall(request, record, _print_step)


def _install(role: str, given: dict[str, Any], invitation: str = "") -> None:
    from skerry.cli import settings as reading
    from skerry.cli.install import installer

    _check_root()
    root = given.pop("root")
    starts = not given.pop("no_start") and root is None
    values: dict[str, Any] = dict(reading.parse_assignments(given.pop("assignments")))
    if data := given.pop("data"):
        values["data"] = os.path.abspath(data)
    values |= {daemon.SETTING_KEYS[name]: value for name, value in given.items() if value is not None}
    with _plain_errors():
        request = installer.InstallRequest(role, values, _read_invitation(invitation), _layout(root), starts)
        installer.install(request, _print_step)
    if starts:
        click.echo("Skerry runs, and starts at boot. See: systemctl status skerry, skerry status", err=True)
    else:
        click.echo("Nothing was started; it starts with the next boot.", err=True)


def _read_invitation(given: str) -> str:
    from skerry.model.invitations import Invitation, MalformedInvitation

    text = daemon.read_join(given)
    if given and not text:
        raise click.UsageError("INVITATION: nothing was read; it is one line that begins with skerry-join-")
    try:
        return Invitation.parse(text).format() if text else ""
    except MalformedInvitation as error:
        raise click.ClickException(f"INVITATION: {error}") from None


def _layout(root: str | None) -> Any:
    from skerry.cli.install.installation import Layout

    folder = Path(root or "/").absolute()
    if not (folder / "etc").is_dir():
        raise click.UsageError(f"--root: {folder} is not the root of a system: it has no folder 'etc'")
    return Layout(folder)


def _check_root() -> None:
    if os.geteuid() != 0:
        raise click.ClickException("This needs root: it writes units of systemd. Run it with sudo.")


@contextmanager
def _plain_errors() -> Iterator[None]:
    from skerry.model import errors

    try:
        yield
    except errors.SkerryError as error:
        raise click.ClickException(error.message) from None
    except PermissionError as error:
        raise click.ClickException(f"{error.filename} cannot be written: {error.strerror}") from None


def _print_step(sentence: str) -> None:
    click.echo(sentence, err=True)
