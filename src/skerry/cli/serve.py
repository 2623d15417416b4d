"""`skerry up`, `skerry server` and `skerry node --join`: the verbs that become a daemon.

They read the settings, then hand over to `skerry.daemon`, which is imported only then. The verb `node` itself
is in `skerry.cli.nodes`, with those that look after nodes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import places
from skerry.cli.options import together

if TYPE_CHECKING:
    from skerry.daemon.process import Ready


common = together(
    click.option(
        "--data",
        metavar="DIR",
        help="Data folder. [default: /var/lib/skerry as root, else ~/.local/share/skerry]",
    ),
    click.option("--ready-file", metavar="FILE", help="Write this JSON file once everything serves."),
    click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error. [default: info]"),
    click.option("--config", metavar="FILE", help="TOML file with settings. [env: SKERRY_CONFIG]"),
    click.option(
        "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Any setting of docs/settings.md."
    ),
)

socket = click.option(
    "--socket", metavar="PATH", help="gRPC socket. [default: /var/run/aurae/aurae.sock as root]"
)

listeners = together(
    click.option(
        "--http", metavar="HOST:PORT", help="HTTP; port 0 is any free one. [default: 127.0.0.1:1323]"
    ),
    click.option("--grpc", metavar="HOST:PORT", help="gRPC. [default: 127.0.0.1:50052]"),
    click.option(
        "--socket", metavar="PATH", help="gRPC socket. [default: /var/run/aurae/aurae.sock as root]"
    ),
    click.option(
        "--tls", is_flag=True, default=None, help="Serve HTTPS; needed on any address but loopback."
    ),
    click.option(
        "--store", metavar="URL", help="sqlite, or etcd://HOST:PORT[,HOST:PORT...]. [default: sqlite]"
    ),
)


@click.command()
@listeners
@common
def up(**given: Any) -> None:
    """Start everything on this machine: control plane and node in one process.

    Listens on loopback only, keeps its state in the data folder, and stops on Ctrl-C or SIGTERM. Starting it
    again after any kind of end goes on from where it was. Without root it serves what needs no root and says
    what is missing.
    """
    _run("up", given)


@click.command()
@listeners
@common
def server(**given: Any) -> None:
    """Start the control plane alone; machines join it with 'skerry node'.

    To be reached by other machines it needs an address of its own and TLS: --http 0.0.0.0:1323 --tls.
    """
    _run("server", given)


joining = together(
    click.option("--join", metavar="URL", help="The server to join; of several, with commas."),
    click.option(
        "--token",
        metavar="TEXT",
        envvar="SKERRY_TOKEN",
        help="Join token from 'skerry token create --role node'.",
    ),
    click.option("--name", metavar="NAME", help="Name of this node for people. [default: the host name]"),
    click.option(
        "--http", metavar="HOST:PORT", help="Functions over HTTP, for this machine alone. [default: none]"
    ),
    socket,
    common,
)


def join(token: str | None, **given: Any) -> None:
    """Make this machine a node, for `skerry node`; `given` are the options of `joining`."""
    _run("node", {**given, "node_http": given["http"], "http": None}, token=token)


_KEYS = {
    "http": "http.listen",
    "grpc": "grpc.listen",
    "socket": "grpc.socket",
    "tls": "http.tls",
    "store": "store.url",
    "log_level": "log.level",
    "join": "node.join",
    "name": "node.name",
    "node_http": "node.http",
}


def _run(role: str, given: dict[str, Any], token: str | None = None) -> None:
    from skerry.cli import settings as reading

    flags: dict[str, Any] = {}
    for assignment in given.pop("assignments"):
        key, equals, value = assignment.partition("=")
        if not equals:
            raise click.UsageError(f"--set takes KEY=VALUE, not '{assignment}'")
        flags[key.strip()] = value
    ready_file = given.pop("ready_file")
    data = given.pop("data")
    config = given.pop("config")
    flags |= {_KEYS[name]: value for name, value in given.items() if value is not None}
    if data:
        flags["data"] = data
    settings = reading.load(flags, config)
    folder = places.data_folder(settings.data)

    from skerry.daemon import process
    from skerry.model import errors

    try:
        code = process.run(
            role, settings, folder, ready_file=ready_file, join_token=token, announce=_announce
        )
    except errors.SkerryError as error:
        raise click.ClickException(error.message) from None
    sys.exit(code)


def _announce(ready: Ready) -> None:
    """Tell a person at a terminal that it is up and what to try next."""
    if not sys.stdout.isatty():
        return
    click.secho(f"Skerry is up (process {ready.pid}).", bold=True)
    for name, value in (
        ("http", ready.http),
        ("grpc", ready.grpc),
        ("socket", ready.socket),
        ("data", ready.data),
    ):
        if value:
            click.echo(f"  {name:<7} {value}")
    for sentence in ready.lacking:
        click.secho(f"  lacks   {sentence}", fg="yellow")
    click.echo("Try 'skerry status' in another terminal. Ctrl-C stops it.")
