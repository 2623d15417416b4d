"""Policies by name: our own, and those that installed packages bring.

A package brings one by an entry point of the group `skerry.policies`: its name is the policy's, and it leads
to something that is called with the classes of settings and returns the policy, such as the policy's class.
What it returns is validated here, once; its decisions are by `checked`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from skerry.functions.continuum.policies.checked import CheckedPolicy
from skerry.functions.continuum.policies.cloudonly import CloudOnly
from skerry.functions.continuum.policies.default import DefaultPolicy
from skerry.functions.continuum.policies.edgecloud import EdgeCloud
from skerry.functions.continuum.policies.edgeonly import EdgeOnly
from skerry.functions.continuum.policies.localonly import LocalOnly
from skerry.functions.continuum.policies.qosaware import QosAware
from skerry.functions.continuum.policy import RoutingPolicy
from skerry.functions.qos import QosClass
from skerry.model import errors

GROUP = "skerry.policies"

OWN: dict[str, Callable[[Sequence[QosClass]], RoutingPolicy]] = {
    DefaultPolicy.name: lambda classes: DefaultPolicy(),
    LocalOnly.name: lambda classes: LocalOnly(),
    CloudOnly.name: lambda classes: CloudOnly(),
    EdgeOnly.name: lambda classes: EdgeOnly(),
    EdgeCloud.name: lambda classes: EdgeCloud(),
    QosAware.name: QosAware,
}


def load_policy(name: str, classes: Sequence[QosClass]) -> RoutingPolicy:
    """A new policy of that name. Our own take precedence over those of packages with the same name."""
    make = OWN.get(name)
    return make(classes) if make is not None else CheckedPolicy(_foreign(name, classes))


def _foreign(name: str, classes: Sequence[QosClass]) -> RoutingPolicy:
    points = [point for point in metadata.entry_points(group=GROUP) if point.name == name]
    if not points:
        raise _bad(_unknown(name))
    if len({point.value for point in points}) > 1:
        raise _bad(
            f"policy {name!r} is brought by several packages ({_packages_of(points)}); uninstall all but one"
        )
    return _checked(name, _create(name, points[0], classes))


def _unknown(name: str) -> str:
    names = sorted({*OWN, *(point.name for point in metadata.entry_points(group=GROUP))})
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}."
    return f"there is no policy {name!r}; {hint} Packages bring others by entry points of the group {GROUP}"


def _create(name: str, point: metadata.EntryPoint, classes: Sequence[QosClass]) -> Any:
    packages = _packages_of([point])
    try:
        make = point.load()
    except Exception as error:
        raise _bad(
            f"policy {name!r} of {packages} cannot be imported: {_describe(error)}; fix {point.value}"
        ) from error
    if not callable(make):
        raise _bad(
            f"policy {name!r} of {packages}: {point.value} is {type(make).__name__}, and must be a class or "
            "a function that takes the classes and returns the policy"
        )
    try:
        return make(tuple(classes))
    except Exception as error:
        raise _bad(
            f"policy {name!r} of {packages} cannot be made: {_describe(error)}; {point.value} takes one "
            "argument, the classes"
        ) from error


def _checked(name: str, policy: Any) -> RoutingPolicy:
    decide = getattr(policy, "decide", None)
    if not callable(decide):
        raise _bad(f"policy {name!r} is {type(policy).__name__}, which has no method decide")
    if inspect.iscoroutinefunction(decide):
        raise _bad(f"policy {name!r}: decide must not be async, since it is asked for every call")
    try:
        inspect.signature(decide).bind(None, None, None)
    except TypeError as error:
        raise _bad(f"policy {name!r}: decide must take (demand, view, call_times): {error}") from None
    if getattr(policy, "name", None) != name:
        raise _bad(
            f"policy {name!r} must have this as its attribute `name`, not {getattr(policy, 'name', None)!r}"
        )
    checked: RoutingPolicy = policy
    return checked


def _packages_of(points: Sequence[metadata.EntryPoint]) -> str:
    return ", ".join(
        sorted({point.dist.name if point.dist is not None else "an unknown package" for point in points})
    )


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _bad(message: str) -> errors.Invalid:
    return errors.Invalid(message, field="policy")
