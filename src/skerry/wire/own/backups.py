"""`/backup/`: backups of the cloud, streamed to the caller or written to S3, and the scheduled ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from skerry.control.backup import targets
from skerry.control.backup.archive import FileSeal
from skerry.control.backup.schedule import BackupSchedule, next_at
from skerry.control.backup.service import BackupProgress, BackupService
from skerry.control.backup.targets import BackupTarget
from skerry.kit import json_codec, sealed_stream
from skerry.kit.field_copy import copy_fields
from skerry.model import errors
from skerry.model.backup_settings import BackupSettings
from skerry.transport.http.endpoints import Endpoint, RequestContext, StreamResponse, endpoint
from skerry.transport.http.responses import Problem
from skerry.transport.http.streaming import StreamFormat

ARCHIVE: Final = "application/octet-stream"
NDJSON: Final = "application/x-ndjson"


class BackupContext(msgspec.Struct, frozen=True):
    """The first argument of these endpoints."""

    service: BackupService
    schedule: BackupSchedule
    settings: BackupSettings
    bucket: Callable[[str, str], BackupTarget]  # of a bucket, and what its keys begin with


class StoreBackupRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A backup for an object of S3. It is encrypted with the passphrase or for the public key."""

    url: Annotated[str, Meta(description="`s3://BUCKET/KEY`, at `snapshots.s3_endpoint`", max_length=600)]
    passphrase: Annotated[str, Meta(max_length=sealed_stream.MAX_PASSPHRASE)] = ""
    recipient: Annotated[str, Meta(description="A public key of `skerry backup key`", max_length=100)] = ""
    plain: Annotated[bool, Meta(description="Do not encrypt it, though it holds the keys of the cloud")] = (
        False
    )

    def __repr__(self) -> str:
        return f"StoreBackupRequest({self.url!r})"  # a passphrase must not reach a log


class BackupProgressInfo(msgspec.Struct, frozen=True):
    """A step of a backup: `writing` or `verifying` so many bytes, then `done`."""

    step: str
    bytes: int
    name: str
    records: int
    revision: int
    missing_code: Annotated[
        tuple[str, ...], Meta(description="Digests of code of functions that is not on this server")
    ]
    missing_files: Annotated[
        tuple[str, ...],
        Meta(description="Files of the data folder that are not in it, as its disk had no room for a copy"),
    ]


class StoredBackupInfo(msgspec.Struct, frozen=True):
    """A scheduled backup that is there."""

    name: str
    bytes: int


class BackupList(msgspec.Struct, frozen=True):
    """The schedule and its backups, the newest last. Times are seconds since the epoch; 0: never."""

    schedule: str
    target: str
    keep: int
    next_at: Annotated[float | None, Meta(description="Of the next backup; null: nothing is scheduled")]
    last_success_at: float
    last_failure_at: float
    last_error: str
    failures: Annotated[int, Meta(description="Since the last success")]
    backups: list[StoredBackupInfo]


@endpoint(
    "POST",
    "/backup/",
    summary="Take a backup",
    media=ARCHIVE,
    raises=(errors.Overloaded, errors.Unavailable),
    streams=True,
)
async def take(context: BackupContext, call: RequestContext) -> StreamResponse:
    """The archive, as it is written. It holds the CA's key and those of secrets, and is not encrypted:
    whoever receives it encrypts and verifies it (`skerry backup FILE`). One that breaks off is no backup."""
    parts = context.service.stream(call.caller.name)
    first = await anext(parts)  # what cannot be begun is refused before the status is sent
    return StreamResponse(_with(first, parts), StreamFormat(ARCHIVE), AsyncExitStack())


@endpoint(
    "POST",
    "/backup/s3",
    summary="Write a backup to S3",
    media=NDJSON,
    raises=(errors.Invalid, errors.FailedPrecondition, errors.Overloaded, errors.Unavailable),
    streams=True,
)
async def store(context: BackupContext, call: RequestContext, body: StoreBackupRequest) -> StreamResponse:
    """Written and read back, with a line of JSON for each `step`.

    The last line is of the step `done`; or it has `error` and `code`, and nothing is left of the backup.
    """
    bucket, key = targets.parse_s3(body.url)
    if not key or key.endswith("/"):
        raise errors.Invalid("the URL names no object: s3://BUCKET/KEY", field="url")
    folder, slash, name = key.rpartition("/")
    seal = await asyncio.to_thread(_seal_of, body)
    target = context.bucket(bucket, folder + slash)
    steps = context.service.write(target, lambda content: name, seal, actor=call.caller.name)
    return StreamResponse(_encode(steps, call.request_id), _STEPS, AsyncExitStack())


@endpoint(
    "GET",
    "/backup/",
    summary="List scheduled backups",
    raises=(errors.FailedPrecondition, errors.Unavailable),
)
async def list_backups(context: BackupContext, call: RequestContext) -> BackupList:
    """The schedule of `backup.schedule`, what became of the last one, and those that are at
    `backup.target`."""
    settings, status = context.settings, await context.schedule.status()
    found = await context.schedule.stored() if settings.target else []
    return copy_fields(
        BackupList,
        status,
        schedule=settings.schedule,
        target=settings.target,
        keep=settings.keep,
        next_at=next_at(status, settings.schedule) if settings.schedule and status.began_at else None,
        backups=[StoredBackupInfo(one.name, one.bytes) for one in found],
    )


ENDPOINTS: tuple[Endpoint, ...] = (take, store, list_backups)


def _seal_of(body: StoreBackupRequest) -> FileSeal | None:
    try:
        if body.recipient:
            return FileSeal(*sealed_stream.seal_for(body.recipient))
        if body.passphrase:
            return FileSeal(*sealed_stream.seal_by_passphrase(body.passphrase))
    except ValueError as error:
        raise errors.Invalid(str(error), field="recipient" if body.recipient else "passphrase") from None
    if not body.plain:
        raise errors.Invalid(
            "a backup holds the CA's key and those of all secrets: give a passphrase or a recipient, or "
            "`plain`",
            field="plain",
        )
    return None


async def _with(first: bytes, parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(parts):
        yield first
        async for part in parts:
            yield part


async def _encode(
    steps: AsyncGenerator[BackupProgress, None], request_id: str
) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(steps):
            async for step in steps:
                yield _line(copy_fields(BackupProgressInfo, step))
    except errors.SkerryError as error:
        yield _line(Problem(error=error.message, code=error.slug, request_id=request_id))


def _line(value: msgspec.Struct) -> bytes:
    return json_codec.encode(value) + b"\n"


_STEPS: Final = StreamFormat(
    NDJSON,
    goodbye=_line(
        Problem(
            error="the server is stopping; take the backup again", code=errors.Unavailable.slug, request_id=""
        )
    ),
)
