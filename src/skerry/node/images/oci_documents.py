"""Parses the documents of an image: index, manifest and configuration, of Docker and of the OCI.

Every defect raises `Unprocessable` with the name of the document. Sources fetch the bytes and check their
digest.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.kit import json_codec
from skerry.model import errors, ids
from skerry.model.ids import Digest
from skerry.model.images import ImageConfig, Platform
from skerry.node.images import platforms

MAX_MANIFEST_BYTES = 4 * 1024 * 1024
MAX_CONFIG_BYTES = 4 * 1024 * 1024

_OCI = "application/vnd.oci.image."
_DOCKER = "application/vnd.docker."
INDEXES = frozenset({f"{_OCI}index.v1+json", f"{_DOCKER}distribution.manifest.list.v2+json"})
MANIFESTS = frozenset({f"{_OCI}manifest.v1+json", f"{_DOCKER}distribution.manifest.v2+json"})
_CONFIGS = frozenset({f"{_OCI}config.v1+json", f"{_DOCKER}container.image.v1+json"})
_LAYERS = frozenset(
    {
        *(f"{_OCI}layer.v1.tar{suffix}" for suffix in ("", "+gzip", "+zstd")),
        *(f"{_DOCKER}image.rootfs.diff.tar{suffix}" for suffix in ("", ".gzip", ".zstd")),
    }
)
_MANIFEST_V1 = f"{_DOCKER}distribution.manifest.v1"
# Generic media types, which some file servers and old registries send.
_GENERIC = frozenset({"", "application/json", "application/octet-stream", "text/plain"})
MAX_DEPTH = 3

_Size = Annotated[int, Meta(ge=0)]


class _PlatformDocument(msgspec.Struct):
    architecture: str = ""
    os: str = ""
    variant: str | None = None

    def platform(self) -> Platform | None:
        if not self.architecture or not self.os:
            return None
        return platforms.canonical(Platform(self.os, self.architecture, self.variant or ""))


class OciDescriptor(msgspec.Struct, frozen=True, rename="camel"):
    """Refers to content: its media type, digest and size."""

    digest: str
    size: _Size
    media_type: str = ""
    platform: _PlatformDocument | None = None
    annotations: dict[str, str] | None = None


class _AnyDocument(msgspec.Struct, rename="camel"):
    """The fields of an index and of a manifest."""

    schema_version: int = 0
    media_type: str = ""
    manifests: list[OciDescriptor] | None = None
    config: OciDescriptor | None = None
    layers: list[OciDescriptor] | None = None


class OciManifest(msgspec.Struct, frozen=True):
    """One image: descriptors of its configuration and its layers."""

    config: OciDescriptor
    layers: tuple[OciDescriptor, ...]


class OciIndex(msgspec.Struct, frozen=True):
    """Several images under one name."""

    manifests: tuple[OciDescriptor, ...]


class OciConfig(msgspec.Struct, frozen=True):
    """The configuration of an image; `platform` is None if it has none."""

    config: ImageConfig
    diff_ids: tuple[Digest, ...]
    platform: Platform | None


def digest_of(data: bytes) -> Digest:
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def check_digest(data: bytes, expected: Digest, label: str) -> None:
    """Raise unless `data` has the digest `expected`."""
    if (found := digest_of(data)) != expected:
        raise wrong_digest(label, expected, found)


def wrong_digest(label: str, expected: str, found: str) -> errors.Unprocessable:
    return errors.Unprocessable(
        f"{label} has the wrong digest: {found} instead of {expected}. It was modified in transit or at its "
        "source; push the image again, or check for a proxy in between"
    )


def truncated(label: str, got: int, size: int) -> errors.Unprocessable:
    return errors.Unprocessable(
        f"{label} is truncated: it ends after {got} of {size} bytes. The copy at the source is incomplete; "
        "push or save the image again"
    )


def read_document(data: bytes, media_type: str, label: str) -> OciManifest | OciIndex:
    """Parse an index or a manifest. `media_type` is its content type, or empty."""
    declared = media_type.partition(";")[0].strip().lower()
    if declared.startswith(_MANIFEST_V1):
        raise errors.Unprocessable(
            f"{label} is in Docker's obsolete manifest version 1; push the image again with a current tool"
        )
    try:
        document = json_codec.decode(data, _AnyDocument)
    except json_codec.InvalidJson as error:
        raise errors.Unprocessable(f"{label} is not a manifest: {error}") from None
    if declared in _GENERIC:
        declared = ""
    # The same bytes must not mean one thing to us and another to a scanner or signer.
    if declared and document.media_type and declared != document.media_type:
        raise errors.Unprocessable(
            f"{label} was sent as {declared} and calls itself {document.media_type}; push the image again"
        )
    if document.manifests is not None and (document.layers is not None or document.config is not None):
        raise errors.Unprocessable(f"{label} is both an index and a manifest, which is ambiguous")
    kind = declared or document.media_type
    if not kind:
        kind = "index" if document.manifests is not None else "manifest"
    if kind == "index" or kind in INDEXES:
        return OciIndex(tuple(_checked(each, label) for each in document.manifests or ()))
    if kind != "manifest" and kind not in MANIFESTS:
        raise _unknown(label, kind)
    if document.config is None or document.layers is None:
        raise errors.Unprocessable(f"{label} is not a manifest: it has no config or no layers")
    return _manifest(document.config, document.layers, label)


def choose(index: OciIndex, machine: Platform, label: str) -> OciDescriptor:
    """The best image of `index` for `machine`; one without a platform if there is no other."""
    images = [each for each in index.manifests if each.media_type in MANIFESTS | INDEXES | _GENERIC]
    with_platform = [
        (each, platform) for each in images if each.platform and (platform := each.platform.platform())
    ]
    index_of_best = platforms.choose(machine, [platform for _, platform in with_platform])
    if index_of_best is not None:
        return with_platform[index_of_best][0]
    unsaid = [each for each in images if each.platform is None]
    if len(unsaid) == 1:
        return unsaid[0]
    there = ", ".join(
        sorted({str(platform) for _, platform in with_platform if platform.system != "unknown"})
    )
    raise wrong_platform(label, there or "no image at all", machine)


def wrong_platform(label: str, there: str, machine: Platform) -> errors.Unprocessable:
    return errors.Unprocessable(f"{label} is not for this machine: it is for {there}, this is {machine}")


def read_configuration(data: bytes, manifest_layers: int, machine: Platform, label: str) -> OciConfig:
    """Parse the configuration of an image of `manifest_layers` layers, which must be for `machine`."""
    try:
        document = json_codec.decode(data, _ConfigDocument)
    except json_codec.InvalidJson as error:
        raise errors.Unprocessable(f"{label}: its configuration cannot be read: {error}") from None
    if document.rootfs.type != "layers" or len(document.rootfs.diff_ids) != manifest_layers:
        raise errors.Unprocessable(
            f"{label}: its configuration names {len(document.rootfs.diff_ids)} layers, its manifest "
            f"{manifest_layers}"
        )
    platform = document.platform()
    if platform is not None and platforms.fitness(machine, platform) is None:
        raise wrong_platform(label, str(platform), machine)
    return OciConfig(
        config=_image_config(document.config or _ImageConfigDocument(), label),
        diff_ids=tuple(_digest(each, label) for each in document.rootfs.diff_ids),
        platform=platform,
    )


def _image_config(document: _ImageConfigDocument, label: str) -> ImageConfig:
    texts = [
        *(document.entrypoint or ()),
        *(document.cmd or ()),
        *(document.env or ()),
        document.user,
        document.working_dir,
    ]
    if any("\0" in text for text in texts):
        raise errors.Unprocessable(f"{label}: its configuration has a NUL byte in a string for the program")
    return ImageConfig(
        entrypoint=tuple(document.entrypoint or ()),
        command=tuple(document.cmd or ()),
        environment=tuple(each for each in document.env or () if "=" in each[1:]),
        user=document.user,
        folder=document.working_dir,
        stop_signal=document.stop_signal,
        ports=tuple(sorted(document.exposed_ports or ())),
        volumes=tuple(sorted(document.volumes or ())),
        labels=document.labels or {},
    )


def _manifest(config: OciDescriptor, layers: list[OciDescriptor], label: str) -> OciManifest:
    # An artifact that is no image, such as a chart or a signature, is recognised here.
    if config.media_type not in _CONFIGS:
        raise _unknown(f"the configuration of {label}", config.media_type)
    for layer in layers:
        if layer.media_type not in _LAYERS:
            raise _unknown(f"layer {layer.digest[:80]} of {label}", layer.media_type)
    if config.size > MAX_CONFIG_BYTES:
        raise errors.TooLarge(
            f"the configuration of {label} has {config.size} bytes; at most {MAX_CONFIG_BYTES} are read"
        )
    return OciManifest(_checked(config, label), tuple(_checked(layer, label) for layer in layers))


def _checked(descriptor: OciDescriptor, label: str) -> OciDescriptor:
    _digest(descriptor.digest, label)
    return descriptor


def _digest(text: str, label: str) -> Digest:
    try:
        return ids.check_digest(text)
    except errors.Invalid:
        raise errors.Unprocessable(
            f"{label} uses the digest {text[:80]!r}; only sha256 is supported"
        ) from None


def _unknown(label: str, media_type: str) -> errors.Unprocessable:
    return errors.Unprocessable(
        f"{label} has the unknown media type {media_type[:120]!r}: it is not a container image, or of a kind "
        "that this version cannot unpack"
    )


class _RootfsDocument(msgspec.Struct):
    type: str = "layers"
    diff_ids: list[str] = []


class _ImageConfigDocument(msgspec.Struct):
    """`config` of a configuration. Docker writes null for empty values."""

    entrypoint: list[str] | None = msgspec.field(default=None, name="Entrypoint")
    cmd: list[str] | None = msgspec.field(default=None, name="Cmd")
    env: list[str] | None = msgspec.field(default=None, name="Env")
    user: str = msgspec.field(default="", name="User")
    working_dir: str = msgspec.field(default="", name="WorkingDir")
    stop_signal: str = msgspec.field(default="", name="StopSignal")
    exposed_ports: dict[str, msgspec.Raw] | None = msgspec.field(default=None, name="ExposedPorts")
    volumes: dict[str, msgspec.Raw] | None = msgspec.field(default=None, name="Volumes")
    labels: dict[str, str] | None = msgspec.field(default=None, name="Labels")


class _ConfigDocument(_PlatformDocument):
    config: _ImageConfigDocument | None = None
    rootfs: _RootfsDocument = msgspec.field(default_factory=_RootfsDocument)
