"""Platforms, manifests, challenges and credentials: what is read of other people's texts, and what is not."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.images import Platform
from skerry.node.images import challenges, credentials, oci_documents, platforms, references
from skerry.node.images.references import RegistryReference
from tests.support import imagery

MACHINE = Platform("linux", "amd64")
IMAGE = imagery.image(imagery.layer(imagery.file("x")))


def platform(text: str) -> Platform:
    return Platform(*text.split("/"))


@pytest.mark.parametrize(
    ("machine", "offered", "chosen"),
    [
        ("linux/amd64", ["linux/arm64", "linux/amd64"], 1),
        ("linux/amd64", ["linux/amd64/v2", "linux/amd64"], 1),
        ("linux/amd64/v3", ["linux/amd64", "linux/amd64/v2", "linux/amd64/v3", "linux/amd64/v4"], 2),
        ("linux/amd64", ["windows/amd64", "linux/arm64"], None),
        ("linux/amd64", ["linux/x86_64"], 0),
        ("linux/arm64", ["linux/arm64/v8"], 0),
        ("linux/arm64/v8", ["linux/arm64"], 0),
        ("linux/arm64", ["linux/arm/v7"], None),
        ("linux/arm/v7", ["linux/arm/v5", "linux/arm/v6", "linux/arm/v7", "linux/arm64"], 2),
        ("linux/arm/v6", ["linux/arm/v7", "linux/arm/v6"], 1),
        ("linux/riscv64", ["linux/riscv64"], 0),
        ("linux/mips", ["linux/mips/hardfloat", "linux/mips"], 1),
        ("linux/amd64", ["unknown/unknown"], None),
        ("linux/amd64", ["linux/amd64", "linux/amd64"], 0),
        ("linux/amd64", [], None),
    ],
)
def test_a_machine_gets_what_it_runs_best(machine: str, offered: list[str], chosen: int | None) -> None:
    assert platforms.choose(platform(machine), map(platform, offered)) == chosen


def test_an_index_without_this_machine_says_what_it_has() -> None:
    images = [
        imagery.image(imagery.layer(imagery.file(name)), architecture=name) for name in ("arm64", "s390x")
    ]
    attestation = {"architecture": "unknown", "os": "unknown"}
    reported = [
        {"architecture": "arm64", "os": "linux", "variant": "v8"},
        {"architecture": "s390x", "os": "linux"},
    ]
    index = oci_documents.read_document(
        imagery.index(*images, images[0], platforms=[*reported, attestation]), "", "web"
    )
    assert isinstance(index, oci_documents.OciIndex)
    with pytest.raises(
        errors.Unprocessable, match="it is for linux/arm64/v8, linux/s390x, this is linux/amd64"
    ):
        oci_documents.choose(index, MACHINE, "web")


def test_the_only_image_of_an_index_that_names_no_platform_is_taken() -> None:
    row = imagery.descriptor(IMAGE.manifest, IMAGE.media_type)
    index = oci_documents.read_document(imagery.encode({"manifests": [row]}), "", "web")
    assert isinstance(index, oci_documents.OciIndex)
    assert oci_documents.choose(index, MACHINE, "web").digest == IMAGE.digest
    with pytest.raises(errors.Unprocessable, match="no image at all"):
        oci_documents.choose(oci_documents.OciIndex((*index.manifests, *index.manifests)), MACHINE, "web")


def changed(**fields: Any) -> bytes:
    document = json.loads(IMAGE.manifest) | fields
    return imagery.encode({key: value for key, value in document.items() if value is not None})


@pytest.mark.parametrize(
    ("data", "media_type", "message"),
    [
        (b"", "", "is not a manifest: not valid JSON"),
        (b"[]", "", "is not a manifest"),
        (b"{}", "", "has no config or no layers"),
        (b"[" * 100_000, "", "is not a manifest"),
        (
            IMAGE.manifest,
            "application/vnd.docker.distribution.manifest.v1+prettyjws",
            "obsolete manifest version 1",
        ),
        (IMAGE.manifest, imagery.OCI_INDEX, "was sent as .* and calls itself"),
        (IMAGE.manifest, "text/html", "was sent as text/html and calls itself"),
        (changed(mediaType=None), "text/html", "unknown media type 'text/html'"),
        (changed(manifests=[]), "", "is both an index and a manifest"),
        (changed(layers=None), "", "has no config or no layers"),
        (
            changed(config={"digest": "x", "size": 1, "mediaType": imagery.OCI_CONFIG}),
            "",
            "only sha256 is supported",
        ),
        (changed(config={"digest": IMAGE.id, "size": -1}), "", "is not a manifest"),
        (changed(config={"digest": IMAGE.id, "size": "1"}), "", "is not a manifest"),
    ],
)
def test_what_is_no_manifest_is_told_in_plain_words(data: bytes, media_type: str, message: str) -> None:
    with pytest.raises(errors.Unprocessable, match=message):
        oci_documents.read_document(data, media_type, "web")


def test_a_manifest_is_read_whether_its_kind_came_with_it_or_is_in_it() -> None:
    for data, media_type in (
        (IMAGE.manifest, ""),
        (IMAGE.manifest, f"{imagery.OCI_MANIFEST}; charset=utf-8"),
        (IMAGE.manifest, "application/json"),
        (changed(mediaType=None), imagery.OCI_MANIFEST),
        (changed(mediaType=None), ""),
    ):
        assert isinstance(oci_documents.read_document(data, media_type, "web"), oci_documents.OciManifest)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("sha256:" + "a" * 64),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "manifests",
                    "layers",
                    "config",
                    "mediaType",
                    "digest",
                    "size",
                    "platform",
                    "os",
                    "rootfs",
                    "diff_ids",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@given(json_values | st.binary(max_size=50), st.text(max_size=20))
def test_every_document_is_read_or_refused(value: Any, media_type: str) -> None:
    data = value if isinstance(value, bytes) else imagery.encode(value)
    for read in (
        lambda: oci_documents.read_document(data, media_type, "web"),
        lambda: oci_documents.read_configuration(data, 1, MACHINE, "web"),
    ):
        try:
            read()
        except (errors.Unprocessable, errors.TooLarge):
            pass


def test_a_configuration_may_leave_almost_everything_out() -> None:
    bare = oci_documents.read_configuration(
        b'{"config": null, "rootfs": {"type": "layers"}}', 0, MACHINE, "web"
    )
    assert bare.platform is None
    nulls = {"config": {"Cmd": None, "Env": None, "Labels": None, "Volumes": None, "Entrypoint": None}}
    assert oci_documents.read_configuration(imagery.encode(nulls), 0, MACHINE, "web").config == bare.config
    with pytest.raises(errors.Unprocessable, match="has a NUL byte"):
        oci_documents.read_configuration(rb'{"config": {"Cmd": ["a\u0000b"]}}', 0, MACHINE, "web")
    with pytest.raises(errors.Unprocessable, match="names 0 layers, its manifest 2"):
        oci_documents.read_configuration(b"{}", 2, MACHINE, "web")
    with pytest.raises(errors.Unprocessable, match="its configuration cannot be read"):
        oci_documents.read_configuration(b'{"rootfs": 3}', 0, MACHINE, "web")


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        (['Bearer realm="https://a/b",service="s",scope="r:x:pull,push"'], [("bearer", "https://a/b")]),
        (["Basic realm=plain"], [("basic", "plain")]),
        (['BASIC realm="a, b"'], [("basic", "a, b")]),
        (['Basic realm="a \\"quoted\\" word"'], [("basic", 'a "quoted" word')]),
        (['Negotiate, Basic realm="x"'], [("negotiate", ""), ("basic", "x")]),
        (['Negotiate dG9rZW4=, Basic realm="x"'], [("negotiate", ""), ("basic", "x")]),
        (['Basic realm="x", Bearer realm="y"'], [("basic", "x"), ("bearer", "y")]),
        (['Basic realm="x"', 'Bearer realm="y" , service = "z"'], [("basic", "x"), ("bearer", "y")]),
        ([", ,Basic"], [("basic", "")]),
        (["", "   ", "===", '"'], []),
    ],
)
def test_challenges_are_read_as_the_standard_writes_them(
    headers: list[str], found: list[tuple[str, str]]
) -> None:
    assert [(each.scheme, each["realm"]) for each in challenges.parse(headers)] == found


@given(st.lists(st.text(alphabet='Bearer ,="\\x:/\t\n', max_size=60), max_size=3))
def test_every_header_is_read_as_far_as_it_goes(headers: list[str]) -> None:
    for challenge in challenges.parse(headers):
        assert challenge.scheme == challenge.scheme.lower()


def reference(text: str) -> RegistryReference:
    found = references.parse(text)
    assert isinstance(found, RegistryReference)
    return found


def written(folder: Path, document: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(document))
    return str(path)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("key", "name", "fits"),
    [
        ("example.org", "example.org/web", True),
        ("https://example.org", "example.org/web", True),
        ("https://example.org/v2/", "example.org/web", True),
        ("Example.ORG", "example.org/web", True),
        ("example.org:5000", "example.org/web", False),
        ("example.org:5000", "example.org:5000/web", True),
        ("https://index.docker.io/v1/", "web", True),
        ("docker.io", "web", True),
        ("docker.io", "example.org/web", False),
        ("example.org/team", "example.org/team/web", True),
        ("example.org/team", "example.org/teamwork/web", False),
    ],
)
def test_a_login_is_for_the_registry_that_its_key_names(
    tmp_path: Path, key: str, name: str, fits: bool
) -> None:
    path = written(tmp_path, {"auths": {key: {"auth": encoded("user:pass:word")}}})
    found = credentials.load(path, reference(name))
    assert (found.login is not None) is fits
    if found.login is not None:
        assert (found.login.user, found.login.password) == ("user", "pass:word")


def test_the_closest_of_several_logins_is_taken(tmp_path: Path) -> None:
    auths = {"example.org": "host", "example.org/a/b": "inner", "example.org/a": "outer"}
    path = written(tmp_path, {"auths": {key: {"auth": encoded(f"{user}:x")} for key, user in auths.items()}})
    for name, user in (("x", "host"), ("a/x", "outer"), ("a/b/c/d", "inner"), ("a/b", "inner")):
        login = credentials.load(path, reference(f"example.org/{name}")).login
        assert login is not None
        assert login.user == user


def test_programs_that_keep_logins_are_named_and_not_run(tmp_path: Path) -> None:
    for document in (
        {"credsStore": "secretservice", "auths": {"example.org": {}}},
        {"credHelpers": {"example.org": "secretservice"}},
    ):
        found = credentials.load(written(tmp_path, document), reference("example.org/web"))
        assert found.login is None
        assert "docker-credential-secretservice, which is not run" in found.hint


def test_a_login_beside_a_program_counts(tmp_path: Path) -> None:
    document = {"credsStore": "x", "auths": {"example.org": {"auth": encoded("user:pass")}}}
    assert credentials.load(written(tmp_path, document), reference("example.org/web")).login is not None


def test_secrets_are_not_printed(tmp_path: Path) -> None:
    auth = {"auth": encoded("user:hunter2"), "identitytoken": "hunter3", "registrytoken": "hunter4"}
    found = credentials.load(
        written(tmp_path, {"auths": {"example.org": auth}}), reference("example.org/web")
    )
    assert found.login is not None
    assert found.login.identity_token == "hunter3"
    assert "hunter" not in repr(found)


def test_a_file_that_cannot_be_read_is_told_in_plain_words(tmp_path: Path) -> None:
    web = reference("example.org/web")
    with pytest.raises(errors.FailedPrecondition, match="there is no such file"):
        credentials.load(str(tmp_path / "nothing"), web)
    (tmp_path / "broken").write_text('{"auths": 3}')
    with pytest.raises(errors.FailedPrecondition, match="cannot be read"):
        credentials.load(str(tmp_path / "broken"), web)
    with pytest.raises(errors.FailedPrecondition, match="is a directory"):
        credentials.load(str(tmp_path), web)
    path = written(tmp_path, {"auths": {"example.org": {"auth": "no base64"}}})
    with pytest.raises(
        errors.FailedPrecondition, match="its `auth` is not base64 of USER:PASSWORD"
    ) as caught:
        credentials.load(path, web)
    assert "no base64" not in caught.value.message
    (tmp_path / "large").write_bytes(b" " * (2 * 1024 * 1024))
    with pytest.raises(errors.TooLarge):
        credentials.load(str(tmp_path / "large"), web)
