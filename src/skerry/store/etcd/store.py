"""The store for several servers: etcd v3, with the stubs of aetcd.

aetcd's own client has no TLS, no other endpoints, no compare-and-set over several keys with their failures
named, and a watch that ends with its connection; so only its generated messages and stubs are used.
`skerry.store.etcd.client` sends requests, `skerry.store.etcd.watch` has the watch; this module encodes
operations and decodes entries. Nothing is cached: reads go to etcd, `skerry.store.tables.table` is the cache.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from skerry.model import errors
from skerry.model.settings import StoreSettings
from skerry.store import limits
from skerry.store.etcd.client import (
    EtcdClient,
    EtcdEndpoint,
    grpc,
    is_denied,
    out_of_space,
    request_response,
    rpc,
    unknown_outcome,
)
from skerry.store.etcd.watch import EtcdWatch
from skerry.store.local.keyspace import conflict, missing_lease
from skerry.store.protocol import ABSENT, Entry, Expect, LeaseId, Op, Put, RangePage

log = structlog.get_logger(__name__)

# A whole range is fetched in pages of one revision, so that no single answer is enormous.
_PAGE = 500
# Without this etcd keeps all history until its space is used up.
_COMPACT_EVERY_S = 300.0


class EtcdStore:
    """`await EtcdStore.open(endpoints, settings, tls=...)`; keys live under `settings.etcd_prefix`."""

    def __init__(
        self,
        links: EtcdClient,
        prefix: str,
        *,
        history: int,
        entropy: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._links = links
        self._prefix = prefix.encode()
        self._history = history
        self._entropy = entropy
        self._trimming: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, endpoints: Sequence[str], settings: StoreSettings, *, tls: bool) -> EtcdStore:
        """Connect. Raises `Unavailable` if no endpoint answers, `Invalid` if a setting cannot be right."""
        if not settings.etcd_prefix:
            raise errors.Invalid(
                "etcd_prefix is empty; name one, such as /skerry/", field="store.etcd_prefix"
            )
        limits.check_prefix(settings.etcd_prefix)
        links = EtcdClient(endpoints, _credentials(settings) if tls else None, settings.timeout_s)
        store = cls(links, settings.etcd_prefix, history=settings.history)
        try:
            await store.revision()
        except BaseException:
            await links.close()
            raise
        store._trimming = asyncio.get_running_loop().create_task(store._trim_for_ever())
        return store

    async def get(self, key: str) -> Entry | None:
        limits.check_key(key)
        response = await self._range(rpc.RangeRequest(key=self._full(key)))
        return self._to_entry(response.kvs[0]) if response.kvs else None

    async def range(self, prefix: str, *, limit: int = 0, cursor: str | None = None) -> RangePage:
        limits.check_page(prefix, limit, cursor)
        start, end = self._full(prefix), _end_of(self._full(prefix))
        if cursor is not None:
            start = _after(self._full(cursor))
        if limit:
            response = await self._range(rpc.RangeRequest(key=start, range_end=end, limit=limit))
            entries = tuple(map(self._to_entry, response.kvs))
            return RangePage(entries, response.header.revision, entries[-1].key if response.more else None)
        while True:
            try:
                return await self._whole(start, end)
            except errors.Compacted:
                log.info("etcd.range_restarted", prefix=prefix)  # compacted between two of its pages

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        ops, expect = tuple(ops), tuple(expect)
        limits.check_transaction(ops, expect)
        request = self._to_request(ops, expect)

        async def send(link: EtcdEndpoint, timeout_s: float, attempt: int) -> int:
            response = await link.kv.Txn(request, timeout=timeout_s)
            if response.succeeded:
                return int(response.header.revision)
            if attempt:
                # Either the first attempt was written and conflicts with this one, or another client's was.
                raise unknown_outcome("transaction", "its second try met a changed key")
            raise _first_conflict(expect, response)

        # A transaction that expects what it then changes cannot happen twice.
        return await self._links.call(send, is_repeatable=_excludes_itself(ops, expect), change="transaction")

    def watch(self, prefix: str, *, since: int) -> EtcdWatch:
        limits.check_prefix(prefix)
        key = self._full(prefix)
        return EtcdWatch(self._links, key, _end_of(key), since, self._to_entry)

    async def grant_lease(self, ttl_s: int) -> LeaseId:
        limits.check_ttl(ttl_s)
        # The id is ours, so that a repeated grant is known again.
        lease = LeaseId(self._entropy(62) + 1)

        async def send(link: EtcdEndpoint, timeout_s: float, attempt: int) -> None:
            try:
                await link.leases.LeaseGrant(rpc.LeaseGrantRequest(ID=lease, TTL=ttl_s), timeout=timeout_s)
            except rpc.AioRpcError as error:
                if not attempt or error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                    raise  # otherwise: it exists, by the try before

        await self._links.call(send, change="grant of a lease")
        return lease

    async def renew_lease(self, lease: LeaseId) -> None:
        async def send(link: EtcdEndpoint, timeout_s: float, attempt: int) -> int:
            stream = link.leases.LeaseKeepAlive(timeout=timeout_s)
            try:
                response = await request_response(stream, rpc.LeaseKeepAliveRequest(ID=lease))
            finally:
                stream.cancel()
            return int(response.TTL)

        if await self._links.call(send) <= 0:
            raise missing_lease(lease)

    async def revoke_lease(self, lease: LeaseId) -> None:
        async def send(link: EtcdEndpoint, timeout_s: float, attempt: int) -> None:
            try:
                await link.leases.LeaseRevoke(rpc.LeaseRevokeRequest(ID=lease), timeout=timeout_s)
            except rpc.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                if not attempt:
                    raise missing_lease(lease) from error
                # otherwise: it has ended, by the try before or by its time

        await self._links.call(send, change="end of a lease")

    async def compact(self, before: int) -> None:
        # etcd drops history up to this revision, but for current keys: see `EtcdWatch._create`.
        revision = min(before - 1, await self.revision())
        if revision < 1:
            return

        async def send(link: EtcdEndpoint, timeout_s: float, attempt: int) -> None:
            try:
                await link.kv.Compact(rpc.CompactionRequest(revision=revision), timeout=timeout_s)
            except rpc.AioRpcError as error:
                if error.code() is not grpc.StatusCode.OUT_OF_RANGE:
                    raise  # otherwise: another client has compacted as far already

        await self._links.call(send)

    async def revision(self) -> int:
        response = await self._range(rpc.RangeRequest(key=self._prefix, count_only=True))
        return int(response.header.revision)

    async def check_writes(self) -> None:
        # A linearizable read shows that there is a quorum; an etcd without space still serves reads.
        await self.revision()
        for problem in await self._problems():
            if "NOSPACE" in problem:
                raise out_of_space("etcd has used up its space and takes no writes", problem)

    async def close(self) -> None:
        if self._trimming is not None:
            self._trimming.cancel()
            await asyncio.wait([self._trimming])
        await self._links.close()

    async def _trim_for_ever(self) -> None:
        """Keep history bounded. Every server does; etcd takes it from the first and ignores the others."""
        while True:
            await asyncio.sleep(_COMPACT_EVERY_S)
            try:
                await self.compact(await self.revision() - self._history)
            except errors.SkerryError as error:
                log.warning("etcd.compaction_failed", error=error.message, detail=error.detail)

    async def _problems(self) -> Sequence[str]:
        """The alarms of the cluster, which every member knows; none if this client may not read them."""

        async def send(link: EtcdEndpoint, timeout_s: float, attempt: int) -> Sequence[str]:
            try:
                status = await link.maintenance.Status(rpc.StatusRequest(), timeout=timeout_s)
            except rpc.AioRpcError as error:
                if is_denied(error):
                    return ()
                raise
            return tuple(status.errors)

        return await self._links.call(send)

    async def _range(self, request: Any) -> Any:
        async def send(link: EtcdEndpoint, timeout_s: float, attempt: int) -> Any:
            return await link.kv.Range(request, timeout=timeout_s)

        return await self._links.call(send)

    async def _whole(self, start: bytes, end: bytes) -> RangePage:
        entries: list[Entry] = []
        revision = 0
        while True:
            response = await self._range(
                rpc.RangeRequest(key=start, range_end=end, limit=_PAGE, revision=revision)
            )
            revision = revision or response.header.revision
            entries.extend(map(self._to_entry, response.kvs))
            if not response.more:
                return RangePage(tuple(entries), revision)
            start = _after(response.kvs[-1].key)

    def _to_request(self, ops: Sequence[Op], expect: Sequence[Expect]) -> Any:
        return rpc.TxnRequest(
            compare=[
                rpc.Compare(
                    key=self._full(e.key),
                    target=rpc.Compare.MOD,
                    result=rpc.Compare.EQUAL,
                    mod_revision=e.revision,
                )
                for e in expect
            ],
            success=[
                rpc.RequestOp(
                    request_put=rpc.PutRequest(key=self._full(op.key), value=op.value, lease=op.lease)
                )
                if isinstance(op, Put)
                else rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self._full(op.key)))
                for op in ops
            ],
            failure=[
                rpc.RequestOp(request_range=rpc.RangeRequest(key=self._full(e.key), keys_only=True))
                for e in expect
            ],
        )

    def _full(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def _to_entry(self, kv: Any) -> Entry:
        # A foreign key under our prefix may be no text; it must not stop all reads.
        key = kv.key[len(self._prefix) :].decode(errors="backslashreplace")
        return Entry(key, kv.value, kv.create_revision, kv.mod_revision, LeaseId(kv.lease))


def _excludes_itself(ops: Sequence[Op], expect: Sequence[Expect]) -> bool:
    """Whether, once it has happened, one of its own expectations no longer holds."""
    expected = {e.key: e.revision for e in expect}
    return any(op.key in expected and (isinstance(op, Put) or expected[op.key] != ABSENT) for op in ops)


def _first_conflict(expect: Sequence[Expect], response: Any) -> errors.Conflict:
    for expectation, answer in zip(expect, response.responses, strict=True):
        kvs = answer.response_range.kvs
        found = kvs[0].mod_revision if kvs else ABSENT
        if found != expectation.revision:
            return conflict(expectation, found)
    raise errors.Internal("etcd refused a transaction whose expectations all hold")


def _end_of(prefix: bytes) -> bytes:
    """The first key after all that start with `prefix`, whose last byte is of UTF-8 and so below 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _after(key: bytes) -> bytes:
    return key + b"\0"


def _credentials(settings: StoreSettings) -> Any:
    if bool(settings.etcd_cert) != bool(settings.etcd_key):
        raise errors.Invalid(
            "etcd_cert and etcd_key go together; set both, or neither", field="store.etcd_cert"
        )
    return grpc.ssl_channel_credentials(
        root_certificates=_pem("etcd_ca", settings.etcd_ca),
        private_key=_pem("etcd_key", settings.etcd_key),
        certificate_chain=_pem("etcd_cert", settings.etcd_cert),
    )


def _pem(name: str, path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise errors.Invalid(
            f"{name} {path!r} cannot be read: {error.strerror}", field=f"store.{name}"
        ) from error
