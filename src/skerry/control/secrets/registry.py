"""The registry of secrets, configs and registry logins: takes new values durably, and never shows them.

The records are without values and read from memory; values are sealed (`skerry.control.secrets.vault`). The
one way to read a value is `value`, for delivery to nodes and for configs. A new version is written in one
transaction with its sealed value and its event; users follow (`skerry.control.secrets.followers`).

    secret-last/KIND/NAMESPACE      the highest version of those that were deleted

A secret that is made anew goes on with the next number: nodes keep values by name and version, so a version
of a name must never have another value.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.named_table import NamedTable, key_of_name
from skerry.control.paging import ListPage
from skerry.control.secrets import vault as vaults
from skerry.control.secrets.users import SecretUser
from skerry.control.secrets.vault import SecretVault
from skerry.control.workloads.registry import check_may_create, check_space
from skerry.kit import json_codec, logs, ulid
from skerry.kit.clock import Clock
from skerry.model import errors, secrets
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.namespace_scope import ListedNamespaces
from skerry.model.secrets import (
    MAX_VERSIONS,
    REGISTERED_KINDS,
    RegistryLoginValue,
    Secret,
    SecretKind,
    SecretRef,
    SecretUse,
    SecretVersion,
)
from skerry.store.protocol import ABSENT, Expect, Op, Put, Store
from skerry.store.tables.table import Record

MAX_OF_KIND = 10_000
MAX_BYTES = 256 * 2**20  # of one kind in one namespace, with all versions
_LAST = "secret-last/"
_MAX_STORED = 100  # versions of one, also if more are in use

SecretRecord = Record[Secret]
UsersOf = Callable[[Namespace, SecretKind, str], Sequence[SecretUser]]


class SecretRegistry:
    """The secrets, configs and registry logins of one cloud."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        vault: SecretVault,
        *,
        users: UsersOf,
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self._vault = vault
        self._users = users
        self._new_id = new_id
        self.tables = {kind: NamedTable(store, kind.value, Secret) for kind in REGISTERED_KINDS}

    async def ready(self) -> None:
        for table in self.tables.values():
            await table.ready()

    # Requests

    async def set(
        self,
        kind: SecretKind,
        name: str,
        value: bytes,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        user: str = "",
    ) -> tuple[Secret, bool]:
        """A new version with this value, and whether it is one: the value that it has makes none."""
        check_may_create(namespace, actor)
        check_space()
        secrets.check_name(kind, name)
        secrets.check_value(kind, value)
        table, key = self.tables[kind], key_of_name(name, namespace)
        while True:
            record = await table.read(key)
            if record is not None and await self._has(record.value, value, user):
                return record.value, False
            if record is None:
                table.check_limit(namespace, MAX_OF_KIND)
            last, guard = await self._last_deleted(kind, namespace)
            version = SecretVersion(last + 1, self._clock.now(), actor, len(value))
            secret = self._next(record, kind, name, namespace, version)
            secret = replace(secret, user=user, request_id=logs.request_id())
            secret, dropped = self._trimmed(secret)
            self._check_bytes(secret)
            write = await self._vault.seal(secret.ref(), value)
            ops: list[Op] = [
                table.put(key, secret),
                write.put,
                self._events.put(
                    f"{kind}.set",
                    table.key(key),
                    actor=actor,
                    request_id=secret.request_id,
                    name=name,
                    namespace=namespace,
                    version=str(secret.current.number),
                ),
                *map(vaults.delete_value, dropped),
            ]
            try:
                guards = [guard] if record is None else []
                await table.commit(ops, [table.expect(key, record), write.expect, *guards])
            except errors.Conflict:
                continue  # another version, a deletion, or a rotation of the key, was quicker
            return secret, True

    async def set_login(
        self,
        registry: str,
        login: RegistryLoginValue,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
    ) -> tuple[Secret, bool]:
        """The login for a registry, as `set`; nodes read what is encoded here."""
        value = json_codec.encode(login)
        return await self.set(
            SecretKind.REGISTRY, registry, value, actor=actor, namespace=namespace, user=login.user
        )

    async def delete(
        self, kind: SecretKind, name: str, *, actor: str, namespace: Namespace = DEFAULT_NAMESPACE
    ) -> Secret:
        """Delete it with all versions; `Conflict` while something uses it."""
        table, key = self.tables[kind], key_of_name(name, namespace)
        while True:
            record = await table.read(key)
            if record is None:
                raise table.unknown(name, namespace)
            if users := [one for one in self._users(namespace, kind, name) if not one.is_past]:
                shown = ", ".join(map(str, users[:5])) + (f" and {len(users) - 5} more" if users[5:] else "")
                raise errors.Conflict(
                    f"{kind} {name} is used by {shown}; change or delete what uses it first"
                )
            secret = record.value
            event = self._events.put(
                f"{kind}.deleted",
                table.key(key),
                actor=actor,
                request_id=logs.request_id(),
                name=name,
                namespace=namespace,
            )
            values: list[Op] = [
                vaults.delete_value(secret.ref(version.number)) for version in secret.versions
            ]
            last, guard = await self._last_deleted(kind, namespace)
            values.append(Put(guard.key, json_codec.encode(max(last, secret.current.number))))
            try:
                await table.commit([table.delete(key), event, *values], [table.expect(key, record), guard])
            except errors.Conflict:
                continue
            return secret

    # Reading

    async def find(self, kind: SecretKind, name: str, namespace: Namespace | None = None) -> Secret:
        table, key = self.tables[kind], key_of_name(name, namespace)
        record = None
        if "/" not in name:  # it would be a key of another namespace
            record = table.get(key) or await table.read(key)
        if record is None:
            raise table.unknown(name, namespace)
        return record.value

    def list(
        self,
        kind: SecretKind,
        *,
        namespace: ListedNamespaces = None,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
    ) -> ListPage[Secret]:
        """By age, of all namespaces if none is given."""
        page = self.tables[kind].list_page(namespace, limit=limit, offset=offset, cursor=cursor)
        return page.map(lambda record: record.value)

    def users(self, secret: Secret) -> Sequence[SecretUser]:
        return self._users(secret.namespace, secret.kind, secret.name)

    async def value(self, ref: SecretRef) -> bytes:
        """For nodes that run what uses it, and for people if it is a config."""
        return await self._vault.value(ref)

    # As `skerry.model.secret_versions.SecretVersions`

    def current(self, namespace: Namespace, kind: SecretKind, name: str) -> int | None:
        record = self.tables[kind].by_name(name, namespace)
        return None if record is None else record.value.current.number

    async def catch_up(self, namespace: Namespace, uses: Iterable[SecretUse]) -> None:
        unknown = {use.kind for use in uses if self.current(namespace, use.kind, use.name) is None}
        for kind in unknown:
            await self.tables[kind].sync()

    def _check_bytes(self, secret: Secret) -> None:
        """Raise `TooLarge` if the values of its namespace would be too many for the store that all share."""
        stored = sum(
            version.size
            for record in self.tables[secret.kind].values()
            if record.namespace == secret.namespace and record.name != secret.name
            for version in record.versions
        )
        if stored + sum(version.size for version in secret.versions) > MAX_BYTES:
            raise errors.TooLarge(
                f"the {secret.kind}s of the namespace {secret.namespace!r} have at most "
                f"{MAX_BYTES // 2**20} MiB with all their versions; delete some"
            )

    async def _has(self, secret: Secret, value: bytes, user: str) -> bool:
        if secret.user != user:
            return False
        try:
            return hmac.compare_digest(await self._vault.value(secret.ref()), value)
        except (errors.FailedPrecondition, errors.Internal, errors.NotFound):
            return False  # it cannot be opened any more, and is set anew

    async def _last_deleted(self, kind: SecretKind, namespace: Namespace) -> tuple[int, Expect]:
        """The highest version of a secret that was deleted there, and that it is so still; 0: none was."""
        key = f"{_LAST}{kind}/{namespace}"
        entry = await self._store.get(key)
        if entry is None:
            return 0, Expect(key, ABSENT)
        return json_codec.decode(entry.value, int), Expect(key, entry.revision)

    def _next(
        self,
        record: SecretRecord | None,
        kind: SecretKind,
        name: str,
        namespace: Namespace,
        version: SecretVersion,
    ) -> Secret:
        if record is None:
            id = self._new_id(version.created_at)
            return Secret(id, name, kind, version.created_at, (version,), namespace)
        before = record.value
        return replace(
            before, versions=(*before.versions, replace(version, number=before.current.number + 1))
        )

    def _trimmed(self, secret: Secret) -> tuple[Secret, Sequence[SecretRef]]:
        """It without versions that are too old and that nothing uses."""
        if len(secret.versions) <= MAX_VERSIONS:
            return secret, ()  # to find its users all instances and services are looked at
        used = {
            version
            for user in self._users(secret.namespace, secret.kind, secret.name)
            for version in user.versions
        }
        old, recent = secret.versions[:-MAX_VERSIONS], secret.versions[-MAX_VERSIONS:]
        kept = [version for version in old if version.number in used][-(_MAX_STORED - MAX_VERSIONS) :]
        dropped = [secret.ref(version.number) for version in old if version not in kept]
        return replace(secret, versions=(*kept, *recent)), dropped
