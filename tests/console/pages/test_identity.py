"""Tokens and certificates: who may what until when, what ends first, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.console.asset_catalog import AssetCatalog
from skerry.console.pages import certificates, tokens
from skerry.console.rendering import Renderer
from skerry.console.tables import ListQuery
from skerry.model.callers import Certificate, Role, Token
from skerry.model.ids import Namespace
from skerry.model.tls_certificates import CertificateSource, TlsCertificate

NOW = 1_000_000_000.0
DAY = 86_400.0


def token(id: str = "01a", **fields: object) -> Token:
    made = {"role": Role.DEPLOYER, "digest": "d1gest", "created_at": NOW - DAY} | fields
    return Token(id, **made)  # type: ignore[arg-type]


def certificate(serial: str, role: str = "node", days: float = 20.0, **fields: object) -> Certificate:
    return Certificate(serial, role, f"name-{serial}", "n1", NOW - DAY, NOW + days * DAY, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, "VALID"),
        ({"expires_at": NOW + 60 * DAY}, "VALID"),
        ({"expires_at": NOW + DAY}, "EXPIRES SOON"),
        ({"expires_at": NOW - 1}, "EXPIRED"),
        ({"role": Role.NODE, "expires_at": NOW + 600}, "VALID"),
        ({"role": Role.NODE, "used_at": NOW - 9, "expires_at": NOW + 600}, "USED"),
        ({"key": "k", "revoked_at": NOW - 5}, "REVOKED"),
    ],
)
def test_a_token_has_the_status_that_decides_whether_it_can_be_used(
    fields: dict[str, object], status: str
) -> None:
    assert tokens.token_badge(token(**fields), NOW).text == status


def test_the_list_of_tokens_has_no_digest_and_binds_are_named() -> None:
    found = [token(note="ci", namespaces=(Namespace("shop"),)), token("01b", revoked_at=NOW, key="k")]
    made = tokens.token_table(found, ListQuery(), NOW)
    texts = [cell.text + cell.note for row in made.rows for cell in row.cells]
    assert "ci01a" in texts
    assert "shop" in texts
    assert not any("d1gest" in text for text in texts)


def test_only_what_still_counts_can_be_revoked_and_only_after_a_question() -> None:
    made = tokens.token_table([token(), token("01b", revoked_at=NOW, key="k")], ListQuery(), NOW)
    (action,) = made.rows[0].cells[-1].actions
    assert action.is_destructive
    assert action.command == "skerry token revoke 01a"
    assert made.rows[1].cells[-1].actions == ()


def test_the_text_of_a_new_token_is_shown_once_and_an_invitation_for_a_node() -> None:
    shown = tokens.new_token_view(token(), "sk.01a.secret", "", NOW)
    assert shown.text == "sk.01a.secret"
    node = tokens.new_token_view(
        token(role=Role.NODE, expires_at=NOW + 3600), "sk.x", "https://here#invited", NOW
    )
    assert node.use == "skerry node --join https://here#invited"
    assert node.expires == "expires in 1h"
    page = Renderer(AssetCatalog(Path(__file__).parent), str).fragment("new_token.html", {}, view=shown)
    assert b"sk.01a.secret" in page.value.content  # type: ignore[union-attr]


def test_what_ends_first_is_first_and_what_is_revoked_last() -> None:
    rows = [
        *certificates.issued_rows(
            [
                certificate("aa", days=20),
                certificate("bb", "viewer", days=5),
                certificate("cc", days=1, revoked_at=NOW),
            ],
            {},
            NOW,
        ),
        certificates.authority_row("f" * 64, NOW + 900 * DAY, NOW),
    ]
    made = certificates.certificate_table(rows, ListQuery(), NOW)
    assert [row.cells[0].text for row in made.rows] == ["name-bb", "name-aa", "CA of this cloud", "name-cc"]
    assert [row.cells[4].text for row in made.rows] == ["5d", "20d", "900d", "1d"]


def test_a_certificate_that_skerry_renews_warns_late_and_one_of_a_person_two_weeks_before() -> None:
    (node, client) = certificates.issued_rows(
        [certificate("aa", days=5), certificate("bb", "viewer", days=5)], {}, NOW
    )
    assert (node.status.text, client.status.text) == ("VALID", "EXPIRES SOON")


def test_renewed_certificates_are_left_out_and_the_ca_cannot_be_revoked() -> None:
    assert certificates.issued_rows([certificate("aa", renewed_by="bb")], {}, NOW) == []
    assert not certificates.authority_row("f" * 64, NOW + DAY, NOW).can_revoke


def test_a_certificate_of_a_route_that_failed_says_why() -> None:
    failed = TlsCertificate(
        "i", "shop", NOW, CertificateSource.ACME, ("shop.example",), error="the server refused"
    )
    row = certificates.route_row(failed, NOW)
    assert (row.status.text, row.note, row.not_after) == ("FAILED", "the server refused", 0.0)
    made = certificates.certificate_table([row], ListQuery(), NOW)
    assert made.rows[0].cells[4].text == "–"
