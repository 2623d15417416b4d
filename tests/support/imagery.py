"""Small images for tests, made in plain Python: layers, configurations and manifests, byte for byte.

    image = busybox(command=("sleep", "60"))
    write_layout(image, folder)                  # oci:FOLDER
    write_docker_archive(image, file)            # docker-archive:FILE
    registry.push(image, "web:1")                # see tests.support.registry

The same arguments give the same bytes. Nothing here is checked: a test that wants a broken image makes one
with `dataclasses.replace`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import zstandard

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"

# A command of a shell that waits, and ends at once when it is asked to: without the trap the first process of
# a container ignores that.
SLEEPS = 'trap "exit 0" TERM; sleep 1000 & wait'
APPLETS = (
    *("sh", "cat", "echo", "env", "false", "grep", "head", "hostname", "httpd", "id", "ip", "kill", "ln"),
    *("ls", "mkdir", "mount", "nc", "nslookup", "ping", "printf", "ps", "pwd", "rm", "sleep", "stat", "stty"),
    *("test", "touch", "trap", "true", "tty", "uname", "wc", "wget", "whoami", "yes", "dd", "df", "chown"),
)


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Entry:
    """A member of a layer's tar."""

    path: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    link: str = ""
    device: tuple[int, int] = (0, 0)
    xattrs: Mapping[str, str] = field(default_factory=dict)

    def member(self) -> tarfile.TarInfo:
        info = tarfile.TarInfo(self.path)
        info.type, info.mode, info.uid, info.gid = self.kind, self.mode, self.uid, self.gid
        info.size, info.linkname = len(self.data), self.link
        info.devmajor, info.devminor = self.device
        info.pax_headers = {f"SCHILY.xattr.{name}": value for name, value in self.xattrs.items()}
        return info


def file(path: str, data: bytes | str = b"", mode: int = 0o644, uid: int = 0, gid: int = 0) -> Entry:
    return Entry(path, data.encode() if isinstance(data, str) else data, mode=mode, uid=uid, gid=gid)


def folder(path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> Entry:
    return Entry(path, kind=tarfile.DIRTYPE, mode=mode, uid=uid, gid=gid)


def symlink(path: str, target: str) -> Entry:
    return Entry(path, kind=tarfile.SYMTYPE, link=target, mode=0o777)


def hard_link(path: str, target: str) -> Entry:
    return Entry(path, kind=tarfile.LNKTYPE, link=target)


def whiteout(path: str) -> Entry:
    """Takes `path` of the layers below away."""
    head, slash, tail = path.rpartition("/")
    return file(f"{head}{slash}.wh.{tail}")


def opaque(path: str) -> Entry:
    """Takes all that the layers below have in the folder `path` away."""
    return file(f"{path}/.wh..wh..opq")


def tar(entries: Iterable[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            archive.addfile(entry.member(), io.BytesIO(entry.data))
    return buffer.getvalue()


def compress(data: bytes, compression: str) -> bytes:
    match compression:
        case "gzip":
            return gzip.compress(data, 6, mtime=0)
        case "zstd":
            return zstandard.ZstdCompressor().compress(data)
        case _:
            return data


@dataclass(frozen=True)
class Layer:
    """A layer as it travels: `data` is what a registry stores."""

    data: bytes
    diff_id: str  # of the tar in it
    compression: str

    @cached_property
    def digest(self) -> str:
        return digest_of(self.data)


def layer(*entries: Entry, compression: str = "gzip") -> Layer:
    """`compression` is gzip, zstd or empty for none."""
    plain = tar(entries)
    return Layer(compress(plain, compression), digest_of(plain), compression)


def busybox_layer(*more: Entry, compression: str = "gzip") -> Layer:
    """/bin with busybox and its applets, /etc with root and the user 1000, /tmp; and `more`."""
    return layer(*_busybox_entries(), *more, compression=compression) if more else _busybox_layer(compression)


@cache  # two megabytes to compress, for hundreds of images
def _busybox_layer(compression: str) -> Layer:
    return layer(*_busybox_entries(), compression=compression)


def _busybox_entries() -> tuple[Entry, ...]:
    program = shutil.which("busybox")
    assert program, "busybox is missing: install the packages of system-packages.txt"
    return (
        *(folder(path) for path in ("bin", "dev", "etc", "home", "proc", "root", "sys", "usr", "var", "www")),
        folder("tmp", mode=0o1777),
        file("bin/busybox", Path(program).read_bytes(), mode=0o755),
        *(symlink(f"bin/{applet}", "busybox") for applet in APPLETS),
        file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:User:/home:/bin/sh\n"),
        file("etc/group", "root:x:0:\nuser:x:1000:\nstaff:x:50:user\n"),
    )


@dataclass(frozen=True)
class Made:
    """An image, ready to be written anywhere; `docker` says whose media types it has."""

    layers: tuple[Layer, ...]
    config: bytes
    docker: bool = False
    manifest_fields: Mapping[str, Any] = field(default_factory=dict)  # over what would be written

    @property
    def id(self) -> str:
        return digest_of(self.config)

    @property
    def media_type(self) -> str:
        return DOCKER_MANIFEST if self.docker else OCI_MANIFEST

    @property
    def manifest(self) -> bytes:
        fields: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": self.media_type,
            "config": descriptor(self.config, DOCKER_CONFIG if self.docker else OCI_CONFIG),
            "layers": [descriptor(each.data, self._layer_type(each)) for each in self.layers],
        }
        return encode({**fields, **self.manifest_fields})

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    def _layer_type(self, layer: Layer) -> str:
        if self.docker:
            return DOCKER_LAYER
        return OCI_LAYER + (f"+{layer.compression}" if layer.compression else "")

    def blobs(self) -> dict[str, bytes]:
        """What the manifest names, by digest."""
        return {self.id: self.config, **{each.digest: each.data for each in self.layers}}


def image(
    *layers: Layer,
    config: Mapping[str, Any] | None = None,
    architecture: str = "amd64",
    system: str = "linux",
    variant: str = "",
    docker: bool = False,
) -> Made:
    """An image of `layers`; `config` is the part of its configuration that says what to run."""
    document: dict[str, Any] = {
        "architecture": architecture,
        "os": system,
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": [each.diff_id for each in layers]},
    }
    if variant:
        document["variant"] = variant
    return Made(layers, encode(document), docker)


def busybox(
    *more: Layer,
    entrypoint: Iterable[str] = (),
    command: Iterable[str] = ("sh",),
    environment: Iterable[str] = ("PATH=/bin",),
    user: str = "",
    folder: str = "",
    stop_signal: str = "",
    docker: bool = False,
    compression: str = "gzip",
) -> Made:
    """An image that runs: busybox, with `more` layers over it."""
    config: dict[str, Any] = {"Cmd": list(command), "Env": list(environment)}
    more_config = {
        "Entrypoint": list(entrypoint),
        "User": user,
        "WorkingDir": folder,
        "StopSignal": stop_signal,
    }
    config |= {key: value for key, value in more_config.items() if value}
    return image(busybox_layer(compression=compression), *more, config=config, docker=docker)


def index(*images: Made, docker: bool = False, platforms: Iterable[Mapping[str, str]] | None = None) -> bytes:
    """An index of `images`, each with the platform of its configuration unless others are given."""
    told = list(platforms) if platforms is not None else [_platform(each) for each in images]
    return encode(
        {
            "schemaVersion": 2,
            "mediaType": DOCKER_LIST if docker else OCI_INDEX,
            "manifests": [
                {**descriptor(each.manifest, each.media_type), "platform": dict(platform)}
                for each, platform in zip(images, told, strict=True)
            ],
        }
    )


def _platform(made: Made) -> dict[str, str]:
    document = json.loads(made.config)
    return {key: document[key] for key in ("architecture", "os", "variant") if key in document}


def descriptor(data: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}


def encode(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def write_layout(made: Made, target: Path, tag: str = "latest") -> Path:
    """Add `made` to the OCI layout in the folder `target`, which is made if need be, under `tag`."""
    blobs = target / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    for digest, data in {**made.blobs(), made.digest: made.manifest}.items():
        (blobs / digest.removeprefix("sha256:")).write_bytes(data)
    (target / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    path = target / "index.json"
    known = json.loads(path.read_text())["manifests"] if path.exists() else []
    row = descriptor(made.manifest, made.media_type)
    if tag:
        row["annotations"] = {"org.opencontainers.image.ref.name": tag}
        known = [old for old in known if old.get("annotations") != row["annotations"]]
    path.write_bytes(encode({"schemaVersion": 2, "manifests": [*known, row]}))
    return target


def write_oci_archive(made: Made, target: Path, tag: str = "latest") -> Path:
    """A tar of an OCI layout, as `skopeo copy ... oci-archive:` writes it."""
    members = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        **{f"blobs/{digest.replace(':', '/')}": data for digest, data in made.blobs().items()},
        f"blobs/{made.digest.replace(':', '/')}": made.manifest,
    }
    row = descriptor(made.manifest, made.media_type)
    row["annotations"] = {"org.opencontainers.image.ref.name": tag}
    members["index.json"] = encode({"schemaVersion": 2, "manifests": [row]})
    return write_tar(members, target)


def write_docker_archive(made: Made, target: Path, names: Iterable[str] = ("made:latest",)) -> Path:
    """As `docker save` wrote it before version 25: each layer as a plain tar in a folder of its own."""
    members: dict[str, bytes] = {}
    paths = []
    for each in made.layers:
        path = f"{each.diff_id.removeprefix('sha256:')}/layer.tar"
        members[path] = plain(each)
        paths.append(path)
    config = f"{made.id.removeprefix('sha256:')}.json"
    members[config] = made.config
    members["manifest.json"] = encode([{"Config": config, "RepoTags": list(names), "Layers": paths}])
    return write_tar(members, target)


def plain(layer: Layer) -> bytes:
    """The tar in a layer."""
    match layer.compression:
        case "gzip":
            return gzip.decompress(layer.data)
        case "zstd":
            return zstandard.ZstdDecompressor().decompress(layer.data)
        case _:
            return layer.data


def write_tar(members: Mapping[str, bytes], target: Path) -> Path:
    """A tar with these files, in this order."""
    target.write_bytes(tar(file(name, data) for name, data in members.items()))
    return target
