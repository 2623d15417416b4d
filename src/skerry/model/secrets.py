"""Secrets, configs and registry logins: values with a name in a namespace, in numbered versions.

A `Secret` is what is known of one without its values, which are stored apart and sealed
(`skerry.control.secrets`). A `SecretUse` in a spec says where a container finds a value, and a `SecretRef`
names one value in the whole cloud. A version is never changed: another value is another version. Values are
in none of these, so specs, orders and records can be stored and shown.
"""

from __future__ import annotations

import enum
import posixpath
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace

MAX_VALUE: Final = 512 * 1024
MAX_VERSIONS: Final = 10  # kept of one, beside those that are in use
MAX_USES: Final = 32  # in one spec
MAX_NAME: Final = 100
_MAX_TARGET: Final = 1024
_MAX_ID: Final = 2**16 - 2  # of a user in a container
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_REGISTRY: Final = re.compile(
    r"(?=.{1,100}$)(?:[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?"
)
_NOT_THERE: Final = ("/proc", "/sys", "/dev")  # mounts of the kernel


class SecretKind(enum.StrEnum):
    """What a value is for."""

    SECRET = "secret"  # noqa: S105 - the word; never shown again
    CONFIG = "config"  # a file that is no secret, and can be read back
    REGISTRY = "registry"  # the login for a registry of images
    # Of `skerry.control.tls`: nothing that runs can use these, and people neither set nor list them here.
    TLS = "tls"  # chain and private key of a certificate of routes
    TLS_KEY = "tls-key"  # private key of a certificate that is being ordered
    ACME_ACCOUNT = "acme-account"  # private key of the account at an ACME server
    # Of `skerry.control.alerts`, likewise.
    ALERT = "alert"  # where an alert is sent to


# With a record in `skerry.control.secrets.registry`.
REGISTERED_KINDS: Final = (SecretKind.SECRET, SecretKind.CONFIG, SecretKind.REGISTRY)
# In a container: of values whose place is only a file name.
FOLDERS: Final = {SecretKind.SECRET: "/run/secrets", SecretKind.CONFIG: "/run/configs"}


class SecretRef(msgspec.Struct, frozen=True):
    """One value in the whole cloud."""

    namespace: Namespace
    kind: SecretKind
    name: str
    version: int  # of a registry login 0: the newest

    def __str__(self) -> str:
        return f"{self.kind} {self.name} version {self.version}"


class SecretVersion(msgspec.Struct, frozen=True):
    """A version of a value, without the value."""

    number: int
    created_at: float
    actor: str
    size: int  # bytes


class Secret(msgspec.Struct, frozen=True):
    """A secret, config or registry login, without its values."""

    id: str
    name: str
    kind: SecretKind
    created_at: float
    versions: tuple[SecretVersion, ...]  # that are kept, the oldest first
    namespace: Namespace = DEFAULT_NAMESPACE
    user: str = ""  # of a registry login
    request_id: str = ""  # of the request that last changed it

    def __post_init__(self) -> None:
        check_name(self.kind, self.name)
        ids.check_namespace(self.namespace)

    @property
    def current(self) -> SecretVersion:
        return self.versions[-1]

    def ref(self, version: int | None = None) -> SecretRef:
        """A version of it; the newest if none is given."""
        return SecretRef(self.namespace, self.kind, self.name, version or self.current.number)


class RegistryLoginValue(msgspec.Struct, frozen=True):
    """The value of a login: user and password, or a token that is exchanged for others."""

    user: str = ""
    password: str = ""
    identity_token: str = ""

    def __post_init__(self) -> None:
        ids.check_display_text(self.user, "user")
        if not (self.user and self.password) and not self.identity_token:
            raise errors.Invalid("a login is `user` and `password`, or `identity_token`", field="password")
        if ":" in self.user:
            raise errors.Invalid("the user of a login cannot hold ':'", field="user")

    def __repr__(self) -> str:
        return f"RegistryLoginValue({self.user!r})"


class SecretUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a container finds a secret or a config: in a file, or a secret in an environment variable."""

    name: str
    kind: SecretKind = SecretKind.SECRET
    target: str = ""  # a file in the folder of its kind, or an absolute path; empty: the name
    variable: str = ""  # instead of a file
    mode: int | None = None  # of the file; None: 0400 of a secret, 0444 of a config
    uid: int | None = None  # its owner in the container; None: the user of the container
    gid: int | None = None
    version: int = 0  # set by the server; 0: not yet

    def __post_init__(self) -> None:
        if self.kind is SecretKind.REGISTRY:
            raise errors.Invalid("logins of registries are for pulling images alone", field="secrets")
        if self.kind not in FOLDERS:
            raise errors.Invalid("certificates are for routes alone", field="secrets")
        check_name(self.kind, self.name)
        if self.variable:
            self._check_variable()
        else:
            _check_target(self.target or self.name, self.folder, self.field)
        if self.mode is not None and not 0 <= self.mode <= 0o777:
            raise errors.Invalid("the mode of a file is 0000 to 0777", field=self.field)
        for number in (self.uid, self.gid):
            if number is not None and not 0 <= number <= _MAX_ID:
                raise errors.Invalid(f"uid and gid are 0 to {_MAX_ID}", field=self.field)

    def _check_variable(self) -> None:
        if not _VARIABLE.fullmatch(self.variable):
            raise errors.Invalid(
                f"{self.variable[:40]!r} is no name of an environment variable", field=self.field
            )
        if self.kind is SecretKind.CONFIG or self.target or self.mode is not None:
            raise errors.Invalid("a variable has neither a file nor its mode", field=self.field)

    @property
    def field(self) -> str:
        """The field of a document that it is in."""
        return f"{self.kind}s"

    @property
    def folder(self) -> str:
        """The folder of its kind in the container."""
        return FOLDERS[self.kind]

    @property
    def path(self) -> str:
        """Its file in the container; empty for a variable."""
        return "" if self.variable else posixpath.join(self.folder, self.target or self.name)

    @property
    def file_mode(self) -> int:
        if self.mode is not None:
            return self.mode
        return 0o400 if self.kind is SecretKind.SECRET else 0o444

    def ref(self, namespace: Namespace) -> SecretRef:
        return SecretRef(namespace, self.kind, self.name, self.version)

    def __str__(self) -> str:
        """As `parse` and `parse_variable` read it, without the version."""
        if self.variable:
            return f"{self.variable}={self.name}"
        target = f":{self.target}" if self.target else ""
        mode = f",mode={self.mode:04o}" if self.mode is not None else ""
        owner = "".join(
            f",{key}={value}" for key, value in (("uid", self.uid), ("gid", self.gid)) if value is not None
        )
        return f"{self.name}{target}{mode}{owner}"

    @classmethod
    def parse(cls, text: str, kind: SecretKind = SecretKind.SECRET) -> SecretUse:
        """`NAME[:TARGET][,mode=0440][,uid=N][,gid=N]`."""
        place, *options = text.split(",")
        name, _, target = place.partition(":")
        numbers: dict[str, int] = {}
        for option in options:
            key, _, value = option.partition("=")
            digits = value.removeprefix("0o")
            if key not in ("mode", "uid", "gid") or not digits.isdigit() or key in numbers:
                raise errors.Invalid(
                    f"{option[:40]!r} is no option of a {kind}; write "
                    "NAME[:TARGET][,mode=0440][,uid=N][,gid=N]",
                    field=f"{kind}s",
                )
            try:
                numbers[key] = int(digits, 8) if key == "mode" else int(digits[:9])
            except ValueError:
                raise errors.Invalid(f"mode {value[:10]!r} is not octal", field=f"{kind}s") from None
        mode, uid, gid = (numbers.get(key) for key in ("mode", "uid", "gid"))
        return cls(name, kind, target, mode=mode, uid=uid, gid=gid)

    @classmethod
    def parse_variable(cls, text: str) -> SecretUse:
        """`VARIABLE=NAME`."""
        variable, equals, name = text.partition("=")
        if not equals or not variable:
            raise errors.Invalid(f"{text[:40]!r} must read VARIABLE=NAME", field="secrets")
        return cls(name, variable=variable)


def check_name(kind: SecretKind, name: str) -> str:
    """Raise `Invalid` unless a value of that kind can be called so."""
    if kind is SecretKind.REGISTRY:
        if not _REGISTRY.fullmatch(name):
            raise errors.Invalid(
                f"{name[:60]!r} is no registry; write its host as images name it: docker.io, "
                "registry.example.org:5000",
                field="name",
            )
        return name
    if len(name) > MAX_NAME:
        raise errors.Invalid(f"the name of a {kind} has at most {MAX_NAME} characters", field="name")
    return ids.check_id(name, "name")


def check_value(kind: SecretKind, value: bytes) -> None:
    """Raise unless it can be a value."""
    if not value:
        raise errors.Invalid(f"the value of a {kind} is empty; give at least one byte", field="data")
    if len(value) > MAX_VALUE:
        raise errors.TooLarge(
            f"the value of a {kind} has at most {MAX_VALUE // 1024} KiB, not {len(value)} bytes"
        )


def check_uses(uses: tuple[SecretUse, ...], environment: Iterable[str] = ()) -> None:
    """Raise `Invalid` if there are too many, or two in one place."""
    if len(uses) > MAX_USES:
        raise errors.Invalid(f"a spec uses at most {MAX_USES} secrets and configs", field="secrets")
    variables = {text.partition("=")[0] for text in environment}
    paths: set[str] = set()
    for use in uses:
        if use.variable:
            if use.variable in variables:
                raise errors.Invalid(f"the variable {use.variable!r} is set twice", field=use.field)
            variables.add(use.variable)
        elif use.path in paths:
            raise errors.Invalid(f"two files would be at {use.path}", field=use.field)
        paths.add(use.path)
    for path in paths - {""}:
        above = posixpath.dirname(path)
        while above != "/":
            if above in paths:
                raise errors.Invalid(f"{path} would be below the file {above}", field="secrets")
            above = posixpath.dirname(above)


def _check_target(target: str, folder: str, field: str) -> None:
    if len(target) > _MAX_TARGET or not target.isprintable() or ":" in target or "," in target:
        raise errors.Invalid(
            f"the path of a file has at most {_MAX_TARGET} printable characters, without ':' and ','",
            field=field,
        )
    if not target.startswith("/"):
        if "/" in target or target in (".", ".."):
            raise errors.Invalid(
                f"{target[:60]!r} is neither a file name in {folder} nor an absolute path", field=field
            )
        return
    if posixpath.normpath(target) != target or target in ("/", *FOLDERS.values()):
        raise errors.Invalid(f"{target[:60]!r} is no path of a file, without '.', '..' and '//'", field=field)
    if any(target.startswith(f"{each}/") for each in FOLDERS.values()):
        raise errors.Invalid(f"for a file in {folder} give its name alone", field=field)
    if any(target == top or target.startswith(f"{top}/") for top in _NOT_THERE):
        raise errors.Invalid(f"no file can be at {target[:60]}", field=field)
