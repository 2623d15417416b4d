"""The egress of namespaces, as a setting says it."""

from __future__ import annotations

import pytest

from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.network import UNRESTRICTED, Egress, NamespaceEgress

SHOP = Namespace("shop")


def test_a_namespace_reaches_everything_unless_it_is_said_otherwise() -> None:
    assert UNRESTRICTED.of(SHOP) is Egress.ALL
    rules = NamespaceEgress.parse(["shop=internet"])
    assert (rules.of(SHOP), rules.of(DEFAULT_NAMESPACE)) == (Egress.INTERNET, Egress.ALL)


def test_a_star_stands_for_every_other_namespace() -> None:
    rules = NamespaceEgress.parse(["*=internet", "shop=all"])
    assert (rules.of(SHOP), rules.of(DEFAULT_NAMESPACE)) == (Egress.ALL, Egress.INTERNET)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["shop"], "write NAMESPACE=internet"),
        (["shop=closed"], "write NAMESPACE=internet"),
        (["=internet"], "namespace"),
        (["Shop=internet"], "namespace 'Shop' must be"),
        (["shop=internet", "shop=all"], "named twice"),
    ],
)
def test_what_is_no_rule_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(errors.Invalid, match=said):
        NamespaceEgress.parse(texts)
