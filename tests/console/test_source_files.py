"""Code is shown as far as it is text, and not too long."""

from __future__ import annotations

import io
import tarfile

import pytest

from skerry.console.source_files import MAX_FILE_BYTES, MAX_FILES, read_source
from skerry.model import errors


def archive(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_files_are_text_and_those_at_the_top_come_first() -> None:
    tree = read_source(archive(**{"lib/a.py": b"a = 1\n", "main.py": "# ä\n".encode()}))
    assert [one.name for one in tree.files] == ["main.py", "lib/a.py"]
    assert tree.files[0].text == "# ä\n"
    assert (tree.more, tree.size) == (0, 11)


def test_what_is_no_text_or_too_long_is_named_with_the_reason() -> None:
    tree = read_source(archive(a=b"\0\1", b=b"\xff\xfe", c=b"x" * (MAX_FILE_BYTES + 1)))
    assert [(one.text, one.hidden) for one in tree.files] == [
        ("", "no text"),
        ("", "no text"),
        ("", "too long to be shown here"),
    ]


def test_of_many_files_the_first_are_shown_and_the_others_counted() -> None:
    tree = read_source(archive(**{f"f{number:03}": b"x" for number in range(MAX_FILES + 7)}))
    assert (len(tree.files), tree.more) == (MAX_FILES, 7)


def test_what_is_no_archive_is_refused() -> None:
    with pytest.raises(errors.Invalid):
        read_source(b"nothing")
