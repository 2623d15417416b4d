"""A back end of each kind, which has to leave nothing behind in any hierarchy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.node.cgroups import detection
from skerry.node.cgroups.backends import CgroupBackend
from skerry.node.cgroups.protocol import Cgroups
from skerry.node.watched.groups import WatchedGroups
from tests.node.cgroups import paths
from tests.node.cgroups.fake_cgroupfs import FakeCgroupfs
from tests.support.waiting import eventually_sync

REAL = ["hybrid", "hybrid without cgroup.kill", "legacy"]
needs_hybrid = pytest.mark.skipif(not paths.HAS_HYBRID, reason="needs hybrid cgroups")
REAL_GROUPS = [needs_hybrid, pytest.mark.root(tries=1)]


@pytest.fixture
def root() -> str:
    return paths.root_name()


@pytest.fixture
def fake() -> FakeCgroupfs:
    return FakeCgroupfs()


@pytest.fixture
def unified(fake: FakeCgroupfs, root: str) -> CgroupBackend:
    backend = detection.make_unified(fake, fake.mount, root)
    backend.prepare()
    return backend


@pytest.fixture(params=[pytest.param(kind, marks=[needs_hybrid, pytest.mark.root]) for kind in REAL])
def real(request: pytest.FixtureRequest, root: str) -> Iterator[CgroupBackend]:
    yield from _prepared(request.param, root)


@pytest.fixture
def hybrid(root: str) -> Iterator[CgroupBackend]:
    if not paths.HAS_HYBRID:
        pytest.skip("needs hybrid cgroups")
    yield from _prepared("hybrid", root)


@pytest.fixture(
    params=[
        *("unified", "watched"),
        *(pytest.param(kind, marks=REAL_GROUPS) for kind in ("hybrid", "legacy")),
    ]
)
def cgroups(
    request: pytest.FixtureRequest, root: str, fake: FakeCgroupfs, tmp_path: Path
) -> Iterator[Cgroups]:
    """Every kind, as far as no process is needed."""
    if request.param == "watched":
        yield WatchedGroups(tmp_path / "groups", "boot", limits_users=True)
    elif request.param == "unified":
        yield request.getfixturevalue("unified")
    else:
        yield from _prepared(request.param, root)


def _prepared(kind: str, root: str) -> Iterator[CgroupBackend]:
    backend = paths.make_real(kind, root)
    backend.prepare()
    try:
        yield backend
    finally:
        for cell in reversed(backend.cells()):
            backend.kill(cell)
            eventually_sync(lambda cell=cell: not backend.pids(cell))  # type: ignore[misc]
            backend.remove(cell)
        backend.dispose()
    assert paths.groups_of(root) == []
