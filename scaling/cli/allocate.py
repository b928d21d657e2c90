"""scale allocate: split a compute budget between parameters and tokens."""

import click

from scaling.allocation import allocate
from scaling.cli.output import format_table, print_json, warn
from scaling.files import to_json, write_text
from scaling.laws import DEFAULT_LAW, PUBLISHED
from scaling.quantities import format_quantity


@click.command("allocate")
@click.option("--budget", metavar="FLOP", help="Compute to spend: 1e24, 5.76e23.")
@click.option("--law", metavar="NAME|fit.json", help=f"A published law or a fit; default {DEFAULT_LAW}.")
@click.option("--list-laws", is_flag=True, help="List the published laws with their sources, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at full precision.")
@click.option("--out", metavar="FILE", help="Write the same JSON to a file.")
@click.option("--plot", metavar="FILE", help="Draw loss against N at this budget (.png, .svg, .pdf).")
def command(budget, law, list_laws, as_json, out, plot):
    """Split a compute budget between parameters N and tokens D so that the loss is least."""
    if list_laws:
        return click.echo(_law_table())
    if budget is None:
        raise click.UsageError("give --budget, for example --budget 1e24.")
    answer = allocate(budget, law=law)
    if out:
        write_text(out, to_json(answer.to_dict()) + "\n")
    if as_json:
        print_json(answer.to_dict())
    else:
        click.echo(_text(answer))
    for message in answer.warnings:
        warn(message)
    if plot:
        from scaling.plots.allocation import draw_budget
        from scaling.plots.style import save_figure

        save_figure(draw_budget(answer), plot)


def _law_table() -> str:
    rows = [(name + (" (default)" if name == DEFAULT_LAW else ""), entry.description, entry.source)
            for name, entry in PUBLISHED.items()]
    return format_table(("law", "what", "source"), rows, left=3)


def _text(answer) -> str:
    near = answer.near_optimal[0].params if answer.near_optimal else None
    rows = [
        ("parameters N*", format_quantity(answer.params), _range(near)),
        ("tokens D*", format_quantity(answer.tokens), None),
        ("tokens per parameter", f"{answer.tokens_per_param:.4g}", None),
        ("loss, nats per token", f"{answer.loss:.6g}", None),
        ("extrapolation factor", f"{answer.extrapolation_factor:.3g}" if answer.extrapolation_factor else None, None),
    ]
    head = f"{format_quantity(answer.flops)} FLOP ({answer.convention}) under {answer.law.name}: {answer.law.source}"
    return head + "\n\n" + format_table(("", "best", "within 0.1 % of the loss"), rows)


def _range(pair):
    return f"{format_quantity(pair[0])} to {format_quantity(pair[1])}" if pair else None
