"""Registry logins from Docker's config.json, read for each pull.

Credential helpers (`credHelpers`, `credsStore`) are not run; where one is configured, `hint` says so, for the
error message if the registry requires a login.
"""

from __future__ import annotations

import base64
import binascii
import os
import pwd
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from skerry.kit import json_codec, namespace_marker
from skerry.model import errors
from skerry.node.images.references import DOCKER_HUB, RegistryReference

_MAX_BYTES = 1024 * 1024
_DOCKER_HUB_KEYS = frozenset({DOCKER_HUB, "index.docker.io", "registry-1.docker.io"})
_API_PATHS = frozenset({"", "v1", "v2"})


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """A login for a registry. Never printed."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)  # exchanged for tokens
    registry_token: str = field(default="", repr=False)  # sent as it is

    def basic(self) -> str:
        """The value of an `Authorization` header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class RegistryCredentials(msgspec.Struct, frozen=True):
    """The login for one registry, if there is one."""

    login: RegistryLogin | None
    hint: str  # what to do if the login is missing or insufficient
    namespace: str = ""  # whose login it is; empty: the node's


ANONYMOUS_CREDENTIALS = RegistryCredentials(
    None, "images of buyers are pulled without a login, so make it public"
)


class _Auth(msgspec.Struct):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""
    registrytoken: str = ""


class _File(msgspec.Struct, rename="camel"):
    auths: dict[str, _Auth] | None = None
    cred_helpers: dict[str, str] | None = None
    creds_store: str = ""


def load(path: str, reference: RegistryReference) -> RegistryCredentials:
    """The login in `path` for the registry of `reference`; empty: the default file, if it exists."""
    file = Path(path) if path else _default_path()
    document = _read(file, must_exist=bool(path))
    if document is None:
        target = file or "a file, and name it in images.credentials"
        return RegistryCredentials(None, f"put a login for it into {target}, as `docker login` does")
    best: tuple[int, _Auth] | None = None
    for key, auth in (document.auths or {}).items():
        score = _match_length(key, reference)
        if score is not None and (best is None or score > best[0]):
            best = score, auth
    login = _login(best[1], file) if best else None
    if login is not None:
        return RegistryCredentials(login, f"the login for it in {file} is not sufficient")
    helpers = [
        name
        for key, name in (document.cred_helpers or {}).items()
        if _match_length(key, reference) is not None
    ]
    if helper := next(iter(helpers), document.creds_store):
        return RegistryCredentials(
            None,
            f"{file} uses the credential helper docker-credential-{helper}, which is not run; name a file "
            "with logins in images.credentials",
        )
    return RegistryCredentials(None, f"put a login for it into {file}, as `docker login` does")


def _default_path() -> Path | None:
    marker = namespace_marker.read()
    if marker is not None:  # user 0 is not root of the machine
        return Path(marker.home) / ".docker" / "config.json" if marker.home else None
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir) / ".docker" / "config.json"
    except KeyError:
        return None  # a user without a home


def _read(path: Path | None, *, must_exist: bool) -> _File | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        if must_exist:
            raise errors.FailedPrecondition(
                f"images.credentials names {path}, and there is no such file"
            ) from None
        return None
    except OSError as error:
        raise errors.FailedPrecondition(f"{path} cannot be read: {(error.strerror or '').lower()}") from None
    if len(data) > _MAX_BYTES:
        raise errors.TooLarge(f"{path} has more than {_MAX_BYTES} bytes, too many for a file of logins")
    try:
        return json_codec.decode(data, _File)
    except json_codec.InvalidJson as error:
        raise errors.FailedPrecondition(f"{path} cannot be read: {error}") from None


def _match_length(key: str, reference: RegistryReference) -> int | None:
    """How specific a key of the file is for `reference`; None if it does not match."""
    host, _, path = key.partition("://")[2].partition("/") if "://" in key else key.partition("/")
    hosts = _DOCKER_HUB_KEYS if reference.registry == DOCKER_HUB else {reference.registry}
    if host.lower() not in hosts:
        return None
    path = path.strip("/")
    if path in _API_PATHS:
        return 0
    return len(path) if f"{reference.repository}/".startswith(f"{path}/") else None


def _login(auth: _Auth, path: Path | None) -> RegistryLogin | None:
    user, password = auth.username, auth.password
    if auth.auth:
        try:
            user, colon, password = base64.b64decode(auth.auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if not colon:
            raise errors.FailedPrecondition(
                f"a login in {path} cannot be read: its `auth` is not base64 of USER:PASSWORD"
            )
    password = password.strip("\0")
    if not (user or auth.identitytoken or auth.registrytoken):
        return None  # Docker leaves such rows where a helper has the login
    return RegistryLogin(user, password, auth.identitytoken, auth.registrytoken)
