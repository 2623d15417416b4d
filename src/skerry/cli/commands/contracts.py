"""`skerry contract`: verification of signed contracts, offline."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import output as printing

if TYPE_CHECKING:
    from skerry.market.terms.signatures import VerifiedContract
    from skerry.model.ids import CloudId

_MAX_BYTES = 1024 * 1024


class TimeParam(click.ParamType[float, str]):
    """A time in ISO 8601, or a day."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"'{value}' is not a time; write 2026-01-31 or 2026-01-31T12:00:00Z", param, ctx)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@click.group()
def contract() -> None:
    """Verify contracts of the market."""


@contract.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--seller", metavar="ID|FILE", help="Expected seller: an id, or a file with the public key.")
@click.option("--buyer", metavar="ID|FILE", help="Expected buyer, likewise.")
@click.option(
    "--at", type=TimeParam(), metavar="TIME", help="Time at which it must be in force.  [default: now]"
)
@click.option("--any-time", is_flag=True, help="Check the signatures only, not the time.")
@click.option("--both", is_flag=True, help="Refuse a contract that its buyer has not signed.")
@printing.option
def verify(
    file: Path,
    seller: str | None,
    buyer: str | None,
    at: float | None,
    any_time: bool,
    both: bool,
    output: str,
) -> None:
    """Verify a signed contract offline: its signatures, and whether it is in force.

    FILE contains the signed contract, or a JSON reply of the market with the contract in it; '-' reads
    standard input. Only signed terms are shown. The ids in a contract are derived from the keys that sign
    it, so the id of the seller is enough to verify it. Exit code 1: it is not valid; the reason is printed.

    \b
      skerry market document 01m7h3n5... | skerry contract verify - --both
      skerry contract verify contract.jws --seller key.kPrK_qmx... --any-time
    """
    if any_time and at is not None:
        raise click.UsageError("--at and --any-time cannot be used together.")
    # Imported here: libraries for signatures are slow to load, and no other client command needs them.
    from skerry.market.terms import signatures
    from skerry.model import errors

    now = None if any_time else time.time() if at is None else at
    try:
        found = signatures.verify(
            _signed_in(_read(file)), seller=_id_of(seller), buyer=_id_of(buyer), now=now
        )
        if both and found.buyer is None:
            raise errors.Invalid("only the seller has signed it; the buyer has not")
    except errors.SkerryError as error:
        if output == "json":
            printing.as_json({"good": False, "reason": error.message})
            raise SystemExit(1) from None
        raise click.ClickException(f"not valid: {error.message}") from None
    _show(found, output)


def _read(file: Path) -> bytes:
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read(_MAX_BYTES)
        with file.open("rb") as opened:
            return opened.read(_MAX_BYTES)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be read: {error.strerror}.") from None


def _signed_in(data: bytes) -> bytes:
    """The signed text: `data` itself, or the one in an answer of the market that has most signatures."""
    from skerry.model import errors

    if not data.lstrip().startswith(b"{"):
        return data
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        raise errors.Invalid("it begins like JSON but is not valid JSON; it may have been cut off") from None
    signed = _member(answer, "countersigned") or _member(answer, "document")
    if signed is None:
        raise errors.Invalid("there is no signed contract in this JSON: it lacks Document")
    return signed.encode()


def _member(answer: object, name: str) -> str | None:
    """The first text of that name, in whichever dialect's casing and place."""
    if not isinstance(answer, dict):
        return None
    for key, value in answer.items():
        if key.lower() == name and isinstance(value, str) and value:
            return value
    return next((found for value in answer.values() if (found := _member(value, name))), None)


def _id_of(text: str | None) -> CloudId | None:
    """The id that was given, directly or as a file with its key."""
    from skerry.market.terms import keys
    from skerry.model.market import check_cloud

    if text is None:
        return None
    if Path(text).is_file():
        return keys.read_public(_read(Path(text)), text).cloud
    return check_cloud(text, "id")


def _show(found: VerifiedContract, output: str) -> None:
    from skerry.market.terms import contract_document

    terms = contract_document.as_plain(found.contract)
    signed = ["seller", "buyer"] if found.buyer else ["seller"]
    if output == "json":
        printing.as_json({"good": True, "signed_by": signed, "contract": terms})
        return
    price = terms["price"]
    rows = [
        ("verification", "valid"),
        ("contract", terms["id"]),
        ("signed by", " and ".join(signed)),
        ("seller", terms["seller"]),
        ("buyer", terms["buyer"]),
        ("flavor", f"{terms['flavor']['id']} (version {terms['flavor']['version']})"),
        ("resources", _format_resources(terms["room"], terms["count"])),
        ("price", f"{price['amount']} {price['currency']} per {price['period']}"),
        ("total", f"{terms['total']} {price['currency']}"),
        ("in force", f"{terms['starts']} to {terms['ends']}"),
        ("notice", printing.duration(terms["notice_s"])),
    ]
    printing.table(printing.DETAILS, rows)


def _format_resources(one: dict[str, int], count: int) -> str:
    text = f"cpu {one['cpu_millicores'] / 1000:g}, memory {one['memory_mb']} MB, disk {one['disk_gb']} GB"
    return text if count == 1 else f"{count} x ({text})"
