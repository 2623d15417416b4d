"""The registry of functions: functions are in the store, their code is on this server's disk.

A function is the key `function/<name>`: `Hello` and `hello` are two. Earlier versions had names in lower case
in the key, and such records are moved when the registry is opened. Code is unpacked and on disk before the
store names it (`skerry.functions.registry.code_store`), so no registered function is without its code; code
that the store does not name is garbage. Reads are from memory. It knows no workers: the code in use, and the
check of a new function, are parameters.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from skerry.functions.registry import runtimes
from skerry.functions.registry.code_store import CodeStore, digest_of
from skerry.kit import json_codec, tasks
from skerry.kit.callbacks import CallbackList
from skerry.kit.clock import Clock
from skerry.model import errors, secret_versions
from skerry.model.containers import NetworkMode
from skerry.model.function_names import namespace_of, plain_name
from skerry.model.functions import CUSTOM, Function
from skerry.model.ids import Digest, FunctionName
from skerry.model.images import ImageAccess, grant_access
from skerry.model.resources import Megabytes, Millicores, Resources
from skerry.model.secret_versions import NO_SECRETS, SecretVersions
from skerry.model.secrets import SecretUse
from skerry.model.settings import FunctionSettings
from skerry.store.protocol import ABSENT, Delete, Entry, Expect, Op, Put, Store
from skerry.store.tables.table import Record, RecordChange, Table, Write, json_of

log = structlog.get_logger(__name__)

PREFIX: Final = "function/"
MAX_RECORD: Final = 256 * 1024
_COLLECT_EVERY_S: Final = 10.0


class NewFunction(msgspec.Struct, frozen=True):
    """A function to register; `code` is the archive as it came."""

    name: str
    runtime: str
    memory: int  # MB of each worker
    cpu: Millicores | None = None  # of each worker; None: no cap
    max_concurrency: int = 1
    handler: str = ""
    code: bytes = b""
    image: str = ""
    environment: tuple[str, ...] = ()
    network: NetworkMode = NetworkMode.BRIDGE
    timeout_s: float | None = None
    is_idempotent: bool = False
    policy: str = ""
    signature: str = ""
    caller_access: ImageAccess = ImageAccess.REGISTRIES  # the access of the caller to images
    secrets: tuple[SecretUse, ...] = ()
    is_web: bool = False
    uses_template: bool = True


class FunctionEventWriter(Protocol):
    """The operation that writes an event, for the transaction of its change."""

    def put(self, kind: str, subject: str, *, actor: str, reason: str = "", **data: str) -> Put: ...


# Loads a function once before it is registered, such as `Invoker.validate`; raises what the caller shall see.
CheckFunction = Callable[[Function, Path | None], Awaitable[object]]


RegistryCallback = Callable[[FunctionName, Function | None], None]


class FunctionRegistry:
    """`open` it, then `run` it for ever; `ready` waits until there is something to
    read."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        clock: Clock,
        settings: FunctionSettings,
        events: FunctionEventWriter,
        *,
        most: Callable[[], Resources],
        check_policy: Callable[[str], object],
        failpoint: Callable[[str], None] = lambda step: None,
    ) -> None:
        """The registry with its code in `folder`.

        `most` is the resources of workers on the largest node now: a function that needs more is refused.
        `check_policy` raises `Invalid` for an unknown policy. `failpoint` is called after each step, so that
        tests can end the process there.
        """
        self._store = store
        self._secrets: SecretVersions = NO_SECRETS
        self._being_checked: dict[str, Function] = {}  # not yet registered
        self.code = CodeStore(folder, settings, failpoint)
        self._clock = clock
        self._settings = settings
        self._events = events
        self._most = most
        self._check_policy = check_policy
        self._failpoint = failpoint
        self.table = Table(store, PREFIX, _decode)
        self.table.subscribe(self._records_changed)
        self._arriving = 0
        self._listeners: CallbackList[[FunctionName, Function | None]] = CallbackList()

    def use_secrets(self, secrets: SecretVersions) -> None:
        """Functions may use these from now on."""
        self._secrets = secrets

    async def open(self) -> FunctionRegistry:
        """Remove what a crash left in the folder; before anything else."""
        page = await self._store.range(PREFIX)
        for entry in page.entries:
            await _move_to_own_key(self._store, entry)
        named = {function.code for function in map(_decode, page.entries) if function.code is not None}
        await tasks.in_thread(self.code.load, named)
        return self

    async def run(self, in_use: Callable[[], Collection[Digest]]) -> None:
        """Follow the store and remove code that is neither registered nor `in_use`, for ever.

        `in_use` names the code of every worker that is alive, is being made, or is about to be.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self.table.run())
            await self.ready()
            while True:
                await self.collect(in_use())
                await asyncio.sleep(_COLLECT_EVERY_S)

    async def ready(self) -> None:
        await self.table.ready()

    async def sync(self) -> None:
        """Wait until memory is no older than this call."""
        await self.table.sync()

    def listen(self, changed: RegistryCallback) -> None:
        """Call `changed` whenever a function is changed or deleted."""
        self._listeners.add(changed)

    async def collect(self, in_use: Collection[Digest]) -> None:
        """Remove code that is not needed; `run` does it from time to time."""
        if removed := await self.code.collect(in_use):
            log.info("code.collected", count=removed)

    async def create(self, new: NewFunction, *, actor: str, check: CheckFunction | None = None) -> Function:
        """Register it, durably. Raises `AlreadyExists`, `NotFound` for the runtime, `Unprocessable`, ..."""
        if self.get(new.name) is not None:
            raise _taken(new.name)
        return await self._register(new, None, actor, check)

    async def update(self, new: NewFunction, *, actor: str, check: CheckFunction | None = None) -> Function:
        """The next version of it, or the first if there is none."""
        before = await self._look_up(new.name)
        while True:
            try:
                return await self._register(new, before, actor, check)
            except (errors.Conflict, errors.AlreadyExists):
                before = await self._look_up(new.name)  # another request was quicker; this one follows it

    async def delete(self, name: str, *, actor: str) -> Function:
        """Delete it; returns it. Raises `NotFound`. Its code is removed when no worker uses it."""
        unknown = errors.NotFound("Unknown function.")
        if await self._look_up(name) is None:
            raise unknown
        event = self._event("function.deleted", name, actor)
        return await tasks.run_to_completion(
            self.table.update(
                name, lambda function: Write(function.value, [event], is_delete=True), missing=unknown
            )
        )

    def get(self, name: str) -> Function | None:
        """From memory."""
        return self.table.value(name)

    def all(self) -> list[Function]:
        """All, in the order of their names."""
        return self.table.values()

    def all_known(self) -> list[Function]:
        """All, and those that are being tried before they are registered."""
        return [*self.all(), *self._being_checked.values()]

    async def follow_secrets(self) -> None:
        """Have all use the newest versions of their secrets and configs."""
        for function in self.all():
            if self._followed(function) is not None:
                with contextlib.suppress(errors.NotFound):  # deleted meanwhile
                    await self.table.update(
                        function.name,
                        self._follow,
                        missing=errors.NotFound("Unknown function."),
                    )

    def _followed(self, function: Function) -> tuple[SecretUse, ...] | None:
        return secret_versions.follow(function.secrets, namespace_of(function.name), self._secrets)

    def _follow(self, record: Record[Function]) -> Write[Function] | None:
        function = record.value
        uses = self._followed(function)
        if uses is None:
            return None
        after = msgspec.structs.replace(
            function, secrets=uses, version=function.version + 1, updated_at=self._clock.now()
        )
        event = self._events.put(
            "function.updated",
            PREFIX + function.name,
            actor="skerry",
            reason="its secrets or configs have new versions",
            name=function.name,
            version=str(after.version),
        )
        return Write(after, [event])

    def names(self) -> list[str]:
        """The keys of all, in order."""
        return [function.name for function in self.table.values()]

    def code_folder(self, function: Function) -> Path | None:
        """Where its code is unpacked; None if it has none, or none on this node."""
        return None if function.code is None else self.code.folder(function.code)

    async def archive(self, digest: Digest) -> bytes:
        """The code as it came. Raises `NotFound` if it is not on this node."""
        return await self.code.archive(digest)

    async def catch_up(self, name: str, version: int) -> None:
        """Somebody knows this version: wait until we know what is in the store. Raises `Unavailable`."""
        log.info("functions.behind", function=name, version=version)
        await self.sync()

    async def _register(
        self, new: NewFunction, before: Record[Function] | None, actor: str, check: CheckFunction | None
    ) -> Function:
        self._check(new)
        function = await self._build(new, before)
        if len(json_codec.encode(function)) > MAX_RECORD:
            raise errors.TooLarge(
                f"a function takes at most {MAX_RECORD // 1024} KiB; shorten its environment or its signature"
            )
        kind = "function.created" if before is None else "function.updated"
        with self._counting(before is None):
            async with self._keeping(new, function) as folder:
                if check is not None:
                    self._being_checked[function.name] = function
                    try:
                        await check(function, folder)
                    finally:
                        self._being_checked.pop(function.name, None)
                self._failpoint("function.checked")
                event = self._event(kind, function.name, actor, version=str(function.version))
                put = self.table.put(function.name, function)
                try:
                    await self._commit([put, event], [self.table.expect(function.name, before)])
                except errors.Conflict:
                    if before is None:
                        raise _taken(new.name) from None
                    raise
                except errors.Unavailable:
                    # It may be registered all the same, and then it needs its code. The next start will see.
                    if function.code is not None:
                        self.code.hold(function.code)
                    raise
                self._failpoint("function.registered")
        return function

    def _check(self, new: NewFunction) -> None:
        """Raise for invalid values, in the order in which Serverledge checks them."""
        runtime = runtimes.find(new.runtime)
        if new.memory < 1:
            raise errors.Unprocessable("Invalid memory limit")
        most = self._most()
        if not most.memory:
            raise errors.Unavailable(
                "no node of this cloud runs functions so far; join one that can (`skerry node --join`)"
            )
        if new.memory > most.memory:
            raise errors.Unprocessable(
                f"{new.memory} MB can never be had: all workers together have {most.memory} MB "
                "(functions.memory_mb); request less"
            )
        if new.cpu is not None and new.cpu > most.cpu:
            raise errors.Unprocessable(
                f"{new.cpu / 1000:g} cores can never be had: all workers together have {most.cpu / 1000:g} "
                "(functions.cpus); request less"
            )
        runtime.check_handler(new.handler)
        if new.is_web and not runtime.takes_web_requests:
            raise errors.Unprocessable(
                f"a function of runtime {new.runtime} cannot be a web handler; put the program into an image "
                "that serves HTTP on port 8080"
            )
        if new.runtime != CUSTOM and any(use.target.startswith("/") for use in new.secrets):
            raise errors.Unprocessable(
                "secrets and configs of a function are files in /run/secrets and /run/configs: give a file "
                "name instead of a path"
            )
        self.code.check(new.code)
        if new.policy:
            self._check_policy(new.policy)

    async def _build(self, new: NewFunction, before: Record[Function] | None) -> Function:
        digest = await tasks.in_thread(digest_of, new.code) if new.code else None
        namespace = namespace_of(new.name)
        await self._secrets.catch_up(namespace, new.secrets)
        now = self._clock.now()
        access = (
            grant_access(new.image, new.caller_access)
            if before is None
            else grant_access(
                new.image,
                new.caller_access,
                before=before.value.image,
                access_before=before.value.image_access,
            )
        )
        return Function(
            name=FunctionName(new.name) if before is None else before.value.name,
            runtime=new.runtime,
            memory=Megabytes(new.memory),
            created_at=now if before is None else before.value.created_at,
            cpu=new.cpu,
            max_concurrency=new.max_concurrency,
            handler=new.handler,
            code=digest,
            image=new.image,
            environment=new.environment,
            network=new.network,
            timeout_s=new.timeout_s,
            updated_at=now,
            is_idempotent=new.is_idempotent,
            policy=new.policy,
            signature=new.signature,
            image_access=access,
            version=1 if before is None else before.value.version + 1,
            secrets=secret_versions.newest(new.secrets, namespace, self._secrets),
            is_web=new.is_web,
            uses_template=new.uses_template,
        )

    def _event(self, kind: str, key: str, actor: str, **data: str) -> Put:
        return self._events.put(
            kind, PREFIX + key, actor=actor, name=plain_name(key), namespace=namespace_of(key), **data
        )

    @contextlib.contextmanager
    def _counting(self, is_new: bool) -> Iterator[None]:
        """Refuse one function too many, also if many are on their way at once."""
        if is_new and len(self.table) + self._arriving >= self._settings.max_functions:
            raise errors.TooLarge(
                f"{self._settings.max_functions} functions are registered and no more are taken; "
                "delete some, or raise functions.max_functions"
            )
        self._arriving += is_new
        try:
            yield
        finally:
            self._arriving -= is_new

    @contextlib.asynccontextmanager
    async def _keeping(self, new: NewFunction, function: Function) -> AsyncIterator[Path | None]:
        if function.code is None:
            yield None
            return
        async with self.code.holding(new.code, function.code) as folder:
            yield folder

    async def _look_up(self, name: str) -> Record[Function] | None:
        """In the store itself: memory may be a moment behind."""
        try:
            return await self.table.read(name)
        except (errors.Invalid, errors.TooLarge):
            return None  # no name that anything could have

    async def _commit(self, ops: Sequence[Op], expect: Sequence[Expect]) -> None:
        """Durable, and in memory. Goes on if the caller is cancelled: what it holds is needed until then."""
        await tasks.run_to_completion(self.table.commit(ops, expect))

    def _records_changed(self, changes: Sequence[RecordChange[Function]]) -> None:
        for _, before, after in changes:
            # In this order: code that stays is at no moment without a name.
            if after is not None and after.value.code is not None:
                self.code.name(after.value.code)
            if before is not None and before.value.code is not None:
                self.code.forget(before.value.code)
        for name, _, after in changes:
            self._listeners.notify(FunctionName(name), None if after is None else after.value)


async def _move_to_own_key(store: Store, entry: Entry) -> None:
    own = PREFIX + _decode(entry).name
    if own == entry.key:
        return
    with contextlib.suppress(errors.Conflict):  # another server was quicker, or there is one of that name
        await store.commit(
            [Delete(entry.key), Put(own, entry.value)],
            [Expect(entry.key, entry.revision), Expect(own, ABSENT)],
        )
        log.info("function.moved", key=entry.key, to=own)


_decode = json_of(Function)


def _taken(name: str) -> errors.AlreadyExists:
    return errors.AlreadyExists(f"function {plain_name(name)!r} exists; update it, or choose another name")
