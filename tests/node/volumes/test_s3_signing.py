"""Signatures are those of the specification: the examples of its documentation, byte by byte."""

from __future__ import annotations

from skerry.model.snapshots import ObjectStore
from skerry.node.volumes import s3_signing

# "Signature Calculations for the Authorization Header", examples of Amazon S3.
STORE = ObjectStore(
    "https://examplebucket.s3.amazonaws.com",
    "examplebucket",
    "us-east-1",
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
)
AT = 1369353600.0  # 2013-05-24T00:00:00Z
HOST = {"host": "examplebucket.s3.amazonaws.com"}


def signature(
    method: str, path: str, query: str = "", headers: dict[str, str] | None = None, body: bytes = b""
) -> str:
    signed = s3_signing.sign(STORE, method, path, query, HOST | (headers or {}), body, AT)
    return signed["authorization"].rpartition("Signature=")[2]


def test_a_get_of_a_range() -> None:
    assert signature("GET", "/test.txt", headers={"Range": "bytes=0-9"}) == (
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


def test_a_put_with_a_body_and_a_name_that_is_encoded() -> None:
    path = s3_signing.encode_path("test$file.text")
    headers = {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"}
    assert signature("PUT", path, headers=headers, body=b"Welcome to Amazon S3.") == (
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
    )


def test_a_get_with_an_empty_parameter() -> None:
    assert signature("GET", "/", s3_signing.encode_query({"lifecycle": ""})) == (
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
    )


def test_a_list_with_two_parameters_in_any_order() -> None:
    query = s3_signing.encode_query({"prefix": "J", "max-keys": "2"})
    assert signature("GET", "/", query) == "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"


def test_keys_are_in_no_text_of_a_store() -> None:
    for text in (repr(STORE), str(STORE), f"{STORE}"):
        assert STORE.secret_key not in text
        assert STORE.access_key not in text
