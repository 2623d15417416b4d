"""Throughput of the mesh between two machines, against WireGuard configured by hand.

Two network namespaces with a cable between them, twice: one pair is connected by `NodeMesh` as on nodes, with
its routes, rules and probes; the other by `ip` and `wg` alone, with the same implementation of WireGuard and
the same size of packets. WireGuard in user space takes all of a processor, so whatever else the machine does
is seen in every figure. Therefore short runs are compared in blocks of four, first A, B, B, A and then B, A,
A, B, in which a load that lasts, or grows, hits both alike; the figure is the median of the blocks. Some
processes of WireGuard are a few percent quicker than others for as long as they live, so there are several
generations of all pairs. They run with a high priority. A second pair by hand is compared with the first in
the same way: its ratio should be 1, and says how far to trust the other.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog

from bench.figures import Figure
from bench.serving import percentile
from skerry.kit.clock import SystemClock
from skerry.model.ids import NodeId
from skerry.model.mesh import MeshLinks, MeshNode, MeshPeer
from skerry.model.mesh_settings import MeshSettings
from skerry.model.network_objects import NetworkObject
from skerry.node.kernel import namespaces
from skerry.node.network.mesh.keys import MeshKeys
from skerry.node.network.mesh.mesh import MeshDeps, NodeMesh
from skerry.node.network.subnets import KernelNames

GENERATIONS = 5
BLOCKS = 8  # of each
PRIORITY = -15
SECONDS = 0.2
MTU = 1420
PORT = 5001

BY_HAND = """
table ip by_hand {
    chain passing {
        type filter hook forward priority 0;
        tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu
    }
}
"""

T = TypeVar("T")


class Machine:
    """A network namespace."""

    def __init__(self, place: Path, undo: ExitStack) -> None:
        self.place = place
        place.touch()

        def make() -> None:
            namespaces.enter_new_namespace()
            namespaces.bind_namespace(place)
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

        namespaces.in_own_thread(make)
        undo.callback(namespaces.remove_mount_file, place)

    def inside(self, work: Callable[[], T]) -> T:
        def go() -> T:
            descriptor = os.open(self.place, os.O_RDONLY | os.O_CLOEXEC)
            try:
                namespaces.enter_namespace(descriptor)
            finally:
                os.close(descriptor)
            return work()

        return namespaces.in_own_thread(go)

    def run(self, *command: str, text: str = "") -> str:
        return self.inside(
            lambda: subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
        )


class Pair:
    """Two machines with a cable; each has a subnet, 10.9.N.0/24, with one container, 10.9.N.2."""

    def __init__(self, folder: Path, name: str, undo: ExitStack) -> None:
        self.ends = [Machine(folder / f"{name}{number}", undo) for number in (1, 2)]
        self.containers: list[Machine] = []
        one, other = self.ends
        one.run("ip", "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", str(other.place))
        for number, end in enumerate(self.ends, 1):
            end.run("ip", "address", "add", f"192.0.2.{number}/24", "dev", "eth0")
            end.run("ip", "link", "set", "eth0", "up")
            end.run("ip", "link", "add", "inner", "type", "bridge")
            end.run("ip", "address", "add", f"10.9.{number}.1/24", "dev", "inner")
            end.run("ip", "link", "set", "inner", "up")
            end.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
            box = Machine(folder / f"{name}{number}-container", undo)
            box.run("ip", "link", "add", "eth0", "type", "veth", "peer", "box", "netns", str(end.place))
            end.run("ip", "link", "set", "box", "master", "inner", "up")
            box.run("ip", "address", "add", f"10.9.{number}.2/24", "dev", "eth0")
            box.run("ip", "link", "set", "eth0", "up")
            box.run("ip", "route", "add", "default", "via", f"10.9.{number}.1")
            self.containers.append(box)

    def until_connected(self) -> None:
        for _ in range(200):
            with socket_of(self.containers[0]) as probe:
                try:
                    probe.settimeout(0.1)
                    probe.connect(("10.9.2.2", PORT))
                except ConnectionRefusedError:
                    return
                except OSError:
                    time.sleep(0.05)
        raise RuntimeError("the pair is not connected")

    def rate(self) -> float:
        """Megabytes per second of one TCP connection from the first container to the second."""
        block = b"x" * 262144
        with socket_of(self.containers[1]) as listener, socket_of(self.containers[0]) as near:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("10.9.2.2", PORT))
            listener.listen()
            near.connect(("10.9.2.2", PORT))
            far, _ = listener.accept()
            child = os.fork()  # whoever reads is a process of its own, as on another machine
            if child == 0:
                near.close()
                while far.recv(262144):
                    pass
                os._exit(0)
            far.close()
            began, sent = time.perf_counter(), 0
            while (took := time.perf_counter() - began) < SECONDS:
                sent += near.send(block)
            near.close()
            os.waitpid(child, 0)
        return sent / took / 1e6


def socket_of(machine: Machine) -> socket.socket:
    return machine.inside(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))


def configure_by_hand(pair: Pair, folder: Path, undo: ExitStack) -> None:
    """As in a tutorial of WireGuard."""
    folder.mkdir()
    keys = [MeshKeys(folder / f"hand{number}.json", time.time()) for number in (1, 2)]
    for number, end in enumerate(pair.ends, 1):
        name = f"swb{secrets.token_hex(4)}"
        make_wireguard(end, name)
        undo.callback(end.run, "ip", "link", "delete", name)
        far = 3 - number
        text = (
            f"[Interface]\nPrivateKey = {keys[number - 1].private}\nListenPort = 51820\n"
            f"[Peer]\nPublicKey = {keys[far - 1].public}\nAllowedIPs = 10.9.{far}.0/24\n"
            f"Endpoint = 192.0.2.{far}:51820\n"
        )
        end.run("wg", "setconf", name, "/dev/stdin", text=text)
        end.run("ip", "link", "set", name, "mtu", str(MTU), "up")
        end.run("ip", "route", "add", f"10.9.{far}.0/24", "dev", name, "src", f"10.9.{number}.1")
        end.run("nft", "-f", "-", text=BY_HAND)


def make_wireguard(machine: Machine, name: str) -> None:
    """The implementation that the mesh uses: the kernel's, else wireguard-go."""

    def quietly(*command: str) -> int:
        null = subprocess.DEVNULL
        # A session of its own, as that of the mesh has: the kernel schedules sessions as groups.
        return subprocess.run(
            command, stdin=null, stdout=null, stderr=null, start_new_session=True, check=False
        ).returncode

    def make() -> None:
        if quietly("ip", "link", "add", name, "type", "wireguard") and quietly("wireguard-go", name):
            raise RuntimeError("there is no WireGuard here")

    machine.inside(make)


def start_mesh(pair: Pair, folder: Path, undo: ExitStack) -> None:
    """A `NodeMesh` for each end, in a process of its own."""
    children = []
    for number, end in enumerate(pair.ends, 1):
        home = folder / f"node{number}"
        home.mkdir()
        command = [sys.executable, "-m", "bench.mesh", str(home), str(number), secrets.token_hex(4)]
        child = end.inside(
            lambda command=command: subprocess.Popen(  # type: ignore[misc]
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        )
        undo.callback(stop, child)
        children.append(child)
    keys = [line_of(child) for child in children]
    for child, key in zip(children, reversed(keys), strict=True):
        print(key, file=child.stdin, flush=True)
    if [line_of(child) for child in children] != ["up", "up"]:
        raise RuntimeError("the mesh does not come up")


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def stop(child: subprocess.Popen[str]) -> None:
    """It removes its interface when its input ends."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    child.wait(30)
    child.stdout.close()


class Ground:
    """A network of containers, as far as the mesh sees it."""

    def __init__(self, number: int, key: str) -> None:
        self.names = KernelNames(key)
        self.networks = (IPv4Network(f"10.9.{number}.0/24"),)
        self.gateway = IPv4Address(f"10.9.{number}.1")
        self.has_ipv6 = False


async def run_node(folder: Path, number: int, key: str) -> None:
    """One end: prints its public key, reads that of the other, and says when they are connected."""
    loop, peer = asyncio.get_running_loop(), NodeId(f"node{3 - number}")
    known, up = asyncio.Event(), asyncio.Event()

    def report(value: NetworkObject) -> None:
        if isinstance(value, MeshNode) and not known.is_set():
            print(value.public_key, flush=True)
            known.set()
        if isinstance(value, MeshLinks) and any(link.is_up for link in value.links):
            up.set()

    deps = MeshDeps(
        NodeId(f"node{number}"),
        Ground(number, key),
        SystemClock(),
        report,
        lambda: (f"192.0.2.{number}",),
        lambda unreachable: None,
    )
    mesh = await NodeMesh(folder, MeshSettings(mtu=MTU), deps).open()
    running = asyncio.create_task(mesh.run())
    public_key = (await loop.run_in_executor(None, sys.stdin.readline)).strip()
    far = 3 - number
    mesh.set_peers({peer: MeshPeer(peer, peer, public_key, (f"10.9.{far}.0/24",), (f"192.0.2.{far}:51825",))})
    await up.wait()
    print("up", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    running.cancel()
    await mesh.close()
    await asyncio.to_thread(mesh.remove)


def compare(one: Pair, other: Pair, is_first: bool) -> tuple[float, float]:
    """The rates of both in a block of four runs."""
    rates: dict[Pair, list[float]] = {one: [], other: []}
    for pair in (one, other, other, one) if is_first else (other, one, one, other):
        rates[pair].append(pair.rate())
    return sum(rates[one]) / 2, sum(rates[other]) / 2


def raise_priority(pairs: Iterable[Pair], undo: ExitStack) -> None:
    """Of WireGuard in user space, and of this process until the end."""
    places = {os.stat(end.place).st_ino for pair in pairs for end in pair.ends}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            is_wireguard = b"wireguard-go" in (process / "cmdline").read_bytes()
            if is_wireguard and (process / "ns/net").stat().st_ino in places:
                set_priority(process, PRIORITY)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    set_priority(Path("/proc/self"), PRIORITY)
    undo.callback(set_priority, Path("/proc/self"), before)


def set_priority(process: Path, priority: int) -> None:
    for thread in (process / "task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), priority)
    group = process / "autogroup"  # where the kernel schedules sessions as groups
    if group.exists():
        group.write_text(str(priority))


class Rates(NamedTuple):
    """Of one generation, or of all: by block."""

    by_hand: list[float]
    control: list[float]  # ratios
    mesh: list[float]


def measure_generation(rates: Rates) -> None:
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="skerry-mesh-")))
        hand, control, mesh = pairs = [Pair(folder, name, undo) for name in ("hand", "control", "mesh")]
        configure_by_hand(hand, folder / "hand-keys", undo)
        configure_by_hand(control, folder / "control-keys", undo)
        start_mesh(mesh, folder, undo)
        raise_priority(pairs, undo)
        for pair in pairs:
            pair.until_connected()
            pair.rate()
        for number in range(BLOCKS):
            is_first = number % 2 == 0
            hand_rate, mesh_rate = compare(hand, mesh, is_first)
            rates.by_hand.append(hand_rate)
            rates.mesh.append(mesh_rate / hand_rate)
            hand_rate, control_rate = compare(hand, control, is_first)
            rates.control.append(control_rate / hand_rate)


def measure() -> Iterator[Figure]:
    rates = Rates([], [], [])
    for _ in range(GENERATIONS):
        measure_generation(rates)
    yield Figure("WireGuard by hand, one connection", statistics.median(rates.by_hand), "MB/s")
    yield Figure(
        "another pair by hand",
        statistics.median(rates.control),
        "x by hand",
        note="1 on a quiet machine: how far to trust the next figure",
    )
    yield Figure(
        "the mesh, one connection",
        statistics.median(rates.mesh),
        "x by hand",
        at_least=0.9,
        peer=statistics.median(rates.by_hand),
        peer_unit="MB/s",
        peer_name="WireGuard by hand",
        note=f"with its rules and probes; half of the blocks between {percentile(rates.mesh, 0.25):.2f} and "
        f"{percentile(rates.mesh, 0.75):.2f}",
    )


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # stdout is the parent's
    asyncio.run(run_node(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
