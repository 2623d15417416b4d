"""Objects of a bucket that are sent in parts, and lists of objects. `skerry.node.volumes.s3_store` keeps
snapshots by it; `S3Bucket` is what `skerry.control.backup.targets` sends backups to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, unescape

from skerry.model import errors
from skerry.node.volumes.s3_client import Answer, S3Client

MAX_PARTS: Final = 10_000
# Only texts between tags are read of what a store answers, so no XML parser sees it.
_CONTENTS: Final = re.compile(r"<Contents>(.*?)</Contents>", re.DOTALL)


class UploadedPart(NamedTuple):
    """A part of an upload, as the store has it."""

    number: int
    tag: str


async def begin(client: S3Client, key: str) -> str:
    """The id of a new upload of this object."""
    return _text(await client.do("POST", key, {"uploads": ""}), "UploadId")


async def put_part(client: S3Client, key: str, upload: str, number: int, body: bytes) -> str:
    """Send a part; returns its tag."""
    answer = await client.do("PUT", key, {"partNumber": str(number), "uploadId": upload}, body)
    return answer.headers.get("etag", "")


async def complete(client: S3Client, key: str, upload: str, parts: Iterable[UploadedPart]) -> None:
    """Make the parts the object."""
    each = "".join(
        f"<Part><PartNumber>{part.number}</PartNumber><ETag>{escape(part.tag)}</ETag></Part>"
        for part in parts
    )
    body = f"<CompleteMultipartUpload>{each}</CompleteMultipartUpload>".encode()
    await client.do("POST", key, {"uploadId": upload}, body)


async def abort(client: S3Client, key: str, upload: str) -> None:
    """Give an upload up; its parts are removed."""
    try:
        await client.do("DELETE", key, {"uploadId": upload})
    except errors.NotFound:
        pass


class S3Bucket:
    """The objects of a bucket, by their whole keys."""

    def __init__(self, client: S3Client) -> None:
        """`client` has no prefix."""
        self._client = client
        self._parts: dict[str, list[UploadedPart]] = {}

    async def begin_upload(self, key: str) -> str:
        upload = await begin(self._client, key)
        self._parts[upload] = []
        return upload

    async def upload_part(self, key: str, upload: str, body: bytes) -> None:
        """Send the next part."""
        parts = self._parts[upload]
        number = len(parts) + 1
        if number > MAX_PARTS:
            raise errors.TooLarge(f"an object has at most {MAX_PARTS} parts; choose a folder instead")
        parts.append(UploadedPart(number, await put_part(self._client, key, upload, number, body)))

    async def complete_upload(self, key: str, upload: str) -> None:
        await complete(self._client, key, upload, self._parts.pop(upload))

    async def abort_upload(self, key: str, upload: str) -> None:
        self._parts.pop(upload, None)
        await abort(self._client, key, upload)

    async def size(self, key: str) -> int | None:
        return await self._client.size(key)

    async def get(self, key: str, first: int, length: int) -> bytes:
        return await self._client.get(key, first=first, length=length)

    async def delete(self, key: str) -> None:
        await self._client.delete(key)

    async def list_objects(self, prefix: str) -> Sequence[tuple[str, int]]:
        """Keys that begin so, and the lengths of their objects."""
        found: list[tuple[str, int]] = []
        token = ""
        while True:
            query = {"list-type": "2", "prefix": prefix} | ({"continuation-token": token} if token else {})
            text = (await self._client.do("GET", "", query)).body.decode("utf-8", "replace")
            found += [(field(one, "Key"), int(field(one, "Size") or "0")) for one in _CONTENTS.findall(text)]
            token = field(text, "NextContinuationToken")
            if field(text, "IsTruncated") != "true" or not token:
                return found


def field(text: str, tag: str) -> str:
    """The text of the first such tag; empty if there is none."""
    found = re.search(rf"<{tag}>([^<]*)</{tag}>", text)
    return "" if found is None else unescape(found[1], {"&quot;": '"', "&apos;": "'", "&#34;": '"'})


def _text(answer: Answer, tag: str) -> str:
    found = field(answer.body.decode("utf-8", "replace"), tag)
    if not found:
        raise errors.Unavailable(f"the store answered without {tag}; is it one with the API of S3?")
    return found
