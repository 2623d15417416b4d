"""Layers that are out to do harm: each gets a plain answer, and leaves nothing, inside or outside."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard

from skerry.model import errors
from skerry.node.layers.unpacker_client import UnpackLimits
from tests.node.layers.ground import (
    Member,
    device,
    digest_of,
    file,
    folder,
    hard_link,
    look,
    member,
    needs_root,
    pack,
    symlink,
    unpack,
)

pytestmark = needs_root

FEW = UnpackLimits(bytes=1 << 20, files=50)


@dataclass(frozen=True)
class Case:
    """A layer, and what is said of it."""

    data: bytes | Callable[[], bytes]
    error: type[errors.SkerryError]
    says: str

    def bytes(self) -> bytes:
        return self.data if isinstance(self.data, bytes) else self.data()


def refused(says: str, *members: Member) -> Case:
    return Case(pack(*members), errors.Unprocessable, says)


def raw(name: bytes = b"a", kind: bytes = b"0", size: bytes = b"00000000000", **more: bytes) -> bytes:
    """A header of one's own, with a right checksum, and the end of an archive."""
    values = {"mode": b"0000644", "uid": b"0000000", "gid": b"0000000", "mtime": b"00000000000", **more}
    header = bytearray(512)
    for at, value in (
        (0, name),
        (100, values["mode"]),
        (108, values["uid"]),
        (116, values["gid"]),
        (124, size),
        (136, values["mtime"]),
        (148, b" " * 8),
        (156, kind),
        (157, values.get("link", b"")),
        (257, b"ustar\x0000"),
        (329, values.get("major", b"0000000")),
        (337, values.get("minor", b"0000000")),
    ):
        header[at : at + len(value)] = value
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


def sparse() -> bytes:
    """As GNU tar writes a file with holes."""
    return raw(kind=b"S")


def cut(data: bytes, leftovers: int) -> bytes:
    return data[:leftovers]


PLAIN = pack(folder("a"), file("a/b", b"x" * 3000))
LONG = "n" * 256

HOSTILE: dict[str, Case] = {
    "a name that climbs out": refused("'../canary' leads out of the layer", file("../canary/new")),
    "a name that climbs out further down": refused("leads out", folder("a"), file("a/../../canary/new")),
    "a folder that climbs out": refused("leads out", folder("../canary")),
    "a root that climbs out": refused("leads out", folder("..")),
    "a removal that climbs out": refused("leads out", file("../canary/.wh.secret")),
    "a removal of the folder above": refused("a whiteout without a valid name", file("a/.wh...")),
    "a removal of the folder itself": refused("a whiteout without a valid name", file("a/.wh..")),
    "a removal of nothing": refused("a whiteout without a valid name", file("a/.wh.")),
    "a removal of a removal": refused("a whiteout without a valid name", file("a/.wh..wh.b")),
    "a file in a removal": refused("is inside a whiteout", file("a/.wh.b/c")),
    "a file in a removal, by a link": refused("is inside a whiteout", symlink("a", ".wh.b"), file("a/c")),
    "a hard link that climbs out": refused("leads out", hard_link("a", "../canary/secret")),
    "a hard link to what is not there": refused(
        "is not a file of an earlier", hard_link("a", "canary/secret")
    ),
    "a hard link to a layer below": refused(
        "is not a file of an earlier", folder("etc"), hard_link("a", "etc/b")
    ),
    "a hard link to a folder": refused("is not a file of an earlier", folder("b"), hard_link("a", "b")),
    "a hard link to the root": refused("is not a file of an earlier", hard_link("a", "/")),
    "a hard link to nothing": refused("is not a file of an earlier", hard_link("a", "")),
    "a hard link to a removal": refused("is not a file of an earlier", file(".wh.b"), hard_link("a", "b")),
    "a hard link in the place of what it leads to": refused(
        "is not a file of an earlier", folder("a"), file("a/b"), hard_link("a", "a/b")
    ),
    "a device that is a removal": refused("device 0:0", device("a", 0, 0)),
    "a device that the kernel takes for a removal": refused("device 4096:0", device("a", 4096, 0)),
    "a device that the kernel takes for another": refused("1048576", device("a", 1, 1 << 20)),
    "a file that is used as a folder": refused("used as a folder and is not one", file("a"), file("a/b")),
    "links that lead to each other": refused(
        "too many symbolic links", symlink("a", "b"), symlink("b", "a"), file("a/x")
    ),
    "a link to nothing": refused("is a symbolic link without a target", symlink("a", "")),
    "a root that is a file": refused("not a folder", file(".")),
    "a root that is a link": refused("not a folder", symlink("/", "/etc")),
    "an entry without a name": Case(raw(name=b""), errors.Unprocessable, "has no name"),
    "a name too long for any disk": refused("file name too long", file(LONG)),
    "a path too long for the kernel": refused("more than 4096 bytes", file("a/" * 2100)),
    "an owner that is nobody": refused("belongs to 4294967295:0", file("a", uid=2**32 - 1)),
    "an owner below nobody": Case(raw(uid=b"\xff" * 8), errors.Unprocessable, "belongs to -1:0"),
    "a time after all times": refused("time that cannot be stored", file("a", pax={"mtime": "9" * 18})),
    "an attribute too large for the disk": refused("user.big", file("a", xattrs={"user.big": b"x" * 70_000})),
    "capabilities that are none": refused(
        "security.capability", file("a", xattrs={"security.capability": b"nonsense"})
    ),
    "a sparse file of GNU tar": Case(sparse, errors.Unprocessable, "sparse"),
    "a sparse file of pax": refused("sparse", file("a", pax={"GNU.sparse.major": "1"})),
    "a type that nobody knows": Case(raw(kind=b"Z"), errors.Unprocessable, "of the type 'Z'"),
    "an extended header that is huge": Case(
        raw(kind=b"x", size=b"00010000000"), errors.Unprocessable, "extended header of 2,097,152"
    ),
    "more entries than allowed": Case(
        pack(*(file(f"f{number}", b"") for number in range(51))), errors.TooLarge, "more than 50 entries"
    ),
    "more folders implied than allowed": Case(pack(file("a/" * 60 + "b")), errors.TooLarge, "50 entries"),
    "more bytes than allowed": Case(pack(file("a", bytes(1 << 20))), errors.TooLarge, "1,048,576 bytes"),
    "a bomb of gzip": Case(
        lambda: gzip.compress(pack(file("a", bytes(50 << 20))), 1), errors.TooLarge, "1,048,576 bytes"
    ),
    "a bomb of zstd": Case(
        lambda: zstandard.compress(pack(file("a", bytes(50 << 20)))), errors.TooLarge, "1,048,576 bytes"
    ),
    "zeros without end": Case(lambda: gzip.compress(bytes(50 << 20), 1), errors.TooLarge, "1,048,576 bytes"),
    "cut off in a file": Case(cut(PLAIN, 3000), errors.Invalid, "cut off"),
    "cut off in a header": Case(cut(PLAIN, 700), errors.Invalid, "cut off"),
    "cut off between entries": Case(cut(PLAIN, 512), errors.Invalid, "is truncated"),
    "cut off in an extended header": Case(cut(pack(file("ü")), 700), errors.Invalid, "cut off"),
    "an extended header and nothing": Case(
        cut(pack(file("ü")), 1024) + bytes(1024), errors.Invalid, "followed by nothing"
    ),
    "nothing at all": Case(b"", errors.Invalid, "is truncated"),
    "text": Case(b"<html>404 not found</html>" * 100, errors.Invalid, "not a tar"),
    "a wrong checksum": Case(b"b" + PLAIN[1:], errors.Invalid, "checksum"),
    "a negative size": Case(raw(size=b"\xff" * 12), errors.Invalid, "negative size"),
    "a size beyond all numbers": Case(raw(size=b"\x80" + b"\xff" * 11), errors.Invalid, "out of range"),
    "a size that is no number": Case(raw(size=b"0x1F       "), errors.Invalid, "no octal number"),
    "something after the end": Case(PLAIN + b"garbage", errors.Invalid, "after its end"),
    "an archive after the end": Case(PLAIN + PLAIN, errors.Invalid, "after its end"),
    "something after the gzip data": Case(
        gzip.compress(PLAIN) + b"garbage", errors.Invalid, "trailing data after the gzip data"
    ),
    "gzip cut off": Case(gzip.compress(PLAIN)[:-4], errors.Invalid, "gzip data is truncated"),
    "gzip with a wrong checksum": Case(
        gzip.compress(PLAIN)[:-8] + bytes(8), errors.Invalid, "gzip data is damaged"
    ),
    "something after the zstd data": Case(
        zstandard.compress(PLAIN) + b"garbage", errors.Invalid, "trailing data after the zstd data"
    ),
    "zstd cut off": Case(zstandard.compress(PLAIN)[:-1], errors.Invalid, "zstd data is truncated"),
    "zstd with a wrong checksum": Case(
        zstandard.ZstdCompressor(write_checksum=True).compress(PLAIN)[:-4] + bytes(4),
        errors.Invalid,
        "zstd data is damaged",
    ),
    "zstd that looks back further than memory goes": Case(
        lambda: _with_window(PLAIN, 30), errors.Invalid, "too much memory"
    ),
    "bzip2": Case(b"BZh91AY&SY" + bytes(600), errors.Unprocessable, "compressed with bzip2"),
    "xz": Case(b"\xfd7zXZ\x00" + bytes(600), errors.Unprocessable, "compressed with xz"),
}


def _with_window(data: bytes, bits: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=bits, compression_level=3)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(data) + compressor.flush()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a neighbour that must not be touched."""
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "secret").write_bytes(b"secret")
    return tmp_path


@pytest.mark.parametrize("name", HOSTILE)
async def test_it_is_refused_in_plain_words_and_leaves_nothing(name: str, place: Path) -> None:
    case = HOSTILE[name]
    before = look(place)
    with pytest.raises(case.error) as refusal:
        await unpack(case.bytes(), place / "target", limits=FEW)
    assert type(refusal.value) is case.error
    assert case.says in refusal.value.message
    after = look(place)
    assert {path: thing for path, thing in after.items() if path != "."} == {
        path: thing for path, thing in before.items() if path != "."
    }


async def test_a_layer_that_is_not_what_the_image_says_is_refused(place: Path) -> None:
    other = digest_of(b"another layer")
    with pytest.raises(errors.Invalid, match=f"is {digest_of(PLAIN)} and should be {other}"):
        await unpack(gzip.compress(PLAIN), place / "target", diff_id=other)
    assert not (place / "target").exists()


async def test_with_a_digest_a_layer_may_do_without_a_mark_at_its_end(tmp_path: Path) -> None:
    bare = cut(PLAIN, PLAIN.rindex(b"x") // 512 * 512 + 512)
    done = await unpack(bare, tmp_path / "target", diff_id=digest_of(bare))
    assert (done.diff_id, done.files) == (digest_of(bare), 2)
    assert (tmp_path / "target" / "a" / "b").read_bytes() == b"x" * 3000


def contained(canary: Path) -> dict[str, tuple[list[Member], str]]:
    """Layers that try to write to `canary`, and where in the layer that ends up."""
    inside = str(canary).lstrip("/")
    return {
        "an absolute name": ([file(f"{canary}/secret")], f"{inside}/secret"),
        "an absolute link": ([symlink("a", str(canary)), file("a/secret")], f"{inside}/secret"),
        "a link that climbs": ([symlink("a", "../canary"), file("a/secret")], "canary/secret"),
        "a link that climbs far": (
            [symlink("a", "../" * 30 + inside), file("a/secret")],
            f"{inside}/secret",
        ),
        "a link by way of a link": (
            [symlink("a", "/.."), symlink("b", "a/canary"), file("b/secret")],
            "canary/secret",
        ),
        "a folder through a link": ([symlink("a", str(canary)), folder("a/secret")], f"{inside}/secret"),
        "a file in the place of a link": ([symlink("a", f"{canary}/secret"), file("a")], "a"),
        "a file in the place of a hard link to a link": (
            [symlink("a", f"{canary}/secret"), hard_link("b", "a"), file("b")],
            "b",
        ),
        "a folder in the place of a link": (
            [symlink("a", str(canary)), folder("a"), file("a/secret")],
            "a/secret",
        ),
        "a removal through a link": ([symlink("a", "../canary"), file("a/.wh.secret")], "canary/secret"),
        "an opaque folder through a link": ([symlink("a", "../canary"), file("a/.wh..wh..opq")], "canary"),
        "a device through a link": ([symlink("a", "../canary"), device("a/secret", 1, 3)], "canary/secret"),
        "a hard link through a link": (
            [file("x"), symlink("a", "../canary"), hard_link("a/secret", "x")],
            "canary/secret",
        ),
    }


@pytest.mark.parametrize("name", contained(Path("/canary")))
async def test_it_stays_inside(name: str, place: Path) -> None:
    canary = place / "canary"
    before = look(canary)
    members, ends_up = contained(canary)[name]
    await unpack(pack(*members), place / "target")
    assert look(canary) == before
    assert os.path.lexists(place / "target" / ends_up)
    assert not (place / "target" / ends_up).is_symlink()


async def test_attributes_that_instruct_the_machine_are_dropped(tmp_path: Path) -> None:
    wanted = {
        "user.kept": b"1",
        "user.overlay.opaque": b"y",
        "trusted.overlay.opaque": b"y",
        "trusted.overlay.redirect": b"/etc",
        "trusted.overlay.whiteout": b"y",
        "trusted.other": b"1",
        "system.posix_acl_access": b"\2\0\0\0",
        "security.selinux": b"system_u:object_r:etc_t:s0",
        "security.ima": b"\1",
        "nonsense": b"1",
    }
    await unpack(pack(file("f", xattrs=wanted), folder("d", xattrs=wanted)), tmp_path / "target")
    assert os.listxattr(tmp_path / "target" / "f") == ["user.kept"]
    assert os.listxattr(tmp_path / "target" / "d") == ["user.kept"]


async def test_only_a_removal_becomes_a_removal(tmp_path: Path) -> None:
    await unpack(
        pack(
            device("null", 1, 3),
            device("zero-block", 0, 0, tarfile.BLKTYPE),
            member("fifo", tarfile.FIFOTYPE),
            file("a/.wh.gone"),
            file("a/.wh..wh..opq"),
            file(".wh..wh.plnk/1234.5678", b"bookkeeping of aufs"),
            member(".wh..wh.orph", tarfile.DIRTYPE),
        ),
        tmp_path / "target",
    )
    found = look(tmp_path / "target")
    removals = [
        path for path, thing in found.items() if thing.kind == "character device" and thing.device == (0, 0)
    ]
    assert removals == ["a/gone"]
    assert found["a"].xattrs == (("trusted.overlay.opaque", b"y"),)
    assert set(found) == {".", "a", "a/gone", "fifo", "null", "zero-block"}


async def test_a_name_cannot_forge_a_line_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(errors.Unprocessable) as refusal:
        await unpack(pack(file("../\x1b[31m\nfine: \u202e")), tmp_path / "target")
    assert refusal.value.message.isprintable()


async def test_folders_deeper_than_any_path_are_removed_again(tmp_path: Path) -> None:
    step = "/".join(["d"] * 1000)
    members = [file(f"{step}/x", b""), symlink("l0", step)]
    for number in range(3):
        members += [file(f"l{number}/{step}/x", b""), symlink(f"l{number + 1}", f"l{number}/{step}")]
    with pytest.raises(errors.Unprocessable, match="device 0:0"):
        await unpack(pack(*members, device("bad", 0, 0)), tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


async def test_nothing_that_was_made_is_open_to_others_before_its_time(tmp_path: Path) -> None:
    """The folder of the caller stays as private as it was until the layer is whole."""
    (tmp_path / "private").mkdir(mode=0o700)
    await unpack(pack(file("setuid", mode=0o4755)), tmp_path / "private" / "target")
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "private" / "target" / "setuid").stat().st_mode) == 0o4755


def test_the_raw_headers_of_these_tests_are_good_but_for_what_they_test() -> None:
    with tarfile.open(fileobj=io.BytesIO(raw())) as archive:
        assert [each.name for each in archive] == ["a"]
