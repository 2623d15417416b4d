"""Images with a Python program of the tests: this interpreter, and the modules and libraries that the program
has loaded once it is imported."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support import imagery
from tests.support.imagery import Entry, Made

# Prints what a program that only imports itself has loaded: modules, and mapped libraries.
_LIST = """
import encodings.idna, importlib, json, sys
importlib.import_module(sys.argv[1])
files = {one.__file__ for one in sys.modules.values() if getattr(one, "__file__", None)}
maps = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if "/" in line}
print(json.dumps([sorted(files | maps), sys.prefix, sys.base_prefix, sys.path]))
"""


def python_image(module: str) -> Made:
    """An image that runs a module of the tests as its program."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    listed = subprocess.run([sys.executable, "-c", _LIST, module], check=True, capture_output=True, text=True)
    files, _, _, path = json.loads(listed.stdout)
    interpreter = Path(sys.executable).resolve()
    entries = [
        imagery.file("program.py", Path(spec.origin).read_bytes()),
        *_entries({*map(Path, files), interpreter}),
    ]
    search = ":".join(one for one in path if one)
    return imagery.busybox(
        imagery.layer(*entries, compression=""),
        command=(str(interpreter), "-B", "/program.py"),
        environment=("PATH=/bin", f"PYTHONPATH={search}", f"LD_LIBRARY_PATH={_libraries(files)}"),
    )


def _libraries(files: list[str]) -> str:
    return ":".join(sorted({str(Path(one).parent) for one in files if ".so" in Path(one).name}))


def _entries(paths: set[Path]) -> Iterator[Entry]:
    """The files at their own paths, their folders, and other names of libraries."""
    present = {path for path in paths if path.is_file() and not str(path).startswith("/dev/")}
    folders = {parent for path in present for parent in path.parents if parent != Path("/")}
    for folder in sorted(folders):
        yield imagery.folder(str(folder).lstrip("/"))
    for path in sorted(present):
        mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
        yield imagery.file(str(path).lstrip("/"), path.read_bytes(), mode=mode)
    real = {path.resolve() for path in present if ".so" in path.name}
    for folder in sorted({path.parent for path in real}):
        for other in folder.iterdir():
            if other.is_symlink() and other.resolve() in real and other not in present:
                yield imagery.symlink(str(other).lstrip("/"), str(other.resolve()))
    loader = Path("/lib64/ld-linux-x86-64.so.2")
    if loader.exists() and loader not in present:
        yield imagery.folder("lib64")
        yield imagery.file(str(loader).lstrip("/"), loader.read_bytes(), mode=0o755)
