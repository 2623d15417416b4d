"""Signatures of requests to stores with the API of S3: AWS Signature Version 4, in the header. Pure.

The path is signed as it is sent, encoded once, as S3 has it. The time is an argument.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from skerry.model.snapshots import ObjectStore

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_SERVICE: Final = "s3"
_UNRESERVED: Final = "-_.~"


def encode_path(*segments: str) -> str:
    """A path of these segments, as it is sent and signed; a slash in one of them stays."""
    return "/" + "/".join(quote(segment, safe=_UNRESERVED + "/") for segment in segments)


def encode_query(query: Mapping[str, str]) -> str:
    """A query, as it is sent and signed: sorted by name."""
    pairs = ((quote(key, safe=_UNRESERVED), quote(value, safe=_UNRESERVED)) for key, value in query.items())
    return "&".join(f"{key}={value}" for key, value in sorted(pairs))


def sign(
    store: ObjectStore,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    body: bytes,
    at: float,
) -> dict[str, str]:
    """`headers`, which include the host, with those that authenticate the request. `path` and `query` are
    encoded; `at` is the time in seconds since 1970."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
    content = hashlib.sha256(body).hexdigest()
    signed = {
        **{name.lower(): " ".join(value.split()) for name, value in headers.items()},
        "x-amz-content-sha256": content,
        "x-amz-date": moment,
    }
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    request = "\n".join((method, path, query, lines, names, content))
    scope = f"{moment[:8]}/{store.region}/{_SERVICE}/aws4_request"
    text = "\n".join((_ALGORITHM, moment, scope, hashlib.sha256(request.encode()).hexdigest()))
    signature = hmac.new(_key(store, moment[:8]), text.encode(), hashlib.sha256).hexdigest()
    signed["authorization"] = (
        f"{_ALGORITHM} Credential={store.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return signed


def _key(store: ObjectStore, day: str) -> bytes:
    key = f"AWS4{store.secret_key}".encode()
    for part in (day, store.region, _SERVICE, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
