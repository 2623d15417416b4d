"""What clients of a node may do with its containers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from skerry.model import errors
from skerry.model.cells import OutputChannel
from skerry.model.containers import ContainerState
from skerry.model.images import ImageAccess
from skerry.node.containers.clients import ClientContainers
from tests.node.containers.nodes import Node, running, spec


async def _logs(clients: ClientContainers) -> object:
    return clients.logs("web", OutputChannel.STDOUT)


ACTS: dict[str, Callable[[ClientContainers], Awaitable[object]]] = {
    "start": lambda clients: clients.start("web"),
    "stop": lambda clients: clients.stop("web", grace_s=0),
    "remove": lambda clients: clients.remove("web", force=True),
    "exec": lambda clients: clients.exec("web", ("true",), stdio=(0, 1, 2)),
    "logs": _logs,
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("kind", "message"),
    [({"inside": "functions"}, "skerry fn"), ({"inside": "m-1", "is_isolated": True}, "only its buyer")],
)
async def test_containers_of_functions_and_of_buyers_are_out_of_a_clients_reach(
    node: Node, act: str, kind: dict[str, Any], message: str
) -> None:
    containers = await running(node, **kind)
    with pytest.raises(errors.FailedPrecondition, match=message):
        await ACTS[act](ClientContainers(containers))
    assert containers.get("web").state is ContainerState.RUNNING


async def test_they_are_listed_without_their_environment(node: Node) -> None:
    containers = await running(node, inside="functions", environment=("SECRET=1",))
    clients = ClientContainers(containers)
    assert clients.list() == [clients.get("web")]
    assert clients.get("web").spec.environment == ()
    assert containers.get("web").spec.environment == ("SECRET=1",)


async def test_a_clients_own_containers_are_its_own(node: Node) -> None:
    clients = ClientContainers(await node.agent())
    await clients.create(
        spec(environment=("A=1",)),
        access=ImageAccess.REGISTRIES,
        starts=False,
        on_progress=lambda progress: None,
    )
    assert (await clients.start("web")).spec.environment == ("A=1",)
    assert clients.logs("web", OutputChannel.STDOUT) is not None
    assert (await clients.stop("web", grace_s=0)).state is ContainerState.EXITED
    await clients.remove("web")
    assert clients.list() == []


@pytest.mark.parametrize("name", ["i-web", "fn-1", "g-1"])
async def test_no_client_takes_the_name_of_an_instance_a_function_or_a_buyer(node: Node, name: str) -> None:
    clients = ClientContainers(await node.agent())
    with pytest.raises(errors.Invalid, match="choose another"):
        await clients.create(
            spec(name=name),
            access=ImageAccess.REGISTRIES,
            starts=False,
            on_progress=lambda progress: None,
        )
    assert clients.list() == []


async def test_one_that_is_not_there_is_not_found(node: Node) -> None:
    with pytest.raises(errors.NotFound):
        await ClientContainers(await node.agent()).stop("web")
