"""The sample image: what is in it, and that the same Python gives the same image."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skerry.demo import sample_image
from skerry.demo.sample_image import SampleFile


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layout")
    sample_image.write(folder, {"1": {"VERSION": "1"}, "2": {"VERSION": "2", "BROKEN": "1"}})
    return folder


def blob(layout: Path, descriptor: Mapping[str, Any]) -> bytes:
    data = (layout / "blobs" / "sha256" / descriptor["digest"].removeprefix("sha256:")).read_bytes()
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == descriptor["digest"]
    assert len(data) == descriptor["size"]
    return data


def manifests(layout: Path) -> dict[str, Any]:
    index = json.loads((layout / "index.json").read_text())
    return {
        each["annotations"]["org.opencontainers.image.ref.name"]: json.loads(blob(layout, each))
        for each in index["manifests"]
    }


def test_versions_share_a_layer_and_differ_in_their_variables(layout: Path) -> None:
    found = manifests(layout)
    assert set(found) == {"1", "2"}
    assert found["1"]["layers"] == found["2"]["layers"]
    variables = {
        tag: json.loads(blob(layout, each["config"]))["config"]["Env"] for tag, each in found.items()
    }
    assert "VERSION=1" in variables["1"]
    assert "BROKEN=1" not in variables["1"]
    assert {"VERSION=2", "BROKEN=1"} <= set(variables["2"])


def test_the_layer_has_what_its_command_needs(layout: Path) -> None:
    manifest = manifests(layout)["1"]
    config = json.loads(blob(layout, manifest["config"]))
    data = gzip.decompress(blob(layout, manifest["layers"][0]))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(data).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = set(archive.getnames())
        links = {each.name: each.linkname for each in archive if each.issym()}
    assert config["config"]["Entrypoint"][0].lstrip("/") in names
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert {"usr/bin/python3", "srv/server.py", f"usr/{sys.platlibdir}/{version}/os.py"} <= names
    assert all(f"lib/{target}" in names for name, target in links.items() if name.startswith("lib/"))
    assert not any("/ssl.py" in name or "libcrypto" in name for name in names), "more than it needs"


def test_the_same_python_gives_the_same_image(layout: Path, tmp_path: Path) -> None:
    sample_image.write(tmp_path, {"1": {"VERSION": "1"}, "2": {"VERSION": "2", "BROKEN": "1"}})
    assert (tmp_path / "index.json").read_bytes() == (layout / "index.json").read_bytes()


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("libz.so.1.2.13", ["libz.so.1", "libz.so.1.2", "libz.so.1.2.13"]),
        ("libc.so.6", ["libc.so.6"]),
        ("libc-2.36.so", ["libc-2.36.so"]),
        ("ld-linux-x86-64.so.2", ["ld-linux-x86-64.so.2"]),
    ],
)
def test_a_library_has_the_names_that_it_is_looked_for_by(name: str, names: list[str]) -> None:
    assert sample_image.library_names(name) == names


LOADER = "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"


@pytest.mark.parametrize(
    ("program", "libraries", "path"),
    [
        (b"ELF\0\0/lib64/ld-linux-x86-64.so.2\0GNU", [LOADER], "lib64/ld-linux-x86-64.so.2"),
        (b"ELF\0/lib/ld-linux-x86-64.so.2\0", [LOADER], None),  # it is there as a library
        (b"ELF\0static", [], None),
    ],
)
def test_the_loader_is_where_the_program_looks_for_it(
    program: bytes, libraries: list[str], path: str | None
) -> None:
    expected = None if path is None else SampleFile(path, Path(LOADER))
    assert sample_image.place_loader(program, libraries) == expected


def test_a_loader_that_is_not_loaded_is_reported() -> None:
    with pytest.raises(sample_image.SampleImageFailed, match="ld-musl"):
        sample_image.place_loader(b"\0/lib/ld-musl-x86_64.so.1\0", [LOADER])


def test_modules_of_others_are_left_out(tmp_path: Path) -> None:
    standard = tmp_path / "python"
    (standard / "json").mkdir(parents=True)
    module, other = standard / "json" / "decoder.py", tmp_path / "other.py"
    for path in (module, other):
        path.touch()
    home = f"usr/{sys.platlibdir}/python{sys.version_info.major}.{sys.version_info.minor}"
    placed = sample_image.place_modules([str(module), str(other)], [standard])
    assert placed == [SampleFile(f"{home}/json/decoder.py", module)]


def test_extension_modules_are_no_libraries() -> None:
    standard = Path("/usr/lib/python3.11")
    libraries = ["/usr/lib/python3.11/lib-dynload/_json.so", "/lib/libz.so.1"]
    assert sample_image.place_libraries(libraries, [standard]) == [
        SampleFile("lib/libz.so.1", Path("/lib/libz.so.1"))
    ]


def test_a_python_that_cannot_run_the_server_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no modules >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "_base_executable", str(broken))
    with pytest.raises(sample_image.SampleImageFailed, match="no modules"):
        sample_image.build_layer()
