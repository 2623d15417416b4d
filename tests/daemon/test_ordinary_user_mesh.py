"""A node of an ordinary user in the mesh: behind a router, with a node of root on the internet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.daemon.ordinary import OrdinarySkerry, processes_of, skerry_of
from tests.node.network.machines import Machine, inside
from tests.support.nat_lab import EDGE, LARGE, NatLab, nat_lab, page, web_image
from tests.support.ordinary_users import CAN_HAVE_NAMESPACES, IDS, ordinary_user
from tests.support.waiting import eventually_sync

pytestmark = [
    pytest.mark.skipif(not CAN_HAVE_NAMESPACES, reason="needs user namespaces of ordinary users"),
    pytest.mark.root,  # machines are network namespaces
]

_SITE = "home"


class OrdinaryNode:
    """A node of an ordinary user in the lab, with a container of the same name."""

    def __init__(self, lab: NatLab, machine: Machine, skerry: OrdinarySkerry) -> None:
        self.lab, self._machine, self.skerry = lab, machine, skerry
        self.start()
        lab.create(
            uri=web_image(skerry.user.home),
            name=_SITE,
            constraints=[f"site={_SITE}"],
            resources={"memory": 32},
        )

    def start(self) -> None:
        """Start the agent, and wait until the server has it."""
        flags = (*self.lab.join_flags(_SITE), "--set", "node.stop_grace_s=0.5")
        inside(self._machine.place, lambda: self.skerry.start(*flags, role="node"))
        self.lab.until_ready(_SITE)

    def run(self, *command: str) -> str:
        """The output of a command in its container; empty if that fails."""
        done = self.lab.server.cli("exec", _SITE, "--", *command)
        return done.stdout if done.returncode == 0 else ""

    def page(self, address: str, path: str = "") -> str:
        """What a web server answers it, with the head."""
        return self.run("sh", "-c", f"printf 'GET /{path} HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {address} 80")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatLab]:
    folder = tmp_path_factory.mktemp("mesh")
    with nat_lab(folder, EDGE) as made:
        made.run_containers(web_image(folder))
        yield made


@pytest.fixture(scope="module")
def machine(lab: NatLab) -> Machine:
    return lab.add_machine(_SITE)


@pytest.fixture
def node(lab: NatLab, machine: Machine) -> Iterator[OrdinaryNode]:
    with ordinary_user(ids=IDS, devices=["/dev/net/tun"]) as user, skerry_of(user) as skerry:
        yield OrdinaryNode(lab, machine, skerry)


def test_its_containers_reach_those_of_others_and_are_reached_also_after_kill_9_and_nothing_is_left(
    lab: NatLab, node: OrdinaryNode
) -> None:
    far = lab.containers[EDGE]
    eventually_sync(lambda: node.page(far).endswith(f"\n\n{EDGE}\n"))
    assert len(node.page(far, "large")) > LARGE
    assert far in node.run("nslookup", f"{EDGE}.default.skerry")
    [id] = [each for each in lab.instances() if lab.instance(each)["name"] == _SITE]
    address = lab.instance(id)["ip"]
    assert page(lab.place_of(EDGE), address) == f"{_SITE}\n"
    assert lab.mesh()[EDGE, _SITE]["path"] == "direct"
    node.skerry.kill()
    assert page(lab.place_of(EDGE), address) == f"{_SITE}\n"
    node.start()
    assert page(lab.place_of(EDGE), address) == f"{_SITE}\n"
    lab.destroy(id)
    assert node.skerry.stop() == 0
    assert processes_of(node.skerry.user) == []
