"""`skerry sim`: the real control plane with nodes that only pretend, on this machine and nowhere else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from skerry.cli import output as printing

if TYPE_CHECKING:
    from skerry.sim.runs import Outcome, Progress


@click.command()
@click.option("--nodes", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Nodes.")
@click.option(
    "--instances", type=click.IntRange(0, 100_000), default=1000, show_default=True, help="Instances."
)
@click.option("--faults", is_flag=True, help="Let everything go wrong that can, and see that it gets right.")
@click.option(
    "--for",
    "for_s",
    type=printing.Duration(),
    default="5m",
    show_default=True,
    help="How long things go wrong, in simulated time.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Another seed is another day.")
@printing.option
def sim(nodes: int, instances: int, faults: bool, for_s: float, seed: int, output: str) -> None:
    """Try the control plane with many nodes that only pretend.

    Placing, binding, following and replacing are done by the code that a server runs. Without --faults in
    real time and on a store on this disk, so that the rates are this machine's; with --faults in simulated
    time: nodes vanish and return, lose their memory or their power, servers are killed, messages and the
    store fail, and callers change their minds. Ends with 1 if anything happened that never may.

    Nothing of it touches a running Skerry.
    """
    from skerry.sim import runs

    _keep_quiet()
    day = runs.Day(nodes, instances, seed)
    show = _progress if output == "table" else lambda progress: None
    if faults:
        outcome = runs.bad_day(day, for_s, show)
    else:
        import tempfile
        from pathlib import Path

        import uvloop

        with tempfile.TemporaryDirectory(prefix="skerry-sim-") as folder:
            outcome = uvloop.run(runs.good_day(day, Path(folder), show))
    _tell(outcome, output)
    if outcome.wrong:
        sys.exit(1)


def _keep_quiet() -> None:
    """What servers log of faults that were made on purpose is of no use here."""
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _progress(progress: Progress) -> None:
    counts = "  ".join(f"{count:,} {status}" for status, count in progress.counts.items())
    click.echo(f"{progress.at_s:7.1f} s  {progress.nodes:,} nodes  {counts}", err=True)


def _tell(outcome: Outcome, output: str) -> None:
    if output == "json":
        printing.as_json({"figures": dict(outcome.figures), "wrong": outcome.wrong})
        return
    printing.table(("what", "came of it"), outcome.figures)
    for sentence in outcome.wrong[:20]:
        click.echo(f"WRONG: {sentence}", err=True)
    if len(outcome.wrong) > 20:
        click.echo(f"WRONG: and {len(outcome.wrong) - 20:,} more", err=True)
    if not outcome.wrong:
        click.echo("Nothing happened that never may, and all is as it was wished.")
