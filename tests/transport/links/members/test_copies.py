"""Copies that members keep for each other, over real links."""

from __future__ import annotations

import asyncio

import pytest

from skerry.functions.continuum.member_api import CodeList, CopyRefused, ResultCopy
from skerry.model import errors
from skerry.model.calls import CallState
from skerry.model.ids import Digest
from skerry.transport.links.members import messages
from tests.support.workers import CODE
from tests.transport.links.members.conftest import HERE, Cloud, FakeServes


async def test_a_member_keeps_code_and_results_and_tells_what_it_has(
    cloud: Cloud, serves: FakeServes
) -> None:
    links, there = cloud.links(), cloud.serve(serves).member()
    assert await links.list_code(there, "") == CodeList("0", ())
    await links.store_code(there, CODE, HERE)
    assert serves.codes == {CODE: HERE.encode()}
    listed = await links.list_code(there, "0")
    assert listed == CodeList("1", (CODE,))
    assert await links.list_code(there, "1") == CodeList("1"), "nothing is said twice"
    copy = ResultCopy("f-1-aaaaaa", CallState.DONE, 5.0, b"report")
    await links.store_result(there, copy)
    assert serves.copies == [copy]


async def test_a_member_that_is_there_and_refuses_is_told_from_one_that_is_away(
    cloud: Cloud, serves: FakeServes
) -> None:
    links, served = cloud.links(), cloud.serve(serves)
    serves.error = errors.Unavailable("its disk is full")
    with pytest.raises(CopyRefused, match="its disk is full"):
        await links.store_code(served.member(), CODE, HERE)
    with pytest.raises(CopyRefused, match="its disk is full"):
        await links.store_result(served.member(), ResultCopy("f-1", CallState.DONE, 5.0, b""))
    await served.server.stop(0.0)
    with pytest.raises(errors.Unavailable) as caught:
        await links.store_code(served.member(), CODE, HERE)
    assert not isinstance(caught.value, CopyRefused)


async def test_a_member_of_an_older_version_is_asked_for_no_copies(
    cloud: Cloud, serves: FakeServes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "COPIES_SINCE", messages.VERSION + 1)
    links, there = cloud.links(), cloud.serve(serves).member()
    serves.codes[CODE] = b"code"
    for asked in (
        links.list_code(there, ""),
        links.store_code(there, CODE, HERE),
        links.store_result(there, ResultCopy("f-1", CallState.DONE, 5.0, b"")),
    ):
        with pytest.raises(errors.Unavailable, match="keeps no copies"):
            await asked
    assert serves.copies == []


async def test_no_more_code_is_moved_at_once_than_one_neighbour_may_have_moved(
    cloud: Cloud, serves: FakeServes
) -> None:
    links, there = cloud.links(), cloud.serve(serves).member()
    serves.may_end.clear()
    digests = [Digest(f"sha256:{n:064x}") for n in range(5)]
    stores = [asyncio.ensure_future(links.store_code(there, digest, HERE)) for digest in digests]
    done, _ = await asyncio.wait(stores, return_when=asyncio.FIRST_COMPLETED)
    assert [isinstance(each.exception(), CopyRefused) for each in done] == [True]
    serves.may_end.set()
    await asyncio.wait(stores)
    assert len(serves.codes) == 4
