"""`skerry contract`: contracts of the market, checked without asking anybody."""

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
    """A time as contracts write it, or a day."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"'{value}' is no time; write 2026-01-31 or 2026-01-31T12:00:00Z", param, ctx)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@click.group()
def contract() -> None:
    """Check contracts of the market."""


@contract.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--seller", metavar="ID|FILE", help="Who must have sold: an id, or a file with the public key.")
@click.option("--buyer", metavar="ID|FILE", help="Who must have bought.")
@click.option(
    "--at", type=TimeParam(), metavar="TIME", help="When it must be in force; now if it is not said."
)
@click.option("--any-time", is_flag=True, help="Look at the signatures only, not at when it is in force.")
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
    """Check a signed contract, without a server: who signed what, and whether it is in force.

    FILE holds the signed contract, or the market's JSON answer with the contract in it; '-' reads standard
    input. What is shown is what was signed, whatever else the file says. The ids in a contract follow from
    the keys that sign it, so whoever knows the seller's id needs nothing else. Exit code 1: it is not good,
    and why.

    \b
      skerry market document 01m7h3n5... | skerry contract verify - --both
      skerry contract verify contract.jws --seller key.kPrK_qmx... --any-time
    """
    if any_time and at is not None:
        raise click.UsageError("--at and --any-time cannot be used together.")
    # Imported here: the libraries for signatures take a while, and no other verb of a client needs them.
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
        raise click.ClickException(f"not good: {error.message}") from None
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
        raise errors.Invalid("it begins like JSON and is none; it may have been cut off") from None
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
    """The id that a person named, by itself or by a file with its key."""
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
    room, price = terms["room"], terms["price"]
    rows = [
        ("contract", terms["id"]),
        ("signed by", " and ".join(signed)),
        ("seller", terms["seller"]),
        ("buyer", terms["buyer"]),
        ("flavor", f"{terms['flavor']['id']} (version {terms['flavor']['version']})"),
        ("room", _room_of(room, terms["count"])),
        ("price", f"{price['amount']} {price['currency']} for each {price['period']}"),
        ("total", f"{terms['total']} {price['currency']}"),
        ("in force", f"{terms['starts']} to {terms['ends']}"),
        ("notice", printing.duration(terms["notice_s"])),
    ]
    printing.table(("good", ""), rows)


def _room_of(room: dict[str, int], count: int) -> str:
    one = f"cpu {room['cpu_millicores'] / 1000:g}, memory {room['memory_mb']} MB, disk {room['disk_gb']} GB"
    return one if count == 1 else f"{count} times {one}"
