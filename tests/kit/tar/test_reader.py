"""The reader of tar: it reads what tarfile writes, gives everything else up, and does nothing worse."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skerry.kit.tar import fields
from skerry.kit.tar.byte_feed import ByteFeed
from skerry.kit.tar.errors import MalformedTar, RefusedTar
from skerry.kit.tar.fields import TarFieldError
from skerry.kit.tar.reader import BLOCK, TarEntry, TarReader
from tests.node.layers.ground import Member, file, folder, member, pack

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def chunked(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def read(data: bytes, size: int = 1 << 20) -> list[tuple[TarEntry, bytes]]:
    tar = TarReader(ByteFeed(chunked(data, size), 1 << 40))
    return [(entry, b"".join(tar.content())) for entry in tar.entries()]


def assert_read_or_given_up(data: bytes) -> None:
    with contextlib.suppress(MalformedTar, RefusedTar):  # and nothing else, nor for ever
        assert sum(len(content) for _, content in read(data)) <= len(data)


names = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0/"), min_size=1, max_size=40
).filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=8).map("/".join)


@st.composite
def members(draw: st.DrawFn) -> Member:
    kind = draw(
        st.sampled_from(
            (
                tarfile.REGTYPE,
                tarfile.DIRTYPE,
                tarfile.SYMTYPE,
                tarfile.LNKTYPE,
                tarfile.CHRTYPE,
                tarfile.BLKTYPE,
                tarfile.FIFOTYPE,
            )
        )
    )
    is_link = kind in (tarfile.SYMTYPE, tarfile.LNKTYPE)
    is_device = kind in (tarfile.CHRTYPE, tarfile.BLKTYPE)
    return member(
        draw(paths),
        kind,
        draw(st.binary(max_size=1500)) if kind == tarfile.REGTYPE else b"",
        mode=draw(st.integers(0, 0o7777)),
        uid=draw(st.integers(0, 2**32)),
        gid=draw(st.integers(0, 2**32)),
        mtime=draw(st.integers(-(2**33), 2**40)),
        link=draw(paths) if is_link else "",
        device=draw(st.tuples(st.integers(0, 4095), st.integers(0, 2**20 - 1))) if is_device else (0, 0),
        xattrs=draw(
            st.dictionaries(st.sampled_from(("user.a", "user.ü")), st.binary(min_size=1), max_size=2)
        ),
    )


@given(st.lists(members(), max_size=5), st.integers(1, 3000))
def test_what_tarfile_writes_in_pax_is_read_as_it_was(written: list[Member], size: int) -> None:
    entries = read(pack(*written), size)
    assert [told(entry, content) for entry, content in entries] == [meant(each) for each in written]


def told(entry: TarEntry, content: bytes) -> tuple[object, ...]:
    return (
        entry.name.decode().rstrip("/"),
        entry.kind,
        entry.mode,
        entry.uid,
        entry.gid,
        entry.mtime_ns,
        entry.link.decode(),
        (entry.major, entry.minor),
        entry.xattrs,
        entry.size,
        content,
    )


def meant(written: Member) -> tuple[object, ...]:
    info = written.info
    prefix = "SCHILY.xattr."
    return (
        info.name.rstrip("/"),
        info.type,
        info.mode,
        info.uid,
        info.gid,
        info.mtime * 10**9,
        info.linkname,
        (info.devmajor, info.devminor),
        {
            key.removeprefix(prefix).encode(): value.encode("utf-8", "surrogateescape")
            for key, value in info.pax_headers.items()
        },
        len(written.data),
        written.data,
    )


@given(st.lists(members(), max_size=4), st.sampled_from(FORMATS), st.data())
def test_whatever_is_done_to_a_tar_it_is_read_or_it_is_a_fault(
    written: list[Member], format: int, data: st.DataObject
) -> None:
    try:
        packed = bytearray(pack(*written, format=format))
    except ValueError:
        return  # ustar cannot hold such a name or number
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(packed) - 1))
        packed[at] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):
            mend_checksum(packed, at // BLOCK * BLOCK)
    assert_read_or_given_up(bytes(packed[: data.draw(st.integers(0, len(packed)))]))


def mend_checksum(packed: bytearray, start: int) -> None:
    """Make the reader look further than the sum."""
    header = packed[start : start + BLOCK]
    if len(header) == BLOCK:
        header[148:156] = b" " * 8
        packed[start + 148 : start + 156] = b"%06o\0 " % sum(header)


@given(st.binary(max_size=4 * BLOCK))
def test_bytes_of_any_kind_are_read_or_are_a_fault(data: bytes) -> None:
    assert_read_or_given_up(data)


@given(st.binary(max_size=200))
@example(b"11 path=ab\n")
@example(b"99999999999999999999999 path=a\n")
@example(b"-5 a=b\n")
@example(b"6 a=b\n6 c=d\n")
def test_records_are_read_whole_or_are_a_fault(data: bytes) -> None:
    try:
        found = fields.records(data)
    except TarFieldError:
        return
    # Nothing but whole records passes: written again, they fill as many bytes, unless a key came twice.
    lengths = [len(key) + len(value) for key, value in found.items()]
    assert sum(lengths) <= len(data)
    assert bool(found) == bool(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"0000644\0", 0o644),
        (b"    644 ", 0o644),
        (b"\0" * 8, 0),
        (b"        ", 0),
        (b"644\0junk", 0o644),
        (b"\x80\0\0\0\0\0\x10\0", 4096),
        (b"\x80\0\0\0\xff\xff\xff\xfe", 2**32 - 2),
        (b"\xff\xff\xff\xff\xff\xff\xff\xfe", -2),
        (b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7, 2**63 - 1),
    ],
)
def test_a_number_is_octal_or_bytes(field: bytes, value: int) -> None:
    assert fields.number(field) == value


@pytest.mark.parametrize("field", [b"0000648\0", b"0x1f    ", b"-0000001", b"+7      ", b"1_0     "])
def test_what_only_python_takes_for_a_number_is_none(field: bytes) -> None:
    with pytest.raises(TarFieldError):
        fields.number(field)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        (b"0", 0),
        (b"1.5", 1_500_000_000),
        (b"-1.5", -1_500_000_000),
        (b"12.3456789019", 12_345_678_901),
        (b"7.", 7_000_000_000),
    ],
)
def test_a_time_is_read_to_the_nanosecond(text: bytes, nanoseconds: int) -> None:
    assert fields.nanoseconds(text) == nanoseconds


@pytest.mark.parametrize("text", [b"", b"-", b".5", b"1.x", b"1e9", b"--1", b" 1", b"9" * 30])
def test_what_is_no_time_is_a_fault(text: bytes) -> None:
    with pytest.raises(TarFieldError):
        fields.nanoseconds(text)


@pytest.mark.parametrize("format", FORMATS)
def test_long_names_and_links_are_read_in_every_format_that_has_them(format: int) -> None:
    long = "/".join(["part" * 10] * 3)
    link = "n" * 90 if format == tarfile.USTAR_FORMAT else long
    packed = pack(file(f"{long}/file"), member("l", tarfile.SYMTYPE, link=link), format=format)
    assert [(entry.name.decode(), entry.link.decode()) for entry, _ in read(packed)] == [
        (f"{long}/file", ""),
        ("l", link),
    ]


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_owners_beyond_seven_digits_are_read(format: int) -> None:
    ((entry, _),) = read(pack(file("a", uid=2**32 - 2, gid=2**21), format=format))
    assert (entry.uid, entry.gid) == (2**32 - 2, 2**21)


def test_headers_for_all_that_follows_are_passed_over_as_docker_does() -> None:
    buffer = io.BytesIO()
    headers = {"mtime": "5", "comment": "git"}
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers) as archive:
        archive.addfile(file("a", b"").info)
    assert [entry.mtime_ns for entry, _ in read(buffer.getvalue())] == [1_600_000_000 * 10**9]


def test_a_file_whose_name_ends_in_a_slash_is_a_folder() -> None:
    for kind in (tarfile.AREGTYPE, tarfile.REGTYPE):
        data = bytearray(pack(member("a", kind, b"skipped")))
        data[1:2] = b"/"
        mend_checksum(data, 0)
        ((entry, _),) = read(bytes(data))
        assert (entry.name, entry.kind) == (b"a/", b"5")


def test_content_that_nobody_reads_is_passed_over() -> None:
    tar = TarReader(ByteFeed(chunked(pack(file("a", b"x" * 5000), folder("b"), file("c")), 700), 1 << 20))
    assert [entry.name for entry in tar.entries()] == [b"a", b"b/", b"c"]
    assert tar.has_end


def test_a_checksum_of_signed_bytes_is_right_too() -> None:
    data = bytearray(pack(file("ü", b""), format=tarfile.GNU_FORMAT))
    header = bytearray(data[:BLOCK])
    header[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(byte - 256 if byte > 127 else byte for byte in header)
    assert [entry.name.decode() for entry, _ in read(bytes(data))] == ["ü"]
