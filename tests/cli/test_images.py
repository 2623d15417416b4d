"""`skerry image` as a person or a script uses it."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from skerry.cli import image_references, main
from skerry.model import errors
from tests.support.certificates import TestAuthority
from tests.support.containers import ID, FakeContainers, an_image, container_server
from tests.support.nodes import Command, Node
from tests.support.waiting import PATIENCE_S

WEB = "example.org/web:1"


@pytest.fixture
def node(tmp_path: Path, authority: TestAuthority) -> Iterator[Node]:
    with Node(tmp_path, authority, FakeContainers, container_server) as running:
        yield running


def test_a_pull_says_what_came_of_it_and_tells_its_progress_in_lines(node: Node) -> None:
    result = node.cli("image", "pull", WEB)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"pulled {WEB}: abababababab, 3.0MB\n"
    assert result.stderr, "no progress was told"
    assert all(line.startswith((f"{WEB}: ", "layer ")) for line in result.stderr.splitlines())
    assert node.keeper.images.pulled == [WEB]


def test_a_sample_is_made_without_a_node_and_its_reference_printed(tmp_path: Path) -> None:
    result = CliRunner().invoke(main.cli, ["image", "sample", "--data", str(tmp_path / "data")])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"oci:{tmp_path}/data/sample\n"
    assert json.loads((tmp_path / "data" / "sample" / "oci-layout").read_text()) == {
        "imageLayoutVersion": "1.0.0"
    }


def test_a_sample_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main.cli, ["image", "sample", str(tmp_path / "file" / "folder")])
    assert result.exit_code == 1
    assert "Not a directory. Name another folder." in result.stderr


def test_a_quiet_pull_prints_the_id_and_nothing_else(node: Node) -> None:
    result = node.cli("image", "pull", "--quiet", WEB)
    assert (result.stdout, result.stderr) == (f"{ID}\n", "")


def test_a_pull_for_scripts_is_lines_of_json_and_the_last_is_the_image(node: Node) -> None:
    result = node.cli("image", "pull", WEB, "-o", "json")
    *progress, last = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.stderr == ""
    assert last["image"]["id"] == ID
    assert last["image"]["platform"] == "linux/arm64/v8"
    assert last["image"]["config"]["labels"] == {"made-by": "hand"}
    assert progress
    assert {each["progress"]["reference"] for each in progress} == {WEB}


def test_a_pull_on_a_terminal_draws_bars_and_leaves_only_the_result(node: Node) -> None:
    ours, theirs = pty.openpty()
    node.do(node.keeper.images.go_on.clear)
    try:
        with Command(node, "image", "pull", WEB, stderr=theirs) as process:
            os.close(theirs)
            drawn = b""
            while b"asking the registry" not in drawn:
                drawn += os.read(ours, 4096)
            node.do(node.keeper.images.go_on.set)
            assert process.stdout is not None
            assert process.stdout.read() == f"pulled {WEB}: abababababab, 3.0MB\n".encode()
            assert process.wait(PATIENCE_S) == 0
            try:
                while more := os.read(ours, 4096):
                    drawn += more
            except OSError:
                pass  # the end
    finally:
        os.close(ours)
    assert drawn.rfind(b"\x1b[?25h") > drawn.rfind(b"\x1b[?25l"), "the cursor is hidden"


def test_a_pull_that_fails_is_one_line_in_the_nodes_words(node: Node) -> None:
    node.keeper.images.fails = errors.NotFound("example.org has no web:1; look at the name")
    result = node.cli("image", "pull", "--quiet", WEB)
    assert (result.exit_code, result.stderr) == (1, "Error: example.org has no web:1; look at the name\n")


def test_images_are_listed_one_line_for_each_name(node: Node) -> None:
    node.keeper.images.images = {"a": an_image("a", "b"), "c": an_image()}
    header, *rows = node.cli("image", "list").stdout.splitlines()
    assert header.split() == ["IMAGE", "ID", "SIZE", "PLATFORM", "PULLED"]
    assert [row.split()[:4] for row in rows] == [
        [name, "abababababab", "3.0MB", "linux/arm64/v8"] for name in ("a", "b", "none")
    ]
    assert [each["names"] for each in node.json("image", "ls")["images"]] == [["a", "b"], []]


def test_images_are_removed_each_with_its_own_answer(node: Node) -> None:
    node.keeper.images.images = {"a": an_image("a"), "b": an_image("b")}
    node.keeper.images.used.add("b")
    result = node.cli("image", "rm", "a", "b", "c")
    assert result.exit_code == 1
    assert result.stdout == "removed a, freed 3.0MB\n"
    assert result.stderr.splitlines() == [
        "Error: it is used by web",
        "Error: there is no image 'c' here; `skerry image pull` fetches it",
    ]
    assert list(node.keeper.images.images) == ["b"]


def test_prune_says_what_it_freed(node: Node) -> None:
    assert node.cli("image", "prune").stdout == "freed 5.0MB\n"
    assert node.json("image", "prune") == {"bytes_freed": 5 << 20}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("oci-archive:web.tar", "oci-archive:{here}/web.tar"),
        ("docker-archive:./a/../web.tar", "docker-archive:{here}/web.tar"),
        ("oci:layout:1.2", "oci:{here}/layout:1.2"),
        ("rootfs:/srv", "rootfs:/srv"),
        ("localhost:5000/web", "localhost:5000/web"),
        ("web", "web"),
        ("oci:", "oci:"),
    ],
)
def test_a_path_is_meant_from_where_we_are(
    given: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert image_references.resolve(given) == meant.format(here=tmp_path)


def test_an_unknown_verb_is_wrong_usage(node: Node) -> None:
    assert node.cli("image", "fetch").exit_code == 2
