"""The name server of this machine's containers, and what it answers from.

Called by `skerry.daemon.node_agent`, which has the network objects of the cloud, and by both roles, which
have the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from skerry.model.function_names import function_key
from skerry.model.functions import Function
from skerry.model.ids import Namespace
from skerry.model.network_objects import InstanceAddress, NetworkObject, NodeLocation, ServiceAddress
from skerry.model.network_policies import IsolatedNamespace
from skerry.node.agent.network_state import NetworkState
from skerry.node.network.dns.name_server import NameServer
from skerry.node.network.dns.views import hide_isolated

_KINDS: tuple[type[NetworkObject], ...] = (NodeLocation, ServiceAddress, InstanceAddress)


def follow(
    names: NameServer, state: NetworkState, has_function: Callable[[Namespace, str], bool], grace_s: float
) -> None:
    """Answer from `state`. Unknown names are unknown for sure for `grace_s` after the last session."""
    names.use_state(lambda: state.age_s <= grace_s, has_function)
    for kind in _KINDS:
        use = cast(Callable[[Mapping[str, NetworkObject]], None], partial(names.use_objects, kind))
        state.subscribe(kind, use)
    state.subscribe(IsolatedNamespace, partial(_hide, names))


def _hide(names: NameServer, isolated: Mapping[str, IsolatedNamespace]) -> None:
    """Hide isolated namespaces from containers that may not connect to them."""
    names.views.use(hide_isolated({each.namespace: each.allow_from for each in isolated.values()}))


def function_lookup(get: Callable[[str], Function | None]) -> Callable[[Namespace, str], bool]:
    """Whether there is a function of a name in a namespace, from what finds one by its key."""
    return lambda namespace, name: get(function_key(namespace, name)) is not None
