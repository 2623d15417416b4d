"""Policies by name: our own, and those that a package brings, which are looked at and held to the rules."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.functions.continuum.policies import loading
from skerry.functions.continuum.policies.checked import CheckedPolicy
from skerry.functions.continuum.policy import RUN, Offload, RejectCall, RoutingDecision
from skerry.functions.qos import DEFAULT_CLASSES
from skerry.model import errors
from skerry.model.ids import NodeId
from tests.functions.continuum.making import HERE, demand, full_here, place
from tests.test_repo import ROOT

GOOD = """
from skerry.functions.continuum.policy import RUN

class Mine:
    name = "mine"
    def __init__(self, classes):
        self.classes = classes
    def decide(self, demand, view, call_times):
        return RUN
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Make a package that brings a policy, as an installed one would be found."""
    modules: list[str] = []

    def install(code: str, *, package: str = "pack", leads_to: str = "Mine", name: str = "mine") -> None:
        folder = tmp_path / package
        information = folder / f"{package}-1.0.dist-info"
        information.mkdir(parents=True)
        (folder / f"{package}_code.py").write_text(code)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(
            f"[skerry.policies]\n{name} = {package}_code:{leads_to}\n"
        )
        monkeypatch.syspath_prepend(str(folder))
        modules.append(f"{package}_code")

    yield install
    for module in modules:
        sys.modules.pop(module, None)


@pytest.mark.parametrize("name", list(loading.OWN))
def test_our_own_policies_have_the_names_they_are_chosen_by(name: str) -> None:
    assert loading.load_policy(name, DEFAULT_CLASSES).name == name


def test_a_package_brings_a_policy(install: Install) -> None:
    install(GOOD)
    policy = loading.load_policy("mine", DEFAULT_CLASSES)
    assert policy.name == "mine"
    assert policy.decide(demand(), CandidateView(full_here()), CallTimeModel()) == RUN


def test_the_policy_in_the_docs_can_be_installed_and_decides(install: Install) -> None:
    page = (ROOT / "docs" / "continuum.md").read_text()
    example = re.search(r"```python\n(# my_policies\.py\n.*?)```", page, flags=re.S)
    assert example, "docs/continuum.md has no my_policies.py"
    install(example[1], leads_to="Cautious", name="cautious")
    policy = loading.load_policy("cautious", DEFAULT_CLASSES)
    near = place("near", warm=1)
    view = CandidateView(full_here(), (place("cold"), near))
    with capture_logs() as logs:
        assert policy.decide(demand(), view, CallTimeModel()) == Offload(near.node, or_else=(HERE,))
        assert policy.decide(demand(may_offload=False), view, CallTimeModel()) == RUN
    assert logs == []


def test_a_package_cannot_take_the_name_of_one_of_ours(install: Install) -> None:
    install(GOOD, name="default")
    assert not isinstance(loading.load_policy("default", DEFAULT_CLASSES), CheckedPolicy)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nothing_of_that_name", "cannot be imported: ModuleNotFoundError"),
        ("Yours = 1", "cannot be imported: AttributeError"),
        ("Mine = 1", "is int, and must be a class or a function"),
        ("class Mine: pass", "cannot be made: TypeError"),
        ("Mine = lambda classes: 3", "is int, which has no method decide"),
        (GOOD.replace("decide", "choose"), "has no method decide"),
        (GOOD.replace("def decide", "async def decide"), "must not be async"),
        (GOOD.replace("view, call_times", "view"), "must take (demand, view, call_times)"),
        (GOOD.replace('"mine"', '"yours"'), "must have this as its attribute `name`, not 'yours'"),
        (GOOD.replace("name =", "other ="), "not None"),
    ],
)
def test_what_is_no_policy_is_refused_with_what_is_wrong(install: Install, code: str, words: str) -> None:
    install(code)
    with pytest.raises(errors.Invalid) as refused:
        loading.load_policy("mine", DEFAULT_CLASSES)
    assert words in refused.value.message
    assert "'mine'" in refused.value.message
    assert refused.value.field == "policy"


def test_two_packages_with_the_same_name_are_both_named(install: Install) -> None:
    install(GOOD, package="one")
    install(GOOD, package="two")
    with pytest.raises(errors.Invalid, match="several packages \\(one, two\\)"):
        loading.load_policy("mine", DEFAULT_CLASSES)


@pytest.mark.parametrize(
    ("name", "words"), [("edgeclud", "did you mean 'edgecloud'"), ("xyz", "cloudonly, default, edgecloud")]
)
def test_a_name_that_is_nobodys_is_told_with_those_that_are(name: str, words: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        loading.load_policy(name, DEFAULT_CLASSES)
    assert words in refused.value.message
    assert "skerry.policies" in refused.value.message


def test_a_near_name_of_a_package_is_proposed_too(install: Install) -> None:
    install(GOOD)
    with pytest.raises(errors.Invalid, match="did you mean 'mine'"):
        loading.load_policy("mines", DEFAULT_CLASSES)


class Told:
    """A policy that decides what it was told."""

    name = "told"

    def __init__(self, decision: Any) -> None:
        self._decision = decision

    def decide(self, demand: CallDemand, view: CandidateView, call_times: CallTimeModel) -> RoutingDecision:
        if isinstance(self._decision, Exception):
            raise self._decision
        decision: RoutingDecision = self._decision
        return decision


VIEW = CandidateView(full_here(), (place("near"), place("down", is_up=False)), (place("cloud"),))


def nodes(*names: str) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, names))


@pytest.mark.parametrize(
    "decision",
    [RUN, RejectCall("no"), Offload(NodeId("near")), Offload(NodeId("cloud"), nodes("near", HERE))],
    ids=["run", "drop", "offload", "in order"],
)
def test_what_a_policy_may_decide_is_done(decision: RoutingDecision) -> None:
    assert CheckedPolicy(Told(decision)).decide(demand(), VIEW, CallTimeModel()) == decision


@pytest.mark.parametrize(
    ("decision", "fields"),
    [
        (Offload(NodeId("near")), {"hops_left": 0}),
        (Offload(NodeId("near")), {"may_offload": False}),
        (Offload(NodeId("down")), {}),
        (Offload(NodeId("nobody")), {}),
        (Offload(NodeId(HERE)), {}),
        (Offload(NodeId("near"), nodes("down")), {}),
        (None, {}),
        ("near", {}),
        (ZeroDivisionError("oh"), {}),
    ],
    ids=["last hop", "stay", "down", "unknown", "here", "then down", "nothing", "text", "raises"],
)
def test_whatever_else_it_decides_the_call_runs_here_and_the_log_says_why_once(
    decision: Any, fields: dict[str, Any]
) -> None:
    guarded = CheckedPolicy(Told(decision))
    with capture_logs() as logs:
        assert {guarded.decide(demand(**fields), VIEW, CallTimeModel()) for _ in range(5)} == {RUN}
    assert [entry["event"] for entry in logs] == ["policy.overruled"]
    assert logs[0]["policy"] == "told"
