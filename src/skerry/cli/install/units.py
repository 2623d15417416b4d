"""The text of the systemd units, from the role and the settings. Pure; `skerry.cli.install.installer` writes
them.

docs/install.md gives the reason for each directive. Two sets of restrictions: `server` runs nothing of others
and is confined wholly; `up` and `node` run containers, which inherit whatever confines their agent, and whose
mounts the next process must find, so those have no mount namespace and no filter of system calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

SERVICE: Final = "skerry.service"
SLICE: Final = "skerry.slice"
_HEADER: Final = (
    "# Written by 'skerry install', which overwrites it; 'skerry uninstall' removes it.\n"
    f"# Changes of your own belong in {SERVICE}.d/NAME.conf ('systemctl edit {SERVICE}').\n"
)
_HOMES: Final = ("/home", "/root", "/run/user")
_TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - compared with, not written to
_STOP_MARGIN_S: Final = 15
_WATCHDOG_S: Final = 60
_BACKOFF_SINCE: Final = 254  # version of systemd
# What an agent of containers never needs, and no container may have from it.
_REFUSED_CAPABILITIES: Final = (
    *("CAP_SYS_MODULE", "CAP_SYS_BOOT", "CAP_SYS_TIME", "CAP_SYS_PACCT", "CAP_WAKE_ALARM"),
    *("CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_BLOCK_SUSPEND"),
)


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """A TCP socket that systemd opens and passes on under its name."""

    name: str
    address: str  # IP:PORT

    @property
    def unit(self) -> str:
        return f"skerry-{self.name}.socket"


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What the units are made from."""

    role: str  # up, server, node
    program: PurePosixPath
    settings: PurePosixPath
    data: PurePosixPath
    sockets: tuple[ListeningSocket, ...]
    stop_timeout_s: float
    invitation: PurePosixPath  # of a node; deleted after the start
    systemd: int = 0  # its version; 0: not known
    code: tuple[PurePosixPath, ...] = ()  # folders of the program, beside its own
    writable: tuple[PurePosixPath, ...] = ()  # folders of sockets outside the data folder
    targets: tuple[PurePosixPath, ...] = ()  # folders that backups and logs are written to; may be missing


def render(spec: ServiceSpec) -> dict[str, str]:
    """The units by their file name."""
    made = {SERVICE: _service(spec), SLICE: _slice(spec)}
    made |= {each.unit: _socket(each) for each in spec.sockets}
    return {name: _HEADER + text for name, text in made.items()}


def wants(spec: ServiceSpec) -> dict[str, str]:
    """The target that starts each unit at boot."""
    return {SERVICE: "multi-user.target"} | {each.unit: "sockets.target" for each in spec.sockets}


def _slice(spec: ServiceSpec) -> str:
    low, minimum = _protected_memory(spec.role)
    return _section(
        "Unit",
        "Description=Skerry's own processes, whose memory is protected",
    ) + _section("Slice", f"MemoryMin={minimum}", f"MemoryLow={low}")


def _socket(each: ListeningSocket) -> str:
    is_own = each.address.rpartition(":")[0] not in ("0.0.0.0", "[::]", "127.0.0.1", "[::1]")  # noqa: S104
    return (
        _section("Unit", f"Description=Skerry, {each.name} at {each.address}")
        + _section(
            "Socket",
            f"ListenStream={each.address}",
            f"FileDescriptorName={each.name}",
            f"Service={SERVICE}",
            "Backlog=1024",
            *(["FreeBind=yes"] if is_own else []),
        )
        + _section("Install", "WantedBy=sockets.target")
    )


def _service(spec: ServiceSpec) -> str:
    low, minimum = _protected_memory(spec.role)
    lines = [
        "Type=notify",
        "NotifyAccess=main",
        f"ExecStart={_quoted(spec.program)} {spec.role} --config {_quoted(spec.settings)}",
        *([f"ExecStartPost=-/bin/rm -f {_quoted(spec.invitation)}"] if spec.role == "node" else []),
        *([f"Sockets={' '.join(each.unit for each in spec.sockets)}"] if spec.sockets else []),
        "",
        "Restart=always",
        "RestartSec=2",
        *(["RestartSteps=6", "RestartMaxDelaySec=60"] if spec.systemd >= _BACKOFF_SINCE else []),
        f"WatchdogSec={_WATCHDOG_S}",
        "TimeoutStartSec=120",
        f"TimeoutStopSec={int(spec.stop_timeout_s) + _STOP_MARGIN_S}",
        "",
        f"Slice={SLICE}",
        "OOMScoreAdjust=-900",
        f"MemoryMin={minimum}",
        f"MemoryLow={low}",
        "TasksMax=infinity",
        "LimitNOFILE=1048576",
        "",
        *(_confined(spec) if spec.role == "server" else _of_containers()),
    ]
    return (
        _section(
            "Unit",
            f"Description=Skerry ({spec.role})",
            "Documentation=man:skerry(1)",
            "Wants=network-online.target",
            "After=network-online.target nftables.service firewalld.service",
            "StartLimitIntervalSec=0",
        )
        + _section("Service", *lines)
        + _section("Install", "WantedBy=multi-user.target")
    )


def _of_containers() -> list[str]:
    return [
        "KillMode=process",
        "Delegate=yes",
        "LimitNPROC=infinity",
        "LimitMEMLOCK=infinity",
        f"CapabilityBoundingSet=~{' '.join(_REFUSED_CAPABILITIES)}",
    ]


def _confined(spec: ServiceSpec) -> list[str]:
    folders = (spec.program, spec.data, *spec.code, *spec.writable, *spec.targets)
    has_home = any(_is_below(each, _HOMES) for each in folders)
    has_temporary = any(_is_below(each, _TEMPORARY) for each in folders)
    writable = [_quoted(each) for each in (spec.data, *spec.writable)]
    writable += [_quoted(PurePosixPath(f"-{each}")) for each in spec.targets]
    return [
        "KillMode=mixed",
        "ProtectSystem=strict",
        f"ReadWritePaths={' '.join(writable)}",
        "RuntimeDirectory=aurae",
        f"ProtectHome={'read-only' if has_home else 'yes'}",
        *([] if has_temporary else ["PrivateTmp=yes"]),
        "PrivateDevices=yes",
        "ProtectClock=yes",
        "ProtectControlGroups=yes",
        "ProtectHostname=yes",
        "ProtectKernelLogs=yes",
        "ProtectKernelModules=yes",
        "ProtectKernelTunables=yes",
        "ProtectProc=invisible",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=CAP_CHOWN CAP_NET_BIND_SERVICE",
        "LockPersonality=yes",
        "MemoryDenyWriteExecute=yes",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
        "RestrictNamespaces=yes",
        "RestrictRealtime=yes",
        "RestrictSUIDSGID=yes",
        "SystemCallArchitectures=native",
        "SystemCallFilter=@system-service",
        "SystemCallErrorNumber=EPERM",
        "UMask=0077",
        "LimitCORE=0",
    ]


def _protected_memory(role: str) -> tuple[str, str]:
    """Memory that is reclaimed only if nothing else is left, and memory that is never reclaimed."""
    return ("512M", "128M") if role != "node" else ("256M", "64M")


def _section(name: str, *lines: str) -> str:
    return "\n".join(("", f"[{name}]", *_between(lines))) + "\n"


def _between(lines: Sequence[str]) -> Sequence[str]:
    """Without empty lines at the end."""
    end = len(lines)
    while end and not lines[end - 1]:
        end -= 1
    return lines[:end]


def _quoted(path: PurePosixPath) -> str:
    """A path as systemd takes it in a command or a list."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if any(mark in text for mark in " '\"\\;") else text


def _is_below(path: PurePosixPath, folders: Sequence[str]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
