"""Users of a secret follow a new version of it: on the leader, one pass over all users after every change.

Services get a revision that uses it and are updated by their policy; workloads get a new version, which their
instances follow if the workload's rollout is rolling; functions get a new version. Instances of a spec of
their own, and jobs, keep the versions that they were made with, as a program that runs keeps its environment;
a schedule uses the newest ones in its next run. A pass that changes nothing costs a look at each user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Protocol

import structlog
from msgspec.structs import replace

from skerry.control.leadership.election import LeaderElection
from skerry.control.secrets.registry import SecretRegistry
from skerry.control.services.registry import ServiceRegistry
from skerry.control.workloads.registry import WorkloadRecord, WorkloadRegistry
from skerry.model import errors, secret_versions
from skerry.model.secret_versions import SecretVersions
from skerry.model.secrets import SecretKind
from skerry.model.workloads import InstanceSpec
from skerry.store.protocol import Expect

log = structlog.get_logger(__name__)

ACTOR = "skerry"
_AGAIN_S = 5.0  # after a pass in which something failed


class SecretFollower(Protocol):
    """Users of one kind."""

    async def follow_secrets(self) -> None:
        """Have all of them use the newest versions."""
        ...


class ServiceFollower:
    """Services follow by an update."""

    def __init__(self, services: ServiceRegistry, secrets: SecretVersions) -> None:
        self._services = services
        self._secrets = secrets

    async def follow_secrets(self) -> None:
        tables = self._services.tables
        for service in tables.services.values():
            uses = service.target.template.secrets
            tried = [use for one in tables.revisions_of(service.id) for use in one.template.secrets]
            if secret_versions.follow(uses, service.namespace, self._secrets, tried) is not None:
                await _tolerant(self._services.follow_secrets(service, actor=ACTOR), "service", service.name)


class WorkloadFollower:
    """Workloads follow by a new version."""

    def __init__(self, workloads: WorkloadRegistry, secrets: SecretVersions) -> None:
        self._workloads = workloads
        self._secrets = secrets

    async def follow_secrets(self) -> None:
        for record in self._workloads.records():
            if record.value.is_deleting or self._followed(record) is None:
                continue

            def merge(spec: InstanceSpec, record: WorkloadRecord = record) -> InstanceSpec:
                namespace = record.value.namespace
                uses = secret_versions.follow(spec.secrets, namespace, self._secrets)
                return spec if uses is None else replace(spec, secrets=uses)

            changing = self._workloads.change(
                record.value.id, merge, actor=ACTOR, rollout=record.value.rollout, settles=False
            )
            await _tolerant(changing, "workload", record.value.spec.name)

    def _followed(self, record: WorkloadRecord) -> object:
        return secret_versions.follow(record.value.spec.secrets, record.value.namespace, self._secrets)


class SecretFollowing:
    """Runs the followers."""

    def __init__(self, secrets: SecretRegistry, followers: Sequence[SecretFollower]) -> None:
        self._secrets = secrets
        self._followers = followers
        self._changed = asyncio.Event()
        for kind in (SecretKind.SECRET, SecretKind.CONFIG):
            secrets.tables[kind].subscribe(lambda changes: self._changed.set())

    async def run(self, leader: LeaderElection) -> None:
        """For ever: follow while `leader` leads."""
        await self._secrets.ready()
        await leader.run_while_leading("secrets", self._lead)

    async def _lead(self, fence: Expect) -> None:
        # Every write expects the record as it was read and is made at most once, whoever makes it: so the
        # fence is not needed here.
        self._changed.set()  # what changed before this server led
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                for follower in self._followers:
                    await follower.follow_secrets()
            except errors.Unavailable as error:
                log.warning("secrets.not_followed", error=error.message)
                self._changed.set()
                await asyncio.sleep(_AGAIN_S)


async def _tolerant(work: Awaitable[object], noun: str, name: str) -> None:
    """One user that cannot follow does not keep the others from it."""
    try:
        await work
    except errors.Unavailable:
        raise
    except errors.SkerryError as error:
        log.warning("secrets.user_not_changed", noun=noun, name=name, error=error.message)
