"""What `skerry fn deploy` makes of files, without a server."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import click
import pytest

from skerry.cli import function_package


def members(package: function_package.FunctionPackage) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(package.archive), mode="r:") as archive:
        return {member.name: member for member in archive}


HANDLER = "def handler(params, context):\n    return params\n"


def write(folder: Path, *names: str) -> Path:
    """A folder with these files, each with a handler in it."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HANDLER)
    return folder


@pytest.mark.parametrize(
    ("source", "function"),
    [
        (HANDLER, "handler"),
        (f"def other(): pass\n{HANDLER}", "handler"),
        ("async def greet(params): pass\ndef _hidden(): pass\n", "greet"),
        ("from elsewhere import run as handler\ndef other(): pass\ndef more(): pass\n", "handler"),
        ("handler = print\n", "handler"),
    ],
)
def test_the_handler_is_the_one_called_so_or_the_only_function(
    tmp_path: Path, source: str, function: str
) -> None:
    path = tmp_path / "hello.py"
    path.write_text(source)
    package = function_package.pack(path)
    assert package.name == "hello"
    assert package.files == ("hello.py",)
    assert function_package.guess(package) == ("python", f"hello.{function}")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def a(): pass\ndef b(): pass\n", "--handler hello.a or --handler hello.b"),
        ("x = 1\n", "defines no function"),
        ("def handler(:\n", "hello.py, line 1"),
    ],
)
def test_what_cannot_be_guessed_is_told_with_what_to_say(tmp_path: Path, source: str, told: str) -> None:
    (tmp_path / "hello.py").write_text(source)
    with pytest.raises(click.UsageError, match=told):
        function_package.guess(function_package.pack(tmp_path / "hello.py"))


def test_a_file_of_javascript_is_a_module_of_node(tmp_path: Path) -> None:
    (tmp_path / "thumb-nail.js").write_text("module.exports = () => 1")
    package = function_package.pack(tmp_path / "thumb-nail.js")
    assert function_package.guess(package) == ("nodejs", "thumb-nail")


def test_a_python_file_gets_a_name_that_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "say-hello.py").write_text(HANDLER)
    package = function_package.pack(tmp_path / "say-hello.py")
    assert package.name == "say-hello"
    assert function_package.guess(package).handler == "say_hello.handler"
    assert package.read("say_hello.py") == HANDLER.encode()


def test_of_a_folder_all_is_sent_but_what_tools_leave_there(tmp_path: Path) -> None:
    folder = write(tmp_path / "shop", "main.py", "lib/money.py", "node_modules/x/index.js", "run.sh")
    write(folder, ".git/config", "lib/__pycache__/money.cpython-311.pyc", "old.pyc")
    (folder / "run.sh").chmod(0o700)
    (folder / "link").symlink_to("lib")
    package = function_package.pack(folder)
    names = members(package)
    assert names.keys() == {"main.py", "lib/money.py", "node_modules/x/index.js", "run.sh", "link"}
    assert (names["run.sh"].mode, names["main.py"].mode) == (0o755, 0o644)
    assert names["link"].issym()
    assert package.name == "shop"
    assert function_package.guess(package).handler == "main.handler"


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    one, other = (write(tmp_path / where, "b.py", "a.py", "c/d.py") for where in ("one", "other"))
    assert function_package.pack(one).archive == function_package.pack(other).archive


def test_two_names_of_one_file_are_two_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "shop", "main.py")
    (folder / "more.py").hardlink_to(folder / "main.py")
    assert [member.size for member in members(function_package.pack(folder)).values()] == [len(HANDLER)] * 2


@pytest.mark.parametrize(
    ("files", "module"),
    [
        (("shop.py", "other.py"), "shop"),
        (("handler.py", "main.py"), "handler"),
        (("index.js", "other.js"), "index"),
        (("only.py",), "only"),
    ],
)
def test_the_module_of_a_folder_is_the_usual_or_the_only_one(
    tmp_path: Path, files: tuple[str, ...], module: str
) -> None:
    folder = write(tmp_path / "shop", *files)
    assert function_package.guess(function_package.pack(folder)).handler.partition(".")[0] == module


def test_a_folder_with_many_modules_needs_a_word(tmp_path: Path) -> None:
    folder = write(tmp_path / "shop", "a.py", "b.py")
    with pytest.raises(click.UsageError, match="2 files with code"):
        function_package.guess(function_package.pack(folder))
    assert function_package.runtime_of(function_package.pack(folder), "a.handler") == "python"
    assert function_package.runtime_of(function_package.pack(folder), "c.handler") is None


def test_the_runtime_is_that_of_the_file_which_the_handler_is_in(tmp_path: Path) -> None:
    folder = write(tmp_path / "shop", "a.js", "b/c.py")
    package = function_package.pack(folder)
    assert function_package.runtime_of(package, "a") == "nodejs"
    assert function_package.runtime_of(package, "a.run") == "nodejs"
    assert function_package.runtime_of(package, "b.c.run") == "python"


def test_a_tar_is_sent_as_it_is(tmp_path: Path) -> None:
    folder = write(tmp_path / "shop", "main.py")
    path = tmp_path / "made.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(folder, "./")
    package = function_package.pack(path)
    assert package.archive == path.read_bytes()
    assert package.name == "made"
    assert function_package.guess(package).handler == "main.handler"


@pytest.mark.parametrize(
    ("name", "told"), [("a.tar", "not an uncompressed tar"), ("a.txt", "a folder or a .tar")]
)
def test_what_is_no_code_is_refused(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / name).write_text("nothing of the kind")
    with pytest.raises(click.UsageError, match=told):
        function_package.pack(tmp_path / name)


def test_an_empty_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="is empty"):
        function_package.pack(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(click.UsageError, match="pipe is neither"):
        function_package.pack(tmp_path)
