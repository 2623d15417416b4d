"""Uses of secrets and configs in JSON documents: texts as on the command line, or objects.

Versions are the server's: they are shown, and ignored in input, so that a document that was read can be sent
back. Pure; part of `skerry.wire.option_documents`, and used for functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from skerry.model import errors
from skerry.model.secrets import SecretKind, SecretUse

SECRETS = (
    "`NAME`, `NAME:FILE` (in /run/secrets, or an absolute path), or objects; `variable` instead of a file"
)
CONFIGS = "`NAME:/etc/app.conf`, `NAME` (in /run/configs), or objects"


class SecretUseInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a container finds a secret or a config."""

    name: str
    target: str = ""
    variable: Annotated[str, Meta(description="An environment variable, instead of a file")] = ""
    mode: Annotated[str | None, Meta(description="Octal, such as `0440`")] = None
    uid: int | None = None
    gid: int | None = None
    version: Annotated[int, Meta(description="Ignored: the newest is used")] = 0

    def use(self, kind: SecretKind) -> SecretUse:
        try:
            mode = None if self.mode is None else int(self.mode[:8], 8)
        except ValueError:
            raise errors.Invalid("mode is octal, such as `0440`", field=f"{kind}s") from None
        return SecretUse(self.name, kind, self.target, self.variable, mode, self.uid, self.gid)


class SecretUseDocument(msgspec.Struct, frozen=True):
    """Where a container finds a secret or a config, and which version it has."""

    name: str
    target: Annotated[
        str, Meta(description="A file in /run/secrets or /run/configs, or an absolute path; empty: the name")
    ]
    variable: str
    mode: Annotated[str | None, Meta(description="null: 0400 of a secret, 0444 of a config")]
    uid: int | None
    gid: int | None
    version: int


UsesInput = Sequence[str | SecretUseInput] | UnsetType | None


def merge_uses(base: tuple[SecretUse, ...], secrets: UsesInput, configs: UsesInput) -> tuple[SecretUse, ...]:
    """`base` with the given ones in place of all of their kind; null removes these."""
    return (
        *_merge(base, SecretKind.SECRET, secrets),
        *_merge(base, SecretKind.CONFIG, configs),
    )


def use_documents(uses: Iterable[SecretUse], kind: SecretKind) -> tuple[SecretUseDocument, ...]:
    return tuple(
        SecretUseDocument(
            use.name,
            use.target,
            use.variable,
            None if use.mode is None else f"{use.mode:04o}",
            use.uid,
            use.gid,
            use.version,
        )
        for use in uses
        if use.kind is kind
    )


def _merge(base: tuple[SecretUse, ...], kind: SecretKind, given: UsesInput) -> tuple[SecretUse, ...]:
    if given is UNSET:
        return tuple(use for use in base if use.kind is kind)
    assert not isinstance(given, UnsetType)
    return tuple(_use(one, kind) for one in given or ())


def _use(given: str | SecretUseInput, kind: SecretKind) -> SecretUse:
    if isinstance(given, SecretUseInput):
        return given.use(kind)
    if kind is SecretKind.SECRET and "=" in given.partition(",")[0]:
        return SecretUse.parse_variable(given)
    return SecretUse.parse(given, kind)
