"""Addresses on which this process listens, bound before anything is served, and those that others dial.

The rule for gRPC is only here: it listens where HTTP does, unless `grpc.listen` is set. A listener on all
addresses is dialled at loopback by this machine, and by others at `advertised_addresses`.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from skerry.control.identity.server_names import ServerNames
from skerry.kit import files, listening_sockets, namespace_marker
from skerry.kit.service_manager import InheritedSocket
from skerry.model import errors
from skerry.model.callers import NODE_TLS_NAME
from skerry.model.settings import Settings
from skerry.transport.access import peers
from skerry.transport.host_identity import HostIdentity, source_address

GRPC_PORT = 50052
_MEMBERS = "functions.neighbours"
_PORT_FILE = "listen.port"
_AUTO = "auto"
_MEMBER_PORT = 7331
# So many addresses of a machine are advertised: a client that tries them all waits seconds for each.
_MAX_ADVERTISED = 8
_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_][a-z0-9_-]{0,62})*")
_LOOPBACK_FOR = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - what to dial, not what to bind


def split_host_port(text: str, flag: str) -> tuple[str, int]:
    """`HOST:PORT` taken apart; `[::1]:80` for IPv6."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise errors.Invalid(f"{flag}: '{text}' is no HOST:PORT; one looks like 127.0.0.1:1323 or [::1]:1323")
    return host, int(port)


def bind(text: str, flag: str) -> socket.socket:
    """A TCP socket bound to `HOST:PORT`, or that of the process before, not yet accepting."""
    host, port = split_host_port(text, flag)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise errors.Invalid(
            f"{flag}: the host '{host}' is not known here. Use an address of this machine."
        ) from None
    name = f"{flag} {text}"
    if (inherited := listening_sockets.current().adopt(name, address)) is not None:
        return inherited
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(1024)
    except OSError as error:
        bound.close()
        raise _explained(error, text, flag) from None
    bound.setblocking(False)
    listening_sockets.current().register(name, bound)
    return bound


def inherit_or_bind(
    text: str, flag: str, name: str, inherited: Mapping[str, InheritedSocket]
) -> socket.socket:
    """The socket called `name` that the service manager has passed, if it listens on `text`; else one that is
    bound here."""
    passed = inherited.get(name)
    if passed is None:
        return bind(text, flag)
    host, port = split_host_port(text, flag)
    try:
        wanted = {str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        wanted = {host}
    is_tcp = passed.family in (socket.AF_INET, socket.AF_INET6)
    if not is_tcp or passed.getsockname()[0] not in wanted or port not in (0, passed.getsockname()[1]):
        where = display_address(passed) if is_tcp else "a socket that is not TCP"
        raise errors.FailedPrecondition(
            f"{flag} is {text}, but the service manager passed {where} as the socket '{name}'. "
            "Run 'skerry install' again, which writes both."
        )
    return passed


def grpc_listen(settings: Settings) -> str:
    """HOST:PORT of the gRPC listener."""
    return settings.grpc.listen or join_host_port(
        split_host_port(settings.http.listen, "--http")[0], GRPC_PORT
    )


def is_exposed(settings: Settings) -> bool:
    """Whether a listener may be reached from other machines."""
    hosts = _listening_hosts(settings)
    if settings.market.plain_listen:
        hosts.append(split_host_port(settings.market.plain_listen, "market.plain_listen")[0])
    return not all(host == "localhost" or peers.is_loopback(host) for host in hosts)


def check_names(names: Iterable[str]) -> None:
    """Raise `Invalid` for a name of the setting `http.names` that cannot be one."""
    for name in names:
        if _plain_host(name) is None:
            raise errors.Invalid(f"http.names: {name!r} is no host name and no address", field="http.names")


def server_names(settings: Settings, machine: HostIdentity) -> ServerNames:
    """What a server on this machine is called, for its certificate and the Host check."""
    check_names(settings.http.names)
    own = _plain_hosts(*machine.names, *machine.addresses) if is_exposed(settings) else frozenset()
    given = _plain_hosts(*_listening_hosts(settings), *settings.http.names, machine.name)
    hosts = frozenset({"localhost", "127.0.0.1", "::1", NODE_TLS_NAME, *given, *own})
    return ServerNames(machine.name, own, hosts)


def _listening_hosts(settings: Settings) -> list[str]:
    return [
        split_host_port(settings.http.listen, "--http")[0],
        split_host_port(grpc_listen(settings), "--grpc")[0],
    ]


def _plain_hosts(*hosts: str) -> frozenset[str]:
    return frozenset(name for name in map(_plain_host, hosts) if name is not None)


def _plain_host(host: str) -> str | None:
    """One spelling per host, or None for what no certificate can name: wildcards and nonsense."""
    text = host.strip().lower().removesuffix(".").partition("%")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text if _DNS_NAME.fullmatch(text) else None
    return None if address.is_unspecified else str(address)


def local_dial_address(address: str) -> str:
    """An address that this machine itself can dial: a wildcard means loopback."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACK_FOR.get(host, host)}:{port}"


def advertised_addresses(address: str, settings: Settings, machine: HostIdentity) -> list[str]:
    """What other machines can dial to reach `address`, the best first: for a wildcard all names and addresses
    of this machine, configured names first, and a few addresses before names that must be resolved."""
    host, port = split_host_port(address, "listen")
    if peers.is_loopback(host):
        return [address]
    if ipaddress.ip_address(host).is_unspecified:
        names = (*settings.http.names, *machine.addresses[:_MAX_ADVERTISED], *machine.names)
    else:
        names = (host, *settings.http.names)
    return [join_host_port(name, port) for name in dict.fromkeys(names)]


def to_join(own: Sequence[str], others: Sequence[str], most: int) -> list[str]:
    """At most `most` URLs for a machine that is to join: those of this server first, and as many of the other
    servers as go into half of them."""
    others = [url for url in dict.fromkeys(others) if url not in own][: most // 2]
    return [*list(dict.fromkeys(own))[: most - len(others)], *others]


def join_host_port(host: str, port: int) -> str:
    """`HOST:PORT`, with brackets for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _explained(error: OSError, text: str, flag: str) -> errors.SkerryError:
    if error.errno == errno.EADDRINUSE:
        return errors.AlreadyExists(
            f"{flag}: {text} is in use by another program. Choose another port, or 0 for any free one."
        )
    if error.errno == errno.EACCES:
        return errors.Forbidden(f"{flag}: {text} needs root; choose a port above 1023.")
    if error.errno == errno.EADDRNOTAVAIL:
        return errors.Invalid(f"{flag}: {text} is no address of this machine.")
    return errors.Unavailable(f"{flag}: cannot listen on {text}: {error.strerror}")


def display_address(bound: socket.socket) -> str:
    """`HOST:PORT` that a client would dial."""
    return join_host_port(*bound.getsockname()[:2])


def bind_first_free(host: str, ports: Iterable[int], flag: str) -> socket.socket:
    """A TCP socket bound to `host` and the first free one of `ports`; a last 0 means any."""
    taken: errors.AlreadyExists | None = None
    for port in ports:
        try:
            return bind(join_host_port(host, port), flag)
        except errors.AlreadyExists as error:
            taken = error
    raise taken or errors.Invalid(f"{flag}: no port is named")


def bind_member_listener(wanted: str, folder: Path, *, host: str) -> socket.socket | None:
    """The listener for other members, by the setting; with `auto` at `host`, and on the port that
    `store_member_port` has stored in `folder`. Writes nothing: the folder may be of a later version."""
    if wanted != _AUTO:
        return bind(wanted, _MEMBERS) if wanted else None
    stored = _stored_port(folder)
    return bind_first_free(host, [_MEMBER_PORT, 0] if stored is None else [stored, _MEMBER_PORT, 0], _MEMBERS)


def store_member_port(wanted: str, folder: Path, bound: socket.socket) -> None:
    """With `auto`, the next start listens on the same port, so members find this one again also without a
    server."""
    if wanted == _AUTO and (port := bound.getsockname()[1]) != _stored_port(folder):
        files.write_atomically(files.private_folder(folder) / _PORT_FILE, str(port).encode())


def _stored_port(folder: Path) -> int | None:
    try:
        return int((folder / _PORT_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return None


def local_address(target: str) -> str:
    """The address of this machine from which it reaches `HOST:PORT`; all of them if that is not known yet."""
    host, port = split_host_port(target, "server")
    found = ""
    with suppress(OSError, UnicodeError):
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        found = source_address(str(address[0]), family)
    return found or "0.0.0.0"  # noqa: S104 - without a name service, or a route, there is nothing better


def unix_socket(named: str, folder: Path) -> Path:
    """The path of the node runtime's socket: as set, else the path of Aurae clients, else in the data
    folder."""
    if named:
        return Path(named).absolute()
    return Path("/var/run/aurae/aurae.sock") if namespace_marker.is_machine_root() else folder / "aurae.sock"


def web_socket(named: str, folder: Path) -> Path:
    """The path of the socket of web functions: as set, else in the data folder."""
    return Path(named).absolute() if named else folder / "web.sock"


def http_socket(named: str, folder: Path) -> Path:
    """The path of the HTTP API's socket: as set, else in the data folder, which is closed to other users."""
    return Path(named).absolute() if named else folder / "http.sock"
