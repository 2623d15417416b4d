"""`skerry restore`: a backup becomes a data folder, before Skerry is started on it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import backup_keys
from skerry.cli import output as printing
from skerry.cli.commands.backup import describe, explained, progress, verify_file
from skerry.client import discovery

if TYPE_CHECKING:
    from skerry.kit.sealed_stream import Unlock
    from skerry.model.settings import Settings
    from skerry.store.protocol import Entry, Store


@click.command()
@click.argument("source", metavar="FILE|s3://BUCKET/KEY")
@click.option(
    "--data",
    metavar="DIR",
    help="Data folder, which must be empty. [default: /var/lib/skerry as root, else ~/.local/share/skerry]",
)
@backup_keys.decryption
@click.option("--dry-run", is_flag=True, help="Verify the backup and show what is in it; write nothing.")
@click.option(
    "--store", metavar="URL", help="sqlite, or etcd://HOST:PORT[,HOST:PORT...], empty. [default: sqlite]"
)
@click.option("--config", metavar="FILE", help="TOML file with settings. [env: SKERRY_CONFIG]")
@click.option(
    "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Any setting of docs/settings.md."
)
@printing.option
def restore(
    source: str,
    data: str | None,
    unlock: Unlock | None,
    dry_run: bool,
    store: str | None,
    config: str | None,
    assignments: tuple[str, ...],
    output: str,
) -> None:
    """Restore a backup into an empty data folder, on this machine.

    The backup is verified before anything is written. Then start Skerry on that folder, at the same address
    as before: nodes come back by themselves, and keep what they run. A restore that was interrupted is run
    again; until then Skerry does not start on the folder.

    \b
      skerry restore cloud.backup --data /var/lib/skerry --passphrase-file FILE
      skerry restore cloud.backup --dry-run
    """
    from skerry.cli import settings as reading

    flags: dict[str, Any] = dict(reading.parse_assignments(assignments))
    flags |= {key: value for key, value in (("store.url", store), ("data", data)) if value is not None}
    settings = reading.load(flags, config)
    folder = discovery.data_folder(settings.data)
    with explained(), _fetched(source, settings) as file:
        found = _dry_run(file, unlock) if dry_run else _restore(file, unlock, folder, settings)
    if output == "json":
        printing.as_json({**found, "data": str(folder)})
        return
    for line in _lines(found):
        click.echo(line)
    if dry_run:
        click.echo("Nothing was written.")
    else:
        click.echo(f"Restored into {folder}. Start Skerry on it, at the address that nodes know.")


def _dry_run(file: Path, unlock: Unlock | None) -> dict[str, Any]:
    return describe(verify_file(file, unlock), file.stat().st_size)


def _restore(file: Path, unlock: Unlock | None, folder: Path, settings: Settings) -> dict[str, Any]:
    from skerry.control.backup import restore as restoring

    destination = None if settings.store.url == "sqlite" else _SharedStore(settings)
    with progress("restoring") as count:
        verified = restoring.restore(
            lambda: file.open("rb"), unlock, folder, destination=destination, progress=count
        )
    return describe(verified, file.stat().st_size)


class _SharedStore:
    """The store of the settings, which is none of the data folder's: a `RecordDestination`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.store
        self.name = f"{settings.store.url} {settings.store.etcd_prefix}"

    def check(self) -> None:
        from skerry.control.backup import record_import

        self._with_store(record_import.check_store)

    def write(self, entries: Iterator[Entry]) -> None:
        from skerry.control.backup import record_import

        self._with_store(lambda store: record_import.import_records(store, entries))

    def finish(self) -> None:
        from skerry.control.backup import record_import

        self._with_store(record_import.finish)

    def _with_store(self, work: Callable[[Store], Awaitable[None]]) -> None:
        from skerry.kit.clock import SystemClock
        from skerry.store.factory import open_store

        async def run() -> None:
            store = await open_store(self._settings, Path(), SystemClock())
            try:
                await work(store)
            finally:
                await store.close()

        asyncio.run(run())


@contextmanager
def _fetched(source: str, settings: Settings) -> Iterator[Path]:
    """A file of this machine, or an object of S3, which is copied here first."""
    if not source.startswith("s3://"):
        yield Path(source)
        return
    from skerry.control.backup import targets
    from skerry.control.snapshots.object_stores import StoreSource

    bucket, key = targets.parse_s3(source)
    store = StoreSource(settings.snapshots).get()
    with tempfile.NamedTemporaryFile(prefix="skerry-restore-") as file:
        asyncio.run(_download(store, bucket, key, file.write))
        file.flush()
        yield Path(file.name)


async def _download(store: Any, bucket: str, key: str, write: Any) -> None:
    from msgspec.structs import replace

    from skerry.kit.clock import SystemClock
    from skerry.model import errors
    from skerry.node.volumes.s3_client import S3Client

    async with S3Client(replace(store, bucket=bucket, prefix=""), SystemClock()) as client:
        size = await client.size(key)
        if size is None:
            raise errors.NotFound(f"the bucket {bucket!r} has no object {key!r}")
        with progress("fetching") as count:
            for at in range(0, size, _RANGE):
                data = await client.get(key, first=at, length=min(_RANGE, size - at))
                await asyncio.to_thread(write, data)
                count(len(data))


_RANGE = 16 * 1024**2


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"cloud     {found['cloud'][:16]}, server {found['server']}, Skerry {found['version']}"
    taken = f"{printing.ago(found['created_at'])}, at revision {found['revision']}"
    yield f"taken     {taken} of a store in {found['store']}"
    counts = ", ".join(f"{prefix.rstrip('/')} {count}" for prefix, count in found["records"].items())
    yield f"records   {counts}"
    for one in found["volumes"]:
        volume = f"{one['namespace']}/{one['name']} {one['size_gb']}GB on {one['node'] or 'no node'}"
        yield f"volume    {volume}: its data is not in the backup"
    for digest in found["missing_code"]:
        yield f"missing   code {digest}: members that have it give it back, or deploy the function again"
    for name in found["missing_files"]:
        yield f"missing   {name}: the disk of the server had no room for a copy when the backup was taken"
