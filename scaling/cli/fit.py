"""scale fit: fit the loss law to a table of runs, and say how far to trust it."""

import click

from scaling.cli.output import format_table, print_json, warn
from scaling.cli.reading import read_from_options, reading_options
from scaling.files import to_json, write_text
from scaling.fitting.objective import DEFAULT_DELTA, LOSS_FUNCTIONS
from scaling.quantities import parse_positive


@click.command("fit")
@reading_options
@click.option("--delta", type=float, default=DEFAULT_DELTA, show_default=True, help="Huber threshold on log loss.")
@click.option("--loss-function", type=click.Choice(list(LOSS_FUNCTIONS)), default="huber_log", show_default=True)
@click.option("--weights", metavar="COLUMN", help="Weight of each run.")
@click.option("--bootstrap", "resamples", type=click.IntRange(min=0), metavar="R", help="Resamples; default 4000, 0: none.")
@click.option("--cluster", metavar="COLUMN", help="Resample whole clusters: checkpoints or seeds of one run.")
@click.option("--budget", metavar="FLOP", help="Report N*, D*, D/N and loss at this budget.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the resamples.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at full precision.")
@click.option("--out", metavar="FILE", help="Write the JSON and the joint draws, for scale allocate --law.")
@click.option("--plot", metavar="FILE", help="Draw runs, law and residuals (.png, .svg, .pdf).")
@click.pass_context
def command(ctx, delta, loss_function, weights, resamples, cluster, budget, seed, as_json, out, plot, **options):
    """Fit L(N, D) = E + A/N^alpha + B/D^beta to RUNS, with intervals.

    \b
    Exit status: 0 there is a law (converged, or at a bound: read the warning);
                 1 the input cannot be read, or the runs determine no law.
    """
    from scaling.fitting.study import StudyOptions, study

    flops = parse_positive(budget, name="--budget") if budget else None
    runs = read_from_options(options)
    settings = StudyOptions(resamples=resamples, cluster=cluster, budget=flops, seed=seed)
    weights = runs.column(weights) if weights else None
    result = study(runs, settings, delta=delta, loss_function=loss_function, weights=weights)
    if out:
        write_text(out, to_json(result.to_dict(draws=True)) + "\n")
    if as_json:
        print_json(result.to_dict())
    else:
        click.echo(_text(result))
    for message in result.to_dict()["warnings"]:
        warn(message)
    if not result.fit.usable:
        click.echo(f"Error: fit: {result.fit.status}. {result.fit.message}", err=True)
        ctx.exit(1)


def _text(result) -> str:
    fit = result.fit
    head = f"{fit.form}: {fit.status}. {fit.message}"
    if fit.law is None:
        return head
    rows = []
    for name, value in {**fit.law.constants(), "N_exponent": fit.law.N_exponent}.items():
        found = result.intervals
        pair = found.interval.get(name) if found else None
        rows.append((name, f"{value:.5g}", f"{pair[0]:.4g} to {pair[1]:.4g}" if pair else None))
    return head + "\n\n" + format_table(("", "estimate", "95 %"), rows)


