"""Names of fields in errors: the contract's where they differ from the model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from skerry.model import errors


@contextmanager
def contract_fields(fields: Mapping[str, str]) -> Iterator[None]:
    """Raise `Invalid` with the contract's name of a field, also at the beginning of its text."""
    try:
        yield
    except errors.Invalid as error:
        field = fields.get(error.field, error.field)
        text = error.message
        if text.startswith(f"{error.field} "):
            text = field + text.removeprefix(error.field)
        raise errors.Invalid(text, field=field, detail=error.detail) from None
