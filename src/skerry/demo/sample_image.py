"""The sample image: a small web server in an OCI image, made of this machine's own Python.

It needs no registry and no network. The image has the Python interpreter that runs this program, the shared
libraries and the modules of the standard library that the server (`skerry.demo.sample_server`) has loaded
after its first request, and nothing else. `skerry image sample` writes it; the demo runs two versions of it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping
from importlib.util import cache_from_source
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from skerry.kit import files

_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "riscv64": "riscv64"}

_HEAD: Final = 4096  # of a program: has the path of its loader (PT_INTERP)
_LOADER: Final = re.compile(rb"\0(/[\w./-]*/ld[\w.-]+)\0")

# Paths in the image.
_LIBRARIES: Final = "lib"
_HOME: Final = "usr"  # of Python: PYTHONHOME
_PROGRAM: Final = "usr/bin/python3"
_SERVER: Final = "srv/server.py"
_SERVER_SOURCE: Final = Path(__file__).with_name("sample_server.py")


class SampleImageFailed(RuntimeError):
    """The image cannot be made here."""


class SampleFile(NamedTuple):
    """A file of the image, and the file of this machine that it is a copy of; or a link to `target`."""

    path: str
    source: Path
    target: str = ""


class SampleLayer(NamedTuple):
    """The one layer of the image, and the command that runs in it."""

    data: bytes
    diff_id: str
    command: tuple[str, ...]
    environment: tuple[str, ...]


def write(folder: Path, versions: Mapping[str, Mapping[str, str]] | None = None) -> None:
    """Write the image to `folder` in the OCI layout, with a tag for each of `versions`, which differ in the
    variables of their environment; by default one, `latest`. Raises `SampleImageFailed`."""
    layer = build_layer()
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    layer_blob = _write_blob(blobs, layer.data, _LAYER)
    manifests = []
    for tag, variables in (versions or {"latest": {}}).items():
        config = _write_blob(blobs, _encode(config_of(layer, variables)), _CONFIG)
        manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": [layer_blob]}
        entry = _write_blob(blobs, _encode(manifest), _MANIFEST)
        manifests.append(entry | {"annotations": {"org.opencontainers.image.ref.name": tag}})
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests}
    files.write_atomically(folder / "oci-layout", _encode({"imageLayoutVersion": "1.0.0"}))
    files.write_atomically(folder / "index.json", _encode(index))


def build_layer() -> SampleLayer:
    """The layer, made of this machine's Python. Raises `SampleImageFailed`."""
    python = Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()
    loaded = _loaded_files(python)
    modules, libraries = loaded["modules"], loaded["mapped"]
    standard = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    content = [
        SampleFile(_PROGRAM, python),
        SampleFile(_SERVER, _SERVER_SOURCE),
        *place_modules(modules, standard),
        *place_libraries([path for path in libraries if Path(path) != python], standard),
    ]
    if loader := place_loader(python.read_bytes()[:_HEAD], libraries):
        content.append(loader)
    data = _archive(content)
    return SampleLayer(
        gzip.compress(data, 1, mtime=0),
        _digest(data),
        (f"/{_PROGRAM}", "-S", "-s", "-B", "-u", f"/{_SERVER}"),
        (
            "PATH=/usr/bin",
            f"LD_LIBRARY_PATH=/{_LIBRARIES}",
            f"PYTHONHOME=/{_HOME}",
            f"PYTHONPLATLIBDIR={sys.platlibdir}",
        ),
    )


def place_modules(modules: Iterable[str], standard: Iterable[Path]) -> list[SampleFile]:
    """Where modules of the standard library are in the image; others are left out."""
    folders = list(standard)
    home = f"{_HOME}/{sys.platlibdir}/python{sys.version_info.major}.{sys.version_info.minor}"
    placed = {}
    for path in sorted(map(Path, modules)):
        resolved = path.resolve()
        for folder in folders:
            if resolved.is_relative_to(folder):
                placed[f"{home}/{resolved.relative_to(folder)}"] = resolved
                # What is compiled already need not be compiled in each container.
                if resolved.suffix == ".py" and (compiled := Path(cache_from_source(resolved))).exists():
                    placed[f"{home}/{compiled.relative_to(folder)}"] = compiled
                break
    return [SampleFile(path, source) for path, source in placed.items()]


def place_libraries(libraries: Iterable[str], standard: Iterable[Path]) -> list[SampleFile]:
    """Where shared libraries are in the image: all in one folder, by their file names, with links by the
    names that programs look for. Modules of Python are no libraries."""
    folders = list(standard)
    placed = []
    for path in sorted(map(Path, libraries)):
        if not any(path.is_relative_to(folder) for folder in folders):
            *links, name = library_names(path.name)
            placed.append(SampleFile(f"{_LIBRARIES}/{name}", path))
            placed += (SampleFile(f"{_LIBRARIES}/{link}", path, name) for link in links)
    return placed


def library_names(name: str) -> list[str]:
    """The names that a library is looked for by, its own last: `libz.so.1`, `libz.so.1.2`."""
    stem, mark, numbers = name.partition(".so.")
    if not mark:
        return [name]
    parts = numbers.split(".")
    return [f"{stem}.so.{'.'.join(parts[:count])}" for count in range(1, len(parts) + 1)]


def place_loader(program: bytes, libraries: Iterable[str]) -> SampleFile | None:
    """The dynamic loader at the path that the beginning of a program names, if `place_libraries` does not put
    it there; None also for a static program."""
    found = _LOADER.search(program)
    if found is None:
        return None
    path = found[1].decode().lstrip("/")
    source = next((each for each in libraries if PurePosixPath(each).name == PurePosixPath(path).name), None)
    if source is None:
        raise SampleImageFailed(f"the loader /{path} of Python is not among the libraries that it has loaded")
    if path == f"{_LIBRARIES}/{PurePosixPath(path).name}":
        return None
    return SampleFile(path, Path(source))


def config_of(layer: SampleLayer, variables: Mapping[str, str]) -> dict[str, Any]:
    """The configuration of the image, with `variables` in its environment."""
    return {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "Entrypoint": list(layer.command),
            "Env": [*layer.environment, *(f"{name}={value}" for name, value in variables.items())],
            "WorkingDir": "/",
            "ExposedPorts": {"80/tcp": {}},
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
    }


def _loaded_files(python: Path) -> dict[str, list[str]]:
    """The files that the server has loaded after one request, by this interpreter."""
    command = [str(python), "-I", "-S", "-B", str(_SERVER_SOURCE), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise SampleImageFailed(f"the sample server does not run with {python}: {done.stderr[-500:]}")
    loaded: dict[str, list[str]] = json.loads(done.stdout)
    return loaded


def _archive(content: Iterable[SampleFile]) -> bytes:
    """A tar of all files and their folders; the same files give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        made: set[str] = set()
        for folder in ("dev", "proc", "sys", "etc", "tmp"):
            _add_folder(archive, folder, made)
        for each in sorted(content):
            for parent in reversed(PurePosixPath(each.path).parents[:-1]):
                _add_folder(archive, str(parent), made)
            member = tarfile.TarInfo(each.path)
            if each.target:
                member.type, member.linkname = tarfile.SYMTYPE, each.target
                archive.addfile(member)
                continue
            data = each.source.read_bytes()
            member.size, member.mode = len(data), 0o755
            member.mtime = int(each.source.stat().st_mtime)  # by which compiled modules know their source
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _add_folder(archive: tarfile.TarFile, path: str, made: set[str]) -> None:
    if path not in made:
        made.add(path)
        member = tarfile.TarInfo(path)
        member.type, member.mode = tarfile.DIRTYPE, 0o1777 if path == "tmp" else 0o755
        archive.addfile(member)


def _write_blob(folder: Path, data: bytes, kind: str) -> dict[str, Any]:
    """Write a blob, if it is not there; its descriptor."""
    digest = _digest(data)
    path = folder / digest.removeprefix("sha256:")
    if not path.exists():
        files.write_atomically(path, data)
    return {"mediaType": kind, "digest": digest, "size": len(data)}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()
