"""The demo from its first machine to its removal: prepares the sites, runs the steps, and cleans up.

Its result is whether every assertion held.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from skerry.client.errors import ClientError
from skerry.demo import cleaning, machines
from skerry.demo.load import RequestFailed
from skerry.demo.machines import MachineFailed
from skerry.demo.narration import Assertion, Narrator
from skerry.demo.record import DemoRecord
from skerry.demo.sample_image import SampleImageFailed
from skerry.demo.sites import CLOUD, EDGES, NEIGHBOUR, CommandFailed, Site, Sites
from skerry.demo.stage import FAST, SLOW, Stage
from skerry.demo.steps import application, flood, power_cut, purchase, rollout
from skerry.kit.files import FolderLock, FolderLocked

DEFAULT_FOLDER: Final = Path("/var/lib/skerry-demo")
_HIDDEN: Final = ("/run", "/var/run", "/var/lib")
_PROGRAMS: Final = ("unshare", "nsenter", "ip", "nft", "runc")


class Step(NamedTuple):
    """One part of the demo."""

    title: str
    reason: str
    show: Callable[[Stage], Iterator[Assertion]]


STEPS: Final = {
    "flood": Step(flood.TITLE, flood.REASON, flood.show),
    "power-cut": Step(power_cut.TITLE, power_cut.REASON, power_cut.show),
    "rollout": Step(rollout.TITLE, rollout.REASON, rollout.show),
    "purchase": Step(purchase.TITLE, purchase.REASON, purchase.show),
}
_APPLICATION: Final = Step(application.TITLE, application.REASON, application.show)


class DemoRefused(RuntimeError):
    """The demo cannot be run here and now; the message says what to do."""


class DemoOptions(NamedTuple):
    """What a user chose."""

    folder: Path
    steps: Sequence[str]  # none: all
    is_fast: bool = False
    pauses: bool = False
    keeps: bool = False


def run(options: DemoOptions) -> bool:
    """Run the demo; True if every assertion held. Raises `DemoRefused`."""
    _check_machine()
    with _locked(options.folder):
        record = DemoRecord(options.folder)
        if record.exists():
            remove = _clean_command(options.folder)
            raise DemoRefused(
                f"{options.folder} has a demo that was kept or killed. Remove it with '{remove}'."
            )
        record.create()
        narrator = Narrator(pauses=options.pauses)
        is_kept = False
        try:
            holds = _show(options, record, narrator)
            is_kept = options.keeps
            return holds
        except (MachineFailed, CommandFailed, RequestFailed, SampleImageFailed, ClientError) as error:
            narrator.problem(f"The demo failed: {error}")
            is_kept = options.keeps
            return False
        finally:
            if is_kept:
                narrator.say(f"Everything is left running. '{_clean_command(options.folder)}' removes it.")
            else:
                narrator.note("Removing everything.")
                with _uninterrupted():
                    cleaning.clean(options.folder)


def _show(options: DemoOptions, record: DemoRecord, narrator: Narrator) -> bool:
    steps = [step for name, step in STEPS.items() if not options.steps or name in options.steps]
    sites = Sites(record)
    stage = Stage(sites, narrator, FAST if options.is_fast else SLOW, options.folder)
    total = len(steps) + 2
    narrator.step(1, total, "A cloud and three edge sites", _PLAN)
    assertions = list(_shown(narrator, _start(stage)))
    for number, step in enumerate((_APPLICATION, *steps), 2):
        narrator.step(number, total, step.title, step.reason)
        assertions += _shown(narrator, step.show(stage))
    failed = sum(not assertion.holds for assertion in assertions)
    narrator.say("")
    if failed:
        narrator.problem(f"{failed} of {len(assertions)} assertions did not hold.")
    else:
        narrator.assertion(Assertion(f"All {len(assertions)} assertions held.", holds=True))
    return failed == 0


_PLAN: Final = (
    "Each site is a machine of its own, made of namespaces: network, processes and /var/lib are separate. "
    "Packets take time from each site to the exchange where all meet: "
    + ", ".join(f"{site.name} {site.delay_ms:g} ms" for site in (*EDGES, CLOUD, NEIGHBOUR))
    + "."
)


def _start(stage: Stage) -> Iterator[Assertion]:
    """Boot all machines and start Skerry on each."""
    sites, narrator = stage.sites, stage.narrator
    machines.record_groups(DemoRecord(stage.folder))
    sites.create_network()
    way = "the kernel (netem)" if sites.network.has_netem else "a process, as this kernel has no netem"
    narrator.note(f"Packets are delayed by {way}.")
    for site in (CLOUD, NEIGHBOUR, *EDGES):
        sites.boot(site)
    _start_cloud(stage, CLOUD)
    sites.wait_ready(CLOUD)
    for site in EDGES:
        invitation = str(
            sites.api(CLOUD).post("token", body={"role": "node", "note": site.name})["invitation"]
        )
        narrator.command(["skerry", "node", "--join", f"{invitation[:24]}..."], site.name)
        sites.start_node(site, invitation)
    _start_cloud(stage, NEIGHBOUR)  # the last step waits for it
    application.make_images(stage)  # while the machines are starting
    token = str(sites.api(CLOUD).post("token", body={"role": "admin", "note": "the demo"})["token"])
    url = sites.forward()
    env = sites.write_env(url, token)
    sites.wait_ready(*EDGES)
    for site in EDGES:
        stage.wait(
            lambda site=site: stage.get("node", site.name),  # type: ignore[misc]
            lambda found: found.get("liveness") == "live",
            f"{site.name} is live",
        )
    narrator.say("Look at it from another terminal, as root; the first line is for all commands that follow:")
    narrator.command([".", str(env)])
    narrator.command(["skerry", "console", "--url", url])
    narrator.command(["skerry", "node", "list"])
    stage.narrator.output(sites.run(CLOUD, "node", "list").stdout)
    nodes = stage.get("node")["nodes"]
    yield Assertion(f"{len(nodes)} machines are nodes of one cloud", len(nodes) == 1 + len(EDGES))


def _start_cloud(stage: Stage, site: Site) -> None:
    stage.narrator.command(["skerry", "up", "--http", "0.0.0.0:1323", "--tls"], site.name)
    stage.sites.start_cloud(site)


def _shown(narrator: Narrator, assertions: Iterator[Assertion]) -> Iterator[Assertion]:
    for assertion in assertions:
        narrator.assertion(assertion)
        yield assertion


def check_root() -> None:
    """Raises `DemoRefused` without root."""
    if os.geteuid() != 0:
        raise DemoRefused("The demo needs root, for namespaces and containers: run 'sudo skerry demo'.")


def _check_machine() -> None:
    """Raises `DemoRefused` if this machine cannot run the demo."""
    if sys.platform != "linux":
        raise DemoRefused("The demo needs Linux: its machines are namespaces of the kernel.")
    check_root()
    if hidden := [path for path in _HIDDEN if Path(sys.prefix).is_relative_to(path)]:
        raise DemoRefused(
            f"Skerry is installed in {hidden[0]}, which each machine of the demo has of its own: install it "
            "elsewhere."
        )
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        raise DemoRefused(
            f"The demo needs {', '.join(missing)}: install with "
            "'apt-get install util-linux iproute2 nftables runc'."
        )


def clean(folder: Path) -> cleaning.Removed | None:
    """Remove a demo that was kept or killed; None if there is none. Raises `DemoRefused` while one runs."""
    check_root()
    if not DemoRecord(folder).exists():
        return None
    with _locked(folder):
        return cleaning.clean(folder)


def _clean_command(folder: Path) -> str:
    return "skerry demo clean" + ("" if folder == DEFAULT_FOLDER else f" --folder {folder}")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore signals that end a program, for the seconds that a removal takes."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DemoRefused(
            f"The folder {folder} cannot be created: {error}. Choose another with --folder."
        ) from None
    known = {"lock", "record.jsonl"}
    if not DemoRecord(folder).exists() and (
        others := [path for path in folder.iterdir() if path.name not in known]
    ):
        raise DemoRefused(
            f"{folder} has other files, such as {others[0].name}. Choose another with --folder."
        )
    lock = FolderLock(folder)
    try:
        lock.acquire()
    except FolderLocked as error:
        raise DemoRefused(f"A demo is running (process {error.pid}). End it with Ctrl-C there.") from None
    try:
        yield
    finally:
        lock.release()
