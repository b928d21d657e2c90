"""scale audit: named models against a law."""

import click

from scaling.audit import audit, known_models, parse_model, read_models, select_models
from scaling.cli.output import format_table, print_json, warn
from scaling.files import to_json, write_text
from scaling.laws import DEFAULT_LAW
from scaling.quantities import format_quantity

FEW = 3  # models up to which the finding is also put in words


@click.command("audit")
@click.option("--law", metavar="NAME|fit.json", help=f"Default {DEFAULT_LAW}.")
@click.option("--model", "own", metavar="NAME=N,D", multiple=True, help="A model of your own: mine=70B,1.4T.")
@click.option("--csv", "tables", metavar="FILE", multiple=True, help="Models from a CSV: name, params, tokens.")
@click.option("--only", metavar="NAME", multiple=True, help="Of the public models these alone (by beginning of name).")
@click.option("--mine", is_flag=True, help="Leave the public models out.")
@click.option("--level", type=float, default=0.95, show_default=True, help="Of the intervals.")
@click.option("--sources", is_flag=True, help="Also print where N and D of each model come from.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at full precision.")
@click.option("--out", metavar="FILE", help="Write the same JSON to a file.")
@click.option("--plot", metavar="FILE", help="Draw N against D with the compute-optimal line (.png, .svg, .pdf).")
def command(law, own, tables, only, mine, level, sources, as_json, out, plot):
    """Were N and D of known models in proportion, and what did it cost?

    \b
    scale audit
    scale audit --only GPT-3 --only Gopher --law hoffmann2022
    scale audit --model mine=13B,300B --law fit.json --plot audit.png
    """
    found = audit(_models(own, tables, only, mine), law=law, level=level)
    if out:
        write_text(out, to_json(found.to_dict()) + "\n")
    if plot:
        from scaling.plots.audit import draw_audit
        from scaling.plots.style import save_figure

        save_figure(draw_audit(found), plot)
    if as_json:
        print_json(found.to_dict())
    else:
        click.echo(text(found, sources=sources))
    for message in found.warnings:
        warn(message)


def _models(own, tables, only, mine):
    if mine and only:
        raise click.UsageError("--mine leaves the public models out; drop --only.")
    public = () if mine else select_models(only) if only else known_models()
    return (*public, *(parse_model(text) for text in own), *(m for table in tables for m in read_models(table)))


def text(found, *, sources: bool = False) -> str:
    """The table, what its columns mean, and for a few models the finding in words."""
    headers = ["model", "N", "D", "D/N", "C, FLOP", "N*", "D*", "D*/N*", "loss gap", "factor"]
    with_intervals = any(row.intervals for row in found.models)
    headers += ["interval"] * with_intervals + ["pays at", "verdict"]
    table = format_table(headers, [_row(row, with_intervals) for row in found.models])
    constants = ", ".join(f"{name} {value:.6g}" for name, value in found.law.law.constants().items())
    parts = [
        f"Law {found.law.name}: {found.law.law.equation}, {constants}; {found.law.source}",
        table,
        "C = 6 N D. N*, D*: the best split of the same C. loss gap: predicted loss above that optimum, in nats,\n"
        "factor: C over the least compute for that loss. pays at: tokens served over its life (2N each) at which its\n"
        "split would be the cheapest way to its loss. ? marks an N or D that is not certain.",
    ]
    if len(found.models) <= FEW:
        parts += [row.sentence(found.law.name) for row in found.models]
    if sources:
        parts.append(format_table(("model", "date", "source"), [_source(row.model) for row in found.models], left=3))
    return "\n\n".join(parts)


def _row(row, with_intervals):
    model, interval = row.model, row.intervals
    cells = [
        model.name + ("" if model.certain else " ?"),
        format_quantity(model.params),
        format_quantity(model.tokens),
        f"{row.tokens_per_param:.3g}" if row.tokens_per_param < 1000 else f"{row.tokens_per_param:.0f}",
        f"{row.flops:.3g}".replace("e+", "e"),
        format_quantity(row.params_optimal, digits=3),
        format_quantity(row.tokens_optimal, digits=3),
        f"{row.tokens_optimal / row.params_optimal:.3g}",
        f"{row.loss_gap:.4f}",
        f"{row.wasted_compute_factor:.2f}",
    ]
    if with_intervals:
        cells.append("{:.2f} to {:.2f}".format(*interval["wasted_compute_factor"]) if interval else None)
    served = format_quantity(row.inference_tokens, digits=2) if row.inference_tokens else None
    return [*cells, served, row.verdict]


def _source(model):
    return model.name, model.date, model.source + (f" ({model.note})" if model.note else "")
