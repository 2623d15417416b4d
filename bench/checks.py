"""What health checks cost the agent: 100 HTTP checks a second of real containers, against the same without.

The same instances run twice in one Skerry, first without checks and then with ten of 1 s each. The processor
time is that of Skerry's own process, in which the checks run; what the servers in the containers cost is not
part of it. How many were answered is counted by the servers. Beside it is what the kernel takes for such an
exchange: made one by one at the same pace, where each finds the processor idle and its caches cold, and in
groups as the agent makes them, which is the floor.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.figures import Figure
from bench.serving import skerry

INSTANCES = 10
CHECKS = 10  # of each, at 1 s
WINDOW_S = 20.0
SETTLE_S = 3.0
BARE = 500
GROUPS, GROUP = 20, 50  # of the floor; with a pause between groups, in which the agent sleeps, too


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="skerry-checks-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        root = make_root(folder / "root")
        with skerry(data=folder / "data") as ready:
            cli = Cli(folder / "data")
            idle, _ = share(cli, ready["pid"], root, checks=0)
            busy, answered = share(cli, ready["pid"], root, checks=CHECKS)
        bare = bare_exchange_s(root)
        floor = grouped_exchange_s(root)
    cost_s = (busy - idle) / (INSTANCES * CHECKS)
    yield Figure("checks answered per second", answered, "1/s", at_least=0.95 * INSTANCES * CHECKS)
    yield Figure("processor share of the agent without checks", idle * 100, "% of a core")
    yield Figure("processor time of a check", cost_s * 1e6, "us")
    yield Figure("the same exchange by a bare loop of sockets", bare * 1e6, "us")
    yield Figure(f"the same exchange by such a loop, {GROUP} at a time", floor * 1e6, "us")
    yield Figure(
        "a check",
        cost_s / bare,
        "x the bare exchange",
        at_most=1.0,
        peer=bare * 1e6,
        peer_unit="us",
        peer_name="bare loop of sockets",
    )
    yield Figure(
        "100 http checks at 1 s cost",
        (busy - idle) * 100,
        "% of a core",
        at_most=2.0,
        peer=floor * INSTANCES * CHECKS * 100,
        peer_unit="% of a core",
        peer_name=f"sockets, {GROUP} at a time",
    )


class Cli:
    """The command line, on the data folder of one Skerry."""

    def __init__(self, data: Path) -> None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("SKERRY_")}
        self._environment = clean | {"SKERRY_DATA": str(data)}

    def __call__(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "skerry", *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"skerry {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def instances(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self("get", "instances", "-o", "json"))["instances"]
        return found


def make_root(root: Path) -> Path:
    """A root file system with busybox."""
    (root / "bin").mkdir(parents=True)
    (root / "www").mkdir()
    (root / "www" / "health").write_text("ok\n")
    shutil.copy("/bin/busybox", root / "bin" / "busybox")
    for name in ("sh", "httpd"):
        (root / "bin" / name).symlink_to("busybox")
    return root


def share(cli: Cli, pid: int, root: Path, *, checks: int) -> tuple[float, float]:
    """The share of a core that the process used while the instances ran, and answers per second."""
    instances = [
        {
            "name": f"w{number}",
            "image": f"rootfs:{root}",
            # With -vv the server writes a line for each answer.
            "arguments": ["httpd", "-f", "-vv", "-p", "80", "-h", "/www"],
            "checks": ["http:80/health,interval=1s"] * checks,
        }
        for number in range(INSTANCES)
    ]
    manifest = root.parent / "instances.json"
    manifest.write_text(json.dumps({"instances": instances}))
    cli("apply", "-f", str(manifest))
    while not all(each["ready"] for each in cli.instances()):
        time.sleep(0.2)
    time.sleep(SETTLE_S)
    first = answers(cli) if checks else []
    used, began = processor_s(pid), time.monotonic()
    time.sleep(WINDOW_S)
    used, took = processor_s(pid) - used, time.monotonic() - began
    last = answers(cli) if checks else []
    for number in range(INSTANCES):
        cli("delete", "instance", f"w{number}")
    rates = [(b - a) / (till - since) for (a, since), (b, till) in zip(first, last, strict=True)]
    return used / took, sum(rates)


def answers(cli: Cli) -> list[tuple[int, float]]:
    """How many requests each server has answered, and when that was."""
    return [
        (cli("logs", f"w{number}").count("response:200"), time.monotonic()) for number in range(INSTANCES)
    ]


REQUEST = b"GET /health HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"


def bare_exchange_s(root: Path) -> float:
    """The processor time of connecting, asking, reading and closing, a hundred times a second."""
    with servers(root, 1) as (port,):
        began = time.process_time()
        for _ in range(BARE):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(REQUEST)
                while connection.recv(65536):
                    pass
            time.sleep(0.01)
        return (time.process_time() - began) / BARE


def grouped_exchange_s(root: Path) -> float:
    """The same, where all of a group are asked, and then all answers are read."""
    with servers(root, INSTANCES) as ports, contextlib.ExitStack() as opened:
        began = time.process_time()
        for _ in range(GROUPS):
            asked = []
            for number in range(GROUP):
                connection = opened.enter_context(socket.socket())
                connection.connect(("127.0.0.1", ports[number % len(ports)]))
                connection.sendall(REQUEST)
                asked.append(connection)
            time.sleep(0.05)
            for connection in asked:
                while connection.recv(65536):
                    pass
            opened.close()
            time.sleep(0.45)
        return (time.process_time() - began) / (GROUPS * GROUP)


@contextlib.contextmanager
def servers(root: Path, count: int) -> Iterator[list[int]]:
    """The ports of as many servers as instances have, on this machine."""
    with contextlib.ExitStack() as reserved:
        sockets = [reserved.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        ports: list[int] = [each.getsockname()[1] for each in sockets]
    command = ["busybox", "httpd", "-f", "-h", str(root / "www"), "-p"]
    started = [subprocess.Popen([*command, f"127.0.0.1:{port}"]) for port in ports]
    try:
        time.sleep(0.5)
        yield ports
    finally:
        for each in started:
            each.kill()
            each.wait()


def processor_s(pid: int) -> float:
    """What its threads have used, of the kernel's time too. `stat` has it only in ticks of 10 ms."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
