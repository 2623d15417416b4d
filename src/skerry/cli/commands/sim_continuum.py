"""`skerry sim continuum`: offloading policies compared on equal calls of simulated edge sites and a cloud."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from skerry.cli import output as printing

if TYPE_CHECKING:
    from skerry.sim.continuum.comparison import PolicyResult

_COLUMNS: Final = ("policy", "utility", "p50", "p95", "late", "dropped", "cold", "offloaded")


@click.command()
@click.option(
    "--policy",
    "policies",
    multiple=True,
    help="Policy to compare; repeatable.  [default: all built-in policies]",
)
@click.option(
    "--load",
    type=click.FloatRange(0, 20, min_open=True),
    default=1.5,
    show_default=True,
    help="Load as a multiple of the capacity of the edge cores.",
)
@click.option(
    "--for",
    "for_s",
    type=printing.Duration(),
    default="30s",
    show_default=True,
    help="Duration of the calls, in simulated time.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Random seed.")
@printing.option
def continuum(policies: tuple[str, ...], load: float, for_s: float, seed: int, output: str) -> None:
    """Compare offloading policies on equal calls.

    Three edge sites of two nodes and a cloud of two nodes get random calls in bursts, one site more than
    the others. Queues, workers, policies and estimates are the code of a real node; run times, cold starts
    and the network are simulated. UTILITY is the achieved share of the utility of all calls; P50 and P95
    are response times of answered calls; the other columns are shares of all calls.
    """
    outcomes = _outcomes(policies, load, for_s, seed)
    if output == "json":
        import msgspec

        printing.as_json([msgspec.structs.asdict(outcome) for outcome in outcomes])
        return
    lines = printing.StreamingTable(_COLUMNS)
    for outcome in outcomes:
        lines.show([_row(outcome)])


def _outcomes(policies: tuple[str, ...], load: float, for_s: float, seed: int) -> Iterator[PolicyResult]:
    from skerry.functions.continuum.policies import loading
    from skerry.model import errors
    from skerry.sim.continuum.call_generator import CLASSES
    from skerry.sim.continuum.comparison import compare
    from skerry.sim.continuum.sites import ContinuumTopology

    names = policies or tuple(loading.OWN)
    for name in names:
        try:
            loading.load_policy(name, CLASSES)
        except errors.Invalid as error:
            raise click.BadParameter(error.message, param_hint="--policy") from None
    return compare(names, ContinuumTopology(), load=load, for_s=for_s, seed=seed)


def _row(outcome: PolicyResult) -> list[str]:
    def share(count: int) -> str:
        return f"{count / max(outcome.calls, 1):.1%}"

    return [
        outcome.policy.ljust(12),
        f"{outcome.utility:.1%}",
        f"{outcome.p50_s * 1e3:.0f} ms".ljust(8),
        f"{outcome.p95_s * 1e3:.0f} ms".ljust(8),
        share(outcome.late).ljust(6),
        share(outcome.dropped),
        share(outcome.cold).ljust(6),
        share(outcome.offloaded),
    ]
