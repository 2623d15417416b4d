"""Limits of keys, values and transactions, which every backend checks first.

One place, so that SQLite and etcd accept what memory accepts in tests. Pure; raises `Invalid` for what is
malformed and `TooLarge` for what is too much.
"""

from __future__ import annotations

from collections.abc import Sequence

from skerry.model import errors
from skerry.store.protocol import MAX_KEY, MAX_OPS, MAX_TRANSACTION, MAX_VALUE, Expect, Op, Put

MAX_TTL_S = 9_000_000_000  # etcd's own bound


def check_key(key: str) -> None:
    """A key is 1 to `MAX_KEY` bytes of UTF-8."""
    if not key:
        raise errors.Invalid("a key must not be empty; name at least one character", field="key")
    _check_length(key, "key")


def check_prefix(prefix: str) -> None:
    """A prefix is a key or empty, which means all keys."""
    _check_length(prefix, "prefix")


def check_page(prefix: str, limit: int, cursor: str | None) -> None:
    """A page starts in its own range and is not of negative length."""
    check_prefix(prefix)
    if limit < 0:
        raise errors.Invalid(f"the limit is {limit}; use 0 for all, or a positive number", field="limit")
    if cursor is not None:
        _check_length(cursor, "cursor")
        if not cursor.startswith(prefix):
            raise errors.Invalid(
                f"the cursor is not of a page of {prefix!r}; pass on the one that the page before gave",
                field="cursor",
            )


def check_ttl(ttl_s: int) -> None:
    if not 1 <= ttl_s <= MAX_TTL_S:
        raise errors.Invalid(f"a lease lasts 1 to {MAX_TTL_S} seconds, not {ttl_s}", field="ttl_s")


def check_transaction(ops: Sequence[Op], expect: Sequence[Expect]) -> None:
    """Every limit of `skerry.store.protocol` on one transaction."""
    if len(ops) > MAX_OPS or len(expect) > MAX_OPS:
        raise errors.TooLarge(
            f"{len(ops)} operations and {len(expect)} expectations in one transaction;"
            f" at most {MAX_OPS} of each, split it"
        )
    size = 0
    seen = set()
    for op in ops:
        key = op.key
        check_key(key)
        if key in seen:
            raise errors.Invalid(
                f"{key!r} is named by two operations of one transaction; name it once", field="ops"
            )
        seen.add(key)
        size += len(key)
        if isinstance(op, Put):
            if len(op.value) > MAX_VALUE:
                raise errors.TooLarge(
                    f"the value of {key!r} has {len(op.value)} bytes; at most {MAX_VALUE}, store less"
                )
            size += len(op.value)
    for expectation in expect:
        check_key(expectation.key)
        size += len(expectation.key)
    if size > MAX_TRANSACTION:
        raise errors.TooLarge(
            f"the transaction holds {size} bytes of keys and values; at most {MAX_TRANSACTION}, split it"
        )


def _check_length(text: str, field: str) -> None:
    if text.isascii():  # by far the most; spares the encoding
        length = len(text)
    else:
        try:
            length = len(text.encode())
        except UnicodeEncodeError as error:
            raise errors.Invalid(f"the {field} {text!r} is not valid Unicode text", field=field) from error
    if length > MAX_KEY:
        raise errors.TooLarge(f"the {field} has {length} bytes; at most {MAX_KEY}, shorten it")
