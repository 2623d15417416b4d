"""`skerry up`, `skerry server` and `skerry node --join`: the commands that become a daemon.

They read the settings and run `skerry.daemon`, which is imported only then. The command `node` itself is in
`skerry.cli.commands.nodes`.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from skerry.cli.options import option_group
from skerry.cli.start_screen import StartScreen
from skerry.client import discovery
from skerry.kit.hidden_modules import hidden_modules

if TYPE_CHECKING:
    from skerry.model.invitations import JoinCredentials
    from skerry.model.settings import Settings


common = option_group(
    click.option(
        "--data",
        metavar="DIR",
        help="Data folder. [default: /var/lib/skerry as root, else ~/.local/share/skerry]",
    ),
    click.option(
        "--takeover",
        is_flag=True,
        help="Continue for the process that has the data folder, on its listening sockets; it ends once this "
        "one is ready. For upgrades.",
    ),
    click.option("--ready-file", metavar="FILE", help="Write this JSON file once everything is ready."),
    click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error. [default: info]"),
    click.option(
        "--log",
        "log_style",
        type=click.Choice(["auto", "text", "json"]),
        help="Format of the log, on standard error. [default: auto: text on a terminal, else json]",
    ),
    click.option("--config", metavar="FILE", help="TOML file with settings. [env: SKERRY_CONFIG]"),
    click.option(
        "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Any setting of docs/settings.md."
    ),
)

socket = click.option(
    "--socket", metavar="PATH", help="gRPC socket. [default: /var/run/aurae/aurae.sock as root]"
)

listeners = option_group(
    click.option(
        "--http", metavar="HOST:PORT", help="HTTP address; port 0 is any free port. [default: 127.0.0.1:1323]"
    ),
    click.option(
        "--grpc", metavar="HOST:PORT", help="gRPC address. [default: the host of --http, port 50052]"
    ),
    click.option(
        "--socket", metavar="PATH", help="gRPC socket. [default: /var/run/aurae/aurae.sock as root]"
    ),
    click.option(
        "--tls", is_flag=True, default=None, help="Serve HTTPS; required on addresses other than loopback."
    ),
    click.option(
        "--store", metavar="URL", help="sqlite, or etcd://HOST:PORT[,HOST:PORT...]. [default: sqlite]"
    ),
)


@click.command()
@listeners
@click.option(
    "--isolation",
    type=click.Choice(["auto", "none"]),
    help="none: functions and cells are plain child processes, to try things out where there can be no "
    "namespaces; not for the market, and on loopback only.  [default: auto]",
)
@common
def up(**given: Any) -> None:
    """Start everything on this machine: control plane and node in one process.

    It listens on loopback only, keeps its state in the data folder, and stops on Ctrl-C, SIGTERM or when
    its terminal is closed (with nohup it goes on then). After a restart, also after a crash, it continues
    with the same state. Without root, cells and functions run in a user namespace, and 'skerry status' says
    what is weaker.
    """
    _run("up", given)


@click.command()
@listeners
@common
def server(**given: Any) -> None:
    """Start the control plane alone; machines join it with 'skerry node'.

    For other machines to reach it, it needs a reachable address and TLS. Then create an invitation on this
    machine for each machine that joins:

    \b
      skerry server --http 0.0.0.0:1323 --tls
      skerry token create --role node

    Nodes connect to gRPC, which listens on the same host (port 50052) unless --grpc is given. The
    certificate of the server is valid for its host name and all of its addresses, and is renewed when those
    change.
    """
    _run("server", given)


joining = option_group(
    click.option(
        "--join",
        metavar="INVITATION",
        help="Invitation from 'skerry token create --role node'; '-' reads it from standard input, '@FILE' "
        "from a file. Or URLs of servers, separated by commas, with --token. [env: SKERRY_NODE_JOIN]",
    ),
    click.option(
        "--token",
        metavar="TEXT",
        envvar="SKERRY_TOKEN",
        help="Join token, if --join is a URL. [env: SKERRY_TOKEN]",
    ),
    click.option("--name", metavar="NAME", help="Name of this node. [default: the host name]"),
    click.option(
        "--http",
        metavar="HOST:PORT",
        help="HTTP address for functions; off loopback HTTPS, for devices with offline tokens. "
        "[default: none]",
    ),
    socket,
    common,
)


def join(token: str | None, **given: Any) -> None:
    """Make this machine a node, for `skerry node`; `given` are the options of `joining`."""
    _run("node", {**given, "node_http": given["http"], "http": None}, token=token)


SETTING_KEYS = {
    "http": "http.listen",
    "grpc": "grpc.listen",
    "socket": "grpc.socket",
    "tls": "http.tls",
    "store": "store.url",
    "log_level": "log.level",
    "log_style": "log.style",
    "join": "node.join",
    "name": "node.name",
    "node_http": "node.http",
    "isolation": "node.isolation",
}


def _run(role: str, given: dict[str, Any], token: str | None = None) -> None:
    _import_logs()
    from skerry.cli import settings as reading

    manager = reading.service_manager()
    flags: dict[str, Any] = dict(reading.parse_assignments(given.pop("assignments")))
    ready_file = given.pop("ready_file")
    takes_over = given.pop("takeover")
    data = given.pop("data")
    config = given.pop("config")
    flags |= {SETTING_KEYS[name]: value for name, value in given.items() if value is not None}
    if data:
        flags["data"] = data
    settings = reading.load(flags, config)
    folder = discovery.data_folder(settings.data)
    settings, admission = _admission(settings, token or "", folder)
    screen = StartScreen(role, folder, settings.log.style, has_console=_has_console())
    screen.open()

    process = import_daemon(role)
    from skerry.model import errors

    screen.hide_logs()

    try:
        code = process.run(
            role,
            settings,
            folder,
            ready_file=ready_file,
            admission=admission,
            screen=screen,
            takes_over=takes_over,
            manager=manager,
        )
    except errors.SkerryError as error:
        raise click.ClickException(error.message) from None
    sys.exit(code)


def import_daemon(role: str) -> ModuleType:
    """The module `skerry.daemon.process`, with everything that `role` needs."""
    _import_logs()
    from skerry.daemon import process, roles

    roles.import_role(role)
    gc.freeze()  # or the first collections would go through all that was imported
    gc.enable()
    return process


def _import_logs() -> None:
    """Import structlog before a daemon imports anything else; from here on no garbage is collected."""
    gc.disable()  # modules stay: collecting garbage among them is a tenth of the time of importing them
    # structlog imports these if it can, for tracebacks and tasks that our logs do not have.
    with hidden_modules("rich", "greenlet"):
        import structlog  # noqa: F401


def _admission(settings: Settings, token: str, folder: Path) -> tuple[Settings, JoinCredentials]:
    """Separate an invitation from the settings, so that no secret stays in them."""
    from msgspec.structs import replace

    from skerry.model.invitations import Invitation, JoinCredentials, MalformedInvitation, is_invitation

    join = read_join(settings.node.join, joined=folder / "node" / "join.json")
    try:
        if is_invitation(join):
            invited = Invitation.parse(join)
            join, admission = ",".join(invited.urls), JoinCredentials(invited.token, invited.fingerprint)
        elif is_invitation(token):  # instead of the token in it
            invited = Invitation.parse(token)
            join, admission = (
                join or ",".join(invited.urls),
                JoinCredentials(invited.token, invited.fingerprint),
            )
        else:
            admission = JoinCredentials(token)
    except MalformedInvitation as error:
        raise click.ClickException(f"--join: {error}") from None
    return replace(settings, node=replace(settings.node, join=join)), admission


def read_join(given: str, joined: Path | None = None) -> str:
    """The value of --join, or the content of the file that it names. A machine that has joined, and so has
    the file `joined`, needs neither: the invitation of an installed node is deleted then."""
    if given == "-":
        return sys.stdin.readline().strip()
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError) and joined is not None and joined.exists():
            return ""
        raise click.ClickException(f"--join: the file {given[1:]} cannot be read: {error}") from None


def _has_console() -> bool:
    root = click.get_current_context().find_root()
    return isinstance(root.command, click.Group) and "console" in root.command.list_commands(root)
