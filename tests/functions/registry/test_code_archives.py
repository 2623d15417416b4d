"""Archives become trees below one folder, or are refused by name; nothing else on the disk changes."""

from __future__ import annotations

import contextlib
import gzip
import os
import stat
import tarfile
from pathlib import Path

import hypothesis
import hypothesis.strategies as some
import pytest

from skerry.functions.registry import code_archives
from skerry.model import errors
from tests.functions.registry.tarballs import HELLO, folder, member, symlink, tar

PLENTY = 1024 * 1024
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def unpack(data: bytes, tmp_path: Path, max_bytes: int = PLENTY) -> Path:
    place = tmp_path / "outer" / "tree"
    place.mkdir(parents=True)
    code_archives.unpack(data, place, max_bytes=max_bytes)
    return place


@pytest.mark.parametrize("format", FORMATS)
def test_files_and_folders_of_every_dialect_come_out_whole(tmp_path: Path, format: int) -> None:
    long = "/".join(["folder-with-a-name"] * 6) + "/module.py"
    place = unpack(
        tar(folder("pkg/"), member("pkg/a.py", HELLO), member(long, "x = 1"), format=format), tmp_path
    )
    assert (place / "pkg/a.py").read_text() == HELLO
    assert (place / long).read_text() == "x = 1"


@pytest.mark.parametrize("format", FORMATS[1:])
def test_names_of_any_language_and_length_are_taken(tmp_path: Path, format: int) -> None:
    name = "ü" * 100 + "/" + "n" * 200 + "/møde.py"
    assert (unpack(tar(member(name, "x"), format=format), tmp_path) / name).read_text() == "x"


def test_modes_are_readable_by_all_and_times_stay(tmp_path: Path) -> None:
    place = unpack(tar(folder("pkg"), member("pkg/a.py", HELLO), member("run", "#!", mode=0o4710)), tmp_path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.rglob("*")}
    assert modes == {"pkg": 0o755, "a.py": 0o644, "run": 0o755}
    assert (place / "run").stat().st_mtime == 1_600_000_000
    assert (place / "run").stat().st_uid == os.getuid()


def test_an_umask_hides_nothing_from_workers(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        place = unpack(tar(folder("told"), member("implied/a.py", HELLO), member("told/b.py")), tmp_path)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o755}


def test_the_last_of_a_name_counts(tmp_path: Path) -> None:
    place = unpack(tar(member("a.py", "old"), member("a.py", "new")), tmp_path)
    assert (place / "a.py").read_text() == "new"


def test_links_within_the_tree_work(tmp_path: Path) -> None:
    place = unpack(
        tar(
            member("lib/a.py", HELLO),
            symlink("main.py", "lib/a.py"),
            symlink("lib/again", "../lib"),
            symlink("dangling", "lib/nothing"),
            member("hard.py", kind=tarfile.LNKTYPE, link="./lib/a.py"),
        ),
        tmp_path,
    )
    assert (place / "main.py").read_text() == (place / "hard.py").read_text() == HELLO
    assert (place / "lib/again/a.py").read_text() == HELLO


def test_a_name_that_leads_up_and_stays_inside_is_normalised(tmp_path: Path) -> None:
    place = unpack(
        tar(member("pkg/../a.py", HELLO), member("./pkg/sub/.././b.py", "x"), folder("c/..")), tmp_path
    )
    assert sorted(str(path.relative_to(place)) for path in place.rglob("*")) == ["a.py", "pkg", "pkg/b.py"]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([member("../evil.py")], "'../evil.py', which leads out"),
        ([member("a/../../evil.py")], "leads out"),
        ([member("/etc/evil")], "absolute name '/etc/evil'"),
        ([symlink("out", "/etc/passwd")], "'out', a link to '/etc/passwd'"),
        ([symlink("out", "../outside")], "out of its folder"),
        ([folder("a"), symlink("a/out", "../../outside")], "out of its folder"),
        ([symlink("empty", "")], "link to nothing"),
        ([folder("a/b"), symlink("a/b/up", "../.."), symlink("out", "a/b/up/../x")], "'out', a link to"),
        ([symlink("d", "x"), folder("x"), member("d/evil.py")], "below what is no folder"),
        ([member("a"), member("a/b.py")], "below what is no folder"),
        ([folder("a"), member("a")], "already as something else"),
        ([member("a"), folder("a")], "below what is no folder"),
        ([member("hard", kind=tarfile.LNKTYPE, link="/etc/passwd")], "absolute name"),
        ([member("hard", kind=tarfile.LNKTYPE, link="../x")], "leads out"),
        ([member("hard", kind=tarfile.LNKTYPE, link="later"), member("later")], "no file before it"),
        (
            [symlink("s", "x"), member("hard", kind=tarfile.LNKTYPE, link="s")],
            "no file before it",
        ),
        ([member("dev", kind=tarfile.CHRTYPE)], "'dev', which is a device"),
        ([member("disk", kind=tarfile.BLKTYPE)], "a device"),
        ([member("pipe", kind=tarfile.FIFOTYPE)], "a named pipe"),
        ([member("sparse", kind=tarfile.GNUTYPE_SPARSE)], "sparse"),
        ([member("odd", kind=b"Z")], "neither a file"),
        ([member(".")], "names the folder itself"),
        ([member("n" * 300)], "too long for a file"),
        ([member("/".join("d" * 70))], "too deep"),
    ],
)
def test_what_may_not_be_in_an_archive_is_refused_by_name(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], message: str
) -> None:
    with pytest.raises(errors.Invalid, match=message) as caught:
        unpack(tar(member("fine.py", HELLO), *members), tmp_path)
    assert caught.value.field == "code"
    assert [path.name for path in (tmp_path / "outer").iterdir()] == ["tree"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"def handler(): ...", "not a tar archive"),
        (b"x" * 5000, "not a tar archive"),
        (gzip.compress(b"x", mtime=0), "is gzip; send an uncompressed tar"),
        (b"PK\x03\x04" + bytes(600), "is zip"),
        (bytes(10240), "holds no file"),
        (tar(folder("only")), "holds no file"),
        (tar(member("a.py", "x" * 5000))[:3000], "cut off"),
        (tar(member("a.py", "x" * 5120))[: 512 + 1024], "cut off"),
        (tar(member("a.py", "x" * 5120))[:512], "cut off"),
        (tar(member("a.py", "x"), member("b.py", "y"))[: 512 + 512 + 300], "cut off"),
        (tar(member("a.py", "x")) + b"more", "continues after its end"),
        (tar(member("a.py", "x")) + tar(member("b.py", "y")), "continues after its end"),
    ],
)
def test_what_is_no_whole_archive_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(errors.Invalid, match=message):
        unpack(data, tmp_path)


def test_a_damaged_header_in_the_middle_is_no_short_archive(tmp_path: Path) -> None:
    data = bytearray(tar(member("a.py", "x"), member("b.py", "y")))
    data[1024] ^= 1
    with pytest.raises(errors.Invalid, match="damaged at byte 1024"):
        unpack(bytes(data), tmp_path)


def test_a_negative_size_is_refused_and_not_gone_back_to(tmp_path: Path) -> None:
    header = bytearray(tar(member("a.py"), format=tarfile.GNU_FORMAT)[:512])
    header[124:136] = (-1024).to_bytes(12, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(errors.Invalid, match="negative size"):
        unpack(bytes(header) * 2 + bytes(1024), tmp_path)


def test_what_is_too_large_unpacked_is_told_the_setting(tmp_path: Path) -> None:
    with pytest.raises(errors.TooLarge, match=r"functions\.max_unpacked_bytes"):
        unpack(tar(*(member(f"{number}", "x" * 100) for number in range(11))), tmp_path, max_bytes=1000)


@hypothesis.settings(max_examples=150)
@hypothesis.given(some.data())
def test_a_mangled_archive_reads_as_members_or_is_invalid(data: some.DataObject) -> None:
    whole = bytearray(
        tar(member("pkg/a.py", HELLO), symlink("b", "pkg/a.py"), member("ü" * 120, "x", mtime=1.5))
    )
    for _ in range(data.draw(some.integers(1, 8))):
        at = data.draw(some.integers(0, len(whole) - 1))
        whole[at] = data.draw(some.integers(0, 255))
    for at in range(0, len(whole), 512):  # the checksums are right, so that the fields are looked at
        if data.draw(some.booleans()):
            whole[at + 148 : at + 156] = b" " * 8
            whole[at + 148 : at + 156] = b"%06o\0 " % sum(whole[at : at + 512])
    members = []
    with contextlib.suppress(errors.Invalid):  # and nothing else, nor for ever
        members += code_archives.members(bytes(whole))
    assert sum(len(one.content) for one in members) <= len(whole)
