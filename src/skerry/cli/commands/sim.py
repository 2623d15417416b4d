"""`skerry sim`: the code of a real cloud with simulated nodes, on this machine alone.

Without a subcommand it simulates the control plane.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from skerry.cli import options
from skerry.cli import output as printing
from skerry.cli.commands.sim_continuum import continuum

if TYPE_CHECKING:
    from skerry.sim.coordinates.simulation import CoordinateRound
    from skerry.sim.scenarios import ScenarioProgress, ScenarioResult

_ROUND_COLUMNS: Final = ("round", "median error", "p90 error", "near error", "moved ms", "p90 moved ms")


@click.group(invoke_without_command=True, subcommand_metavar="[COMMAND [ARGS]...]")
@click.option("--nodes", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Nodes.")
@click.option(
    "--instances", type=click.IntRange(0, 100_000), default=1000, show_default=True, help="Instances."
)
@click.option("--faults", is_flag=True, help="Inject faults and check recovery.")
@click.option(
    "--for",
    "for_s",
    type=printing.Duration(),
    default="5m",
    show_default=True,
    help="Duration of the faults, in simulated time.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Random seed.")
@printing.option
@click.pass_context
def sim(
    context: click.Context, nodes: int, instances: int, faults: bool, for_s: float, seed: int, output: str
) -> None:
    """Simulate the control plane with many nodes; with a COMMAND, simulate something else.

    Placement, binding, status updates and replacement are done by the code of a real server. Without
    --faults it runs in real time with a store on this disk, so that the rates are those of this machine.
    With --faults it runs in simulated time: nodes disappear and return, lose memory or power, servers are
    killed, messages and the store fail, and callers change their requests. The exit code is 1 if an
    invariant was violated.

    A running Skerry is not touched.
    """
    if context.invoked_subcommand is not None:
        options.refuse_before_verb(context)
        return
    from skerry.sim import scenarios

    _silence_logs()
    scenario = scenarios.Scenario(nodes, instances, seed)
    show = _progress if output == "table" else lambda progress: None
    if faults:
        outcome = scenarios.run_faulty(scenario, for_s, show)
    else:
        import tempfile
        from pathlib import Path

        import uvloop

        with tempfile.TemporaryDirectory(prefix="skerry-sim-") as folder:
            outcome = uvloop.run(scenarios.run_healthy(scenario, Path(folder), show))
    _print_result(outcome, output)
    if outcome.wrong:
        sys.exit(1)


@sim.command()
@click.option("--nodes", type=click.IntRange(20, 2000), default=1000, show_default=True, help="Nodes.")
@click.option("--areas", type=click.IntRange(1, 100), default=12, show_default=True, help="Areas.")
@click.option("--rounds", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Rounds.")
@click.option(
    "--violated",
    type=click.FloatRange(0, 0.5),
    default=0.2,
    show_default=True,
    help="Share of triangles that violate the triangle inequality.",
)
@click.option(
    "--jitter",
    type=click.FloatRange(0, 2),
    default=0.2,
    show_default=True,
    help="Jitter of measurements: the sigma of a lognormal distribution.",
)
@click.option(
    "--churn",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Share of nodes that are replaced in each round.",
)
@click.option(
    "--liars",
    type=click.FloatRange(0, 0.9),
    default=0.0,
    show_default=True,
    help="Share of nodes that claim a distance of one second.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Random seed.")
@printing.option
def coordinates(rounds: int, output: str, **given: Any) -> None:
    """Measure how well network coordinates predict round-trip times between nodes.

    Each node runs the code that a real one does and measures three of its peers each round. An error is the
    share by which a predicted round trip differs from the usual one, for pairs of nodes most of which have
    never measured each other; 'near' are those of one area. 'moved' is how far a node went in that round.
    """
    from skerry.sim.coordinates.simulation import CoordinateScenario, CoordinateSimulation

    simulation = CoordinateSimulation(CoordinateScenario(**given))
    if output == "json":
        import msgspec

        report = {
            "violated": simulation.latencies.violated,
            "usual_rtt_s": simulation.usual_rtt_s,
            "rounds": [msgspec.structs.asdict(one) for one in simulation.rounds(rounds)],
        }
        printing.as_json(report)
        return
    click.echo(
        f"usual round trip {simulation.usual_rtt_s * 1e3:.0f} ms, "
        f"{simulation.latencies.violated:.0%} of triangles violated"
    )
    lines = printing.StreamingTable(_ROUND_COLUMNS)
    for one in simulation.rounds(rounds):
        if _is_shown(one.number) or one.number == rounds:
            lines.show([_row(one)])


sim.add_command(continuum)


def _is_shown(number: int) -> bool:
    """1, 2, 5, 10, 20, 50, 100 and so on: later rounds change less."""
    return str(number).rstrip("0") in ("1", "2", "5")


def _row(one: CoordinateRound) -> list[str]:
    near = "-" if one.near is None else f"{one.near:.2f}"
    errors = [f"{one.median:.3f}", f"{one.p90:.2f}", near]
    moves = [f"{one.moved_s * 1e3:.1f}", f"{one.moved_p90_s * 1e3:.1f}"]
    return [
        text.rjust(len(column))
        for text, column in zip([str(one.number), *errors, *moves], _ROUND_COLUMNS, strict=True)
    ]


def _silence_logs() -> None:
    """Silence the logs of servers, which are full of injected faults."""
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _progress(progress: ScenarioProgress) -> None:
    counts = "  ".join(f"{count:,} {status}" for status, count in progress.counts.items())
    click.echo(f"{progress.at_s:7.1f} s  {progress.nodes:,} nodes  {counts}", err=True)


def _print_result(outcome: ScenarioResult, output: str) -> None:
    if output == "json":
        printing.as_json({"figures": dict(outcome.figures), "wrong": outcome.wrong})
        return
    printing.table(("metric", "value"), outcome.figures)
    for sentence in outcome.wrong[:20]:
        click.echo(f"VIOLATED: {sentence}", err=True)
    if len(outcome.wrong) > 20:
        click.echo(f"VIOLATED: and {len(outcome.wrong) - 20:,} more", err=True)
    if not outcome.wrong:
        click.echo("No invariant was violated, and the actual state is the desired state.")
