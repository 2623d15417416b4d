"""The package of `skerry fn deploy`: a file or a folder as a tar archive, and its guessed entry point.

The same files always make the same bytes. The server validates the code; here only what cannot be sent or
guessed is refused.
"""

from __future__ import annotations

import ast
import io
import os
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import click

PYTHON: Final = "python"
NODEJS: Final = "nodejs"
_RUNTIMES: Final = {".py": PYTHON, ".js": NODEJS, ".cjs": NODEJS, ".mjs": NODEJS}
# Where people keep their handler, after the name of the folder itself.
_USUAL: Final = ("handler", "main", "index", "app", "function")
_HANDLER: Final = "handler"
_SKIPPED: Final = frozenset(
    {
        *(".git", ".hg", ".svn", "__pycache__", ".venv", "venv", ".DS_Store"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".idea", ".vscode"),
    }
)


class FunctionPackage(NamedTuple):
    """Code that can be sent."""

    name: str  # of the function, unless --name is given
    archive: bytes
    files: tuple[str, ...]  # in the archive
    read: Callable[[str], bytes]  # one of them


class EntryPoint(NamedTuple):
    """Runtime and handler."""

    runtime: str
    handler: str


def pack(path: Path) -> FunctionPackage:
    """The archive of a file, a folder's contents, or a tar that is sent as it is."""
    try:
        if path.is_dir():
            return _pack_folder(path)
        if path.suffix == ".tar":
            return _take_tar(path)
        return _pack_file(path)
    except OSError as error:
        raise click.UsageError(f"{error.filename or path} cannot be read: {error.strerror}") from None


def _pack_file(path: Path) -> FunctionPackage:
    if path.suffix not in _RUNTIMES:
        known = ", ".join(_RUNTIMES)
        raise click.UsageError(
            f"{path} is not the code of a function: give a file ({known}), a folder or a .tar."
        )
    # A name that Python could not import is spelt so that it can.
    stem = re.sub(r"\W", "_", path.stem) if path.suffix == ".py" else path.stem
    return _written(path.stem, {f"{stem}{path.suffix}": path})


def _pack_folder(path: Path) -> FunctionPackage:
    found: dict[str, Path] = {}
    for folder, folders, files in os.walk(path, onerror=_refuse):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*links, *files):
            if name not in _SKIPPED and not name.endswith(".pyc"):
                one = Path(folder) / name
                found[one.relative_to(path).as_posix()] = one
    if not found:
        raise click.UsageError(f"The folder {path} is empty.")
    return _written(path.resolve().name, found)


def _refuse(error: OSError) -> None:
    raise error


def _written(name: str, files: dict[str, Path]) -> FunctionPackage:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, path in sorted(files.items()):
            if not (path.is_symlink() or path.is_file()):
                raise click.UsageError(f"{path} is neither a file nor a link; remove it from the folder.")
            info = archive.gettarinfo(path, member)
            if info.islnk():  # it is a file all the same, and may be linked to from elsewhere
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            info.mode = 0o755 if info.mode & 0o100 else 0o644
            if info.isreg():
                with path.open("rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    return FunctionPackage(
        name, buffer.getvalue(), tuple(sorted(files)), lambda member: files[member].read_bytes()
    )


def _take_tar(path: Path) -> FunctionPackage:
    data = path.read_bytes()
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            files = tuple(member.name.removeprefix("./") for member in archive if member.isreg())
    except tarfile.TarError as error:
        raise click.UsageError(f"{path} is not an uncompressed tar archive: {error}.") from None

    def read(name: str) -> bytes:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if member.name.removeprefix("./") == name and (file := archive.extractfile(member)):
                    return file.read()
        raise FileNotFoundError(name)

    return FunctionPackage(path.stem, data, files, read)


def runtime_of(package: FunctionPackage, handler: str) -> str | None:
    """By the file that `handler` is in; None if there is none of a runtime that is known."""
    module = handler.rpartition(".")[0]
    for stem in (module.replace(".", "/"), module, handler):
        for suffix, runtime in _RUNTIMES.items():
            if {f"{stem}{suffix}", f"{stem}/__init__{suffix}", f"{stem}/index{suffix}"} & {*package.files}:
                return runtime
    return None


def guess(package: FunctionPackage) -> EntryPoint:
    """Runtime and handler by the files. Raises UsageError if they are ambiguous."""
    module = _module(package)
    stem, suffix = PurePosixPath(module).stem, PurePosixPath(module).suffix
    runtime = _RUNTIMES[suffix]
    if runtime == NODEJS:
        return EntryPoint(runtime, stem)  # what it exports is found when it is loaded
    return EntryPoint(runtime, f"{stem}.{_function(module, package.read(module))}")


def _module(package: FunctionPackage) -> str:
    at_top = [name for name in package.files if "/" not in name and PurePosixPath(name).suffix in _RUNTIMES]
    if len(at_top) == 1:
        return at_top[0]
    by_stem = {PurePosixPath(name).stem: name for name in reversed(at_top)}
    for stem in (package.name, *_USUAL):
        if stem in by_stem:
            return by_stem[stem]
    what = f"{len(at_top)} files with code" if at_top else "no file with code at its top"
    raise click.UsageError(f"There are {what}; name the handler: --handler module.function.")


def _function(module: str, source: bytes) -> str:
    stem = PurePosixPath(module).stem
    try:
        tree = ast.parse(source, module)
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise click.UsageError(f"{module}{where} is not valid Python: {error}") from None
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    public = [name for name in names if not name.startswith("_")]
    if _HANDLER in public or _is_bound(tree, _HANDLER):
        return _HANDLER
    if len(public) == 1:
        return public[0]
    raise click.UsageError(_which(module, stem, public))


def _is_bound(tree: ast.Module, name: str) -> bool:
    """True if a module has `name` by an assignment or an import."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(each, "id", "") == name for each in node.targets):
            return True
        if isinstance(node, ast.ImportFrom) and any((one.asname or one.name) == name for one in node.names):
            return True
    return False


def _which(module: str, stem: str, public: Sequence[str]) -> str:
    if not public:
        return f"{module} defines no function: define one named 'handler', or give --handler."
    choices = " or ".join(f"--handler {stem}.{name}" for name in public[:3])
    return f"{module} defines {len(public)} functions and none is named 'handler': give {choices}."
