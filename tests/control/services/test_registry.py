"""Requests about services: what they write, in one transaction each, and what they refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from skerry.control.named_table import key_of
from skerry.control.services.registry import ServiceRegistry
from skerry.control.services.requests import ServiceSpec
from skerry.control.services.tables import ServiceTables, revision_key
from skerry.kit import tasks
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.ids import MARKET_NAMESPACE, Namespace
from skerry.model.images import ImageAccess
from skerry.model.services import (
    MAX_REVISIONS,
    AutoscalePolicy,
    RevisionOutcome,
    Service,
    ServiceStatus,
    UpdatePolicy,
)
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Expect, Op, Store
from tests.control.worlds import Server, Standings, condition, spec

WEB = ServiceSpec(spec(), replicas=3)


@dataclass
class World:
    """A registry on a store of its own, in which nobody decides."""

    server: Server
    tables: ServiceTables
    registry: ServiceRegistry

    async def finish(self, outcome: RevisionOutcome = RevisionOutcome.GOOD) -> Service:
        """Be a leader that has brought all copies to the target."""
        record = await self.registry.find("web")
        target = replace(record.value.target, outcome=outcome)
        done = replace(record.value, target=target, stable=target, rollout=None)
        key = key_of(done)
        await self.tables.services.commit(
            [
                self.tables.services.put(key, done),
                self.tables.revisions.put(revision_key(done.id, target.number), target),
            ]
        )
        return done

    async def kinds(self) -> list[str]:
        return [one.event.kind for one in await self.registry.events("web")]


@asynccontextmanager
async def world(store: Store | None = None) -> AsyncIterator[World]:
    clock = ManualClock()
    store = store or MemoryStore(clock)
    conditions = Standings([condition("n1")])
    server = Server(store, conditions, clock)
    tables = ServiceTables(store)
    registry = ServiceRegistry(
        store,
        server.events,
        clock,
        tables=tables,
        instance_table=server.instance_table,
        conditions=conditions,
        placement=server.reconciler,
    )
    async with server.running(leads=False):
        loop = asyncio.ensure_future(tables.run())
        try:
            await tables.ready()
            yield World(server, tables, registry)
        finally:
            await tasks.cancel_and_wait([loop])
            await store.close()


def image(number: int) -> Callable[[ServiceSpec], ServiceSpec]:
    def merge(before: ServiceSpec) -> ServiceSpec:
        return replace(before, template=replace(before.template, uri=f"example.org/web:{number}"))

    return merge


async def test_a_new_service_starts_its_first_revision() -> None:
    async with world() as one:
        service, is_new = await one.registry.create(WEB, actor="me")
        assert is_new
        assert (service.target.number, service.stable, service.latest) == (1, None, 1)
        assert service.rollout is not None
        assert service.status(0) is ServiceStatus.STARTING
        assert (await one.registry.find(service.id)).value == (await one.registry.find("web")).value
        assert [one.number for one in await one.registry.revisions("web")] == [1]
        assert await one.kinds() == ["service.created"]


async def test_a_name_belongs_to_one_service_however_many_want_it_at_once() -> None:
    async with world() as one:
        made = await asyncio.gather(
            *(one.registry.create(replace(WEB, replicas=number), actor="me") for number in range(1, 6)),
            return_exceptions=True,
        )
        assert sum(isinstance(each, tuple) for each in made) == 1
        assert sum(isinstance(each, errors.AlreadyExists) for each in made) == 4
        assert one.registry.list().total == 1


async def test_the_same_request_again_gives_the_same_service() -> None:
    async with world() as one:
        service, _ = await one.registry.create(WEB, actor="me", idempotency_key="k")
        assert await one.registry.create(WEB, actor="me") == (service, False)
        assert await one.registry.create(WEB, actor="me", idempotency_key="k") == (service, False)
        with pytest.raises(errors.AlreadyExists, match="Idempotency-Key"):
            await one.registry.create(replace(WEB, replicas=2), actor="me", idempotency_key="k")


async def test_a_changed_template_is_a_new_revision_and_nothing_else_is() -> None:
    async with world() as one:
        await one.registry.create(WEB, actor="me")
        await one.finish()
        same = await one.registry.change("web", lambda before: before, actor="me")
        assert same.rollout is None
        patient = replace(WEB.update, deadline_s=60.0)
        policy = await one.registry.change("web", lambda it: replace(it, update=patient), actor="me")
        assert (policy.latest, policy.update, policy.rollout) == (1, patient, None)
        changed = await one.registry.change("web", image(2), actor="you")
        assert (changed.target.number, changed.latest, changed.target.actor) == (2, 2, "you")
        assert changed.stable is not None
        assert changed.stable.number == 1
        assert changed.rollout is not None
        assert not changed.rollout.is_canary
        assert await one.kinds() == ["service.created", "service.changed", "service.changed"]


async def test_an_update_with_canaries_begins_with_them_unless_there_is_nothing_to_stay_with() -> None:
    async with world() as one:
        canary = replace(WEB, update=UpdatePolicy(canary=1))
        service, _ = await one.registry.create(canary, actor="me")
        assert service.rollout is not None
        assert not service.rollout.is_canary
        with pytest.raises(errors.FailedPrecondition, match="no canaries"):
            await one.registry.promote("web", actor="me")
        await one.finish()
        service = await one.registry.change("web", image(2), actor="me")
        assert service.status(3) is ServiceStatus.CANARY
        service = await one.registry.promote("web", actor="me")
        assert service.status(3) is ServiceStatus.UPDATING


async def test_a_rollback_goes_to_the_last_good_revision_or_to_one_by_number() -> None:
    async with world() as one:
        await one.registry.create(WEB, actor="me")
        with pytest.raises(errors.FailedPrecondition, match="no good revision before 1"):
            await one.registry.roll_back("web", actor="me")
        await one.finish()
        await one.registry.change("web", image(2), actor="me")
        back = await one.registry.roll_back("web", actor="me")
        assert (back.target.number, back.latest) == (1, 2)
        assert back.status(3) is ServiceStatus.REVERTING
        assert await one.registry.roll_back("web", actor="me") == back
        await one.finish()
        forward = await one.registry.roll_back("web", 2, actor="me")
        assert (forward.target.number, forward.latest) == (2, 2)
        assert forward.status(3) is ServiceStatus.UPDATING
        await one.finish()
        assert (await one.registry.roll_back("web", actor="me")).target.number == 1
        with pytest.raises(errors.NotFound, match="it has 1, 2"):
            await one.registry.roll_back("web", 9, actor="me")


async def test_a_rollback_resumes_what_is_paused() -> None:
    async with world() as one:
        await one.registry.create(WEB, actor="me")
        await one.finish()
        await one.registry.change("web", image(2), actor="me")
        assert (await one.registry.pause("web", actor="me")).status(3) is ServiceStatus.PAUSED
        assert not (await one.registry.roll_back("web", actor="me")).is_paused


async def test_resuming_begins_the_deadline_anew_also_after_a_failure() -> None:
    async with world() as one:
        service, _ = await one.registry.create(WEB, actor="me")
        assert service.rollout is not None
        halted = replace(service, rollout=replace(service.rollout, is_halted=True, reason="it failed"))
        key = key_of(service)
        await one.tables.services.commit([one.tables.services.put(key, halted)])
        one.server.clock.advance(100.0)  # type: ignore[attr-defined]
        resumed = await one.registry.resume("web", actor="me")
        assert resumed.rollout is not None
        now = one.server.clock.now()
        assert (resumed.rollout.started_at, resumed.rollout.progress_at) == (now, now)
        assert (resumed.rollout.is_halted, resumed.rollout.reason) == (False, "")
        await one.registry.pause("web", actor="me")
        one.server.clock.advance(100.0)  # type: ignore[attr-defined]
        resumed = await one.registry.resume("web", actor="me")
        assert resumed.rollout is not None
        assert (resumed.rollout.started_at, resumed.rollout.progress_at) == (now, now + 100.0)


async def test_ten_revisions_are_kept_besides_the_services_own() -> None:
    async with world() as one:
        await one.registry.create(WEB, actor="me")
        await one.finish()
        for number in range(2, 20):
            await one.registry.change("web", image(number), actor="me")
            await one.tables.revisions.sync()
        kept = [each.number for each in await one.registry.revisions("web")]
        assert kept == [1, *range(19 - MAX_REVISIONS, 20)]


async def test_replicas_are_scaled_unless_autoscaling_decides() -> None:
    async with world() as one:
        limited = replace(WEB, template=spec(cpu=100))
        await one.registry.create(limited, actor="me")
        assert (await one.registry.scale("web", 5, actor="me")).replicas == 5
        with pytest.raises(errors.Invalid, match="replicas are 0 to"):
            await one.registry.scale("web", 1_000_000, actor="me")
        scaling = AutoscalePolicy(min=1, max=3)
        clamped = await one.registry.change("web", lambda it: replace(it, autoscale=scaling), actor="me")
        assert clamped.replicas == 3
        with pytest.raises(errors.FailedPrecondition, match="decided by autoscaling"):
            await one.registry.scale("web", 2, actor="me")


async def test_a_service_that_is_deleted_keeps_its_name_until_it_is_gone() -> None:
    async with world() as one:
        await one.registry.create(WEB, actor="me")
        gone = await one.registry.delete("web", actor="me")
        assert await one.registry.delete("web", actor="me") == gone
        for refused in (
            one.registry.create(WEB, actor="me"),
            one.registry.change("web", image(2), actor="me"),
            one.registry.scale("web", 2, actor="me"),
            one.registry.resume("web", actor="me"),
        ):
            with pytest.raises(errors.Conflict, match="is being deleted"):
                await refused
        assert await one.kinds() == ["service.created", "service.deleted"]


async def test_a_key_whose_service_is_gone_makes_no_other() -> None:
    async with world() as one:
        service, _ = await one.registry.create(WEB, actor="me", idempotency_key="k")
        key = key_of(service)
        await one.tables.services.commit([one.tables.services.delete(key)])
        with pytest.raises(errors.Expired):
            await one.registry.create(WEB, actor="me", idempotency_key="k")
        again, is_new = await one.registry.create(WEB, actor="me")
        assert is_new
        assert again.id != service.id


async def test_requests_are_refused_where_they_may_not_be_made() -> None:
    async with world() as one:
        with pytest.raises(errors.Forbidden):
            await one.registry.create(WEB, actor="me", namespace=MARKET_NAMESPACE)
        path = replace(WEB, template=replace(WEB.template, uri="oci-archive:/etc/web.tar"))
        with pytest.raises(errors.Forbidden):
            await one.registry.create(path, actor="me")
        granted = replace(path, template=replace(path.template, granted_access=ImageAccess.ALL))
        await one.registry.create(granted, actor="me")
        for name, namespace in (("other", None), ("web", "shop"), ("default/web", None)):
            with pytest.raises(errors.NotFound):
                await one.registry.find(name, None if namespace is None else Namespace(namespace))
        huge = replace(
            WEB, template=spec("large", environment=tuple(f"V{n}={'x' * 30_000}" for n in range(9)))
        )
        with pytest.raises(errors.TooLarge):
            await one.registry.create(huge, actor="me")


async def test_a_change_of_what_has_changed_since_is_refused() -> None:
    async with world() as one:
        await one.registry.create(WEB, actor="me")
        revision = (await one.registry.find("web")).revision
        await one.registry.change("web", image(2), actor="me", if_match=revision)
        with pytest.raises(errors.FailedPrecondition):
            await one.registry.change("web", image(3), actor="me", if_match=revision)


async def test_of_many_changes_at_once_none_is_lost() -> None:
    async with world() as one:
        await one.registry.create(WEB, actor="me")

        def louder(number: int) -> Callable[[ServiceSpec], ServiceSpec]:
            def merge(it: ServiceSpec) -> ServiceSpec:
                variables = (*it.template.environment, f"V{number}=1")
                return replace(it, template=replace(it.template, environment=variables))

            return merge

        await asyncio.gather(*(one.registry.change("web", louder(n), actor="me") for n in range(8)))
        service = (await one.registry.find("web")).value
        assert len(service.target.template.environment) == 8
        assert service.latest == 9
        assert [each.number for each in await one.registry.revisions("web")] == list(range(1, 10))


class CrashingStore(MemoryStore):
    """Loses its connection at the commit that a test says, before it is done or after."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.fail_at: int | None = None
        self.is_done = False
        self.commits = 0

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        self.commits += 1
        if self.commits != self.fail_at:
            return await super().commit(ops, expect)
        if self.is_done:
            await super().commit(ops, expect)
        raise errors.Unavailable("the store is away")


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("fail_at", range(1, 9))
async def test_a_request_that_breaks_off_at_any_write_is_done_or_not_and_can_be_sent_again(
    fail_at: int, is_done: bool
) -> None:
    store = CrashingStore(ManualClock())
    store.is_done = is_done
    async with world(store) as one:
        registry = one.registry
        requests: list[Callable[[], object]] = [
            lambda: registry.create(WEB, actor="me", idempotency_key="k"),
            lambda: registry.change("web", image(2), actor="me"),
            lambda: registry.scale("web", 5, actor="me"),
            lambda: registry.pause("web", actor="me"),
            lambda: registry.resume("web", actor="me"),
            lambda: registry.roll_back("web", 1, actor="me"),
            lambda: registry.delete("web", actor="me"),
        ]
        store.commits, store.fail_at = 0, fail_at
        for request in requests:
            try:
                await request()  # type: ignore[misc]
            except errors.Unavailable:
                for table in (one.tables.services, one.tables.revisions):
                    await table.sync()
                await request()  # type: ignore[misc]
        service = (await registry.find("web")).value
        assert service.is_deleting
        assert (service.replicas, service.target.number, service.latest) == (5, 1, 2)
        revisions = await registry.revisions("web")
        assert [each.number for each in revisions] == [1, 2]
        assert revisions[0].template == service.target.template
        kinds = await one.kinds()
        assert kinds == [
            f"service.{word}"
            for word in ("created", "changed", "scaled", "paused", "resumed", "rolledback", "deleted")
        ]
