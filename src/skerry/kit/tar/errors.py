"""Errors of archives.

    TarError
    ├── MalformedTar    no tar, damaged, or not whole
    ├── RefusedTar      a tar that holds what this reader does not read
    └── TarTooLarge     more bytes than the caller allows

Each message is the rest of a sentence whose subject the caller knows: "the layer ...", "the code ...".
"""

from __future__ import annotations


class TarError(Exception):
    """The archive is given up."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class MalformedTar(TarError):
    """No tar archive, a damaged one, or a part of one."""


class RefusedTar(TarError):
    """A tar archive with something in it that is not read."""


class TarTooLarge(TarError):
    """More bytes than the caller allows."""


def spell(name: bytes) -> str:
    """A name out of an archive, safe to print and not too long to read."""
    text = name.decode("utf-8", "backslashreplace")
    text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return repr(text if len(text) <= 200 else f"{text[:160]}...{text[-30:]}")
