"""Names of runtimes, old and new, and the handlers each can have."""

from __future__ import annotations

import pytest

from skerry.functions.registry import runtimes
from skerry.model import errors


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("python310", "python"),
        ("python314", "python"),
        ("python38", "python"),
        ("python3", "python"),
        ("python3.11", "python"),
        ("python312ml", "python"),
        ("python", "python"),
        ("nodejs17", "nodejs"),
        ("nodejs17ng", "nodejs"),
        ("nodejs22", "nodejs"),
        ("nodejs", "nodejs"),
        ("custom", "custom"),
        ("go125", "go"),
        ("go", "go"),
    ],
)
def test_a_name_of_the_document_or_the_program_has_its_kind(name: str, kind: str) -> None:
    assert runtimes.find(name).kind == kind


@pytest.mark.parametrize("name", ["", "golang", "java21", "python27", "Python310", "python310\n", "customs"])
def test_an_unknown_name_is_an_invalid_runtime(name: str) -> None:
    with pytest.raises(errors.NotFound, match="there is no runtime"):
        runtimes.find(name)


@pytest.mark.parametrize(
    ("runtime", "handler"),
    [
        ("python310", "hello.handler"),
        ("python310", "mydir.hello.handler"),
        ("nodejs17", "hello"),
        ("nodejs17", "hello.js"),
        ("nodejs17", "lib/hello.main"),
        ("custom", ""),
        ("go125", ""),
        ("go125", "main"),
    ],
)
def test_a_handler_that_its_runtime_can_find_is_taken(runtime: str, handler: str) -> None:
    runtimes.find(runtime).check_handler(handler)


@pytest.mark.parametrize(
    ("runtime", "handler"),
    [
        ("python310", ""),
        ("python310", "handler"),
        ("python310", "hello."),
        ("python310", ".handler"),
        ("python310", "a/b.handler"),
        ("python310", "a.b c"),
        ("nodejs17", ""),
        ("nodejs17", "/etc/hello"),
        ("nodejs17", "../hello"),
    ],
)
def test_a_handler_that_cannot_be_is_told_how_to_write_one(runtime: str, handler: str) -> None:
    with pytest.raises(errors.Invalid, match="write `") as caught:
        runtimes.find(runtime).check_handler(handler)
    assert caught.value.field == "handler"
