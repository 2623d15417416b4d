"""Documents of secrets, configs and registry logins: names, versions and users, never values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from skerry.control.secrets.users import SecretUser
from skerry.model import errors
from skerry.model.secrets import MAX_VALUE, RegistryLoginValue, Secret, SecretVersion

MAX_BODY = 2 * MAX_VALUE  # base64, or text with characters escaped


class ValueInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new value: `data`, or `text`."""

    data: Annotated[bytes, Meta(description="The value in base64")] | UnsetType = UNSET
    text: Annotated[str, Meta(description="The value as text, in UTF-8")] | UnsetType = UNSET
    namespace: str | UnsetType = UNSET

    def value(self) -> bytes:
        """Raises `Invalid` unless exactly one of both is given."""
        if isinstance(self.data, bytes) and self.text is UNSET:
            return self.data
        if isinstance(self.text, str) and self.data is UNSET:
            return self.text.encode()
        raise errors.Invalid("give `data` in base64, or `text`", field="data")


class LoginInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A login for a registry: user and password, or a token."""

    user: str = ""
    password: str = ""
    identity_token: Annotated[str, Meta(description="Exchanged at the registry's token server")] = ""
    namespace: str | UnsetType = UNSET

    def login(self) -> RegistryLoginValue:
        """Raises `Invalid`."""
        return RegistryLoginValue(self.user, self.password, self.identity_token)


class VersionDocument(msgspec.Struct, frozen=True):
    version: int
    created_at: float
    actor: str
    size: Annotated[int, Meta(description="Bytes")]


class UserDocument(msgspec.Struct, frozen=True):
    """What uses it, and in which versions."""

    kind: Annotated[str, Meta(description="`service`, `workload`, `instance`, `job`, `schedule`, `function`")]
    name: str
    versions: tuple[int, ...]
    is_past: Annotated[bool, Meta(description="Only earlier revisions, to which it may be rolled back")]


class SecretDocument(msgspec.Struct, frozen=True):
    """A secret or a config, without its value."""

    name: str
    namespace: str
    version: Annotated[int, Meta(description="The newest")]
    created_at: float
    updated_at: float
    size: Annotated[int, Meta(description="Bytes of the newest version")]


class SecretDetails(SecretDocument, frozen=True):
    """A secret or a config with its stored versions and its users."""

    versions: tuple[VersionDocument, ...]
    users: tuple[UserDocument, ...]


class SecretList(msgspec.Struct, frozen=True):
    """A page, the oldest first; `count` is how many there are in all."""

    count: int
    secrets: tuple[SecretDocument, ...]
    cursor: str | None


class ConfigList(msgspec.Struct, frozen=True):
    """A page, the oldest first; `count` is how many there are in all."""

    count: int
    configs: tuple[SecretDocument, ...]
    cursor: str | None


class ConfigData(msgspec.Struct, frozen=True):
    """A config with its value."""

    name: str
    namespace: str
    version: int
    data: Annotated[bytes, Meta(description="In base64")]


class LoginDocument(msgspec.Struct, frozen=True):
    """A login for a registry, without its password."""

    registry: str
    namespace: str
    user: str
    version: int
    created_at: float
    updated_at: float


class LoginList(msgspec.Struct, frozen=True):
    """A page, the oldest first; `count` is how many there are in all."""

    count: int
    registries: tuple[LoginDocument, ...]
    cursor: str | None


class RotateInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to rotate the key."""

    prepare: Annotated[
        bool, Meta(description="Only make the new key, to be copied to the other servers first")
    ] = False
    is_copied: Annotated[
        bool, Meta(description="`secrets.key` with the new key was copied to all other servers")
    ] = False
    discard_lost: Annotated[
        bool,
        Meta(description="First remove the values whose keys are lost; their secrets have to be set anew"),
    ] = False


class RotationDocument(msgspec.Struct, frozen=True):
    """The key that seals now, or that was prepared, and how many values were sealed anew."""

    key: str
    sealed: int
    is_prepared: bool
    discarded: Annotated[int, Meta(description="Values that were removed, because their keys are lost")] = 0


def secret_document(secret: Secret) -> SecretDocument:
    current = secret.current
    return SecretDocument(
        secret.name, secret.namespace, current.number, secret.created_at, current.created_at, current.size
    )


def secret_details(secret: Secret, users: Sequence[SecretUser]) -> SecretDetails:
    current = secret.current
    return SecretDetails(
        secret.name,
        secret.namespace,
        current.number,
        secret.created_at,
        current.created_at,
        current.size,
        tuple(map(_version_document, secret.versions)),
        tuple(UserDocument(user.noun, user.name, user.versions, user.is_past) for user in users),
    )


def login_document(secret: Secret) -> LoginDocument:
    current = secret.current
    return LoginDocument(
        secret.name, secret.namespace, secret.user, current.number, secret.created_at, current.created_at
    )


def _version_document(version: SecretVersion) -> VersionDocument:
    return VersionDocument(version.number, version.created_at, version.actor, version.size)
