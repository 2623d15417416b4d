"""Parses references to images, and writes them in canonical form.

    example.org:5000/team/web:1.2@sha256:...     a registry; defaults as in Docker
    oci:/srv/layout[:tag]                         a folder in the OCI layout
    oci-archive:/srv/web.tar                      a tar of one
    docker-archive:/srv/web.tar                   what `docker save` writes
    rootfs:/srv/tree                              a folder that is the root file system, or a tarball of one

`parse` returns a reference or raises `Invalid`. `str()` of a reference is its canonical form, and `parse`
reads that back to the same reference. No disk or network access.
"""

from __future__ import annotations

import ipaddress
import re

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import Digest

DOCKER_HUB = "docker.io"
_DOCKER_HUB_HOST = "registry-1.docker.io"
_DOCKER_HUB_ALIASES = frozenset({DOCKER_HUB, "index.docker.io", _DOCKER_HUB_HOST})
_MAX_REFERENCE = 4096
_MAX_NAME = 255
_DEFAULT_TAG = "latest"

_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(
    rf"(?:(?P<name>{_LABEL}(?:\.{_LABEL})*)|\[(?P<six>[0-9a-fA-F:.]{{2,45}})\])(?::(?P<port>[0-9]{{1,5}}))?"
)
_HEX = re.compile(r"[0-9a-f]{6,64}")


class RegistryReference(msgspec.Struct, frozen=True):
    """An image in a registry: by `tag`, by `digest`, or by both, when the digest counts."""

    registry: str  # HOST[:PORT], in lower case
    repository: str
    tag: str
    digest: Digest | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")

    @property
    def host(self) -> str:
        """The host to connect to, HOST[:PORT]."""
        return _DOCKER_HUB_HOST if self.registry == DOCKER_HUB else self.registry

    @property
    def version(self) -> str:
        """The tag or digest to request."""
        return self.digest or self.tag


class LayoutReference(msgspec.Struct, frozen=True):
    """An image in a folder in the OCI layout; without a tag, the only one there."""

    path: str
    tag: str = ""

    def __str__(self) -> str:
        if self.tag:
            return f"oci:{self.path}:{self.tag}"
        # The slash keeps a ':' in the last part from being parsed as the beginning of a tag.
        return f"oci:{self.path}" + ("/" if ":" in self.path.rpartition("/")[2] else "")


class OciArchiveReference(msgspec.Struct, frozen=True):
    """The only image in a tar of an OCI layout."""

    path: str

    def __str__(self) -> str:
        return f"oci-archive:{self.path}"


class DockerArchiveReference(msgspec.Struct, frozen=True):
    """The only image in an archive of `docker save`."""

    path: str

    def __str__(self) -> str:
        return f"docker-archive:{self.path}"


class RootfsReference(msgspec.Struct, frozen=True):
    """A root file system: a folder, used in place, or a tarball."""

    path: str

    def __str__(self) -> str:
        return f"rootfs:{self.path}"


ImageReference = (
    RegistryReference | LayoutReference | OciArchiveReference | DockerArchiveReference | RootfsReference
)


def parse(text: str, default_registry: str = DOCKER_HUB) -> ImageReference:
    """`text` as a reference; one without a registry is in `default_registry`."""
    if not 0 < len(text) <= _MAX_REFERENCE or not text.isprintable():
        raise _invalid(text, f"must be 1 to {_MAX_REFERENCE} printable characters")
    scheme, colon, remainder = text.partition(":")
    if colon:
        match scheme:
            case "oci":
                return _layout(text, remainder)
            case "oci-archive":
                return OciArchiveReference(_path(text, remainder))
            case "docker-archive":
                return DockerArchiveReference(_path(text, remainder))
            case "rootfs":
                return RootfsReference(_path(text, remainder))
    return _in_registry(text, default_registry)


def parse_id_prefix(text: str) -> str | None:
    """The hex digits, if `text` can be a prefix of an image's id: 6 to 64, after `sha256:` or not."""
    digits = text.removeprefix("sha256:")
    return digits if _HEX.fullmatch(digits) else None


def is_id(text: str) -> bool:
    """`sha256:` begins an id; as a reference it would be a repository of that name."""
    return text.startswith("sha256:")


def is_loopback(host: str) -> bool:
    """True if HOST[:PORT] literally names this machine."""
    form = _HOST.fullmatch(host)
    if form is None:
        return False
    name = form["six"] or form["name"]
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


def _in_registry(text: str, default_registry: str) -> RegistryReference:
    if "://" in text:
        raise _invalid(text, "is not a reference; write it without the `://`, such as `example.org/web:1.2`")
    remainder, at, digest_text = text.partition("@")
    digest = None
    if at:
        try:
            digest = ids.check_digest(digest_text)
        except errors.Invalid:
            raise _invalid(text, "must have `sha256:` and 64 hex digits after the `@`") from None
    name, tag = _split_tag(remainder)
    if tag is not None and not _TAG.fullmatch(tag):
        raise _invalid(text, "has a bad tag; it is 1 to 128 letters, digits, '_', '.' or '-'")
    first, slash, path = name.partition("/")
    if slash and _names_a_host(first):
        registry, repository = first, path
    else:
        registry, repository = default_registry, name
    if not _names_a_host(registry):
        raise errors.Invalid(
            f"registry {registry[:60]!r} must have a dot or a port, or it is parsed as a part of the name",
            field="images.default_registry",
        )
    registry = _registry(text, registry)
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    if len(repository) > _MAX_NAME or not all(map(_COMPONENT.fullmatch, repository.split("/"))):
        raise _invalid(
            text, "has a bad name; its parts are a-z and 0-9, with '.', '_' or '-' inside, divided by '/'"
        )
    return RegistryReference(registry, repository, tag or ("" if digest else _DEFAULT_TAG), digest)


def _split_tag(text: str) -> tuple[str, str | None]:
    """A ':' after the last '/' begins the tag; one before it belongs to a port."""
    head, colon, tail = text.rpartition(":")
    return (head, tail) if colon and "/" not in tail else (text, None)


def _names_a_host(component: str) -> bool:
    """A dot, a port, or localhost: else it is the first part of a name."""
    return any(c in ".:[" for c in component) or component == "localhost"


def _registry(text: str, host: str) -> str:
    form = _HOST.fullmatch(host)
    if form is None or len(host) > _MAX_NAME or (form["port"] and not 0 < int(form["port"]) <= 65535):
        raise _invalid(text, f"has a bad registry {host[:60]!r}; it is HOST or HOST:PORT")
    if form["six"]:
        try:
            address = str(ipaddress.IPv6Address(form["six"]))
        except ValueError:
            raise _invalid(text, f"has a bad address in its registry {host[:60]!r}") from None
        return f"[{address}]" + (f":{int(form['port'])}" if form["port"] else "")
    name = form["name"].lower()
    if name in _DOCKER_HUB_ALIASES and not form["port"]:
        return DOCKER_HUB
    return name + (f":{int(form['port'])}" if form["port"] else "")


def _layout(text: str, remainder: str) -> LayoutReference:
    path, tag = _split_tag(remainder)
    if tag is not None and not _TAG.fullmatch(tag):
        raise _invalid(text, "has a bad tag; it is 1 to 128 letters, digits, '_', '.' or '-'")
    return LayoutReference(_path(text, path), tag or "")


def _path(text: str, path: str) -> str:
    """The path without empty and `.` parts; `..` is rejected, since its meaning depends on links."""
    if not path.startswith("/"):
        raise _invalid(text, "must have an absolute path, such as `oci:/srv/images/web`")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise _invalid(text, "must have the path of a file or folder, without `..`")
    return "/" + "/".join(parts)


def _invalid(text: str, problem: str) -> errors.Invalid:
    return errors.Invalid(f"image {text[:120]!r} {problem}", field="image")
