"""Puts gathered facts through all checks: the findings of `skerry doctor`, in the order of its report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from skerry.cli.doctor import (
    gathering,
    machine_checks,
    machine_facts,
    rootless_checks,
    rootless_facts,
    server_checks,
    server_facts,
)
from skerry.cli.doctor.facts import ClockOffset, ServerFacts
from skerry.cli.doctor.findings import Finding, skipped
from skerry.cli.doctor.gathering import Gathered
from skerry.client.errors import ClientError

if TYPE_CHECKING:
    from skerry.client.discovery import ServerTarget, TargetOptions
    from skerry.model.settings import Settings

_WITHIN_S: Final = 6.0  # all of it; connections have shorter timeouts
_CLOCKS_S: Final = 3.0


class CheckContext(NamedTuple):
    """What checks depend on besides facts."""

    is_root: bool
    missing_server: str = ""  # why there is no server to check
    remote: str = ""  # the server elsewhere that commands use


def diagnose(options: TargetOptions, settings: Settings, folder: Path) -> list[Finding]:
    """All findings about this machine, and about the server that commands would use."""
    target, missing = server_facts.find_target(options)
    gatherers: dict[str, Callable[[], Any]] = {
        "skerry": partial(machine_facts.skerry, folder),
        "cgroups": partial(machine_facts.cgroups, settings),
        "kernel": machine_facts.kernel,
        "programs": machine_facts.programs,
        "ports": partial(machine_facts.ports, settings, folder),
        "disk": partial(machine_facts.disk, folder),
        "clock": machine_facts.clock,
        "contexts": machine_facts.context_file,
        "leftovers": partial(machine_facts.leftovers, settings, folder),
        "store": partial(server_facts.etcd, settings),
    }
    if os.geteuid() != 0:
        del gatherers["cgroups"]  # what only root can use
        gatherers["rootless"] = rootless_facts.rootless
    if target is not None:
        gatherers |= {
            "server": partial(server_facts.server, target),
            "addresses": partial(server_facts.addresses, target, settings),
        }
    gathered = gathering.gather(gatherers, _WITHIN_S)
    clocks = gathering.gather(_clocks(target, gathered.facts.get("server")), _CLOCKS_S)
    offsets = [offset for offset in clocks.facts.values() if offset is not None]
    context = CheckContext(
        is_root=os.geteuid() == 0,
        missing_server=missing,
        remote=target.url if target is not None and is_remote(target) else "",
    )
    return findings(gathered, offsets, context)


def is_remote(target: ServerTarget) -> bool:
    """Whether it is on another machine, as far as its address says."""
    split = target.split
    return split is not None and not server_facts.is_here(split.hostname or "")


def _clocks(target: ServerTarget | None, server: ServerFacts | None) -> dict[str, Callable[[], Any]]:
    urls = {} if target is None else {"the server": target.url}
    urls |= {f"peer {peer['name']}": peer["url"] for peer in (server.peers if server else None) or ()}
    return {name: partial(server_facts.clock_offset, name, url) for name, url in urls.items()}


def findings(gathered: Gathered, offsets: Sequence[ClockOffset], context: CheckContext) -> list[Finding]:
    """What the facts mean. A gatherer that failed is a skipped check."""
    facts = gathered.facts
    server: ServerFacts | None = facts.get("server")
    programs = facts.get("programs")
    found = [*machine_checks.check_root(context.is_root)]
    checks: dict[str, Callable[[Any], list[Finding]]] = {
        "skerry": lambda value: machine_checks.check_skerry(value, context.remote),
        "cgroups": machine_checks.check_cgroups,
        "rootless": rootless_checks.check_rootless,
        "kernel": lambda value: machine_checks.check_kernel(value, is_root=context.is_root),
        "programs": lambda value: [
            *machine_checks.check_programs(value, facts.get("kernel"), is_root=context.is_root),
            *machine_checks.check_runtimes(value),
        ],
        "ports": lambda value: [] if context.remote else machine_checks.check_ports(value),
        "disk": machine_checks.check_disk,
        "clock": machine_checks.check_clock,
        "server": server_checks.check_server,
        "addresses": server_checks.check_addresses,
        "store": server_checks.check_etcd,
        "contexts": machine_checks.check_contexts,
        "leftovers": machine_checks.check_leftovers,
    }
    for name, check in checks.items():
        if name in facts:
            found += _understood(name, partial(check, facts[name]))
        elif name in gathered.failures:
            found.append(skipped(name, f"could not be checked: {gathered.failures[name]}"))
    found += machine_checks.check_offsets(offsets, facts.get("clock"))
    if server is None:
        if context.missing_server:
            found.append(skipped("server", f"its cloud was not checked: {context.missing_server}"))
    elif not server.failure:
        has_haproxy = programs is None or bool(programs.paths.get("haproxy"))
        found += _understood("store", partial(server_checks.check_store, server, facts.get("store", ())))
        found += _understood("nodes", partial(server_checks.check_nodes, server))
        found += _understood("mesh", partial(server_checks.check_mesh, server))
        found += _understood("market", partial(server_checks.check_peers, server))
        found += _understood("routes", partial(server_checks.check_routes, server, has_haproxy=has_haproxy))
    return _without_repetitions(found)


def _understood(area: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """The findings of a check; skipped if what answered is no Skerry, or of another version."""
    try:
        return check()
    except (ClientError, LookupError, TypeError, AttributeError) as error:
        return [skipped(area, f"the answer of the server is not understood: {error}", "skerry version")]


def _without_repetitions(found: list[Finding]) -> list[Finding]:
    """A server, its node and this machine may report the same sentence: the first one stays, which knows the
    fix."""
    kept: list[Finding] = []
    for finding in found:
        if not any(finding.message.endswith(each.message) for each in kept):
            kept.append(finding)
    return kept
