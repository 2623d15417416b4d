"""`skerry contract verify`: contracts checked without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from skerry.cli.main import cli
from skerry.market.terms import signatures
from skerry.market.terms.signatures import ContractSigner
from tests.support.deals import BUYER, CONTRACT, SELLER, STRANGER

SOLD = ContractSigner(SELLER).sign(CONTRACT)
BOTH = signatures.countersign(BUYER, SOLD)
DURING = "2023-11-14T23:00:00Z"


def verify(*arguments: str, text: bytes = BOTH) -> Result:
    return CliRunner().invoke(cli, ["contract", "verify", "-", *arguments], input=text)


def test_a_contract_is_shown_with_who_signed_it() -> None:
    result = verify("--at", DURING, "--seller", SELLER.cloud, "--buyer", BUYER.cloud, "--both")
    assert result.exit_code == 0
    lines = {line[:14].strip(): line[14:].strip() for line in result.output.splitlines()}
    assert lines["verification"] == "valid"
    assert lines["signed by"] == "seller and buyer"
    assert lines["seller"] == SELLER.cloud
    assert lines["resources"] == "2 x (cpu 1, memory 2048 MB, disk 0 GB)"
    assert lines["total"] == "0.40 EUR"


def test_scripts_get_the_terms_as_they_were_signed() -> None:
    result = verify("--at", DURING, "-o", "json", text=SOLD + b"\n")
    told = json.loads(result.output)
    assert (told["good"], told["signed_by"]) == (True, ["seller"])
    assert told["contract"]["price"] == {"amount": "0.20", "currency": "EUR", "period": "PT1H"}


@pytest.mark.parametrize(
    ("answer", "signers"),
    [
        ({"ContractID": "another", "Document": SOLD.decode()}, ["seller"]),
        ({"Document": SOLD.decode(), "Countersigned": BOTH.decode()}, ["seller", "buyer"]),
        ({"Document": SOLD.decode(), "Countersigned": None}, ["seller"]),
        ({"contract": {"extraInformation": {"document": SOLD.decode()}}, "status": "ok"}, ["seller"]),
    ],
)
def test_an_answer_of_the_market_is_taken_for_the_contract_in_it(
    answer: dict[str, object], signers: list[str]
) -> None:
    result = verify("--any-time", "-o", "json", text=json.dumps(answer, indent=1).encode())
    told = json.loads(result.output)
    assert told["signed_by"] == signers
    assert told["contract"]["id"] == CONTRACT.id


@pytest.mark.parametrize("text", [b"{", b'{"Flavor":{}}', b'{"a":' * 5000])
def test_json_without_a_contract_is_said_to_be_that(text: bytes) -> None:
    result = verify("-o", "json", text=text)
    assert result.exit_code == 1
    assert "JSON" in json.loads(result.output)["reason"]


def test_a_seller_can_be_named_by_a_file_with_its_key(tmp_path: Path) -> None:
    file = tmp_path / "contract.jws"
    file.write_bytes(BOTH)
    for key, code in ((SELLER, 0), (STRANGER, 1)):
        jwk = tmp_path / "seller.jwk"
        jwk.write_text(json.dumps(key.public.as_jwk()))
        arguments = ["contract", "verify", str(file), "--at", DURING, "--seller", str(jwk)]
        assert CliRunner().invoke(cli, arguments).exit_code == code


@pytest.mark.parametrize(
    ("arguments", "text", "reason"),
    [
        ((), BOTH, "the contract ended at 2023-11-15T00:13:20.000Z"),
        (("--at", "2023-01-01"), BOTH, "begins only at"),
        (("--any-time", "--seller", STRANGER.cloud), BOTH, f"the seller is {SELLER.cloud}"),
        (("--any-time", "--buyer", "a/b"), BOTH, "id 'a/b' must be"),
        (("--any-time", "--both"), SOLD, "the buyer has not"),
        (("--any-time",), BOTH[:-9], "signature of the contract is not good"),
        (("--any-time",), b"", "cut off"),
    ],
)
def test_a_contract_that_is_not_good_fails_with_the_reason(
    arguments: tuple[str, ...], text: bytes, reason: str
) -> None:
    result = verify(*arguments, text=text)
    assert result.exit_code == 1
    assert "not valid: " in result.output
    assert reason in result.output
    told = json.loads(verify(*arguments, "-o", "json", text=text).output)
    assert told["good"] is False
    assert reason in told["reason"]


def test_signatures_of_long_ago_can_be_checked() -> None:
    assert verify("--any-time").exit_code == 0


def test_wrong_usage_is_said_as_such(tmp_path: Path) -> None:
    assert verify("--any-time", "--at", DURING).exit_code == 2
    assert verify("--at", "soon").exit_code == 2
    missing = CliRunner().invoke(cli, ["contract", "verify", str(tmp_path / "none")])
    assert missing.exit_code == 1
    assert "cannot be read: No such file or directory" in missing.output
