"""The documents of an image: index, manifest and configuration, of Docker and of the OCI.

Bytes in, checked values out; every fault is `Unprocessable` with a sentence that names the document. Where
the bytes come from and whether they have the digest that was asked for is the business of the sources.
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
_RETIRED = f"{_DOCKER}distribution.manifest.v1"
# Says nothing of what is inside, as some file servers and old registries do.
_SILENT = frozenset({"", "application/json", "application/octet-stream", "text/plain"})
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
    """Points to content: its kind, digest and size."""

    digest: str
    size: _Size
    media_type: str = ""
    platform: _PlatformDocument | None = None
    annotations: dict[str, str] | None = None


class _AnyDocument(msgspec.Struct, rename="camel"):
    """What an index and a manifest have between them."""

    schema_version: int = 0
    media_type: str = ""
    manifests: list[OciDescriptor] | None = None
    config: OciDescriptor | None = None
    layers: list[OciDescriptor] | None = None


class OciManifest(msgspec.Struct, frozen=True):
    """One image: where its configuration and its layers are."""

    config: OciDescriptor
    layers: tuple[OciDescriptor, ...]


class OciIndex(msgspec.Struct, frozen=True):
    """Several images under one name."""

    manifests: tuple[OciDescriptor, ...]


class OciConfig(msgspec.Struct, frozen=True):
    """What an image says of itself; `platform` is None if it does not say."""

    config: ImageConfig
    diff_ids: tuple[Digest, ...]
    platform: Platform | None


def digest_of(data: bytes) -> Digest:
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def check_digest(data: bytes, wanted: Digest, what: str) -> None:
    """Raise unless `data` is what `wanted` names."""
    if (found := digest_of(data)) != wanted:
        raise wrong_digest(what, wanted, found)


def wrong_digest(what: str, wanted: str, found: str) -> errors.Unprocessable:
    return errors.Unprocessable(
        f"{what} has the wrong digest: {found} came instead of {wanted}. It was changed on its way or at its "
        "source; push the image again, or look for a proxy in between"
    )


def truncated(what: str, got: int, size: int) -> errors.Unprocessable:
    return errors.Unprocessable(
        f"{what} is truncated: it ends after {got} of {size} bytes. The copy at the source is not whole; "
        "push or save the image again"
    )


def read_document(data: bytes, media_type: str, what: str) -> OciManifest | OciIndex:
    """An index or a manifest. `media_type` is what came with it, empty if nothing did."""
    said = media_type.partition(";")[0].strip().lower()
    if said.startswith(_RETIRED):
        raise errors.Unprocessable(
            f"{what} is in Docker's retired manifest version 1; push the image again with a current tool"
        )
    try:
        document = json_codec.decode(data, _AnyDocument)
    except json_codec.InvalidJson as error:
        raise errors.Unprocessable(f"{what} is no manifest: {error}") from None
    if said in _SILENT:
        said = ""
    # The same bytes must not mean one thing to us and another to whoever scanned or signed them.
    if said and document.media_type and said != document.media_type:
        raise errors.Unprocessable(
            f"{what} was sent as {said} and calls itself {document.media_type}; push the image again"
        )
    if document.manifests is not None and (document.layers is not None or document.config is not None):
        raise errors.Unprocessable(f"{what} is both an index and a manifest; it is not used")
    kind = said or document.media_type
    if not kind:
        kind = "index" if document.manifests is not None else "manifest"
    if kind == "index" or kind in INDEXES:
        return OciIndex(tuple(_checked(each, what) for each in document.manifests or ()))
    if kind != "manifest" and kind not in MANIFESTS:
        raise _unknown(what, kind)
    if document.config is None or document.layers is None:
        raise errors.Unprocessable(f"{what} is no manifest: it lacks its config or its layers")
    return _manifest(document.config, document.layers, what)


def choose(index: OciIndex, machine: Platform, what: str) -> OciDescriptor:
    """The image of `index` that `machine` runs best; one without a platform is taken if there is no other."""
    images = [each for each in index.manifests if each.media_type in MANIFESTS | INDEXES | _SILENT]
    known = [(each, told) for each in images if each.platform and (told := each.platform.platform())]
    place = platforms.choose(machine, [told for _, told in known])
    if place is not None:
        return known[place][0]
    unsaid = [each for each in images if each.platform is None]
    if len(unsaid) == 1:
        return unsaid[0]
    there = ", ".join(sorted({str(told) for _, told in known if told.system != "unknown"}))
    raise wrong_platform(what, there or "no image at all", machine)


def wrong_platform(what: str, there: str, machine: Platform) -> errors.Unprocessable:
    return errors.Unprocessable(f"{what} is not for this machine: it is for {there}, this is {machine}")


def read_configuration(data: bytes, manifest_layers: int, machine: Platform, what: str) -> OciConfig:
    """The configuration of an image of `manifest_layers` layers, which must be for `machine`."""
    try:
        document = json_codec.decode(data, _ConfigDocument)
    except json_codec.InvalidJson as error:
        raise errors.Unprocessable(f"{what}: its configuration cannot be read: {error}") from None
    if document.rootfs.type != "layers" or len(document.rootfs.diff_ids) != manifest_layers:
        raise errors.Unprocessable(
            f"{what}: its configuration names {len(document.rootfs.diff_ids)} layers, its manifest "
            f"{manifest_layers}"
        )
    platform = document.platform()
    if platform is not None and platforms.fitness(machine, platform) is None:
        raise wrong_platform(what, str(platform), machine)
    return OciConfig(
        config=_what_to_run(document.config or _RunDocument(), what),
        diff_ids=tuple(_digest(each, what) for each in document.rootfs.diff_ids),
        platform=platform,
    )


def _what_to_run(told: _RunDocument, what: str) -> ImageConfig:
    words = [*(told.entrypoint or ()), *(told.cmd or ()), *(told.env or ()), told.user, told.working_dir]
    if any("\0" in word for word in words):
        raise errors.Unprocessable(
            f"{what}: its configuration holds a NUL byte where no program can have one"
        )
    return ImageConfig(
        entrypoint=tuple(told.entrypoint or ()),
        command=tuple(told.cmd or ()),
        environment=tuple(each for each in told.env or () if "=" in each[1:]),
        user=told.user,
        folder=told.working_dir,
        stop_signal=told.stop_signal,
        ports=tuple(sorted(told.exposed_ports or ())),
        volumes=tuple(sorted(told.volumes or ())),
        labels=told.labels or {},
    )


def _manifest(config: OciDescriptor, layers: list[OciDescriptor], what: str) -> OciManifest:
    # An artifact that is no image, such as a chart or a signature, gives itself away here.
    if config.media_type not in _CONFIGS:
        raise _unknown(f"the configuration of {what}", config.media_type)
    for layer in layers:
        if layer.media_type not in _LAYERS:
            raise _unknown(f"layer {layer.digest[:80]} of {what}", layer.media_type)
    if config.size > MAX_CONFIG_BYTES:
        raise errors.TooLarge(
            f"the configuration of {what} has {config.size} bytes; at most {MAX_CONFIG_BYTES} are read"
        )
    return OciManifest(_checked(config, what), tuple(_checked(layer, what) for layer in layers))


def _checked(descriptor: OciDescriptor, what: str) -> OciDescriptor:
    _digest(descriptor.digest, what)
    return descriptor


def _digest(text: str, what: str) -> Digest:
    try:
        return ids.check_digest(text)
    except errors.Invalid:
        raise errors.Unprocessable(
            f"{what} names content by {text[:80]!r}; only sha256 digests are checked, and no others used"
        ) from None


def _unknown(what: str, media_type: str) -> errors.Unprocessable:
    return errors.Unprocessable(
        f"{what} has the unknown media type {media_type[:120]!r}: it is no container image, or of a kind "
        "that this version cannot unpack"
    )


class _RootfsDocument(msgspec.Struct):
    type: str = "layers"
    diff_ids: list[str] = []


class _RunDocument(msgspec.Struct):
    """`config` of a configuration. Docker writes null for what is empty."""

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
    config: _RunDocument | None = None
    rootfs: _RootfsDocument = msgspec.field(default_factory=_RootfsDocument)
