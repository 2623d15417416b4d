"""Make Skerry a service of this machine: check, write the settings and the units, start.

Called by `skerry.cli.commands.install`. It can be repeated, with other options or after an interruption at
any point. Files that it has not made itself are never overwritten, except for lines of the settings file.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import click

from skerry import __version__
from skerry.cli import settings as reading
from skerry.cli.install import settings_file, systemd, units
from skerry.cli.install.installation import Installation, Layout
from skerry.cli.install.units import ListeningSocket, ServiceSpec
from skerry.kit import files
from skerry.model import errors
from skerry.model.settings import Settings
from skerry.transport import addresses
from skerry.transport.access import gate
from skerry.transport.log_forwarding.targets import FileTarget, parse_target

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAY_FOLLOW: Final = {("server", "up")}  # what a machine has, and what it can become in the same data folder


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """What to install."""

    role: str  # up, server, node
    values: Mapping[str, str | bool]  # settings by dotted key, as they were given
    invitation: str  # of a node that has not joined
    layout: Layout
    starts: bool


def install(request: InstallRequest, report: Callable[[str], None]) -> Installation:
    """Write everything, and start it. Raises a `ClickException` or a `SkerryError` that says what to do."""
    layout = request.layout
    if request.starts:
        systemd.check_booted()
    before = layout.read_record()
    _check_role(before, request.role)
    text, settings = _settings(request)
    spec = _spec(request, settings)
    _check_joining(request, spec)
    texts = {layout.unit(name): text for name, text in units.render(spec).items()}
    links = {layout.want(name, target): layout.unit(name) for name, target in units.wants(spec).items()}
    links |= _command_link(layout, spec.program)
    _check_foreign(layout, before, [*texts, *links])
    record = _record(request, spec, [*texts, *links], before)
    changed = _changed_sockets(layout, before, record, texts)
    if request.starts and changed:
        # A socket that is open is not opened elsewhere, nor a new one for a service that runs.
        systemd.stop([*changed, units.SERVICE])
    layout.on_disk(layout.record).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    layout.write_record(record)
    for folder in record.folders:
        layout.on_disk(folder).mkdir(mode=0o755, exist_ok=True)
    files.write_atomically(layout.on_disk(layout.settings), text.encode(), files.PRIVATE)
    files.private_folder(layout.on_disk(spec.data))
    if request.invitation:
        files.write_atomically(
            layout.on_disk(layout.invitation), request.invitation.encode() + b"\n", files.PRIVATE
        )
    for path, unit in texts.items():
        files.write_atomically(layout.on_disk(path), unit.encode())
    for path, target in links.items():
        _link(layout.on_disk(path), target)
    if before is not None:
        remove_files(layout, set(before.files) - set(record.files))
    report(f"wrote {layout.settings}, and {', '.join(path.name for path in texts)} in {layout.units}")
    if request.starts:
        systemd.reload()
        report("starting the service")
        systemd.start(record.sockets)
    return record


def remove_files(layout: Layout, paths: set[str]) -> None:
    """Remove files and links, the missing ones left out."""
    for path in paths:
        layout.on_disk(path).unlink(missing_ok=True)


def _check_role(before: Installation | None, role: str) -> None:
    if before is not None and before.role != role and (before.role, role) not in _MAY_FOLLOW:
        raise click.ClickException(
            f"This machine is installed as '{before.role}'. Run 'skerry uninstall' first, then install it as "
            f"'{role}'; with --purge if it is to begin anew."
        )


def _settings(request: InstallRequest) -> tuple[str, Settings]:
    """The text of the settings file with the given values, and what it means."""
    path = request.layout.on_disk(request.layout.settings)
    values: dict[str, str | bool] = dict(request.values)
    if request.role == "node":
        values["node.join"] = f"@{request.layout.invitation}"
    try:
        text = path.read_text()
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"The settings file {path} cannot be read: {error}") from None
    settings = reading.load(values, str(path) if text else os.devnull, {})
    try:
        return settings_file.update(text, {key: _value(settings, key) for key in values}), settings
    except settings_file.SetElsewhere as error:
        raise click.ClickException(f"{path}: {error}") from None


def _value(settings: Any, key: str) -> Any:
    for name in key.split("."):
        settings = getattr(settings, name)
    return settings


def _spec(request: InstallRequest, settings: Settings) -> ServiceSpec:
    data = PurePosixPath(settings.data or "/var/lib/skerry")
    if not data.is_absolute():
        raise click.ClickException(f"--data: {data} must be an absolute path")
    program = PurePosixPath(sys.prefix) / "bin" / "skerry"
    if not request.layout.on_disk(program).exists():
        raise click.ClickException(
            f"{request.layout.on_disk(program)} does not exist: install Skerry itself there first, at the "
            "same path as this one (the Debian package, or the wheel with pip)"
        )
    sockets = [settings.grpc.socket, settings.http.socket]
    return ServiceSpec(
        role=request.role,
        program=program,
        settings=request.layout.settings,
        data=data,
        sockets=_sockets(request.role, settings),
        stop_timeout_s=settings.stop_timeout_s,
        invitation=request.layout.invitation,
        systemd=systemd.version() if request.starts else 0,
        code=(PurePosixPath(sys.base_prefix), PurePosixPath(__file__)),
        writable=tuple(PurePosixPath(path).parent for path in sockets if path),
        targets=_targets(settings),
    )


def _targets(settings: Settings) -> tuple[PurePosixPath, ...]:
    """Folders outside the data folder that the settings have Skerry write to."""
    backups = PurePosixPath(settings.backup.target)
    found = [backups] if backups.is_absolute() else []
    for text in settings.log.forward:
        target = parse_target(text)
        if isinstance(target, FileTarget):
            found.append(PurePosixPath(target.path).parent)
    return tuple(dict.fromkeys(found))


def _sockets(role: str, settings: Settings) -> tuple[ListeningSocket, ...]:
    """The addresses that systemd is to listen on, with the checks of a start."""
    if role == "node":
        return (_listening("http", settings.node.http, "--http"),) if settings.node.http else ()
    gate.check_exposure(addresses.split_host_port(settings.http.listen, "--http")[0], tls=settings.http.tls)
    return (
        _listening("http", settings.http.listen, "--http"),
        _listening("grpc", addresses.grpc_listen(settings), "--grpc"),
    )


def _listening(name: str, text: str, flag: str) -> ListeningSocket:
    host, port = addresses.split_host_port(text, flag)
    if not port:
        raise errors.Invalid(f"{flag}: an installed Skerry needs a fixed port, not 0")
    try:
        found = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        address = ipaddress.ip_address(found)
    except (OSError, UnicodeError, ValueError):
        raise errors.Invalid(f"{flag}: the host '{host}' is not known here; use an address.") from None
    return ListeningSocket(name, addresses.join_host_port(str(address), port))


def _check_joining(request: InstallRequest, spec: ServiceSpec) -> None:
    """A node has an invitation, or has joined."""
    if request.role != "node" or request.invitation:
        return
    layout = request.layout
    if (
        layout.on_disk(spec.data / "node" / "join.json").exists()
        or layout.on_disk(layout.invitation).exists()
    ):
        return
    raise click.UsageError(
        "This machine has not joined a cloud yet: give an invitation. An admin makes one with 'skerry token "
        "create --role node'."
    )


def _command_link(layout: Layout, program: PurePosixPath) -> dict[PurePosixPath, PurePosixPath]:
    """`skerry` on the PATH, if it is not there: unless another program has that name."""
    found = shutil.which("skerry", path=":".join(str(layout.on_disk(each)) for each in _PATH.split(":")))
    command = layout.on_disk(layout.command)
    is_ours = command.is_symlink() and os.readlink(command) == str(program)
    return {layout.command: program} if found is None or is_ours else {}


def _check_foreign(layout: Layout, before: Installation | None, paths: list[PurePosixPath]) -> None:
    own = set(before.files) if before is not None else set()
    for path in paths:
        if str(path) not in own and os.path.lexists(layout.on_disk(path)):
            raise click.ClickException(
                f"{layout.on_disk(path)} exists, and 'skerry install' has not made it. Move it away first."
            )


def _record(
    request: InstallRequest, spec: ServiceSpec, made: list[PurePosixPath], before: Installation | None
) -> Installation:
    """What is to be made: with what was made before and is kept."""
    layout = request.layout
    own = set(before.files) if before is not None else set()
    kept = {str(path) for path in made}
    for path in (layout.settings, layout.invitation):
        if str(path) in own or not layout.on_disk(path).exists():
            kept.add(str(path))
    folders = set(before.folders) if before is not None else set()
    for path in (*made, layout.settings, spec.data):
        for parent in path.parents:
            if not layout.on_disk(parent).exists():
                folders.add(str(parent))
    return Installation(
        request.role,
        __version__,
        str(spec.data),
        tuple(sorted(kept)),
        tuple(sorted(folders)),
        tuple(each.unit for each in spec.sockets),
    )


def _changed_sockets(
    layout: Layout, before: Installation | None, after: Installation, texts: Mapping[PurePosixPath, str]
) -> list[str]:
    """Units of sockets that are to be opened anew, or no more, or for the first time beside others."""
    if before is None:
        return []
    found = []
    for name in dict.fromkeys((*before.sockets, *after.sockets)):
        try:
            is_same = layout.on_disk(layout.unit(name)).read_text() == texts.get(layout.unit(name))
        except OSError:
            is_same = False
        if not is_same:
            found.append(name)
    return found


def _link(path: Path, target: PurePosixPath) -> None:
    """A symbolic link, replaced if it is another."""
    if path.is_symlink() and os.readlink(path) == str(target):
        return
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(path)
