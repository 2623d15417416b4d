"""Images from disk: layouts, archives of both kinds, bare file systems; broken and hostile ones, too."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.images import ImageAccess, ImageConfig, Platform
from skerry.node.images.images import Images
from tests.node.images.ground import Ground, diff_ids
from tests.support import imagery
from tests.support.imagery import Made

BASE = imagery.layer(imagery.file("base", "b" * 5000))
TOP = imagery.layer(imagery.file("top"), compression="zstd")
IMAGE = imagery.image(BASE, TOP, config={"Cmd": ["/base"]})
ALL = ImageAccess.ALL


def convert(source: str, target: str) -> None:
    subprocess.run(["skopeo", "copy", "--quiet", source, target], check=True)


async def check(images: Images, reference: str, created: Made = IMAGE) -> None:
    """It is pulled, whole; and asked for again, it is not unpacked again."""
    image = await images.pull(reference, access=ALL)
    assert (image.id, image.config.command) == (created.id, ("/base",))
    assert [(path / name).exists() for path, name in zip(images.layers(image), ("base", "top"), strict=True)]
    assert (images.layers(image)[0] / "base").read_text() == "b" * 5000
    assert await images.pull(reference, access=ALL) == image == images.find(reference, access=ALL)


async def test_an_image_in_a_layout_is_pulled_by_its_tag(ground: Ground, tmp_path: Path) -> None:
    layout = imagery.write_layout(IMAGE, tmp_path / "layout", "v1")
    imagery.write_layout(imagery.image(TOP), layout, "v2")
    async with ground.images() as images:
        await check(images, f"oci:{layout}:v1")
        with pytest.raises(errors.NotFound, match="v3 does not exist; the layout has: v1, v2"):
            await images.pull(f"oci:{layout}:v3", access=ALL)
        with pytest.raises(
            errors.FailedPrecondition, match=r"contains 2 images; choose one.* It has: v1, v2"
        ):
            await images.pull(f"oci:{layout}", access=ALL)
    assert ground.fake.begun == 2


async def test_the_only_image_of_a_layout_needs_no_tag(ground: Ground, tmp_path: Path) -> None:
    layout = imagery.write_layout(IMAGE, tmp_path / "layout", "")
    async with ground.images() as images:
        await check(images, f"oci:{layout}")


async def test_a_layout_may_hold_one_image_for_several_machines(ground: Ground, tmp_path: Path) -> None:
    arm = imagery.image(BASE, architecture="arm64")
    layout = imagery.write_layout(IMAGE, tmp_path / "layout", "x")
    imagery.write_layout(arm, layout, "y")
    index = imagery.index(arm, IMAGE)
    (layout / "index.json").write_bytes(index)
    async with ground.images() as images:
        await check(images, f"oci:{layout}")
    # The same, behind a tag and one step further away.
    (layout / "blobs" / imagery.digest_of(index).replace(":", "/")).write_bytes(index)
    row = imagery.descriptor(index, imagery.OCI_INDEX)
    row["annotations"] = {"org.opencontainers.image.ref.name": "example.org/web:v1"}
    (layout / "index.json").write_bytes(imagery.encode({"schemaVersion": 2, "manifests": [row]}))
    ground.platform = Platform("linux", "arm64")
    async with ground.images() as images:
        assert (await images.pull(f"oci:{layout}:v1", access=ALL)).id == arm.id


async def test_indexes_that_lead_to_indexes_end_somewhere(ground: Ground, tmp_path: Path) -> None:
    layout = imagery.write_layout(IMAGE, tmp_path / "layout", "x")
    data = imagery.index(IMAGE)
    for _ in range(5):
        (layout / "blobs" / imagery.digest_of(data).replace(":", "/")).write_bytes(data)
        row = imagery.descriptor(data, imagery.OCI_INDEX)
        data = imagery.encode({"schemaVersion": 2, "mediaType": imagery.OCI_INDEX, "manifests": [row]})
    (layout / "index.json").write_bytes(data)
    async with ground.images() as images:
        with pytest.raises(errors.Unprocessable, match="indexes are nested"):
            await images.pull(f"oci:{layout}", access=ALL)


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
async def test_an_archive_of_skopeo_is_pulled(ground: Ground, tmp_path: Path, kind: str) -> None:
    top = imagery.layer(imagery.file("top"))  # Docker's formats know no zstd
    created = imagery.image(BASE, top, config={"Cmd": ["/base"]})
    layout = imagery.write_layout(created, tmp_path / "layout", "v1")
    target = tmp_path / "saved.tar"
    convert(f"oci:{layout}:v1", f"{kind}:{target}:web:v1" if kind == "docker-archive" else f"{kind}:{target}")
    async with ground.images() as images:
        image = await images.pull(f"{kind}:{target}", access=ALL)
        assert set(image.layers) == diff_ids(created)
        assert (images.layers(image)[0] / "base").read_text() == "b" * 5000
        assert image.config == ImageConfig(command=("/base",))
        assert await images.pull(f"{kind}:{target}", access=ALL) == image
    assert ground.fake.begun == 2


async def test_a_tar_of_a_layout_is_pulled(ground: Ground, tmp_path: Path) -> None:
    target = imagery.write_oci_archive(IMAGE, tmp_path / "saved.tar")
    async with ground.images() as images:
        await check(images, f"oci-archive:{target}")
    assert ground.fake.begun == 2


async def test_the_old_form_of_docker_save_is_pulled(ground: Ground, tmp_path: Path) -> None:
    target = imagery.write_docker_archive(IMAGE, tmp_path / "saved.tar")
    async with ground.images() as images:
        await check(images, f"docker-archive:{target}")


def saved(created: Made, layers: list[str], members: dict[str, bytes], config: str) -> dict[str, bytes]:
    row = {"Config": config, "RepoTags": ["web:1"], "Layers": layers}
    return {config: created.config, **members, "manifest.json": imagery.encode([row])}


async def test_the_new_form_of_docker_save_is_pulled(ground: Ground, tmp_path: Path) -> None:
    """Since Docker 25 an archive is also an OCI layout, and manifest.json leads into its blobs."""
    paths = [f"blobs/{layer.diff_id.replace(':', '/')}" for layer in IMAGE.layers]
    blobs = dict(zip(paths, map(imagery.plain, IMAGE.layers), strict=True))
    members = saved(IMAGE, paths, blobs, f"blobs/{IMAGE.id.replace(':', '/')}")
    target = imagery.write_tar({"oci-layout": b"{}", **members}, tmp_path / "saved.tar")
    async with ground.images() as images:
        await check(images, f"docker-archive:{target}")


async def test_layers_that_are_links_in_the_archive_are_followed_inside_it(
    ground: Ground, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_bytes(imagery.plain(TOP))
    entries = [
        *(
            imagery.file(name, data)
            for name, data in saved(IMAGE, ["a/l.tar", "b/l.tar"], {}, "c.json").items()
        ),
        imagery.file("shared/one.tar", imagery.plain(BASE)),
        imagery.symlink("a/l.tar", "../shared/one.tar"),
        imagery.file("two.tar", imagery.plain(TOP)),
        imagery.hard_link("b/l.tar", "two.tar"),
    ]
    target = tmp_path / "saved.tar"
    target.write_bytes(imagery.tar(entries))
    async with ground.images() as images:
        await check(images, f"docker-archive:{target}")
        await images.remove(IMAGE.id, access=ALL)
        for link in (str(tmp_path / "outside"), "../../../outside", "l.tar"):
            entries[-1] = imagery.symlink("b/l.tar", link)
            target.write_bytes(imagery.tar(entries))
            with pytest.raises(errors.NotFound, match=r"contains no file 'b/l.tar'"):
                await images.pull(f"docker-archive:{target}", access=ALL)


def spoil_config(members: dict[str, bytes]) -> None:
    members[f"{IMAGE.id.removeprefix('sha256:')}.json"] += b" "


def name_two(members: dict[str, bytes]) -> None:
    rows = json.loads(members["manifest.json"])
    members["manifest.json"] = imagery.encode([*rows, *rows])


def drop_manifest(members: dict[str, bytes]) -> None:
    del members["manifest.json"]


def drop_a_layer(members: dict[str, bytes]) -> None:
    del members["one.tar"]


def swap_layers(members: dict[str, bytes]) -> None:
    members["one.tar"] = members["two.tar"]


def break_manifest(members: dict[str, bytes]) -> None:
    members["manifest.json"] = b"[{"


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (spoil_config, errors.Unprocessable, "the configuration of .* has the wrong digest"),
        (name_two, errors.FailedPrecondition, r"contains 2 images \(web:1, web:1\); save one alone"),
        (drop_manifest, errors.Unprocessable, "was not written by `docker save`"),
        (drop_a_layer, errors.NotFound, "contains no file 'one.tar'"),
        (swap_layers, errors.Unprocessable, "layer one.tar of .*: the layer is sha256:"),
        (break_manifest, errors.Unprocessable, "manifest.json cannot be read"),
    ],
)
async def test_a_broken_archive_is_told_in_plain_words(
    ground: Ground, tmp_path: Path, spoil: object, error: type[errors.SkerryError], message: str
) -> None:
    layers = {"one.tar": imagery.plain(BASE), "two.tar": imagery.plain(TOP)}
    members = saved(IMAGE, list(layers), layers, f"{IMAGE.id.removeprefix('sha256:')}.json")
    assert callable(spoil)
    spoil(members)
    target = imagery.write_tar(members, tmp_path / "saved.tar")
    async with ground.images() as images:
        with pytest.raises(error, match=message):
            await images.pull(f"docker-archive:{target}", access=ALL)
    assert ground.stored() == []


async def test_an_archive_that_is_none_is_told_in_plain_words(ground: Ground, tmp_path: Path) -> None:
    whole = imagery.write_docker_archive(IMAGE, tmp_path / "saved.tar").read_bytes()
    cases = {
        "is truncated: its last member is cut off": whole[: len(whole) // 2 // 512 * 512],
        "is compressed; decompress it first": gzip.compress(whole),
        "cannot be read as an archive": os.urandom(4096),
    }
    async with ground.images() as images:
        for message, data in cases.items():
            for kind in ("docker-archive", "oci-archive"):
                (tmp_path / "broken.tar").write_bytes(data)
                with pytest.raises(errors.Unprocessable, match=message):
                    await images.pull(f"{kind}:{tmp_path}/broken.tar", access=ALL)
        with pytest.raises(errors.NotFound, match="this node has no file"):
            await images.pull(f"docker-archive:{tmp_path}/nothing.tar", access=ALL)
        with pytest.raises(errors.FailedPrecondition, match="is not a file"):
            await images.pull(f"docker-archive:{tmp_path}", access=ALL)
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(errors.FailedPrecondition, match="is not a file"):
            await images.pull(f"docker-archive:{tmp_path}/pipe", access=ALL)


async def test_an_archive_cannot_make_us_read_without_bounds(ground: Ground, tmp_path: Path) -> None:
    target = tmp_path / "hostile.tar"
    async with ground.images() as images:
        imagery.write_tar({"manifest.json": b" " * (5 * 1024 * 1024)}, target)
        with pytest.raises(errors.TooLarge, match=r"manifest.json .* has 5242880 bytes"):
            await images.pull(f"docker-archive:{target}", access=ALL)
        # A header that says that its own name is longer than all memory.
        name = tarfile.TarInfo("././@LongLink")
        name.type, name.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
        with target.open("wb") as file:
            file.write(name.tobuf(tarfile.GNU_FORMAT))
            file.truncate(1 << 30)
        with pytest.raises(errors.Unprocessable, match="cannot be read as an archive"):
            await images.pull(f"docker-archive:{target}", access=ALL)


async def test_an_archive_with_more_members_than_any_image_is_not_read_on(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skerry.node.images import source_files

    monkeypatch.setattr(source_files, "_MAX_MEMBERS", 50)
    target = imagery.write_tar({str(number): b"" for number in range(60)}, tmp_path / "hostile.tar")
    async with ground.images() as images:
        with pytest.raises(errors.TooLarge, match="more than 50 members"):
            await images.pull(f"docker-archive:{target}", access=ALL)


async def test_a_blob_of_a_layout_that_was_changed_is_refused(ground: Ground, tmp_path: Path) -> None:
    layout = imagery.write_layout(IMAGE, tmp_path / "layout", "v1")
    for digest, what in ((TOP.digest, "layer"), (IMAGE.id, "blobs/sha256"), (IMAGE.digest, "blobs/sha256")):
        path = layout / "blobs" / digest.replace(":", "/")
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        async with ground.images() as images:
            with pytest.raises(errors.Unprocessable, match=f"{what}.* has the wrong digest"):
                await images.pull(f"oci:{layout}:v1", access=ALL)
        path.write_bytes(good[:-1])
        async with ground.images() as images:
            with pytest.raises(
                errors.Unprocessable, match="is truncated" if digest == TOP.digest else "digest"
            ):
                await images.pull(f"oci:{layout}:v1", access=ALL)
        path.unlink()
        async with ground.images() as images:
            with pytest.raises(errors.NotFound, match="this node has no file"):
                await images.pull(f"oci:{layout}:v1", access=ALL)
        path.write_bytes(good)
        assert ground.stored() == []


async def test_a_folder_that_is_no_layout_is_told_so(ground: Ground, tmp_path: Path) -> None:
    async with ground.images() as images:
        with pytest.raises(errors.NotFound, match=r"index\.json"):
            await images.pull(f"oci:{tmp_path}", access=ALL)
        (tmp_path / "index.json").write_bytes(IMAGE.manifest)
        with pytest.raises(errors.Unprocessable, match="is not an OCI layout"):
            await images.pull(f"oci:{tmp_path}", access=ALL)


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
async def test_a_tarball_of_a_root_is_an_image_of_one_layer(
    ground: Ground, tmp_path: Path, compression: str
) -> None:
    layer = imagery.layer(imagery.file("bin/true", "x"), compression=compression)
    tarball = tmp_path / "root.tar"
    tarball.write_bytes(layer.data)
    async with ground.images() as images:
        image = await images.pull(f"rootfs:{tarball}", access=ALL)
        assert image.layers == (layer.diff_id,)
        assert image.config == ImageConfig()
        assert (images.layers(image)[0] / "bin" / "true").read_text() == "x"
        assert await images.pull(f"rootfs:{tarball}", access=ALL) == image
        assert ground.fake.begun == 1
        # Other content under the same name, and the same content under another.
        tarball.write_bytes(imagery.layer(imagery.file("bin/false")).data)
        assert (await images.pull(f"rootfs:{tarball}", access=ALL)).id != image.id
        (tmp_path / "copy.tar").write_bytes(layer.data)
        assert (await images.pull(f"rootfs:{tmp_path}/copy.tar", access=ALL)).id == image.id


async def test_a_folder_is_an_image_where_it_stands(ground: Ground, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "sh").write_bytes(b"x" * 1000)
    (tree / "loop").symlink_to(".")
    async with ground.images() as images:
        image = await images.pull(f"rootfs:{tree}", access=ALL)
        assert images.layers(image) == (tree,)
        assert (image.layers, image.folder) == ((), str(tree))
        assert 1000 <= image.bytes < 2000
        assert await images.ensure(f"rootfs:{tree}", access=ALL) == image
    async with ground.images() as images:
        assert images.list() == [image]
        tree.rename(tmp_path / "elsewhere")
        with pytest.raises(errors.NotFound, match="no longer exists; restore it"):
            images.layers(image)
        assert await images.remove(image.id, access=ALL) == 0
        with pytest.raises(errors.NotFound, match="this node has no"):
            await images.pull(f"rootfs:{tree}", access=ALL)
    assert (tmp_path / "elsewhere" / "bin" / "sh").exists()


async def test_a_tarball_that_is_none_is_refused_and_nothing_is_kept(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "root.tar").write_bytes(b"no tar at all" * 100)
    async with ground.images() as images:
        with pytest.raises(errors.Unprocessable, match=r"rootfs:.*root.tar: the layer is no tar"):
            await images.pull(f"rootfs:{tmp_path}/root.tar", access=ALL)
    assert ground.stored() == []


def test_the_archives_of_these_tests_are_what_the_standard_library_reads(tmp_path: Path) -> None:
    data = imagery.write_docker_archive(IMAGE, tmp_path / "saved.tar").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert "manifest.json" in archive.getnames()
