"""What the conditions of rules hold for now, read from memory. Pure, but for the sources that it reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from skerry.control.alerts.decisions import AlertSubject
from skerry.control.telemetry.certificate_metrics import CertificateEnd
from skerry.control.telemetry.instance_metrics import is_crash_looping
from skerry.model import errors
from skerry.model.alerts import AlertCondition, AlertRule
from skerry.model.jobs import Job, JobStatus
from skerry.model.nodes import Liveness, Node
from skerry.model.services import Service
from skerry.model.statuses import NodeStatus
from skerry.model.workloads import Instance

_DAY_S: Final = 86_400.0
_HOUR_S: Final = 3600.0
# Certificates of Skerry's own are renewed long before: one that has so little of its life left was not.
_LEFT_SHARE: Final = 0.2


class ObservedNode(NamedTuple):
    """A registered node, and how long it has been silent."""

    node: Node
    liveness: Liveness


class ObservedService(NamedTuple):
    """A service, and its ready copies."""

    service: Service
    ready: int


class ServerDisk(NamedTuple):
    """The disk of the server that leads."""

    server: str
    free_share: float


class BoughtContract(NamedTuple):
    """A contract of another cloud that has not ended."""

    id: str
    seller: str
    due_at: float
    currency: str
    per_hour: float


class AlertSources(msgspec.Struct, frozen=True):
    """Where observations come from."""

    nodes: Callable[[], Iterable[ObservedNode]]
    services: Callable[[], Iterable[ObservedService]]
    instances: Callable[[], Iterable[Instance]]
    jobs: Callable[[], Iterable[Job]]
    certificates: Callable[[], Iterable[CertificateEnd]]
    disk: Callable[[], ServerDisk]
    contracts: Callable[[], Iterable[BoughtContract]]
    # When the last backup was made, 0: never. None: this server makes none by itself.
    last_backup: Callable[[], float] | None = None

    def check(self, condition: AlertCondition) -> None:
        """Raise `FailedPrecondition` if it cannot be observed here."""
        if condition is AlertCondition.BACKUP_OLD and self.last_backup is None:
            raise errors.FailedPrecondition(
                "this server makes no backups by itself, so it cannot tell how old the last is; set "
                "backup.schedule and backup.target"
            )


def observe(rule: AlertRule, sources: AlertSources, now: float) -> Iterator[AlertSubject]:
    """Everything that the condition of `rule` holds for."""
    limit = rule.limit
    match rule.condition:
        case AlertCondition.NODE_LOST:
            yield from _lost_nodes(sources)
        case AlertCondition.SERVICE_NOT_READY:
            yield from _unready_services(rule, sources)
        case AlertCondition.CRASH_LOOP:
            yield from _crash_loops(rule, sources)
        case AlertCondition.CERTIFICATE_EXPIRES:
            yield from _ending_certificates(limit * _DAY_S, sources, now)
        case AlertCondition.DISK_LOW:
            yield from _full_disks(limit, sources)
        case AlertCondition.BACKUP_OLD:
            yield from _old_backup(limit * _HOUR_S, sources, now)
        case AlertCondition.JOB_FAILED:
            yield from _failed_jobs(rule, sources, now)
        case AlertCondition.CONTRACT_ENDS:
            for contract in sources.contracts():
                if contract.due_at - now < limit * _HOUR_S:
                    yield AlertSubject(
                        {"contract": contract.id, "seller": contract.seller},
                        f"contract {contract.id} of {contract.seller} ends in {_time(contract.due_at - now)}",
                    )
        case AlertCondition.SPENDING:
            yield from _spending(limit, sources)


def _lost_nodes(sources: AlertSources) -> Iterator[AlertSubject]:
    for node, liveness in sources.nodes():
        is_lost = liveness is Liveness.LOST or node.status is NodeStatus.LOST
        if is_lost and not node.is_foreign:
            yield AlertSubject(
                {"node": node.name, "node_id": node.id}, f"node {node.name} is lost: it sends no heartbeats"
            )


def _unready_services(rule: AlertRule, sources: AlertSources) -> Iterator[AlertSubject]:
    for service, ready in sources.services():
        if service.is_deleting or ready >= service.replicas or not _is_in(rule, service.namespace):
            continue
        yield AlertSubject(
            {"namespace": service.namespace, "service": service.name},
            f"service {service.name} has {ready} of {service.replicas} copies ready",
        )


def _crash_loops(rule: AlertRule, sources: AlertSources) -> Iterator[AlertSubject]:
    for one in sources.instances():
        if not _is_in(rule, one.namespace) or not is_crash_looping(one, int(rule.limit)):
            continue
        yield AlertSubject(
            {"namespace": one.namespace, "instance": one.id, "name": one.spec.name},
            f"instance {one.spec.name} has ended badly and was restarted {one.restarts} times in a row",
        )


def _ending_certificates(before_s: float, sources: AlertSources, now: float) -> Iterator[AlertSubject]:
    for kind, name, not_before, not_after in sources.certificates():
        left = not_after - now
        if left >= min(before_s, (not_after - not_before) * _LEFT_SHARE):
            continue
        when = f"ends in {_time(left)}" if left > 0 else f"ended {_time(-left)} ago"
        yield AlertSubject({"kind": kind, "name": name}, f"the certificate of {kind} {name} {when}")


def _full_disks(percent: float, sources: AlertSources) -> Iterator[AlertSubject]:
    server, free_share = sources.disk()
    if free_share * 100 < percent:
        yield AlertSubject(
            {"server": server}, f"the disk of server {server} has {free_share * 100:.0f} % free"
        )
    for node, _ in sources.nodes():
        if node.facts.disk_pressure:
            yield AlertSubject(
                {"node": node.name, "node_id": node.id}, f"node {node.name}: {node.facts.disk_pressure}"
            )


def _old_backup(after_s: float, sources: AlertSources, now: float) -> Iterator[AlertSubject]:
    if sources.last_backup is None:
        return
    last = sources.last_backup()
    if now - last > after_s:
        since = f"the last backup was made {_time(now - last)} ago" if last else "there is no backup"
        yield AlertSubject({}, since)


def _failed_jobs(rule: AlertRule, sources: AlertSources, now: float) -> Iterator[AlertSubject]:
    for job in sources.jobs():
        if job.status is not JobStatus.FAILED or job.ended_at is None or not _is_in(rule, job.namespace):
            continue
        if now - job.ended_at < rule.limit * _HOUR_S:
            yield AlertSubject(
                {"namespace": job.namespace, "job": job.name, "job_id": job.id},
                f"job {job.name} failed: {job.reason}"[:500],
            )


def _spending(limit: float, sources: AlertSources) -> Iterator[AlertSubject]:
    paid: defaultdict[str, float] = defaultdict(float)
    for contract in sources.contracts():
        paid[contract.currency] += contract.per_hour
    for currency, amount in paid.items():
        if amount > limit:
            yield AlertSubject(
                {"currency": currency}, f"bought contracts cost {amount:.4g} {currency} an hour together"
            )


def _is_in(rule: AlertRule, namespace: str) -> bool:
    return rule.namespace is None or rule.namespace == namespace


def _time(seconds: float) -> str:
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:.0f} days"
    return f"{seconds / _HOUR_S:.0f} h" if seconds >= _HOUR_S else f"{max(0.0, seconds) / 60:.0f} min"
