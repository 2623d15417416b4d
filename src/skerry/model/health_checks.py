"""Health checks: how a node probes a running instance, how often, and what the results mean.

A `HealthCheck` is part of an instance's spec and is run by its node, in the instance's own network namespace.
`parse` reads the short form of the command line: `http:80/health,interval=2s`.
"""

from __future__ import annotations

import enum
import re

import msgspec

from skerry.model import errors

MAX_CHECKS = 16
MAX_COMMAND = 64
_MAX_TEXT = 1024
_MAX_SECONDS = 3600.0
_MAX_THRESHOLD = 1000
_FORM = re.compile(r"(http|tcp|grpc):(\d{1,6})(.*)", re.DOTALL)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
_OPTIONS = {
    "interval": "interval_s",
    "timeout": "timeout_s",
    "grace": "grace_s",
    "healthy": "healthy_after",
    "unhealthy": "unhealthy_after",
}


class CheckRole(enum.StrEnum):
    """What the result of a check is for."""

    STARTUP = "startup"  # until it has passed once, the others wait; if it fails, the instance is restarted
    READINESS = "readiness"  # whether the instance is in service
    LIVENESS = "liveness"  # if it fails, the instance is restarted


class CheckMethod(enum.StrEnum):
    """How a check probes."""

    HTTP = "http"  # GET; a status from 200 to 399 passes
    TCP = "tcp"  # a connection passes
    GRPC = "grpc"  # grpc.health.v1; SERVING passes
    EXEC = "exec"  # a command in the instance; exit code 0 passes


class HealthCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """One check of one instance."""

    role: CheckRole
    method: CheckMethod
    port: int = 0  # of the instance; 0 for exec
    path: str = "/"  # of http
    service: str = ""  # of grpc; empty: the server as a whole
    command: tuple[str, ...] = ()  # of exec
    interval_s: float = 5.0
    timeout_s: float = 2.0
    healthy_after: int = 1  # passes in a row
    unhealthy_after: int = 3  # failures in a row
    grace_s: float = 0.0  # after a start, in which failures do not count

    def __post_init__(self) -> None:
        if self.method is CheckMethod.EXEC:
            if not 0 < len(self.command) <= MAX_COMMAND or any("\0" in word for word in self.command):
                raise errors.Invalid(
                    f"an exec check needs a command of 1 to {MAX_COMMAND} words without NUL bytes",
                    field="checks.command",
                )
        elif not 1 <= self.port <= 65535:
            raise errors.Invalid(f"a check's port is 1 to 65535, not {self.port}", field="checks.port")
        if not self.path.startswith("/") or not _is_plain(self.path):
            raise errors.Invalid(
                f"the path of an http check begins with '/' and has no spaces: {self.path[:40]!r}",
                field="checks.path",
            )
        if not _is_plain(self.service):
            raise errors.Invalid("the service of a grpc check has no spaces", field="checks.service")
        if not 0.1 <= self.interval_s <= _MAX_SECONDS:
            raise errors.Invalid("a check's interval is 100ms to 1h", field="checks.interval_s")
        if not 0.05 <= self.timeout_s <= 300.0:
            raise errors.Invalid("a check's timeout is 50ms to 5m", field="checks.timeout_s")
        if not 0.0 <= self.grace_s <= _MAX_SECONDS:
            raise errors.Invalid("a check's grace is 0 to 1h", field="checks.grace_s")
        for threshold in (self.healthy_after, self.unhealthy_after):
            if not 1 <= threshold <= _MAX_THRESHOLD:
                raise errors.Invalid(
                    f"a check's thresholds are 1 to {_MAX_THRESHOLD}", field="checks.healthy_after"
                )

    @property
    def target(self) -> str:
        """What it probes, such as `http:80/health`."""
        match self.method:
            case CheckMethod.HTTP:
                return f"http:{self.port}{self.path}"
            case CheckMethod.GRPC:
                return f"grpc:{self.port}" + (f"/{self.service}" if self.service else "")
            case CheckMethod.TCP:
                return f"tcp:{self.port}"
            case CheckMethod.EXEC:
                return f"exec:{' '.join(self.command)}"


def parse(text: str, role: CheckRole = CheckRole.READINESS) -> HealthCheck:
    """`http:80/health`, `tcp:5432`, `grpc:50051/Name` or `exec:COMMAND`, each of the first three with
    `,interval=2s`, `timeout`, `grace`, `healthy` and `unhealthy` behind it."""
    if text.startswith("exec:"):
        return HealthCheck(role, CheckMethod.EXEC, command=tuple(text.removeprefix("exec:").split()))
    form = _FORM.fullmatch(text)
    if form is None:
        raise errors.Invalid(
            f"{text[:40]!r} is no check; write `http:80/health`, `tcp:5432`, `grpc:50051` or `exec:COMMAND`",
            field="checks",
        )
    method, port, rest = CheckMethod(form[1]), int(form[2]), form[3]
    place, *options = rest.split(",")
    numbers = dict(_option(option) for option in options)
    if place and (not place.startswith("/") or method is CheckMethod.TCP):
        raise errors.Invalid(f"what is {place[:40]!r} behind the port of {text[:40]!r}?", field="checks")
    is_http = method is CheckMethod.HTTP
    return HealthCheck(
        role,
        method,
        port,
        path=(place or "/") if is_http else "/",
        service="" if is_http else place.removeprefix("/"),
        interval_s=numbers.get("interval_s", 5.0),
        timeout_s=numbers.get("timeout_s", 2.0),
        healthy_after=int(numbers.get("healthy_after", 1)),
        unhealthy_after=int(numbers.get("unhealthy_after", 3)),
        grace_s=numbers.get("grace_s", 0.0),
    )


def check_all(checks: tuple[HealthCheck, ...], published: tuple[int, ...]) -> None:
    """Raise unless an instance that publishes these ports of its own can have all of these checks."""
    if len(checks) > MAX_CHECKS:
        raise errors.Invalid(f"{len(checks)} checks are too many; at most {MAX_CHECKS}", field="checks")
    for check in checks:
        if published and check.port and check.port not in published:
            known = ", ".join(map(str, sorted(set(published))))
            raise errors.Invalid(
                f"the check {check.target} is on port {check.port}, and the ports that are published are "
                f"{known}; check one of these, or publish {check.port} too",
                field="checks.port",
            )


def _option(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    form = _DURATION.fullmatch(value)
    field = _OPTIONS.get(name)
    if not equals or form is None or field is None or (form[2] and field.endswith("_after")):
        raise errors.Invalid(
            f"{text[:40]!r} is no option of a check; write `interval=2s`, `timeout=500ms`, `grace=30s`, "
            "`healthy=1` or `unhealthy=3`",
            field="checks",
        )
    return field, float(form[1]) * _UNIT_S[form[2]]


def _is_plain(text: str) -> bool:
    return len(text) <= _MAX_TEXT and text.isprintable() and " " not in text
