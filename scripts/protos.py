"""Compile the .proto sources of `skerry.transport.proto` into the stubs that are committed beside them.

`scripts/generate.py` calls `compile_into` on a scratch folder and compares; `python scripts/protos.py` writes
the stubs in place. The compiler and grpclib's plugin come from the development packages, at locked versions,
so that the same sources give the same bytes everywhere.
"""

from __future__ import annotations

import importlib.resources
import sys
from pathlib import Path

from grpc_tools import protoc

HOME = Path(__file__).resolve().parent.parent / "src"
SOURCES = HOME / "skerry" / "transport" / "proto"
PLUGIN = Path(sys.executable).parent / "protoc-gen-grpclib_python"


def compile_into(folder: Path) -> list[Path]:
    """Write every stub below `folder`, at its path from `HOME`; returns the files, sorted."""
    sources = sorted(str(path.relative_to(HOME)) for path in SOURCES.rglob("*.proto"))
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    failed = protoc.main(
        [
            "protoc",
            f"--proto_path={HOME}",
            f"--proto_path={well_known}",
            f"--plugin=protoc-gen-grpclib_python={PLUGIN}",
            f"--python_out={folder}",
            f"--pyi_out={folder}",
            f"--grpclib_python_out={folder}",
            *sources,
        ]
    )
    if failed:
        raise SystemExit(f"protoc failed on {', '.join(sources)}; its messages are above")
    stubs = [
        (folder / source).with_name(Path(source).stem + ending)
        for source in sources
        for ending in ("_pb2.py", "_pb2.pyi", "_grpc.py")
    ]
    return sorted(stubs)


if __name__ == "__main__":
    for path in compile_into(HOME):
        print(f"wrote {path.relative_to(HOME.parent)}")
