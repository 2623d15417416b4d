"""Tables of objects that have a name in a namespace: services, jobs and schedules.

The key of a record is its namespace and name, so that the store keeps names unique. An object also has an id,
which is never used again; a table finds it by either. Registries of people's requests (`registry` in
`skerry.control.services`, `jobs` and `schedules`) and the leader's controllers write the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from skerry.control import idempotency, paging
from skerry.control.idempotency import IdempotencyTable, IdempotentRequest
from skerry.control.instance_index import age_key_at
from skerry.control.paging import ListPage
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.namespace_scope import ListedNamespaces, scope_of
from skerry.store.protocol import Op, Store
from skerry.store.tables.table import Record, RecordChange, Table, json_of

_NAMESPACE_SHARE = 4  # a namespace beside the default one has at most one in so many of all objects


class NamedObject(Protocol):
    """What these tables need to know of a record."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> Namespace: ...
    @property
    def created_at(self) -> float: ...


T = TypeVar("T", bound=NamedObject)


class NamedTable(Table[T]):
    """The objects of one kind in a cloud; `kind` is the word for one in keys, and in messages, unless these
    have another `noun`."""

    def __init__(self, store: Store, kind: str, type: type[T], *, noun: str = "") -> None:
        super().__init__(store, f"{kind}/", json_of(type))
        self.kind = kind
        self.noun = noun or kind
        self._keys: dict[str, str] = {}
        self._counts: Counter[Namespace] = Counter()
        self.subscribe(self._index)  # first, so that other subscribers find a changed record by its id

    def by_name(self, name: str, namespace: Namespace | None = None) -> Record[T] | None:
        """The object of that name; without a namespace, in the default one."""
        return self.get(key_of_name(name, namespace))

    def by_id(self, id: str) -> Record[T] | None:
        key = self._keys.get(id)
        return None if key is None else self.get(key)

    def key_of_id(self, id: str) -> str | None:
        """The key of the object of this id, None if there is none."""
        return self._keys.get(id)

    def subject(self, value: T) -> str:
        """The key of an object in the store, by which its events name it."""
        return self.key(key_of(value))

    def unknown(self, name: str, namespace: Namespace | None = None) -> errors.NotFound:
        """The error for a name that no object has."""
        within, option = (f" in the namespace {namespace!r}", f" -n {namespace}") if namespace else ("", "")
        return errors.NotFound(
            f"there is no {self.noun} {name[:128]!r}{within}; `skerry {self.kind} list{option}` lists those "
            "there are"
        )

    def check_limit(self, namespace: Namespace, limit: int) -> None:
        """Raise `TooLarge` if another object in `namespace` would be more than `limit` in all, or more than
        the share of one namespace, so that none keeps the others out. The default one may have all."""
        if len(self) >= limit:
            raise errors.TooLarge(f"there are {limit} {self.noun}s, and no more are taken; delete some")
        share = max(1, limit // _NAMESPACE_SHARE)
        if namespace != DEFAULT_NAMESPACE and self._counts[namespace] >= share:
            raise errors.TooLarge(
                f"there are {share} {self.noun}s in the namespace {namespace!r}, and one namespace takes no "
                "more; delete some"
            )

    def list_page(
        self,
        namespace: ListedNamespaces,
        *,
        limit: int,
        offset: int = 0,
        cursor: str | None = None,
        matches: Callable[[T], bool] = lambda _: True,
    ) -> ListPage[Record[T]]:
        """A page of those that match, by age and id; of all namespaces if none is given."""
        scope = scope_of(namespace)
        found = [
            record
            for _, record in self.items()
            if scope.admits(record.value.namespace) and matches(record.value)
        ]
        return paging.paginate_sorted(
            found,
            lambda record: age_key_at(record.value.created_at, record.value.id),
            limit=limit,
            offset=offset,
            cursor=cursor,
        )

    async def create(
        self,
        value: T,
        ops: Sequence[Op],
        request: IdempotentRequest | None,
        requests: IdempotencyTable,
        *,
        check_existing: Callable[[T], None],
        limit: int | None = None,
    ) -> tuple[T, bool]:
        """Write a new object together with `ops`; returns it and whether it is new.

        If `request` was done before, or the name is taken by an object that `check_existing` does not refuse,
        the result is the existing one. A `limit` is as in `check_limit`.
        """
        key = key_of(value)
        while True:
            created_id = await requests.recorded_id(request)
            existing = await self.read(key)
            if created_id is not None:
                if existing is None or existing.value.id != created_id:
                    raise idempotency.created_then_deleted(self.kind, created_id)
                return existing.value, False
            if existing is not None:
                check_existing(existing.value)
                return existing.value, False
            if limit is not None:
                self.check_limit(value.namespace, limit)
            puts, expect = await requests.put(request, value.id)
            try:
                await self.commit([self.put(key, value), *ops, *puts], [self.expect(key, None), *expect])
            except errors.Conflict:
                continue  # somebody was quicker with the name or the key; reading again shows which
            return value, True

    def _index(self, changes: Sequence[RecordChange[T]]) -> None:
        for key, before, after in changes:
            if before is not None:
                self._counts[before.value.namespace] -= 1
                if self._keys.get(before.value.id) == key:
                    del self._keys[before.value.id]
            if after is not None:
                self._counts[after.value.namespace] += 1
                self._keys[after.value.id] = key


def key_of(value: NamedObject) -> str:
    """The key of an object in its table."""
    return key_of_name(value.name, value.namespace)


def key_of_name(name: str, namespace: Namespace | None = None) -> str:
    """The key of a name in its table; without a namespace, of the default one."""
    return f"{namespace or DEFAULT_NAMESPACE}/{name}"
