"""`skerry backup`: backups of a running cloud, and what is in one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from skerry.cli import backup_keys, options
from skerry.cli import output as printing
from skerry.cli.backup_keys import EncryptionOptions
from skerry.client.api import ApiClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skerry.control.backup.restore import VerifiedBackup
    from skerry.kit.sealed_stream import Unlock

_S3: Final = "s3://"
_WARNING: Final = (
    "This backup is not encrypted, and holds the CA's key and those of all secrets: protect it like those."
)


@click.group(cls=options.DefaultCommandGroup, default="create", takes_argument=True, aliases={"ls": "list"})
def backup() -> None:
    """Back up a running cloud: store, keys, code of functions and async results.

    Data of volumes is not in it ('skerry volume snapshot'), and neither are images.

    \b
      skerry backup cloud.backup --encrypt
      skerry backup s3://backups/cloud.backup --passphrase-file FILE
      skerry backup verify cloud.backup
    """


@backup.command()
@click.argument("target", metavar="FILE|s3://BUCKET/KEY")
@backup_keys.encryption
@click.option("--plain", is_flag=True, help="Do not encrypt it, though it holds the keys of the cloud.")
@options.server
@printing.option
def create(server: ApiClient, target: str, encryption: EncryptionOptions, plain: bool, output: str) -> None:
    """Take a backup of the running cloud, and read it back.

    A FILE is written by this command, an object of S3 by the server, with the credentials of
    snapshots.s3_credentials. Nothing is left of one that cannot be read back.

    \b
      skerry backup cloud.backup --encrypt
      skerry backup cloud.backup --recipient skerry-public-v1.XXXX
      skerry backup s3://backups/cloud.backup --passphrase-env BACKUP_PASSPHRASE
    """
    if plain and encryption.is_given:
        raise click.UsageError("--plain does not encrypt: leave it out, or the passphrase or recipient.")
    if target.startswith(_S3):
        _to_s3(server, target, encryption, plain, output)
        return
    with explained():
        written = _to_file(server, Path(target), encryption, is_plain=plain)
    if output == "json":
        printing.as_json(written)
    else:
        click.echo(f"{target}: {_summary(written)}")


def _to_file(
    server: ApiClient, path: Path, encryption: EncryptionOptions, *, is_plain: bool
) -> dict[str, Any]:
    from skerry.control.backup.archive import FileSeal
    from skerry.control.backup.backup_file import BackupFile
    from skerry.kit import sealed_stream
    from skerry.kit.sealed_stream import SealWriter

    if path.exists():
        raise click.ClickException(f"{path} exists; remove it, or choose another name.")
    if not encryption.is_given and not is_plain:
        click.echo(_WARNING, err=True)
    seal: FileSeal | None = encryption.seal()
    with BackupFile(path) as file:
        out = None if seal is None else SealWriter(file, seal.header, seal.key)
        with progress("writing") as count:
            for data in server.download("backup"):
                (out or file).write(data)
                count(len(data))
        if out is not None:
            out.close()
        with progress("verifying") as count:
            verified = file.verify(None if seal is None else sealed_stream.by_key(seal.key), count)
        file.commit()
        return describe(verified, file.size)


def _to_s3(server: ApiClient, url: str, encryption: EncryptionOptions, plain: bool, output: str) -> None:
    from skerry.client.errors import ApiError, ServerUnreachable

    if not encryption.is_given and not plain:
        raise click.UsageError(
            "A backup holds the CA's key and those of all secrets: encrypt it (--encrypt, --passphrase-file, "
            "--passphrase-env, --recipient), or leave it as it is with --plain."
        )
    body = {
        "url": url,
        "passphrase": encryption.passphrase,
        "recipient": encryption.recipient,
        "plain": plain,
    }
    with progress("") as count:
        for step in server.steps("backup", "s3", body=body):
            if "error" in step:
                raise ApiError(0, step["error"], step["code"], step)
            if step["step"] == "done":
                break
            count(step["bytes"], step["step"])
        else:
            raise ServerUnreachable("The server ended the backup without a result; take it again.")
    if output == "json":
        printing.as_json(step)
    else:
        first = (
            f"{step['name']}: {step['records']} records at revision {step['revision']}, "
            f"{printing.size(step['bytes'])}, verified"
        )
        click.echo("\n".join([first, *_missing(step)]))


@backup.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@backup_keys.decryption
@printing.option
def verify(file: Path, unlock: Unlock | None, output: str) -> None:
    """Read a backup: every part is compared with its digest, and records are decoded.

    \b
      skerry backup verify cloud.backup --passphrase-file FILE
    """
    with explained():
        found = describe(verify_file(file, unlock), file.stat().st_size)
    if output == "json":
        printing.as_json(found)
    else:
        click.echo(f"{file}: {_summary(found)}")


@backup.command(name="list")
@options.server
@printing.option
def list_backups(server: ApiClient, output: str) -> None:
    """List scheduled backups, and when the next one is due (settings backup.*)."""
    found = server.get("backup")
    if output == "json":
        printing.as_json(found)
        return
    if not found["schedule"]:
        click.echo(
            "No backups are scheduled: set backup.schedule and backup.target on the servers.", err=True
        )
    else:
        when = "soon" if found["next_at"] is None else printing.ago(found["next_at"])
        click.echo(f"schedule {found['schedule']} (UTC) to {found['target']}, next: {when}", err=True)
    if found["failures"]:
        click.echo(f"{found['failures']} failed since the last success: {found['last_error']}", err=True)
    printing.table(("name", "size"), [(one["name"], printing.size(one["bytes"])) for one in found["backups"]])


@backup.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def key(file: Path) -> None:
    """Create a key for backups: FILE gets the secret half, for its owner alone; the public half is printed.

    Backups that are encrypted for the public half open with FILE only: keep it away from the servers.

    \b
      skerry backup key backup.key
      skerry backup cloud.backup --recipient @backup.key
    """
    from skerry.kit import files, sealed_stream

    if file.exists():
        raise click.ClickException(f"{file} exists; backups may need it. Choose another name.")
    secret, public = sealed_stream.new_key_pair()
    try:
        files.write_atomically(file, f"# public: {public}\n{secret}\n".encode(), files.PRIVATE)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from None
    click.echo(public)


def verify_file(file: Path, unlock: Unlock | None) -> VerifiedBackup:
    from skerry.control.backup import restore

    with file.open("rb") as raw, progress("verifying") as count:
        return restore.verify(raw, unlock, count)


def describe(found: VerifiedBackup, size: int) -> dict[str, Any]:
    """What is in a backup, as JSON."""
    import msgspec

    header, manifest = found.header, found.manifest
    return {
        **msgspec.to_builtins(header),
        "bytes": size,
        "content_bytes": manifest.bytes,
        "encrypted": found.is_encrypted,
        "records": manifest.records,
        "volumes": msgspec.to_builtins(manifest.volumes),
        "missing_code": list(manifest.missing_code),
        "missing_files": list(manifest.missing_files),
    }


def _summary(found: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(found["created_at"]))
    lines = [
        f"{sum(found['records'].values())} records at revision {found['revision']} of {at} UTC, "
        f"{printing.size(found['bytes'])}{', encrypted' if found['encrypted'] else ''}, verified"
    ]
    return "\n".join([*lines, *_missing(found)])


def _missing(found: dict[str, Any]) -> list[str]:
    return [
        *(f"not on the server: code {digest}" for digest in found["missing_code"]),
        *(
            f"not in the backup: {name}; the disk of the server's data folder had no room for a copy"
            for name in found["missing_files"]
        ),
    ]


@contextmanager
def explained() -> Iterator[None]:
    """Errors of archives and files, as those of commands."""
    from skerry.model import errors

    try:
        yield
    except errors.SkerryError as error:
        raise click.ClickException(f"{error.message[0].upper()}{error.message[1:]}.") from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or 'The file'}: {error.strerror or error}") from None


@contextmanager
def progress(step: str) -> Iterator[Callable[..., None]]:
    """A line on the terminal with what was counted, about every second; nothing elsewhere."""
    shown, total = time.monotonic(), 0
    is_shown = sys.stderr.isatty()

    def count(amount: int, named: str = "") -> None:
        nonlocal shown, total
        total = amount if named else total + amount
        if is_shown and time.monotonic() - shown >= 1:
            shown = time.monotonic()
            click.echo(f"\r{named or step} {printing.size(total)}  ", err=True, nl=False)

    try:
        yield count
    finally:
        if is_shown and total:
            click.echo("\r" + " " * 40 + "\r", err=True, nl=False)
