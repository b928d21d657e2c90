"""scale fit: fit the loss law to a table of runs, and say how far to trust it."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from scaling.cli.output import format_table, print_json, warn
from scaling.cli.reading import read_from_options, reading_options
from scaling.errors import FitError, InputError
from scaling.files import to_json, write_text
from scaling.fitting.objective import DEFAULT_DELTA, LOSS_FUNCTIONS
from scaling.laws import FORMS
from scaling.quantities import format_quantity, parse_positive

if TYPE_CHECKING:
    from scaling.fitting.study import Study, StudyOptions

_OPTIONS = (
    click.option("--form", type=click.Choice(sorted(FORMS)), default="chinchilla", show_default=True, help="Form of the law."),
    click.option("--delta", type=float, default=DEFAULT_DELTA, show_default=True, help="Huber threshold on log loss."),
    click.option("--loss-function", type=click.Choice(list(LOSS_FUNCTIONS)), default="huber_log", show_default=True),
    click.option("--weights", metavar="COLUMN", help="Weight of each run."),
    click.option("--starts", type=click.IntRange(min=1), metavar="K", help="K random starts in place of the grid."),
    click.option("--bootstrap", "resamples", type=click.IntRange(min=0), metavar="R",
                 help="Resamples; default 4000, fewer above 20,000 runs; 0: none."),
    click.option("--cluster", metavar="COLUMN", help="Resample whole clusters: checkpoints or seeds of one run."),
    click.option("--parametric", is_flag=True, help="Resample from the fitted law and its residuals, not the runs."),
    click.option("--interval", "method", type=click.Choice(["percentile", "bca"]), default="percentile", show_default=True),
    click.option("--level", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.95, show_default=True),
    click.option("--budget", metavar="FLOP", help="Report N*, D*, D/N and loss here; default ten times the largest run."),
    click.option("--approach", type=click.Choice(["1", "2", "3", "all"]), default="3", show_default=True,
                 help="1 envelope, 2 isoFLOP parabolas, 3 parametric; all: side by side."),
    click.option("--isoflop-budgets", metavar="C,C,..", help="Budgets of the isoFLOP curves; default: found by their FLOPs."),
    click.option("--curves", metavar="COLUMN", help="Approach 1: the column that names the training curve of a row."),
    click.option("--envelope", type=click.Choice(["interior", "all"]), default="interior", show_default=True,
                 help="Approach 1: FLOP levels that count: not those that the smallest or largest size wins, or all."),
    click.option("--holdout", type=click.Choice(["top", "none"]), help="top: fit below the largest decade of compute and "
                 "predict it (default with enough runs)."),
    click.option("--compare", is_flag=False, flag_value="default", metavar="FORM,..",
                 help="Rank forms by AICc, BIC and hold-out error; alone: tied, chinchilla, kaplan, interaction."),
    click.option("--group-by", metavar="COLUMN", help="One fit for each value of this column."),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the resamples."),
    click.option("--details", is_flag=True, help="Print every table of the diagnostics."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON at full precision."),
    click.option("--out", metavar="FILE", help="Write the JSON and the joint draws, for scale allocate --law."),
    click.option("--plot", metavar="FILE", help="Draw runs, law and residuals (.png, .svg, .pdf)."),
)  # fmt: skip


def fit_options(function: Callable) -> Callable:
    """Every option of `scale fit` but those of reading."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command("fit")
@reading_options
@fit_options
@click.pass_context
def command(ctx: click.Context, **options: Any) -> None:
    """Fit L(N, D) = E + A/N^alpha + B/D^beta to RUNS, say how sure it is, and how far to trust it.

    \b
    Exit status: 0 there is a law (converged; or at a bound, which is warned of);
                 1 the input cannot be read, or the runs determine no law;
                 2 misuse of the command line.
    """
    as_json, out, plot, details = (options.pop(name) for name in ("as_json", "out", "plot", "details"))
    group_by = options.pop("group_by")
    if options["parametric"] and options["cluster"]:
        raise click.UsageError("--parametric draws from the law and knows no clusters; leave out it or --cluster.")
    own = {name: options.pop(name) for name in (*_STUDY, *_FIT)}
    if group_by and plot:
        raise click.UsageError("--plot draws one fit; choose a group with --where in place of --group-by.")
    runs = read_from_options(options, group_by=group_by)
    own["cluster"], own["weights"], own["curves"] = (
        runs.column(own[name]) if own[name] else None for name in ("cluster", "weights", "curves"))  # fmt: skip
    if group_by:
        studies = _by_group(runs, runs.column(group_by), own)
    else:
        studies = {"": _study(runs, own)}
    _report(studies, as_json, out, details)
    if plot:
        _draw(studies[""], plot)
    ctx.exit(0 if all(_answers(study) for study in studies.values()) else 1)


_STUDY = ("resamples", "cluster", "parametric", "method", "level", "budget", "approach", "isoflop_budgets", "curves",
          "envelope", "holdout", "compare", "seed")  # fmt: skip
_FIT = ("form", "delta", "loss_function", "weights", "starts")


def _study(runs, own: dict[str, Any]) -> "Study":
    from scaling.fitting.study import study

    return study(runs, _options(own), **{name: own[name] for name in _FIT})


def _options(own: dict[str, Any]) -> "StudyOptions":
    from scaling.fitting.comparison import DEFAULT_FORMS
    from scaling.fitting.study import StudyOptions

    compare = own["compare"]
    listed = own["isoflop_budgets"]
    return StudyOptions(
        resamples=own["resamples"],
        kind="parametric" if own["parametric"] else "runs",
        cluster=own["cluster"],
        level=own["level"],
        method=own["method"],
        budget=parse_positive(own["budget"], name="--budget") if own["budget"] else None,
        seed=own["seed"],
        approach=own["approach"],
        isoflop_budgets=tuple(parse_positive(c, name="--isoflop-budgets") for c in listed.split(","))
        if listed
        else None,
        curves=own["curves"],
        envelope=own["envelope"],
        holdout={None: None, "top": True, "none": False}[own["holdout"]],
        compare=() if compare is None else DEFAULT_FORMS if compare == "default" else tuple(compare.split(",")),
    )


def _by_group(runs, column: str, own: dict[str, Any]) -> "dict[str, Study]":
    """One study for each value of a column; a group that cannot be read at all stops the command."""
    studies = {}
    for value, table in runs.table.groupby(column, sort=True):
        part = _group(runs, column, value, table.reset_index(drop=True))
        try:
            studies[str(value)] = _study(part, own)
        except FitError as error:
            raise FitError(f"{column} = {value}: {error}") from error
    if not studies:
        raise InputError(f"--group-by {column}: every value is empty.")
    return studies


def _group(runs, column: str, value: Any, table):
    """The runs of one group, with what was left out of it alone."""
    left = runs.left_out
    if left is not None and column in left.columns:
        left = left[left[column] == value]
    lines = None if left is None else set(left["row"]) if "row" in left.columns else None
    excluded = runs.excluded if lines is None else [item for item in runs.excluded if item.row in lines]
    return replace(runs, table=table, labels=[], left_out=left, excluded=excluded, n_rows=len(table) + len(excluded))


def _report(studies: "dict[str, Study]", as_json: bool, out: str | None, details: bool) -> None:
    from scaling.cli.fit_text import study_text

    grouped = "" not in studies
    if out:
        content = ({"groups": {name: study.to_dict(draws=True) for name, study in studies.items()}} if grouped
                   else studies[""].to_dict(draws=True))  # fmt: skip
        write_text(out, to_json(content) + "\n")
    if as_json:
        print_json({"groups": {name: s.to_dict() for name, s in studies.items()}} if grouped else studies[""].to_dict())
    elif grouped:
        click.echo(_group_table(studies))
    else:
        click.echo(study_text(studies[""], details=details))
    for name, study in studies.items():
        lead = f"{name}: " if grouped else ""
        for message in study.all_warnings():
            warn(lead + message)
        if not study.fit.usable:
            click.echo(f"Error: {lead}fit: {study.fit.status}. {study.fit.message}", err=True)
        elif not _answers(study):
            for answer in study.approaches.answers.values() if study.approaches else ():
                click.echo(f"Error: {lead}fit: {answer.reason}", err=True)
        elif study.fit.status != "converged":
            warn(f"{lead}{study.fit.status}: {study.fit.message}")


def _group_table(studies: "dict[str, Study]") -> str:
    rows = []
    for name, study in studies.items():
        fit, found = study.fit, study.intervals
        a = getattr(fit.law, "N_exponent", None)
        pair = found.interval.get("N_exponent") if found else None
        N = found.estimate.get("params") if found else None
        rows.append((
            name, fit.n_runs, str(fit.status), None if fit.law is None else f"{getattr(fit.law, 'E', 0):.4g}",
            None if a is None else f"{a:.4f}", None if pair is None else f"{pair[0]:.3f} to {pair[1]:.3f}",
            f"{study.budget:.3g}", None if N is None else format_quantity(N), study.verdict.level,
        ))  # fmt: skip
    head = ("group", "runs", "status", "E", "N_exponent", "interval", "budget", "N*", "verdict")
    return format_table(head, rows)


def _draw(study: "Study", path: str) -> None:
    from scaling.plots.fit import draw_fit
    from scaling.plots.style import save_figure

    if study.fit.law is None:
        raise FitError(f"--plot: there is no law to draw, the fit is {study.fit.status}.")
    save_figure(draw_fit(study), path)


def _answers(study: "Study") -> bool:
    """Whether what was asked for has an answer: the law, or the approach that was asked for alone."""
    sides = study.approaches
    if sides is not None and len(sides.answers) == 1:
        return all(answer.N_exponent is not None for answer in sides.answers.values())
    return study.fit.usable
