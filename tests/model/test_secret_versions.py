"""Which versions of secrets a spec uses."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skerry.model import errors, secret_versions
from skerry.model.ids import DEFAULT_NAMESPACE
from skerry.model.secrets import SecretUse
from skerry.model.workloads import InstanceSpec
from tests.support.secrets import KnownVersions

WEB = InstanceSpec("web", "example.org/web:1", secrets=(SecretUse("db"), SecretUse("key")))


def versions(spec: InstanceSpec) -> dict[str, int]:
    return {use.name: use.version for use in spec.secrets}


def test_a_new_spec_gets_the_newest_versions() -> None:
    settled = secret_versions.settle(WEB, DEFAULT_NAMESPACE, KnownVersions(db=3, key=1))
    assert versions(settled) == {"db": 3, "key": 1}
    with pytest.raises(errors.Unprocessable, match="no secret 'key'"):
        secret_versions.settle(WEB, DEFAULT_NAMESPACE, KnownVersions(db=3))


def test_a_change_of_nothing_keeps_the_versions_and_any_other_takes_the_newest() -> None:
    before = secret_versions.settle(WEB, DEFAULT_NAMESPACE, KnownVersions(db=3, key=1))
    known = KnownVersions(db=4, key=1)
    assert secret_versions.settle(WEB, DEFAULT_NAMESPACE, known, before) == before
    other = secret_versions.settle(replace(WEB, uri="example.org/web:2"), DEFAULT_NAMESPACE, known, before)
    assert versions(other) == {"db": 4, "key": 1}


def test_users_follow_newer_versions_that_were_not_tried() -> None:
    before = secret_versions.settle(WEB, DEFAULT_NAMESPACE, KnownVersions(db=3, key=1))
    known = KnownVersions(db=4, key=1)
    followed = secret_versions.follow(before.secrets, DEFAULT_NAMESPACE, known)
    assert followed is not None
    assert [use.version for use in followed] == [4, 1]
    assert secret_versions.follow(followed, DEFAULT_NAMESPACE, known) is None
    # A revision with version 4 was rolled back: it is not tried again, version 5 is.
    assert secret_versions.follow(before.secrets, DEFAULT_NAMESPACE, known, followed) is None
    assert secret_versions.follow(before.secrets, DEFAULT_NAMESPACE, KnownVersions(db=5, key=1), followed)
    assert secret_versions.follow(before.secrets, DEFAULT_NAMESPACE, KnownVersions()) is None
