"""Targets of forwarded logs, as the setting `log.forward` names them.

Parsed once at the start; `senders` opens them. Options of a target are the query of its URL, and are not
sent to anybody. Credentials are never part of a URL, which is logged: they are in a file.
"""

from __future__ import annotations

import enum
import re
from typing import Final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import msgspec

from skerry.model import errors

_SYSLOG_PORT: Final = 514
_SYSLOG_TLS_PORT: Final = 6514
_SIZE: Final = re.compile(r"(\d{1,9})([KMG]?)B?")
_UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_LEAST_FILE: Final = 64 * 1024
_MAX_KEPT: Final = 1000
_TENANT: Final = re.compile(r"[A-Za-z0-9!_.*'()-]{1,150}")


class SyslogTransport(enum.StrEnum):
    """How messages get to a syslog server."""

    UDP = "udp"
    TCP = "tcp"
    TLS = "tls"
    UNIX = "unix"  # /dev/log of this machine


class FileTarget(msgspec.Struct, frozen=True):
    """A file with a JSON object per line, rotated by size."""

    name: str  # the setting, for people and for the file of its positions
    path: str
    max_bytes: int = 100 * 1024**2
    keep: int = 5  # rotated files beside the current one


class SyslogTarget(msgspec.Struct, frozen=True):
    """A syslog server."""

    name: str
    transport: SyslogTransport
    host: str = ""
    port: int = 0
    path: str = ""  # of a unix socket
    ca: str = ""  # PEM file; empty: the CAs of this machine


class LokiTarget(msgspec.Struct, frozen=True):
    """A server with Loki's push API."""

    name: str
    url: str
    credentials: str = ""  # file: `token=...`, or `username=...` and `password=...`
    tenant: str = ""
    ca: str = ""


ForwardTarget = FileTarget | SyslogTarget | LokiTarget


def parse_target(text: str) -> ForwardTarget:
    """Raises Invalid."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise _invalid(text, f"it is no URL: {error}") from None
    if url.username or url.password:
        raise errors.Invalid(
            f"log.forward: a target at {url.hostname!r} has credentials in its URL, which is logged; put "
            "them into a file and add ?credentials=/PATH"
        )
    options = _options(text, url.query)
    target: ForwardTarget
    if url.scheme == "file":
        target = _file(text, url.path, options)
    elif url.scheme in ("loki+http", "loki+https"):
        if not url.hostname:
            raise _invalid(text, "it needs a host, such as loki+http://127.0.0.1:3100/loki/api/v1/push")
        plain = urlunsplit((url.scheme.removeprefix("loki+"), url.netloc, url.path, "", ""))
        tenant = options.pop("tenant", "")
        if tenant and not _TENANT.fullmatch(tenant):
            raise _invalid(text, "tenant has letters, digits and !-_.*'()")
        target = LokiTarget(
            text, plain, _path(text, options, "credentials"), tenant, _path(text, options, "ca")
        )
    elif url.scheme in ("syslog", "syslog+udp", "syslog+tcp", "syslog+tls"):
        target = _syslog(text, url.scheme, url.hostname or "", port, url.path, options)
    else:
        raise _invalid(
            text, "targets begin with file:, syslog:, syslog+tcp:, syslog+tls:, loki+http: or loki+https:"
        )
    if options:
        raise _invalid(text, f"it has no option {sorted(options)[0]!r}")
    return target


def _file(text: str, path: str, options: dict[str, str]) -> FileTarget:
    if not path.startswith("/") or path.endswith("/"):
        raise _invalid(text, "a file is named by its absolute path, such as file:/var/log/skerry/all.log")
    target = FileTarget(text, path)
    if size := options.pop("size", ""):
        matched = _SIZE.fullmatch(size.upper())
        most = int(matched[1]) * _UNITS[matched[2]] if matched else 0
        if most < _LEAST_FILE:
            raise _invalid(text, "size is a number of bytes of at least 64K, such as 100M")
        target = msgspec.structs.replace(target, max_bytes=most)
    if keep := options.pop("keep", ""):
        if not keep.isdecimal() or int(keep) > _MAX_KEPT:
            raise _invalid(text, f"keep is a number of files, at most {_MAX_KEPT}")
        target = msgspec.structs.replace(target, keep=int(keep))
    return target


def _syslog(
    text: str, scheme: str, host: str, port: int | None, path: str, options: dict[str, str]
) -> SyslogTarget:
    if not host:
        if scheme != "syslog" or not path.startswith("/"):
            raise _invalid(text, "it needs a host, or a socket such as syslog:/dev/log")
        return SyslogTarget(text, SyslogTransport.UNIX, path=path)
    transport = SyslogTransport(scheme.partition("+")[2] or SyslogTransport.UDP)
    is_tls = transport is SyslogTransport.TLS
    ca = _path(text, options, "ca") if is_tls else ""
    if path not in ("", "/"):
        raise _invalid(text, "a syslog server has no path")
    return SyslogTarget(text, transport, host, port or (_SYSLOG_TLS_PORT if is_tls else _SYSLOG_PORT), ca=ca)


def _options(text: str, query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) != len(pairs):
        raise _invalid(text, "an option is given twice")
    return options


def _path(text: str, options: dict[str, str], name: str) -> str:
    path = options.pop(name, "")
    if path and not path.startswith("/"):
        raise _invalid(text, f"{name} is an absolute path")
    return path


def _invalid(text: str, problem: str) -> errors.Invalid:
    return errors.Invalid(f"log.forward: {text[:200]!r} cannot be used: {problem}")
