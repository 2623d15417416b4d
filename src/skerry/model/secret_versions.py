"""Which versions of secrets and configs a spec uses, decided when the spec is taken.

A spec names secrets; the server adds the versions, so that a revision of a service always means the same
values and a rollback brings the old ones back. Pure, but for `SecretVersions`, which
`skerry.control.secrets.registry` implements; the registries of what has specs use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec.structs import replace

from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.model.secrets import SecretKind, SecretUse
from skerry.model.workloads import InstanceSpec


class SecretVersions(Protocol):
    """The newest versions there are."""

    def current(self, namespace: Namespace, kind: SecretKind, name: str) -> int | None:
        """None: there is no such secret."""
        ...

    async def catch_up(self, namespace: Namespace, uses: Iterable[SecretUse]) -> None:
        """Know those of `uses` that another server has just made."""
        ...


class NoSecrets:
    """A cloud without secrets."""

    def current(self, namespace: Namespace, kind: SecretKind, name: str) -> int | None:
        return None

    async def catch_up(self, namespace: Namespace, uses: Iterable[SecretUse]) -> None:
        pass


NO_SECRETS = NoSecrets()


def settle(
    spec: InstanceSpec, namespace: Namespace, secrets: SecretVersions, before: InstanceSpec | None = None
) -> InstanceSpec:
    """`spec` with the newest versions; if only they would differ from `before`, with those of that.

    So a request that changes nothing brings no new version with it: `follow` does, when the secret changes.
    Raises `Unprocessable` for a name that there is not.
    """
    if not spec.secrets:
        return spec
    if before is not None and without_versions(spec) == without_versions(before):
        return replace(spec, secrets=before.secrets)
    return replace(spec, secrets=newest(spec.secrets, namespace, secrets))


def newest(uses: Iterable[SecretUse], namespace: Namespace, secrets: SecretVersions) -> tuple[SecretUse, ...]:
    """`uses` with the newest versions. Raises `Unprocessable` for a name that there is not."""
    settled = []
    for use in uses:
        version = secrets.current(namespace, use.kind, use.name)
        if version is None:
            raise errors.Unprocessable(
                f"there is no {use.kind} {use.name!r} in the namespace {namespace!r}; make it first: "
                f"`skerry {use.kind} set {use.name} FILE -n {namespace}`"
            )
        settled.append(replace(use, version=version))
    return tuple(settled)


def follow(
    uses: tuple[SecretUse, ...],
    namespace: Namespace,
    secrets: SecretVersions,
    tried: Iterable[SecretUse] = (),
) -> tuple[SecretUse, ...] | None:
    """`uses` with versions newer than theirs and than those of `tried`; None if there are none.

    `tried` are the versions that were used before: what was reverted is not tried again by itself. A secret
    that was deleted stays as it is.
    """
    highest: dict[tuple[SecretKind, str], int] = {}
    for use in (*uses, *tried):
        key = use.kind, use.name
        highest[key] = max(highest.get(key, 0), use.version)
    news = {
        key: version
        for key, seen in highest.items()
        if (version := secrets.current(namespace, *key)) is not None and version > seen
    }
    if not any((use.kind, use.name) in news for use in uses):
        return None
    return tuple(replace(use, version=news.get((use.kind, use.name), use.version)) for use in uses)


def without_versions(spec: InstanceSpec) -> InstanceSpec:
    """`spec` as a user gave it."""
    if not spec.secrets:
        return spec
    return replace(spec, secrets=tuple(replace(use, version=0) for use in spec.secrets))
