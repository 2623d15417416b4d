"""Pulling from Debian's docker-registry: every kind of image, and every way to be let in."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from skerry.model import errors
from skerry.model.images import ImageConfig, Platform
from skerry.node.layers.unpacker_client import LayerUnpacker
from tests.node.images.ground import Ground, Listener, diff_ids
from tests.support import imagery
from tests.support.certificates import TestAuthority
from tests.support.registry import PASSWORD, USER, Registry


def web(*more: imagery.Layer, docker: bool = False, compression: str = "gzip") -> imagery.Made:
    return imagery.image(
        imagery.layer(imagery.file("web", "x" * 1000), compression=compression),
        *more,
        config={
            "Entrypoint": ["/web"],
            "Cmd": ["--port", "80"],
            "Env": ["PATH=/bin", "broken", "A=b=c"],
            "User": "1000:50",
            "WorkingDir": "/srv",
            "StopSignal": "SIGINT",
            "ExposedPorts": {"80/tcp": {}, "53/udp": {}},
            "Volumes": {"/data": {}},
            "Labels": {"a": "b"},
        },
        docker=docker,
    )


def log_in(ground: Ground, registry: Registry, auth: dict[str, str]) -> None:
    Path(ground.settings.credentials).write_text(json.dumps({"auths": {registry.address: auth}}))


@pytest.mark.parametrize("docker", [False, True])
@pytest.mark.parametrize("compression", ["gzip", "zstd", ""])
async def test_an_image_is_pulled_with_all_that_it_says(
    registry: Registry, ground: Ground, docker: bool, compression: str
) -> None:
    created = web(imagery.layer(imagery.file("more", "y")), docker=docker, compression=compression)
    digest = registry.push(created, f"web:{docker}-{compression}")
    name = f"{registry.address}/web:{docker}-{compression}"
    async with ground.images() as images:
        image = await images.pull(name)
        assert image == images.find(name) == images.list()[0]
        assert (image.id, image.names, image.manifest) == (created.id, (name,), digest)
        assert image.platform == Platform("linux", "amd64")
        assert image.bytes == sum(len(layer.data) for layer in created.layers)
        assert image.config == ImageConfig(
            entrypoint=("/web",),
            command=("--port", "80"),
            environment=("PATH=/bin", "A=b=c"),
            user="1000:50",
            folder="/srv",
            stop_signal="SIGINT",
            ports=("53/udp", "80/tcp"),
            volumes=("/data",),
            labels={"a": "b"},
        )
        lower, upper = images.layers(image)
        assert (lower / "web").read_text() == "x" * 1000
        assert (upper / "more").read_text() == "y"
        assert [path.stat().st_mode & 0o777 for path in (lower, upper)] == [0o755, 0o755]


async def test_an_image_is_pulled_by_digest(registry: Registry, ground: Ground) -> None:
    created = web()
    digest = registry.push(created, "by-digest:1")
    registry.push(web(imagery.layer(imagery.file("new"))), "by-digest:1")
    async with ground.images() as images:
        image = await images.pull(f"{registry.address}/by-digest:1@{digest}")
        assert image.id == created.id


async def test_of_an_index_the_image_for_this_machine_is_pulled(registry: Registry, ground: Ground) -> None:
    here = web()
    there = imagery.image(imagery.layer(imagery.file("arm")), architecture="arm64", variant="v8")
    for docker in (False, True):
        index = imagery.index(there, here, docker=docker)
        registry.push_index(f"index:{docker}", index, there, here)
        async with ground.images() as images:
            image = await images.pull(f"{registry.address}/index:{docker}")
            assert (image.id, image.manifest) == (here.id, here.digest)
            await images.remove(image.id)
    ground.platform = Platform("linux", "arm64")
    async with ground.images() as images:
        assert (await images.pull(f"{registry.address}/index:True")).id == there.id


async def test_an_image_that_skopeo_pushed_is_pulled(
    registry: Registry, ground: Ground, tmp_path: Path
) -> None:
    created = web()
    layout = imagery.write_layout(created, tmp_path / "layout", "v1")
    target = f"docker://{registry.address}/by-skopeo:1"
    subprocess.run(
        ["skopeo", "copy", "--quiet", "--dest-tls-verify=false", f"oci:{layout}:v1", target], check=True
    )
    async with ground.images() as images:
        assert (await images.pull(f"{registry.address}/by-skopeo:1")).id == created.id


async def test_what_is_here_is_not_pulled_again(registry: Registry, ground: Ground) -> None:
    created = web()
    registry.push(created, "again:1")
    listener = Listener()
    async with ground.images() as images:
        first = await images.pull(f"{registry.address}/again:1")
        second = await images.pull(f"{registry.address}/again:1", on_progress=listener)
        assert first == second
        assert "up to date" in listener.reported[-1].message
        # Another name for the same content costs one question.
        registry.push(created, "again:2")
        third = await images.pull(f"{registry.address}/again:2")
        assert third.names == (f"{registry.address}/again:1", f"{registry.address}/again:2")
    assert ground.fake.begun == 1


async def test_a_tag_that_moved_leads_to_the_new_image(registry: Registry, ground: Ground) -> None:
    base = imagery.layer(imagery.file("base"))
    old, new = imagery.image(base), imagery.image(base, imagery.layer(imagery.file("new")))
    name = f"{registry.address}/moving:1"
    async with ground.images() as images:
        registry.push(old, "moving:1")
        await images.pull(name)
        registry.push(new, "moving:1")
        listener = Listener()
        image = await images.pull(name, on_progress=listener)
        assert image.id == new.id
        assert {each.id: each.names for each in images.list()} == {new.id: (name,), old.id: ()}
        assert listener.states()[0] == ("present", "waiting")
        assert listener.states()[-1] == ("present", "done")
    assert ground.fake.begun == 2


async def test_a_password_is_shown_to_who_asks_for_it(ground: Ground, tmp_path: Path) -> None:
    with Registry(tmp_path / "registry", password=True) as registry:
        registry.push(web(), "web:1")
        name = f"{registry.address}/web:1"
        async with ground.images() as images:
            with pytest.raises(errors.FailedPrecondition, match="requires a login"):
                await images.pull(name)
            log_in(ground, registry, {"auth": base64.b64encode(f"{USER}:wrong".encode()).decode()})
            with pytest.raises(errors.FailedPrecondition, match=f"does not allow {USER} to pull"):
                await images.pull(name)
            assert ground.stored() == []
            log_in(ground, registry, {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()})
            assert (await images.pull(name)).id == web().id
            log_in(ground, registry, {"username": USER, "password": PASSWORD})
            assert (await images.pull(name)).id == web().id


async def test_with_tls_the_registry_must_be_signed_by_a_known_ca(ground: Ground, tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "ca")
    with Registry(tmp_path / "registry", authority=authority, tls=True) as registry:
        registry.push(web(), "web:1")
        name = f"{registry.address}/web:1"
        async with ground.images() as images:
            with pytest.raises(errors.FailedPrecondition, match=r"not trusted: .* set images\.ca"):
                await images.pull(name)
        assert ground.stored() == []
        for ca in (authority.ca, authority.ca.parent):
            ground.set(ca=str(ca))
            async with ground.images() as images:
                assert (await images.pull(name)).id == web().id
                await images.remove(name)


async def test_a_reference_without_a_registry_is_pulled_from_the_default_one(
    registry: Registry, ground: Ground
) -> None:
    registry.push(web(), "plain:1")
    ground.set(default_registry=registry.address)
    async with ground.images() as images:
        image = await images.pull("plain:1")
        assert image.names == (f"{registry.address}/plain:1",)
        assert images.find("plain:1") == image


@pytest.mark.root
async def test_the_real_unpacker_makes_the_layers(registry: Registry, ground: Ground) -> None:
    created = imagery.busybox(
        imagery.layer(
            imagery.whiteout("bin/yes"),
            imagery.file("etc/motd", "hello"),
            imagery.opaque("www"),
            compression="zstd",
        )
    )
    registry.push(created, "real:1")
    ground.unpacker = LayerUnpacker()
    async with ground.images() as images:
        image = await images.pull(f"{registry.address}/real:1")
        lower, upper = images.layers(image)
        assert (lower / "bin" / "sh").readlink() == Path("busybox")
        assert (upper / "etc" / "motd").read_text() == "hello"
        assert (upper / "bin" / "yes").is_char_device()
        assert ground.stored_layers() == diff_ids(created)
        await images.remove(image.id)
        assert ground.stored() == []


@pytest.mark.root
async def test_layers_below_one_that_covers_all_of_them_are_not_stacked(
    registry: Registry, ground: Ground
) -> None:
    layers = [
        imagery.layer(imagery.file("below")),
        imagery.layer(imagery.file(".wh..wh..opq"), imagery.file("covering")),
        imagery.layer(imagery.file("above")),
    ]
    registry.push(imagery.image(*layers), "covered:1")
    ground.unpacker = LayerUnpacker()
    async with ground.images() as images:
        image = await images.pull(f"{registry.address}/covered:1")
        assert [os.listdir(path) for path in images.layers(image)] == [["covering"], ["above"]]


SPOILED = "layer .* of .*spoiled:"


@pytest.mark.root
@pytest.mark.parametrize("real", [False, True])
async def test_a_blob_that_was_changed_in_the_registry_is_told_by_its_digest(
    ground: Ground, tmp_path: Path, real: bool
) -> None:
    good = imagery.layer(imagery.file("good"))
    bad = imagery.layer(imagery.file("bad", bytes(range(256)) * 4000))
    created = imagery.image(good, bad)
    if real:
        ground.unpacker = LayerUnpacker()
    with Registry(tmp_path / "registry") as registry:
        registry.push(created, "spoiled:1")
        path = registry.path_of_blob(bad.digest)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
        async with ground.images() as images:
            with pytest.raises(errors.Unprocessable, match=f"{SPOILED}.* has the wrong digest: .* instead"):
                await images.pull(f"{registry.address}/spoiled:1")
            assert images.list() == []
            assert ground.stored() == []


@pytest.mark.root
@pytest.mark.parametrize("real", [False, True])
async def test_a_blob_that_was_cut_off_in_the_registry_is_told_as_truncated(
    ground: Ground, tmp_path: Path, real: bool
) -> None:
    bad = imagery.layer(imagery.file("bad", bytes(range(256)) * 4000))
    if real:
        ground.unpacker = LayerUnpacker()
    with Registry(tmp_path / "registry") as registry:
        registry.push(imagery.image(bad), "spoiled:1")
        path = registry.path_of_blob(bad.digest)
        path.write_bytes(path.read_bytes()[:1000])
        async with ground.images() as images:
            with pytest.raises(
                errors.Unprocessable, match=f"{SPOILED}.* is truncated: it ends after 1000 of"
            ):
                await images.pull(f"{registry.address}/spoiled:1")
            assert ground.stored() == []


@pytest.mark.root
async def test_a_layer_with_a_way_out_of_its_root_is_refused_and_nothing_is_kept(
    registry: Registry, ground: Ground, tmp_path: Path
) -> None:
    hostile = imagery.layer(imagery.symlink("out", str(tmp_path)), imagery.file("../escaped", "x"))
    created = imagery.image(imagery.layer(imagery.file("good")), hostile)
    registry.push(created, "hostile:1")
    ground.unpacker = LayerUnpacker()
    async with ground.images() as images:
        with pytest.raises(
            errors.Unprocessable, match=rf"layer {hostile.digest} of .*hostile:1: .* leads out of the layer"
        ):
            await images.pull(f"{registry.address}/hostile:1")
        assert ground.stored() == []
    assert not (tmp_path / "escaped").exists()


async def test_a_layer_that_is_not_what_the_configuration_says_is_refused(
    registry: Registry, ground: Ground
) -> None:
    created = web()
    other = imagery.layer(imagery.file("other"))
    created = imagery.Made((other,), created.config)
    registry.push(created, "mixed:1")
    async with ground.images() as images:
        with pytest.raises(errors.Unprocessable, match=f"layer {other.digest} of .*: the layer is"):
            await images.pull(f"{registry.address}/mixed:1")
        assert ground.stored() == []


async def test_an_image_for_another_machine_is_refused(registry: Registry, ground: Ground) -> None:
    created = imagery.image(imagery.layer(imagery.file("x")), architecture="riscv64")
    registry.push(created, "foreign:1")
    registry.push_index("foreign:all", imagery.index(created), created)
    async with ground.images() as images:
        for tag in ("1", "all"):
            with pytest.raises(
                errors.Unprocessable,
                match="not for this machine: it is for linux/riscv64, this is linux/amd64",
            ):
                await images.pull(f"{registry.address}/foreign:{tag}")
        assert ground.stored() == []


@pytest.mark.parametrize(
    ("field", "media_type", "what"),
    [
        ("layers", "application/vnd.oci.image.layer.v1.tar+encrypted", "layer sha256"),
        ("config", "application/vnd.cncf.helm.config.v1+json", "the configuration"),
    ],
)
async def test_an_unknown_media_type_is_refused(
    registry: Registry, ground: Ground, field: str, media_type: str, what: str
) -> None:
    created = web()
    fields = json.loads(created.manifest)[field]
    if field == "layers":
        fields[0]["mediaType"] = media_type
    else:
        fields["mediaType"] = media_type
    created = imagery.Made(created.layers, created.config, manifest_fields={field: fields})
    registry.push(created, f"unknown:{field}")
    async with ground.images() as images:
        with pytest.raises(
            errors.Unprocessable,
            match=f"{what}.* has the unknown media type .*{media_type[-10:]}".replace("+", r"\+"),
        ):
            await images.pull(f"{registry.address}/unknown:{field}")
        assert ground.stored() == []


async def test_what_is_not_there_is_not_found(registry: Registry, ground: Ground) -> None:
    async with ground.images() as images:
        for name in ("nothing:1", "again:nothing", f"again@sha256:{'0' * 64}"):
            with pytest.raises(errors.NotFound, match=f"{registry.address} has no .*{name}"):
                await images.pull(f"{registry.address}/{name}")
        assert ground.stored() == []


async def test_a_blob_that_is_gone_is_not_found(ground: Ground, tmp_path: Path) -> None:
    created = web()
    with Registry(tmp_path / "registry") as registry:
        registry.push(created, "gone:1")
        link = (
            tmp_path
            / "registry/storage/docker/registry/v2/repositories/gone/_layers/sha256"
            / created.layers[0].digest.removeprefix("sha256:")
            / "link"
        )
        link.unlink()
        async with ground.images() as images:
            with pytest.raises(errors.NotFound, match=f"has no layer {created.layers[0].digest} of"):
                await images.pull(f"{registry.address}/gone:1")
            assert ground.stored() == []


async def test_an_image_with_too_many_layers_is_refused(registry: Registry, ground: Ground) -> None:
    registry.push(web(imagery.layer(imagery.file("a")), imagery.layer(imagery.file("b"))), "many:1")
    ground.settings = msgspec.structs.replace(ground.settings, max_layers=2)
    async with ground.images() as images:
        with pytest.raises(errors.Unprocessable, match="3 layers; 1 to 2 are accepted"):
            await images.pull(f"{registry.address}/many:1")
