"""The sites of the demo and the Skerrys on them: a cloud, three edge sites, and a neighbour cloud.

Every site is a machine (`skerry.demo.machines`) behind a link with a delay, and runs `skerry up` or
`skerry node` as any machine would. Commands are run by the command line of this very installation, through
the unix socket of the server, which needs no network.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from skerry.client.api import ApiClient, JsonObject
from skerry.client.discovery import ServerTarget
from skerry.client.errors import ClientError
from skerry.demo import cleaning
from skerry.demo.machines import Machine, MachineFailed, environment, groups_prefix
from skerry.demo.network import SWITCH_ADDRESS, DelayedNetwork
from skerry.demo.record import DemoRecord

REGISTRY: Final = f"{SWITCH_ADDRESS}:5000"
_HTTP, _GRPC, _MEMBERS = 1323, 50052, 7331
_READY_S: Final = 120.0  # on a very busy machine
_PAUSE_S: Final = 0.05
_REQUEST_PAUSE_S: Final = 0.2  # each costs the server something, too
_IMAGES: Final = "images"
_ENV_FILE: Final = "env"


class Site(NamedTuple):
    """A place with one machine."""

    name: str
    address: str
    delay_ms: float  # from it to the switch


CLOUD: Final = Site("cloud", "192.0.2.10", 20)
EDGES: Final = (
    Site("lisbon", "192.0.2.21", 4),
    Site("oslo", "192.0.2.22", 6),
    Site("turin", "192.0.2.23", 5),
)
NEIGHBOUR: Final = Site("north", "192.0.2.30", 15)
# A silent machine is noticed soon, and yet a busy one is not taken for a lost one.
_COMMON: Final = {
    "fleet.report_s": "0.5",
    "fleet.suspect_after_s": "2.5",
    "fleet.lost_after_s": "8",
    "fleet.restart_base_s": "0.5",
    "node.stop_grace_s": "1",
    "node.spare_inits": "1",
    "functions.spare_workers": "0",
    "network.pool": "1",
    "images.insecure": REGISTRY,
    "log.level": "warning",
}
_MEMBER: Final = {
    "functions.remote_area": "cloud",
    "functions.policy": "qosaware",
    "functions.ping_s": "0.5",
}


def settings_of(site: Site, folder: Path) -> dict[str, str]:
    """The settings of the Skerry of a site."""
    own = {**_COMMON, "node.name": site.name, "node.cgroup_root": groups_prefix(folder, site.name)}
    if site == NEIGHBOUR:
        more = {
            "fleet.reserve_percent": "0",
            "market.guest_registries": REGISTRY,
            "functions.memory_mb": "64",
        }
        return own | more | {"http.names": site.address}
    area, cores = ("cloud", 8) if site == CLOUD else ("edge", 2)
    member = {
        **_MEMBER,
        "node.labels": f"tier={area}",
        "functions.area": area,
        "functions.cpus": str(cores),
        "functions.memory_mb": str(cores * 64),
        "functions.neighbours": f"{site.address}:{_MEMBERS}",
    }
    return own | member | ({"http.names": site.address} if site == CLOUD else {})


class CommandFailed(RuntimeError):
    """A command of the demo had another exit code than expected."""


class Sites:
    """All sites, from their machines to the Skerrys that run there."""

    def __init__(self, record: DemoRecord) -> None:
        self._record = record
        self._switch = Machine(record, "switch")
        self.network = DelayedNetwork(self._switch)
        self.machines = {site.name: Machine(record, site.name) for site in (CLOUD, *EDGES, NEIGHBOUR)}
        self._skerrys: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def edges(self) -> dict[str, Machine]:
        return {site.name: self.machines[site.name] for site in EDGES}

    # Machines

    def create_network(self) -> None:
        self._switch.boot()
        self.network.create()

    def boot(self, site: Site) -> None:
        """Switch a machine on and connect it."""
        machine = self.machines[site.name]
        machine.boot()
        self.network.connect(machine, site.address, site.delay_ms / 1e3)

    def cut_power(self, site: Site) -> None:
        """Everything at a site stops at once; its disk stays."""
        self.machines[site.name].power_off()
        self.network.disconnect(site.name)
        for group in cleaning.groups_of(groups_prefix(self._record.folder, site.name)):
            cleaning.remove_group(group)  # the kernel of a real machine would have forgotten them

    @property
    def image_folder(self) -> Path:
        """Where images are written that `serve_images` serves."""
        return self._switch.disk / _IMAGES

    def serve_images(self) -> None:
        """Start the registry."""
        host, _, port = REGISTRY.partition(":")
        program = (sys.executable, "-m", "skerry.demo.registry")
        self._switch.start(*program, f"/var/lib/{_IMAGES}", host, port)

    # Skerrys

    def start_cloud(self, site: Site) -> None:
        """Start server and node of a site in one process; `wait_ready` waits for it."""
        listen = ("--http", f"0.0.0.0:{_HTTP}", "--grpc", f"0.0.0.0:{_GRPC}", "--tls")
        self._start(site, "up", *listen)

    def start_node(self, site: Site, join: str) -> None:
        self._start(site, "node", "--join", join, "--http", f"127.0.0.1:{_HTTP}")

    def _start(self, site: Site, role: str, *flags: str) -> None:
        machine = self.machines[site.name]
        (machine.disk / "skerry" / "ready.json").unlink(missing_ok=True)
        settings = settings_of(site, self._record.folder)
        given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self._skerrys[site.name] = machine.start(sys.executable, "-m", "skerry", role, *flags, *given)

    def wait_ready(self, *sites: Site) -> None:
        for site in sites:
            machine, process = self.machines[site.name], self._skerrys[site.name]
            ready = machine.disk / "skerry" / "ready.json"
            wait_for(
                lambda ready=ready, process=process: ready.exists() or process.poll() is not None,  # type: ignore[misc]
                f"Skerry of {site.name} is ready",
                within_s=_READY_S,
            )
            if process.poll() is not None:
                raise MachineFailed(f"Skerry of {site.name} has ended: {machine.log.read_text()[-1000:]}")

    def join_url(self) -> str:
        return f"https://{CLOUD.address}:{_HTTP}"

    def stop(self) -> None:
        """Stop all Skerrys in order; machines stay on."""
        for name, process in self._skerrys.items():
            if self.machines[name].is_on:
                self.machines[name].stop(process)

    # Commands and requests

    def url(self, site: Site) -> str:
        """The unix socket of the server of a site, as the command line takes it."""
        return f"unix:{self.machines[site.name].disk / 'skerry' / 'http.sock'}"

    def api(self, site: Site) -> ApiClient:
        url = self.url(site)
        return ApiClient(ServerTarget(url, None, None, "the demo", Path(url.removeprefix("unix:"))))

    def run(
        self, site: Site, *arguments: str, codes: tuple[int, ...] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the command line at a server. Raises `CommandFailed` for another exit code."""
        done = subprocess.run(
            [sys.executable, "-m", "skerry", *arguments],
            env=environment(SKERRY_URL=self.url(site)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
        if done.returncode not in codes:
            said = (done.stderr or done.stdout).strip()[-1500:]
            raise CommandFailed(f"skerry {' '.join(arguments)}: exit code {done.returncode}: {said}")
        return done

    def forward(self) -> str:
        """A URL of the cloud on this machine's own loopback."""
        listener = socket.create_server(("127.0.0.1", 0))
        with listener:
            descriptor = listener.fileno()
            program = [sys.executable, "-m", "skerry.demo.forwarder"]
            target = [str(descriptor), str(self._switch.network), CLOUD.address, str(_HTTP)]
            log = self._switch.log
            self._record.start("forwarder", [*program, *target], output=log, descriptors=[descriptor])
            return f"https://127.0.0.1:{listener.getsockname()[1]}"

    def write_env(self, url: str, token: str) -> Path:
        """A file for shells, by which commands of any terminal reach the cloud."""
        ca = self.machines[CLOUD.name].disk / "skerry" / "pki" / "ca.crt"
        path = self._record.folder / _ENV_FILE
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w") as file:
            file.write(f"export SKERRY_URL={url}\nexport SKERRY_CA={ca}\nexport SKERRY_TOKEN={token}\n")
        return path


def wait_for(is_so: Callable[[], bool], what: str, *, within_s: float, pause_s: float = _PAUSE_S) -> None:
    """Wait until a condition holds. Raises `MachineFailed` after `within_s`."""
    ends_at = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > ends_at:
            raise MachineFailed(f"not within {within_s:g} s: {what}")
        time.sleep(pause_s)


def wait_for_reply(
    get: Callable[[], JsonObject], accept: Callable[[JsonObject], bool], what: str, *, within_s: float
) -> JsonObject:
    """The reply of a server, once it is as expected. Raises `MachineFailed` after `within_s`."""
    last: Mapping[str, object] = {}

    def is_so() -> bool:
        nonlocal last
        try:
            last = get()
        except ClientError:
            return False
        return accept(dict(last))

    wait_for(is_so, what, within_s=within_s, pause_s=_REQUEST_PAUSE_S)
    return dict(last)
