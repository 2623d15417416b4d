"""What conditions hold for."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from skerry.control.alerts.observations import BoughtContract, ObservedNode, ObservedService, observe
from skerry.control.telemetry.certificate_metrics import CertificateEnd
from skerry.model import errors
from skerry.model.alerts import AlertCondition, AlertRule, ReceiverKind, check_destination
from skerry.model.ids import InstanceId, JobId, Namespace, NodeId, ServiceId
from skerry.model.jobs import Job, JobSpec, JobStatus
from skerry.model.nodes import Liveness, Node, NodeFacts
from skerry.model.services import Service, ServiceRevision
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec, ObservedState
from tests.control.alerts.test_decisions import RULE
from tests.support.alerts import Observed

NOW = 1_000_000.0
DAY = 86_400.0
SPEC = InstanceSpec(name="web", uri="example.org/web:1")
SHOP, OTHER = Namespace("shop"), Namespace("other")


def subjects(
    observed: Observed,
    condition: AlertCondition,
    threshold: float | None = None,
    namespace: str | None = None,
) -> list[dict[str, str]]:
    wanted = None if namespace is None else Namespace(namespace)
    rule = replace(RULE, condition=condition, threshold=threshold, namespace=wanted)
    return [dict(found.labels) for found in observe(rule, observed.sources(), NOW)]


def test_lost_nodes_by_heartbeats_and_by_their_record() -> None:
    observed = Observed(lost=["edge-1"])
    assert subjects(observed, AlertCondition.NODE_LOST) == [{"node": "edge-1", "node_id": "edge-1"}]


def test_services_with_fewer_ready_copies_than_replicas() -> None:
    revision = ServiceRevision(1, SPEC, 0.0)
    web = Service(ServiceId("s1"), "web", revision, 0.0, replicas=3, namespace=SHOP)
    going = replace(web, id=ServiceId("s2"), name="old", is_deleting=True)
    observed = Observed(services=[ObservedService(web, 2), ObservedService(going, 0)])
    assert subjects(observed, AlertCondition.SERVICE_NOT_READY) == [{"namespace": "shop", "service": "web"}]
    assert subjects(observed, AlertCondition.SERVICE_NOT_READY, namespace=OTHER) == []
    observed.services = [ObservedService(web, 3)]
    assert subjects(observed, AlertCondition.SERVICE_NOT_READY) == []


@pytest.mark.parametrize(("restarts", "count"), [(2, 0), (3, 1)])
def test_instances_that_crash_again_and_again(restarts: int, count: int) -> None:
    one = Instance(InstanceId("i"), SPEC, 0.0, ObservedState(InstanceStatus.CRASHED, 0.0), restarts=restarts)
    running = replace(one, observed=ObservedState(InstanceStatus.RUNNING, 0.0), restarts=9)
    observed = Observed(instances=[one, running])
    assert len(subjects(observed, AlertCondition.CRASH_LOOP)) == count
    assert subjects(observed, AlertCondition.CRASH_LOOP, threshold=5) == []


def test_certificates_near_their_end_measured_by_their_life() -> None:
    long = CertificateEnd("route", "default/shop", NOW - 80 * DAY, NOW + 10 * DAY)
    short = CertificateEnd("node", "edge-1", NOW - 0.5 * DAY, NOW + 0.5 * DAY)  # half of its life is left
    over = CertificateEnd("node", "edge-2", NOW - 2 * DAY, NOW - DAY)
    observed = Observed(certificates=[long, short, over])
    found = [one["name"] for one in subjects(observed, AlertCondition.CERTIFICATE_EXPIRES)]
    assert found == ["default/shop", "edge-2"]
    assert subjects(observed, AlertCondition.CERTIFICATE_EXPIRES, threshold=5) == [
        {"kind": "node", "name": "edge-2"}
    ]


def test_disks_of_the_server_and_of_nodes() -> None:
    observed = Observed(free_share=0.09)
    assert subjects(observed, AlertCondition.DISK_LOW) == [{"server": "hub"}]
    full = Node(NodeId("n"), "edge", 0.0, 0.0, facts=NodeFacts(disk_pressure="its disk is full"))
    sources = msgspec.structs.replace(Observed().sources(), nodes=lambda: [ObservedNode(full, Liveness.LIVE)])
    rule = replace(RULE, condition=AlertCondition.DISK_LOW)
    assert [found.summary for found in observe(rule, sources, NOW)] == ["node edge: its disk is full"]


def test_an_old_backup_and_none_at_all() -> None:
    assert subjects(Observed(last_backup=NOW - 3600), AlertCondition.BACKUP_OLD) == []
    assert subjects(Observed(last_backup=NOW - 27 * 3600), AlertCondition.BACKUP_OLD) == [{}]
    assert subjects(Observed(last_backup=0.0), AlertCondition.BACKUP_OLD) == [{}]
    with pytest.raises(errors.FailedPrecondition, match="no backups"):
        Observed().sources().check(AlertCondition.BACKUP_OLD)


def test_jobs_that_failed_lately() -> None:
    job = Job(JobId("j"), "sums", JobSpec(SPEC), 0.0, SHOP, JobStatus.FAILED, ended_at=NOW - 1800)
    observed = Observed(jobs=[job, replace(job, name="older", ended_at=NOW - 7200)])
    assert [one["job"] for one in subjects(observed, AlertCondition.JOB_FAILED)] == ["sums"]
    assert subjects(observed, AlertCondition.JOB_FAILED, namespace=OTHER) == []


def test_contracts_that_end_soon_and_what_they_cost() -> None:
    observed = Observed(
        contracts=[
            BoughtContract("c1", "north", NOW + 3600, "EUR", 0.5),
            BoughtContract("c2", "south", NOW + 9 * DAY, "EUR", 0.7),
        ]
    )
    assert [one["contract"] for one in subjects(observed, AlertCondition.CONTRACT_ENDS)] == ["c1"]
    assert subjects(observed, AlertCondition.SPENDING, 1.0) == [{"currency": "EUR"}]
    assert subjects(observed, AlertCondition.SPENDING, 2.0) == []


def rule_with(**fields: object) -> AlertRule:
    return replace(RULE, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "No Name"}, "small letters"),
        ({"for_s": -1.0}, "for_s"),
        ({"repeat_s": float("nan")}, "repeat_s"),
        ({"threshold": 1.0}, "no threshold"),
        ({"condition": AlertCondition.SPENDING}, "needs a threshold"),
        ({"condition": AlertCondition.DISK_LOW, "threshold": 0.0}, "above 0"),
        ({"namespace": SHOP}, "whole cloud"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(errors.Invalid, match=message):
        rule_with(**fields)


@pytest.mark.parametrize(
    ("kind", "destination", "shown"),
    [
        (
            ReceiverKind.WEBHOOK,
            "https://u:p@hooks.example.org:8443/a/TOKEN?k=v",
            "https://hooks.example.org:8443/...",
        ),
        (ReceiverKind.WEBHOOK, "http://[2001:db8::1]/x", "http://[2001:db8::1]/..."),
        (ReceiverKind.MAIL, "a@example.org,b@example.org", "a@example.org, b@example.org"),
    ],
)
def test_of_a_destination_only_the_host_is_shown(kind: ReceiverKind, destination: str, shown: str) -> None:
    assert check_destination(kind, destination) == shown


@pytest.mark.parametrize(
    ("kind", "destination"),
    [
        (ReceiverKind.WEBHOOK, "ftp://hooks/TOKEN"),
        (ReceiverKind.WEBHOOK, "https:///TOKEN"),
        (ReceiverKind.WEBHOOK, "https://hooks:port/TOKEN"),
        (ReceiverKind.WEBHOOK, "https://hooks/TOKEN\r\nX: 1"),
        (ReceiverKind.WEBHOOK, "https://hooks/TOKEN" + "a" * 3000),
        (ReceiverKind.MAIL, "TOKEN"),
        (ReceiverKind.MAIL, ",".join(["a@example.org"] * 11)),
    ],
)
def test_a_destination_that_is_none_is_refused(kind: ReceiverKind, destination: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        check_destination(kind, destination)
    assert kind is ReceiverKind.MAIL or "TOKEN" not in str(caught.value).replace("services/TOKEN", "")
