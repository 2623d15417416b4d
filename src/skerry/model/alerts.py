"""Alerts: rules that name a condition and a receiver, and the state of what fires.

An `AlertRule` is written by an admin. Where it sends to is sealed apart (`skerry.control.alerts.registry`),
because the URLs of webhooks hold tokens; a rule has only what may be shown of it. An `AlertStatus` is what
the leader has found for one rule, and what its receiver was told of that.
"""

from __future__ import annotations

import enum
import hashlib
import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.secrets import SecretKind, SecretRef

MAX_RULES: Final = 200
MAX_ACTIVE: Final = 100  # alerts of one rule
MAX_DESTINATION: Final = 2048
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MAX_SECONDS: Final = 30 * 86_400.0
_MAIL: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,253}")
_MAX_ADDRESSES: Final = 10


class AlertCondition(enum.StrEnum):
    """What a rule is about."""

    NODE_LOST = "node-lost"
    SERVICE_NOT_READY = "service-not-ready"
    CRASH_LOOP = "crash-loop"
    CERTIFICATE_EXPIRES = "certificate-expires"
    DISK_LOW = "disk-low"
    BACKUP_OLD = "backup-old"
    JOB_FAILED = "job-failed"
    CONTRACT_ENDS = "contract-ends"
    SPENDING = "spending"


class AlertThreshold(NamedTuple):
    """The number of a condition, with its unit for people."""

    default: float | None  # None: it must be given
    unit: str


THRESHOLDS: Final[Mapping[AlertCondition, AlertThreshold]] = {
    AlertCondition.CRASH_LOOP: AlertThreshold(3, "restarts in a row"),
    AlertCondition.CERTIFICATE_EXPIRES: AlertThreshold(14, "days before its end"),
    AlertCondition.DISK_LOW: AlertThreshold(10, "percent free"),
    AlertCondition.BACKUP_OLD: AlertThreshold(26, "hours since the last backup"),
    AlertCondition.JOB_FAILED: AlertThreshold(1, "hours since it failed"),
    AlertCondition.CONTRACT_ENDS: AlertThreshold(24, "hours before its end"),
    AlertCondition.SPENDING: AlertThreshold(None, "paid per hour, in one currency"),
}
# About objects of a namespace, so that a rule can be for one namespace alone.
NAMESPACED: Final = frozenset(
    {AlertCondition.SERVICE_NOT_READY, AlertCondition.CRASH_LOOP, AlertCondition.JOB_FAILED}
)


class ReceiverKind(enum.StrEnum):
    """How a rule notifies."""

    WEBHOOK = "webhook"
    MAIL = "mail"


class AlertState(enum.StrEnum):
    """The state of an alert."""

    PENDING = "pending"  # its condition holds, not yet for long enough
    FIRING = "firing"
    RESOLVED = "resolved"


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule as it is stored."""

    id: str
    name: str
    condition: AlertCondition
    receiver: ReceiverKind
    shown: str  # of its destination: scheme and host of a webhook, addresses of mail
    digest: str  # of its destination, by which it can be compared
    created_at: float
    for_s: float = 0.0  # so long must the condition hold before it fires
    resolve_after_s: float = 60.0  # and so long not hold before it is resolved
    repeat_s: float = 4 * 3600.0  # while it fires, it is notified of again after so long
    threshold: float | None = None
    namespace: Namespace | None = None  # None: all
    version: int = 1  # of its destination
    request_id: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise errors.Invalid(
                f"{self.name[:64]!r} cannot be the name of an alert: use up to 63 small letters, digits and "
                "dashes",
                field="name",
            )
        for field, seconds, least in (
            ("for_s", self.for_s, 0.0),
            ("resolve_after_s", self.resolve_after_s, 0.0),
            ("repeat_s", self.repeat_s, 60.0),
        ):
            if not (math.isfinite(seconds) and least <= seconds <= _MAX_SECONDS):
                raise errors.Invalid(f"{field} is {least:g} to {_MAX_SECONDS:g} seconds", field=field)
        self._check_threshold()
        if self.namespace is not None:
            ids.check_namespace(self.namespace)
            if self.condition not in NAMESPACED:
                raise errors.Invalid(
                    f"{self.condition} is about the whole cloud; leave out the namespace", field="namespace"
                )

    def _check_threshold(self) -> None:
        known = THRESHOLDS.get(self.condition)
        if known is None:
            if self.threshold is not None:
                raise errors.Invalid(f"{self.condition} has no threshold; leave it out", field="threshold")
        elif self.threshold is None:
            if known.default is None:
                raise errors.Invalid(f"{self.condition} needs a threshold: {known.unit}", field="threshold")
        elif not (math.isfinite(self.threshold) and 0 < self.threshold <= 1e9):
            raise errors.Invalid(
                f"the threshold of {self.condition} is above 0: {known.unit}", field="threshold"
            )

    @property
    def limit(self) -> float:
        """The threshold that counts; 0 for conditions without one."""
        known = THRESHOLDS.get(self.condition)
        if self.threshold is not None or known is None:
            return self.threshold or 0.0
        return known.default or 0.0

    @property
    def ref(self) -> SecretRef:
        """Where its destination is sealed."""
        return SecretRef(DEFAULT_NAMESPACE, SecretKind.ALERT, self.name, self.version)


class ActiveAlert(msgspec.Struct, frozen=True, omit_defaults=True):
    """One subject of a rule: a node that is lost, a service that is not ready."""

    labels: dict[str, str]  # that identify it
    summary: str
    state: AlertState
    since: float  # its condition holds
    fired_at: float | None = None
    absent_since: float | None = None  # its condition does not hold any more
    resolved_at: float | None = None
    notified_state: AlertState | None = None  # what its receiver knows

    @property
    def is_due(self) -> bool:
        """True if its receiver does not know of its state."""
        return self.state is not AlertState.PENDING and self.notified_state is not self.state

    def fingerprint(self, rule: str) -> str:
        """The same for the same subject of a rule."""
        return fingerprint(rule, self.labels)


class AlertStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the leader has found for one rule."""

    rule: str  # its id
    alerts: tuple[ActiveAlert, ...] = ()
    notified_at: float | None = None  # when its receiver last took a notification
    attempts: int = 0  # that failed since
    retry_at: float = 0.0
    error: str = ""  # of the last attempt
    left_out: int = 0  # subjects beyond `MAX_ACTIVE`

    @property
    def state(self) -> str:
        """`firing`, `pending` or `ok`."""
        states = {alert.state for alert in self.alerts}
        if AlertState.FIRING in states:
            return AlertState.FIRING.value
        return AlertState.PENDING.value if AlertState.PENDING in states else "ok"


def fingerprint(rule: str, labels: Mapping[str, str]) -> str:
    text = "\0".join((rule, *(f"{key}={labels[key]}" for key in sorted(labels))))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_of(rule_id: str, destination: str) -> str:
    """By which a destination is compared without showing it; the id is what makes it of one rule."""
    return hashlib.sha256(f"{rule_id}\n{destination}".encode()).hexdigest()[:32]


def check_destination(kind: ReceiverKind, destination: str) -> str:
    """What may be shown of it; raises `Invalid` unless it can be sent to."""
    if len(destination) > MAX_DESTINATION or not destination.isprintable():
        raise errors.Invalid(f"a destination has at most {MAX_DESTINATION} characters", field="destination")
    return _check_url(destination) if kind is ReceiverKind.WEBHOOK else ", ".join(mail_addresses(destination))


def mail_addresses(destination: str) -> list[str]:
    """The addresses that mail is sent to; `Invalid` if one is none."""
    addresses = [each.strip() for each in destination.split(",")]
    if len(addresses) > _MAX_ADDRESSES:
        raise errors.Invalid(f"mail goes to at most {_MAX_ADDRESSES} addresses", field="destination")
    for address in addresses:
        if not _MAIL.fullmatch(address):
            raise errors.Invalid(f"{address[:64]!r} is no mail address", field="destination")
    return addresses


def _check_url(url: str) -> str:
    """The scheme, host and port. Errors do not repeat the URL."""
    try:
        split = urlsplit(url)
        host, port = split.hostname, split.port
    except ValueError:
        raise errors.Invalid("the URL of the webhook cannot be read", field="destination") from None
    if split.scheme not in ("http", "https") or not host or " " in url:
        raise errors.Invalid(
            "a webhook is a URL such as https://hooks.example.org/services/TOKEN", field="destination"
        )
    if split.fragment:
        raise errors.Invalid("the URL of a webhook has no part behind '#'", field="destination")
    shown_host = f"[{host}]" if ":" in host else host
    return f"{split.scheme}://{shown_host}{f':{port}' if port else ''}/..."
