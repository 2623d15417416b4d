"""Records of a made-up cloud, as its store has them: nothing, a little, or a thousand of everything. The same
every time, but for the time that they are relative to.

The few have the names of a small shop with two edge sites; the many are numbered copies of them, some of
which have names as long as they may be.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from skerry.console.components import Tone
from skerry.console.network_map import MapLink, MapNode, NetworkMap
from skerry.kit import json_codec, ulid
from skerry.model.callers import Certificate, Role, Token
from skerry.model.cell_reports import CellReport
from skerry.model.cells import CellLimits, CellOwner, own_name
from skerry.model.container_options import NodeFeature
from skerry.model.events import Event
from skerry.model.functions import Function
from skerry.model.health_checks import CheckMethod, CheckRole, HealthCheck
from skerry.model.ids import (
    CellName,
    Digest,
    FunctionName,
    InstanceId,
    JobId,
    Namespace,
    NodeId,
    ScheduleId,
    ServiceId,
    VolumeId,
    WorkloadId,
)
from skerry.model.jobs import Job, JobSpec, JobStatus
from skerry.model.members import ContinuumMember
from skerry.model.nodes import Node, NodeFacts
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.routes import Route, RouteSpec, RouteTarget
from skerry.model.schedules import FunctionTarget, RunStatus, Schedule, ScheduledRun
from skerry.model.secrets import Secret, SecretKind, SecretVersion
from skerry.model.services import RevisionOutcome, Service, ServiceRevision, ServiceRollout, UpdatePolicy
from skerry.model.statuses import DesiredStatus, InstanceStatus, NodeStatus
from skerry.model.tls_certificates import CertificateSource, TlsCertificate
from skerry.model.volumes import Volume, VolumeStatus
from skerry.model.workloads import (
    Instance,
    InstanceOwner,
    InstanceSpec,
    ObservedState,
    OwnerKind,
    Workload,
)

LITTLE, MANY = 6, 1000
LONG = "a-name-as-long-as-those-who-generate-them-make-one"  # 50
_SITES = (("hub", 8000, 16384), ("edge-north", 4000, 8192), ("edge-south", 4000, 4096))
_SERVICES = ("web", "checkout", "search", "catalog", "payments", "mail")
_FUNCTIONS = ("resize-image", "total-of-cart", "send-receipt", "tag-photo", "forecast", "geocode")
_JOBS = ("nightly-report", "import-prices", "rebuild-index", "backup-orders", "sum-stock", "warm-cache")
_NAMESPACES = ("default", "shop", "tools")
HOUR, DAY = 3600.0, 86400.0


class Amount(NamedTuple):
    """How much there is: the number of objects of each kind, and when it is now."""

    number: int
    now: float

    @property
    def has_any(self) -> bool:
        return self.number > 0

    def names(self, few: tuple[str, ...]) -> Iterator[tuple[int, str]]:
        """So many names, the few first."""
        for index in range(self.number):
            number = index // len(few)
            if index == len(few):
                yield index, LONG
            else:
                yield index, few[index % len(few)] + (f"-{number + 1}" if number else "")


def spec(name: str, cpu: int = 250, memory: int = 256, **more: Any) -> InstanceSpec:
    checks = (HealthCheck(CheckRole.READINESS, CheckMethod.HTTP, 8080, "/health"),)
    return InstanceSpec(
        name,
        f"registry.example.org/{name[:20]}:2.4",
        resources=Resources(Millicores(cpu), Megabytes(memory), Gigabytes(1)),
        checks=checks,
        **more,
    )


def namespace(index: int) -> Namespace:
    return Namespace(_NAMESPACES[1 if index < LITTLE else index % 3])


def nodes(amount: Amount) -> list[Node]:
    """With nothing there is still the node of this machine."""
    found = []
    for index in range(max(1, min(amount.number, 5) if amount.number <= LITTLE else amount.number)):
        site, cpu, memory = _SITES[(0, 1, 1, 2, 2)[index % 5]]
        is_borrowed = index % 5 == 4 and amount.has_any
        id = NodeId(f"borrowed-{index:05}" if is_borrowed else f"n{index:05}")
        name = f"{site}-{index + 1}" if amount.has_any else "hub-1"
        member = None if is_borrowed else ContinuumMember(id, name, site, memory=memory // 2, cpus=cpu / 1000)
        found.append(
            Node(
                id,
                name,
                amount.now - 30 * DAY + index * 60,
                amount.now - 5,
                NodeStatus.READY,
                facts=NodeFacts(
                    "arm64" if site == "edge-south" else "amd64",
                    "Debian GNU/Linux 12 (bookworm)",
                    "6.1.0-18",
                    "0.9.0",
                    "crun 1.8",
                    runs_checks=True,
                    features=tuple(NodeFeature),
                ),
                labels={"area": site, "disk": "ssd"},
                resources=Resources(Millicores(cpu), Megabytes(memory), Gigabytes(80)),
                subnet=f"10.64.{index % 256}.0/24",
                is_cordoned=index == 2,
                member=member,
            )
        )
    return found


def _status(index: int) -> tuple[InstanceStatus, str]:
    if index % 37 == 20:
        return InstanceStatus.CRASHED, "exit code 137: out of memory; restarts in 20 s"
    if index % 41 == 7:
        return InstanceStatus.SCHEDULING, "0 of 5 nodes fit: 4 lack memory (256 MB asked); 1 is cordoned"
    return InstanceStatus.RUNNING, ""


def instances(amount: Amount) -> list[Instance]:
    """The copies of services, two each, and those of workloads."""
    found = []
    places = nodes(amount)
    named = dict(amount.names(_SERVICES))
    copies = amount.number * 2 if amount.number <= LITTLE else amount.number
    for index in range(copies + 2 if amount.number == LITTLE else copies):
        number = index // 2
        name = f"web-{number}" if amount.number > LITTLE else named.get(number, "worker")
        status, reason = _status(index)
        is_placed = status is not InstanceStatus.SCHEDULING
        revision = 4 if number % 6 == 1 and index % 2 else 3  # of a canary
        is_of_workload = index >= copies if amount.number == LITTLE else index % 6 == 5
        owner = InstanceOwner(OwnerKind.SERVICE, f"s{number:05}", name, revision, index % 2)
        found.append(
            Instance(
                InstanceId(f"01k{index:023}"),
                spec(name),
                amount.now - DAY + index,
                ObservedState(status, amount.now - 5 * HOUR + index, reason),
                workload=WorkloadId("w00000") if is_of_workload else None,
                version=2 if is_of_workload else 0,
                node=places[index % len(places)].id if is_placed else None,
                ip=f"10.64.{index % 5}.{index % 200 + 2}" if is_placed else "",
                restarts=3 if status is InstanceStatus.CRASHED else 0,
                namespace=namespace(number),
                owner=None if is_of_workload else owner,
                desired=DesiredStatus.RUNNING,
            )
        )
    return found


def services(amount: Amount) -> list[Service]:
    found = []
    for index, name in amount.names(_SERVICES):
        good = ServiceRevision(3, spec(name), amount.now - 2 * DAY, "ann", RevisionOutcome.GOOD)
        is_canary = index % 6 == 1
        target = ServiceRevision(4, spec(name), amount.now - 600, "ann") if is_canary else good
        found.append(
            Service(
                ServiceId(f"s{index:05}"),
                name,
                target,
                amount.now - 20 * DAY + index,
                2,
                namespace(index),
                UpdatePolicy(canary=1) if is_canary else UpdatePolicy(),
                stable=good,
                latest=target.number,
                rollout=ServiceRollout(amount.now - 600, amount.now - 300, 1, True) if is_canary else None,
                address=f"10.96.{index // 250}.{index % 250 + 1}",
            )
        )
    return found


def workloads(amount: Amount) -> list[Workload]:
    return [
        Workload(
            WorkloadId(f"w{index:05}"),
            spec(name),
            amount.now - 9 * DAY + index,
            2,
            namespace=namespace(index),
        )
        for index, name in amount.names(("worker", "cache", "queue", "proxy", "indexer", "crawler"))
    ]


def functions(amount: Amount) -> list[Function]:
    return [
        Function(
            FunctionName(name if namespace(index) == "default" else f"{namespace(index)}:{name}"),
            ("python310", "nodejs17")[index % 2],
            Megabytes((128, 256, 64)[index % 3]),
            amount.now - 12 * DAY + index,
            handler="main.handler",
            code=Digest("sha256:" + "a" * 64),
            updated_at=amount.now - 3 * HOUR,
            version=index % 7 + 1,
        )
        for index, name in amount.names(_FUNCTIONS)
    ]


def jobs(amount: Amount) -> list[Job]:
    found = []
    for index, name in amount.names(_JOBS):
        status = (JobStatus.SUCCEEDED, JobStatus.RUNNING, JobStatus.FAILED)[index % 3]
        is_over = status is not JobStatus.RUNNING
        found.append(
            Job(
                JobId(f"j{index:05}"),
                name,
                JobSpec(spec(name), completions=4, parallelism=2),
                amount.now - 2 * HOUR + index,
                namespace(index),
                status,
                tuple(range(4 if status is JobStatus.SUCCEEDED else 2)),
                3 if status is JobStatus.FAILED else 0,
                amount.now - HOUR if is_over else None,
                "completion 2 failed 4 times, the last with exit code 1"
                if status is JobStatus.FAILED
                else "",
            )
        )
    return found


def schedules(amount: Amount) -> list[Schedule]:
    found = []
    for index, name in amount.names(("nightly", "hourly", "mondays", "prune", "rollup", "ping")):
        runs = tuple(
            ScheduledRun(
                amount.now - (20 - number) * HOUR,
                RunStatus.FAILED if number == 13 else RunStatus.SUCCEEDED,
                amount.now - (20 - number) * HOUR,
                amount.now - (20 - number) * HOUR + 12,
                f"call-{number}",
            )
            for number in range(20)
        )
        found.append(
            Schedule(
                ScheduleId(f"c{index:05}"),
                name[:39],
                "30 3 * * *",
                FunctionTarget(FunctionName("shop:forecast")),
                amount.now - 8 * DAY + index,
                "Europe/Berlin",
                namespace(index),
                is_paused=index % 4 == 3,
                handled_until=amount.now,
                runs=runs,
            )
        )
    return found


def volumes(amount: Amount) -> list[Volume]:
    places = nodes(amount)
    return [
        Volume(
            VolumeId(f"v{index:05}"),
            name,
            Gigabytes((10, 50, 200)[index % 3]),
            amount.now - 15 * DAY + index,
            namespace(index),
            places[index % len(places)].id,
            VolumeStatus.READY,
        )
        for index, name in amount.names(("orders", "photos", "search-index", "mail-spool", "prices", "logs"))
    ]


def secrets(amount: Amount) -> list[Secret]:
    found = []
    for index, name in amount.names(("database", "smtp", "api-key", "app.toml", "signing", "motd")):
        kind = SecretKind.CONFIG if "." in name or index % 6 == 5 else SecretKind.SECRET
        version = SecretVersion(index % 4 + 1, amount.now - 4 * DAY, "ann", 48)
        found.append(Secret(f"x{index:05}", name, kind, amount.now - 9 * DAY, (version,), namespace(index)))
    return found


def routes(amount: Amount) -> list[Route]:
    found = []
    for index, name in amount.names(("shop", "api", "pay", "find", "mail", "files")):
        target = RouteTarget.parse("fn/geocode" if index % 3 == 2 else f"service/{_SERVICES[index % 6]}:8080")
        route = RouteSpec(
            f"{name}.example.org", "/" if index % 2 else "/v2", target, is_public=index % 3 == 2
        )
        found.append(Route(f"r{index:05}", name, route, amount.now - 3 * DAY + index, namespace(index)))
    return found


def route_certificates(amount: Amount) -> list[TlsCertificate]:
    return [
        TlsCertificate(
            f"t{index:05}",
            name,
            amount.now - 60 * DAY,
            CertificateSource.ACME,
            (f"{name}.example.org",),
            namespace(index),
            1,
            "Example CA",
            f"{index:032x}",
            not_before=amount.now - 60 * DAY,
            not_after=amount.now + (30 if index else 3) * DAY + index,
            renew_at=amount.now + 2 * DAY,
        )
        for index, name in amount.names(("shop", "api", "pay", "find", "mail", "files"))
    ]


def tokens(amount: Amount) -> list[Token]:
    return [
        Token(
            f"k{index:09}",
            (Role.DEPLOYER, Role.VIEWER, Role.INVOKER)[index % 3],
            "0" * 64,
            amount.now - 5 * DAY + index,
            amount.now + (index + 1) * DAY if index % 4 else None,
            f"{name} pipeline",
            namespaces=(Namespace("shop"),) if index % 2 else None,
        )
        for index, name in amount.names(("build", "deploy", "monitor", "shop", "report", "partner"))
    ]


def certificates(amount: Amount) -> list[Certificate]:
    return [
        Certificate(
            f"{index + 1:032x}",
            Role.NODE,
            one.name,
            one.id,
            amount.now - 3 * DAY,
            amount.now + 4 * DAY + index,
        )
        for index, one in enumerate(nodes(amount))
    ]


def events(amount: Amount) -> list[tuple[str, Event]]:
    kinds = ("instance.running", "service.updated", "function.updated", "instance.bound", "job.succeeded")
    found = []
    last = ""
    for index in range(amount.number * 3 if amount.number <= LITTLE else amount.number):
        at = amount.now - (amount.number * 3 - index) * 40
        kind = kinds[index % len(kinds)]
        subject = f"{kind.partition('.')[0]}/shop/{_SERVICES[index % 6]}"
        last = ulid.new_id_after(last, at)
        data = {"namespace": "shop", "revision": str(index % 5)}
        found.append((last, Event(kind, subject, at, ("ann", "skerry")[index % 2], "", data)))
    return found


def records(amount: Amount) -> dict[str, bytes]:
    """All of it, by the keys of the store."""
    found: dict[str, Any] = {f"node/{one.id}": one for one in nodes(amount)}
    found |= {f"instance/{one.id}": one for one in instances(amount)}
    found |= {f"workload/{one.id}": one for one in workloads(amount)}
    found |= {f"service/{one.namespace}/{one.name}": one for one in services(amount)}
    for service in services(amount):
        for revision in filter(None, (service.stable, service.target)):
            found[f"service-revision/{service.id}/{revision.number:08}"] = revision
    found |= {f"function/{one.name}": one for one in functions(amount)}
    found |= {f"job/{one.namespace}/{one.name}": one for one in jobs(amount)}
    found |= {f"schedule/{one.namespace}/{one.name}": one for one in schedules(amount)}
    found |= {f"volume/{one.namespace}/{one.name}": one for one in volumes(amount)}
    found |= {f"{one.kind.value}/{one.namespace}/{one.name}": one for one in secrets(amount)}
    found |= {f"route/{one.namespace}/{one.name}": one for one in routes(amount)}
    found |= {f"tls/{one.namespace}/{one.name}": one for one in route_certificates(amount)}
    found |= {f"identity/tokens/{one.id}": one for one in tokens(amount)}
    found |= {f"identity/certificates/{one.serial}": one for one in certificates(amount)}
    found |= {f"event/{id}": one for id, one in events(amount)}
    written = {key: json_codec.encode(value) for key, value in found.items()}
    for workload in workloads(amount):
        scope = "" if workload.namespace == "default" else f"{workload.namespace}/"
        written[f"workload-name/{scope}{workload.spec.name}"] = workload.id.encode()
    return written


def usage(index: int, step: int) -> Resources:
    """What the instance of this number used so many steps ago."""
    wave = 1 + math.sin((step + index * 7) / 25) * 0.5 + random.Random(index * 1000 + step).random() * 0.2
    return Resources(Millicores(round(90 * wave)), Megabytes(round(110 + 40 * wave)))


def cells(amount: Amount) -> list[CellReport]:
    """Of one node: containers, workers of functions, a sold contract with guests, and cells of a client."""
    if not amount.has_any:
        return []
    limits = CellLimits(cpu_quota=Millicores(250), memory=Megabytes(256))
    here = nodes(amount)[0].id
    own = [one for one in instances(amount) if one.node == here]
    many = amount.number if amount.number > LITTLE else 2
    found = [
        CellReport(
            own_name(f"i-{one.id}"),
            CellOwner.CONTAINER,
            one.id,
            limits,
            Millicores(40 + index % 190),
            (60 + index * 7 % 190) * 2**20,
            index % 9 + 1,
            ("main",),
            1,
        )
        for index, one in enumerate(own)
    ]
    pool = CellLimits(memory=Megabytes(4096))
    found.append(
        CellReport(
            own_name("functions"), CellOwner.FUNCTIONS, limits=pool, memory_bytes=310 * 2**20, pids=many
        )
    )
    for index in range(many):
        worker = own_name(f"functions/w{index:05}")
        limit = CellLimits(memory=Megabytes(128))
        found.append(
            CellReport(
                worker,
                CellOwner.FUNCTIONS,
                limits=limit,
                memory_bytes=(30 + index % 70) * 2**20,
                pids=2,
                function=functions(amount)[0].name if index % 2 == 0 else FunctionName(""),
            )
        )
    sold = own_name("i-contract")
    found.append(
        CellReport(
            sold,
            CellOwner.CONTRACT,
            limits=CellLimits(cpu_quota=Millicores(2000), memory=Megabytes(2048)),
            cpu=Millicores(830),
            memory_bytes=912 * 2**20,
            pids=14,
        )
    )
    found += [
        CellReport(CellName(f"{sold}/i-guest-{index}"), CellOwner.CONTRACT, memory_bytes=256 * 2**20, pids=7)
        for index in range(2)
    ]
    found += [
        CellReport(CellName("ci"), limits=CellLimits(memory=Megabytes(512)), memory_bytes=80 * 2**20, pids=3),
        CellReport(CellName("ci/build"), memory_bytes=61 * 2**20, pids=2, executables=("make",), running=1),
    ]
    return found


def network_map(amount: Amount) -> NetworkMap:
    found = nodes(amount)
    centres = {"hub": (0.0, 0.0, 0.0), "edge-north": (0.012, -0.008, 0.0), "edge-south": (-0.01, 0.014, 0.0)}
    dots = tuple(
        MapNode(
            one.id,
            one.name,
            one.member.area if one.member is not None else "",
            "CLOSED" if one.is_cordoned else "READY",
            Tone.WARNING if one.is_cordoned else Tone.GOOD,
            one.is_borrowed,
            centres[one.labels["area"]],
            (0, 412, 0, 97, 23)[index % 5] if amount.has_any else 0,
        )
        for index, one in enumerate(found)
    )
    near = found[:40]
    links = tuple(
        MapLink(
            one.id, other.id, "relayed" if (a + b) % 5 == 0 else "direct", (), 4.0 + (a * b) % 30, 2**20, 9.0
        )
        for a, one in enumerate(near)
        for b, other in enumerate(near)
        if a < b
    )
    return NetworkMap(dots, links, "wireguard")
