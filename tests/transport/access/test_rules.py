"""The table of roles, and the one place that asks it."""

from __future__ import annotations

import pytest

from skerry.model import errors
from skerry.model.callers import ANONYMOUS, AuthMethod, Caller, Role
from skerry.transport.access import rules

ROWS = {**rules.HTTP_RULES, **rules.GRPC_RULES}


def somebody(role: Role) -> Caller:
    return Caller(origin=AuthMethod.TOKEN, name="somebody", role=role)


def may(row: rules.AccessRule, caller: Caller) -> bool:
    try:
        rules.authorize(row, caller)
    except (errors.Unauthenticated, errors.Forbidden):
        return False
    return True


def test_every_row_lets_exactly_its_roles_through_and_admins_where_people_may() -> None:
    for name, row in ROWS.items():
        for role in Role:
            is_admin_for_people = role is Role.ADMIN and row.roles != {Role.NODE}
            is_let_through = row.anybody or role in row.roles or is_admin_for_people
            assert may(row, somebody(role)) is is_let_through, (name, role)
        assert may(row, ANONYMOUS) is row.anybody, name


def test_only_what_must_be_reachable_without_proof_is_open() -> None:
    assert {name for name, row in ROWS.items() if row.anybody} == {
        "GET /healthz",
        "GET /readyz",
        "GET /openapi.json",
        "GET /ca.pem",
        "POST /join",
        "GET /api/contracts/{id}/door",
        "GET /api/contracts/{id}/tunnel",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    }


def test_every_row_is_open_or_names_a_role() -> None:
    assert all(row.anybody != bool(row.roles) for row in ROWS.values())


@pytest.mark.parametrize("name", [name for name in ROWS if "token" in name or "certificate" in name])
def test_tokens_and_certificates_are_for_admins_alone(name: str) -> None:
    assert [role for role in Role if may(ROWS[name], somebody(role))] == [Role.ADMIN]


def test_an_admin_is_no_node() -> None:
    renew = rules.GRPC_RULES["/skerry.identity.v1.IdentityService/Renew"]
    with pytest.raises(errors.Forbidden, match="this needs node"):
        rules.authorize(renew, somebody(Role.ADMIN))
    rules.authorize(renew, somebody(Role.NODE))


def test_a_caller_without_proof_is_told_how_to_show_some() -> None:
    with pytest.raises(errors.Unauthenticated, match=r"Authorization: Bearer.*skerry token create"):
        rules.authorize(rules.HTTP_RULES["GET /about"], ANONYMOUS)


def test_a_caller_without_proof_is_told_when_the_local_user_is_not_let_in() -> None:
    with pytest.raises(errors.Unauthenticated, match=r"local_trust is off.*not through a proxy"):
        rules.authorize(rules.HTTP_RULES["GET /about"], ANONYMOUS)


def test_a_caller_of_the_wrong_role_is_told_which_is_needed() -> None:
    with pytest.raises(
        errors.Forbidden,
        match="has the role invoker; this needs admin or deployer or viewer; ask an admin for a token",
    ):
        rules.authorize(rules.HTTP_RULES["GET /events"], somebody(Role.INVOKER))


def test_http_rows_read_verb_and_path_and_grpc_rows_are_full_method_paths() -> None:
    for name in rules.HTTP_RULES:
        verb, _, path = name.partition(" ")
        assert verb in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
        assert path.startswith("/")
    assert all(name.startswith("/") and name.count("/") == 2 for name in rules.GRPC_RULES)


def test_what_is_served_on_a_full_disk_is_a_put_or_post_that_there_is() -> None:
    assert rules.HTTP_RULES.keys() >= rules.ON_FULL_DISK
    assert all(name.startswith(("PUT ", "POST ")) for name in rules.ON_FULL_DISK)
