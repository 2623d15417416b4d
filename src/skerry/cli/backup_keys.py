"""How a backup is encrypted and decrypted, as options of commands: passphrases and keys, never on the
command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from skerry.cli.options import option_object

if TYPE_CHECKING:
    from skerry.control.backup.archive import FileSeal
    from skerry.kit.sealed_stream import Unlock

_PASSPHRASE = (
    click.option(
        "--passphrase-file",
        metavar="FILE",
        help="File with the passphrase in its first line, which only its owner can read; '-' is "
        "standard input.",
    ),
    click.option(
        "--passphrase-env", metavar="NAME", help="Name of an environment variable with the passphrase."
    ),
)


class EncryptionOptions(NamedTuple):
    """What to encrypt a backup with."""

    passphrase: str = ""
    recipient: str = ""

    def __repr__(self) -> str:
        return "EncryptionOptions(...)"

    @property
    def is_given(self) -> bool:
        return bool(self.passphrase or self.recipient)

    def seal(self) -> FileSeal | None:
        from skerry.control.backup.archive import FileSeal
        from skerry.kit import sealed_stream

        try:
            if self.recipient:
                return FileSeal(*sealed_stream.seal_for(self.recipient))
            if self.passphrase:
                return FileSeal(*sealed_stream.seal_by_passphrase(self.passphrase))
        except ValueError as error:
            raise click.ClickException(f"{str(error)[0].upper()}{str(error)[1:]}.") from None
        return None


def _encryption(
    encrypt: bool, passphrase_file: str | None, passphrase_env: str | None, recipient: str | None
) -> EncryptionOptions:
    given = [bool(passphrase_file), bool(passphrase_env), bool(recipient)]
    if sum(given) > 1:
        raise click.UsageError("Give one of --passphrase-file, --passphrase-env and --recipient.")
    if recipient:
        return EncryptionOptions(recipient=_read_recipient(recipient))
    passphrase = _read_passphrase(passphrase_file, passphrase_env)
    if passphrase is None and encrypt:
        if not sys.stdin.isatty():
            raise click.UsageError(
                "--encrypt asks for a passphrase on a terminal only: give --passphrase-file, "
                "--passphrase-env or "
                "--recipient."
            )
        passphrase = click.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
    return EncryptionOptions(passphrase=passphrase or "")


def _decryption(
    passphrase_file: str | None, passphrase_env: str | None, key_file: str | None
) -> Unlock | None:
    from skerry.kit import sealed_stream

    if sum(map(bool, (passphrase_file, passphrase_env, key_file))) > 1:
        raise click.UsageError("Give one of --passphrase-file, --passphrase-env and --key-file.")
    try:
        if key_file:
            return sealed_stream.by_secret(_secret_line(Path(key_file)))
        passphrase = _read_passphrase(passphrase_file, passphrase_env)
        if passphrase is None:
            return None
        sealed_stream.check_passphrase(passphrase)
        return sealed_stream.by_passphrase(passphrase)
    except ValueError as error:
        raise click.ClickException(f"{str(error)[0].upper()}{str(error)[1:]}.") from None


def _secret_line(path: Path) -> str:
    """The key in a file of `skerry backup key`, in which lines may begin with `#`."""
    lines = [line.strip() for line in _read_file(path).splitlines()]
    return next((line for line in lines if line and not line.startswith("#")), "")


def _read_recipient(given: str) -> str:
    """A public key, or the first line with one of the file `@FILE`."""
    if not given.startswith("@"):
        return given
    words = _read_file(Path(given[1:])).split()
    return next((word for word in words if word.startswith("skerry-public-")), "")


def _read_passphrase(file: str | None, variable: str | None) -> str | None:
    if file == "-":
        return sys.stdin.readline().rstrip("\r\n")
    if file:
        from skerry.control.backup.schedule import read_passphrase
        from skerry.model import errors

        try:
            return read_passphrase(Path(file))
        except errors.SkerryError as error:
            raise click.ClickException(f"{error.message}.") from None
    if variable:
        from skerry.cli import settings

        found = settings.environment_variable(variable)
        if not found:
            raise click.ClickException(f"The environment has no variable {variable}, or an empty one.")
        return found
    return None


def _read_file(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from None


# Commands get what these options say as `encryption`, and as `unlock`: None if nothing is given.
encryption = option_object(
    "encryption",
    _encryption,
    click.option(
        "--encrypt", is_flag=True, help="Ask for a passphrase on the terminal, and encrypt with it."
    ),
    *_PASSPHRASE,
    click.option(
        "--recipient",
        metavar="KEY",
        help="Encrypt for this public key of 'skerry backup key'; '@FILE' reads it from a file.",
    ),
)
decryption = option_object(
    "unlock",
    _decryption,
    *_PASSPHRASE,
    click.option("--key-file", metavar="FILE", help="File of 'skerry backup key' with the secret key."),
)
