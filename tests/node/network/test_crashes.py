"""`kill -9` of the agent after every step of everything it does: nothing is lost and nothing is left."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterable
from ipaddress import IPv6Address

import msgspec
import pytest

from skerry.model.ipv6_addresses import ipv4_of
from skerry.model.network import OPEN_POLICY
from skerry.node.network.network import Network
from tests.node.network.driver import do
from tests.node.network.machines import Ground, listen, run, speak
from tests.support.drivers import Drivers

pytestmark = pytest.mark.root

Call = tuple[str, ...]
State = dict[str, tuple[str, ...]]  # owners and their ports

SCRIPT: list[Call] = [
    ("fill",),
    ("attach", "a", "8080:80", "8081:81/udp"),
    ("attach", "b", "9090:90"),
    ("attach", "c"),
    ("detach", "a"),
    ("attach", "d", "8080:80"),
    ("detach", "b", "c"),
    ("detach", "d"),
    ("close",),
]
ISOLATED: list[Call] = [
    ("attach", "a"),
    ("seclude", "b"),
    ("seclude", "c"),
    ("detach", "b"),
    ("detach", "a", "c"),
    ("close",),
]
HELD: list[Call] = [
    ("attach", "a"),
    ("restrict", "a"),
    ("hold", "b"),
    ("hold", "c"),
    ("detach", "b"),
    ("detach", "a", "c"),
    ("close",),
]
STEPS = [
    *((f"make.{step}", times) for step in ("file", "kept", "linked", "joined") for times in (1, 2, 3)),
    *((f"attach.{step}", times) for step in ("taken", "recorded") for times in (1, 4)),
    *(("publish.ruled", times) for times in (1, 4)),
    *(("detach.withdrawn", times) for times in (1, 2, 3, 4)),
    *((f"remove.{step}", times) for step in ("links", "places") for times in (1, 2, 3)),
    *(("detach.unrecorded", times) for times in (1, 2, 3, 4)),
    *((f"close.{step}", 1) for step in ("unruled", "bridge")),
]


def drive(drivers: Drivers, ground: Ground, script: Iterable[Call], *death: str) -> list[str]:
    """Have an agent do `script` until it dies or is done; what it has done."""
    arguments = (str(ground.folder), ground.key, msgspec.json.encode(ground.settings).decode(), *death)
    text = "".join(json.dumps(call) + "\n" for call in script)
    done = drivers.run("tests.node.network.driver", *arguments, text=text)
    assert done.returncode == (-signal.SIGKILL if death else 0)
    return done.stdout.splitlines()


def outcome(calls: Iterable[Call]) -> State:
    """Who is attached after `calls`."""
    state: State = {}
    for verb, *rest in calls:
        match verb:
            case "attach" | "seclude" | "hold":
                state[rest[0]] = tuple(rest[1:])
            case "detach":
                state = {owner: mappings for owner, mappings in state.items() if owner not in rest}
    return state


def observed(network: Network) -> State:
    return {owner: tuple(map(str, each.ports)) for owner, each in network.attachments().items()}


def strays(ground: Ground, network: Network) -> list[str]:
    """Links, mounts, files and rules that belong to nothing that is known, and what is missing."""
    attached = network.attachments().values()
    links = {f"s{ground.key}{bytes(map(int, each.address.split('.')[1:])).hex()}" for each in attached}
    mounts = {each.namespace for each in attached}
    files = {"ns", "attached"} | {f"ns/{each.address}" for each in attached}
    files |= {f"attached/{each.address}.json" for each in attached}
    rules = {
        f"{port.source} : {each.address} . {port.destination}" for each in attached for port in each.ports
    }
    listed = run("nft", "list", "table", "ip", f"skerry_{ground.key}")
    isolated = {each.address for each in attached if each.is_isolated}
    walls = {
        f"table bridge skerry_{ground.key}_apart": ("bridge", "identities"),
        f"table ip skerry_{ground.key}_apart": ("ip", "guests"),
        f"table ip6 skerry_{ground.key}_apart": ("ip6", "guests"),
    }
    held = {each.address for each in attached if each.policy != OPEN_POLICY}
    ours = {f"table {family} skerry_{ground.key}" for family in ("ip", "ip6", "bridge")}
    return [
        *sorted(set(ground.links()) ^ links ^ {f"sk-{ground.key}"}),
        *sorted(set(ground.mounts()) ^ mounts),
        *sorted(set(_neighbours()) ^ {each.address6 for each in attached}),
        *sorted(set(ground.files()) ^ files),
        *sorted(set(re.findall(r"\d+ : [\d.]+ \. \d+", listed)) ^ rules),
        *sorted(set(ground.tables()) ^ {*ours, *(walls if isolated else ())}),
        *sorted(held ^ _members("ip", f"skerry_{ground.key}", "internet_only")),
        *(
            stray
            for family, name in (walls.values() if isolated else ())
            for stray in sorted(isolated ^ _members(family, f"skerry_{ground.key}_apart", name))
        ),
    ]


def _neighbours() -> list[str]:
    """Containers whose hardware addresses the node knows for good."""
    return re.findall(r"^(fda8:\S+) .* PERMANENT", run("ip", "-6", "neighbour"), flags=re.M)


def _members(family: str, table: str, name: str) -> set[str]:
    """The addresses in a set; those of IPv6 as the IPv4 ones that they follow from."""
    listed = run("nft", "list", "set", family, table, name)
    found6 = {ipv4_of(IPv6Address(each)) for each in re.findall(r"fda8:[\da-f:]+", listed)}
    return {*re.findall(r"\d+(?:\.\d+){3}", listed), *map(str, found6)}


@pytest.mark.parametrize(
    ("script", "step", "times"),
    [
        *((SCRIPT, step, times) for step, times in STEPS),
        *((HELD, f"attach.{step}", times) for step in ("restricted", "recorded") for times in (2, 3)),
        *((HELD, "detach.unrestricted", times) for times in (1, 2, 3)),
        (HELD, "restrict.ruled", 1),
        *((ISOLATED, step, 2) for step in ("attach.walled", "detach.unwalled")),
        *((ISOLATED, step, 1) for step in ("attach.walled", "detach.unwalled", "close.unruled")),
    ],
)
async def test_an_agent_that_dies_after_a_step_leaves_what_the_next_one_puts_right(
    drivers: Drivers, ground: Ground, script: list[Call], step: str, times: int
) -> None:
    _, *done = await asyncio.to_thread(drive, drivers, ground, script, step, str(times))
    before, under_way = outcome(script[: len(done)]), script[len(done)]
    after = outcome(script[: len(done) + 1])
    network = await ground.open()
    try:
        now = observed(network)
        # Of several that leave at once, some may have left.
        assert now in (before, after) or after.items() <= now.items() <= before.items()
        assert strays(ground, network) == []
        for owner, each in network.attachments().items():
            if owner in after and each.ports:
                with listen(each.namespace, "0.0.0.0", each.ports[0].destination) as listener:
                    speak(listener, ground.machine.place, "127.0.0.1", each.ports[0].source)
        # It is as good as new: what was under way can be done, and so can the rest.
        if now == before or under_way[0] == "detach":
            await do(network, *under_way)
        for call in script[len(done) + 1 :]:
            await do(network, *call)
        assert network.attachments() == {}
    finally:
        await network.close()


@pytest.mark.parametrize("opening", ["open.swept", "open.bridge", "open.ruled"])
@pytest.mark.parametrize(("step", "times"), [("make.linked", 2), ("attach.recorded", 2), ("remove.links", 1)])
async def test_an_agent_that_dies_while_it_puts_things_right_leaves_no_less_to_the_next(
    drivers: Drivers, ground: Ground, opening: str, step: str, times: int
) -> None:
    _, *done = await asyncio.to_thread(drive, drivers, ground, SCRIPT, step, str(times))
    assert await asyncio.to_thread(drive, drivers, ground, [], opening, "1") == []
    before, after = outcome(SCRIPT[: len(done)]), outcome(SCRIPT[: len(done) + 1])
    network = await ground.open()
    assert observed(network) in (before, after)
    assert strays(ground, network) == []
    await network.keep_only(set())
    await network.close()


async def test_fifty_that_leave_at_once_with_the_agent_killed_half_way_leave_nothing(
    drivers: Drivers, ground: Ground
) -> None:
    owners = [f"c{number}" for number in range(50)]
    script: list[Call] = [("attach", owner, f"{9000 + number}:80") for number, owner in enumerate(owners)]
    await asyncio.to_thread(drive, drivers, ground, [*script, ("detach", *owners)], "detach.unrecorded", "25")
    async with ground.agent() as network:
        assert strays(ground, network) == []
        await network.keep_only(set())
