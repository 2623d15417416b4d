"""What is explained of connections is what a kernel does with them."""

from __future__ import annotations

import contextlib
import itertools
import random

import pytest

from skerry.model import connectivity
from skerry.model.connectivity import ConnectionRequest, EndpointKind, NetworkEndpoint
from skerry.model.ids import Namespace
from skerry.model.network import Egress, Ingress, NetworkPolicy
from skerry.model.network_policies import NamespacePolicy
from skerry.node.network.policy_rules import CloudNetwork
from tests.node.network.machines import Ground, Machine, listen, reachable, unreached

pytestmark = pytest.mark.root

PORT = 8080
OUTSIDE = "192.0.2.9"
ALLOWED = {"shop": ("front",), "lab": ()}
SAMPLES = 14


def containers() -> list[NetworkPolicy]:
    """A sample of policies, the same in every run, with every namespace, ingress and egress in it."""
    chooser = random.Random(19)
    every = [
        NetworkPolicy(ingress, egress, namespace)
        for namespace, ingress, egress in itertools.product(("shop", "front", "lab"), Ingress, Egress)
        if ingress is not Ingress.NAMESPACE or namespace in ALLOWED
    ]
    return chooser.sample(every, SAMPLES)


async def test_the_explanation_of_every_connection_is_what_happens(ground: Ground, other: Machine) -> None:
    policies = containers()
    cloud = CloudNetwork(allow_from={name: frozenset(allowed) for name, allowed in ALLOWED.items()})
    async with ground.agent() as network:
        await network.follow_cloud(cloud)
        places, ends = {}, []
        for number, policy in enumerate(policies):
            attached = await network.attach(f"c{number}", policy=policy)
            places[f"c{number}"] = attached.namespace
            ends.append(
                NetworkEndpoint(
                    f"c{number}",
                    EndpointKind.CONTAINER,
                    attached.address,
                    "here",
                    Namespace(policy.namespace),
                    policy.ingress,
                    policy.egress,
                )
            )
        outside = NetworkEndpoint("outside", EndpointKind.OUTSIDE, OUTSIDE)
        expected: dict[bool, list[tuple[str, str, str, int]]] = {True: [], False: []}
        for source, destination in itertools.product(ends, [*ends, outside]):
            verdict = connectivity.explain(
                ConnectionRequest(source, destination, PORT),
                lambda namespace: NamespacePolicy(True, tuple(map(Namespace, ALLOWED[namespace]))),
            )
            call = f"{source.name} {destination.name}: {verdict.reason}"
            expected[verdict.is_allowed].append((call, places[source.name], destination.address, PORT))
        with contextlib.ExitStack() as listeners:
            for place in (*places.values(), str(other.place)):
                listeners.enter_context(listen(place, "0.0.0.0", PORT)).listen(256)
            assert min(map(len, expected.values())) > 20  # else it says little
            assert await unreached(expected[True]) == []
            assert await reachable(expected[False]) == []
        await network.keep_only(set())
