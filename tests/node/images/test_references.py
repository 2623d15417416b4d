"""References: every form, Docker's conventions, one spelling, and no text that breaks the parser."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skerry.model.errors import Invalid
from skerry.node.images import references
from skerry.node.images.references import (
    DockerArchiveReference,
    LayoutReference,
    OciArchiveReference,
    RegistryReference,
    RootfsReference,
)

D = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ("team/web", "docker.io/team/web:latest"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("index.docker.io/busybox", "docker.io/library/busybox:latest"),
        ("registry-1.docker.io/team/web:1", "docker.io/team/web:1"),
        (f"busybox@{D}", f"docker.io/library/busybox@{D}"),
        (f"busybox:1@{D}", f"docker.io/library/busybox:1@{D}"),
        ("localhost/web", "localhost/web:latest"),
        ("localhost:5000/web", "localhost:5000/web:latest"),
        ("127.0.0.1:5000/a/b/c:v1", "127.0.0.1:5000/a/b/c:v1"),
        ("Example.ORG/web", "example.org/web:latest"),
        ("[::1]:5000/web", "[::1]:5000/web:latest"),
        ("[0:0::1]:05000/web", "[::1]:5000/web:latest"),
        ("oci:/srv/layout", "oci:/srv/layout"),
        ("oci:/srv//./layout/:v1", "oci:/srv/layout:v1"),
        ("oci:/srv/odd:name/", "oci:/srv/odd:name/"),
        ("oci:/srv/odd:name:v1", "oci:/srv/odd:name:v1"),
        ("docker-archive:/srv/web.tar", "docker-archive:/srv/web.tar"),
        ("oci-archive:/srv/we:b.tar", "oci-archive:/srv/we:b.tar"),
        ("rootfs:/srv/tree/", "rootfs:/srv/tree"),
    ],
)
def test_every_form_has_one_canonical_spelling(text: str, canonical: str) -> None:
    assert str(references.parse(text)) == canonical


def test_each_form_is_a_kind_of_its_own() -> None:
    kinds = [
        RegistryReference,
        LayoutReference,
        OciArchiveReference,
        DockerArchiveReference,
        RootfsReference,
    ]
    texts = ["web", "oci:/x", "oci-archive:/x", "docker-archive:/x", "rootfs:/x"]
    assert [type(references.parse(text)) for text in texts] == kinds


def test_a_reference_without_a_registry_is_in_the_one_of_the_settings() -> None:
    found = references.parse("web:1", default_registry="mirror.example:5000")
    assert str(found) == "mirror.example:5000/web:1"


def test_docker_hub_is_called_at_its_registry_host() -> None:
    found = references.parse("busybox")
    assert isinstance(found, RegistryReference)
    assert found.host == "registry-1.docker.io"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "web:",
            ":1",
            "web@",
            "web@sha256:12",
            "web@md5:" + "a" * 32,
            "Web",
            "a//b",
            "/web",
            "web/",
        ),
        *("a..b", "a___b", "-a", "a-", "web:" + "t" * 129, "example.org:0/web", "example.org:99999/web"),
        *("https://example.org/web", "docker://web", "[zz]:1/web", "exa mple.org/web", "we\nb", "a" * 5000),
        *(
            "oci:",
            "oci:relative",
            "oci:/",
            "oci:/x:",
            "oci:/x/../y",
            "rootfs:relative",
            "rootfs:/",
            "oci:/x:a b",
        ),
        *("docker-archive:", "oci-archive:web.tar", "foo.bar/" + "a" * 256, "ex_ample.org/web", "a.b:x/web"),
    ],
)
def test_what_is_no_reference_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        references.parse(text)
    assert caught.value.field == "image"


def test_a_default_registry_that_would_read_as_a_name_is_refused() -> None:
    with pytest.raises(Invalid, match="a dot or a port"):
        references.parse("web", default_registry="mirror")


pieces = st.sampled_from(
    [
        ":",
        "/",
        "@",
        ".",
        "..",
        "-",
        "_",
        "[",
        "]",
        "oci:",
        "rootfs:/",
        "sha256:",
        D,
        "localhost",
        "A",
        "a",
        "1",
    ]
)


@given(st.one_of(st.text(max_size=40), st.lists(pieces, max_size=12).map("".join)))
@example("oci:/a:b/")
@example("A.b/c")
def test_every_text_is_a_reference_or_refused_and_the_spelling_is_stable(text: str) -> None:
    try:
        found = references.parse(text)
    except Invalid:
        return
    again = references.parse(str(found))
    assert again == found
    assert str(again) == str(found)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1:5000", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("LocalHost:80", True),
        ("[::1]:5000", True),
        ("example.org", False),
        ("localhost.example.org", False),
        ("10.0.0.1:5000", False),
        ("127.0.0.1.example.org", False),
        ("", False),
    ],
)
def test_loopback_is_told_by_spelling(host: str, loopback: bool) -> None:
    assert references.is_loopback(host) is loopback


def test_the_beginning_of_an_id_is_six_or_more_hex_digits() -> None:
    assert references.parse_id_prefix("abc123") == "abc123"
    assert references.parse_id_prefix("sha256:" + "a" * 64) == "a" * 64
    assert references.parse_id_prefix("abc12") is None
    assert references.parse_id_prefix("web") is None
