"""`scale cost`: attention's n^2 d against the n d^2 of the rest of a layer, counted, and measured on this machine."""

import importlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from scaling.accounting import Shape, attention_memory
from scaling.attention_cost import LayerCost, crossing, crossovers, default_lengths, layer_cost
from scaling.cli.output import format_table, print_json
from scaling.cli.shape_options import OPTION_NAMES, chosen_shape, describe_shape, shape_options
from scaling.errors import ScalingError
from scaling.presets import shape_to_dict
from scaling.quantities import format_quantity, parse_positive

_LABELS = {"recurrent": "recurrent layer", "projections": "projections", "mlp": "MLP", "linear": "projections + MLP"}


@click.command("cost")
@shape_options
@click.option("--tokens", "lengths", multiple=True, metavar="N", help="A length to tabulate; may be repeated.")
@click.option("--causal", is_flag=True, help="Count only the n (n + 1) / 2 pairs that the mask leaves.")
@click.option("--measure", is_flag=True, help="Time the same parts on this machine (needs torch).")
@click.option("--plot", metavar="FILE", help="Draw the cost over n (.png, .svg, .pdf).")
@click.option("--json", "as_json", is_flag=True, help="JSON for scripts.")
def command(lengths, causal, measure, plot, as_json, **options):
    """From which n attention is the larger cost of a layer.

    \b
    scale cost --preset lecture
    scale cost --preset gpt2 --measure --plot cost.png
    """
    shape = chosen_shape(**{name: options[name] for name in OPTION_NAMES})
    chosen = [_whole(text) for text in lengths] or _doublings(shape)
    costs = [layer_cost(shape, n, causal=causal) for n in chosen]
    measured = _measure(shape) if measure else None
    if as_json:
        print_json(_as_dict(shape, costs, causal, measured))
    else:
        click.echo(_text(shape, costs, causal, measured))
    if plot:
        _draw(shape, causal, measured, plot)


def _whole(text: str) -> int:
    return max(1, round(parse_positive(text, name="--tokens")))


def _doublings(shape: Shape) -> list[int]:
    """d/4, d/2, ..., 32 d."""
    return sorted({max(1, round(shape.d_model * 2.0**k)) for k in range(-2, 6)})


def _text(shape: Shape, costs: Sequence[LayerCost], causal: bool, measured: dict[str, Any] | None) -> str:
    header = ["n", "attention", "projections", "MLP", "recurrent", "attention / (projections + MLP)", "scores h n^2"]
    rows = [
        [f"{c.tokens:,}", *map(format_quantity, (c.attention, c.projections, c.mlp, c.recurrent)),
         f"{c.attention / c.linear:.3f}", format_quantity(shape.n_heads * c.tokens**2)]
        for c in costs
    ]  # fmt: skip
    pairs = "n (n + 1) / 2 pairs, causal" if causal else "all n^2 pairs"
    title = f"Multiply-adds of one layer, forward, over n tokens ({pairs}; a training step costs 3x)"
    table = format_table(header, rows)
    return "\n".join([describe_shape(shape), "", title, table, "", _crossings(shape, causal, measured)])


def _crossings(shape: Shape, causal: bool, measured: dict[str, Any] | None) -> str:
    header = ["Attention overtakes", "where", "at n", "n / d", "first whole n"]
    rows: list[list[Any]] = [
        [c.against, c.formula, f"{c.exact:,.6g}", f"{c.exact / shape.d_model:.4g}", f"{c.first:,}"]
        for c in crossovers(shape, causal=causal)
    ]
    if measured is not None:
        header += ["measured n", "fused kernel"]
        for row in rows:
            found = measured["crossovers"][row[0]]
            row += [_number(found["explicit"]), _number(found["fused"])]
    table = format_table(header, rows, left=2)
    return table if measured is None else f"{table}\n\n{_measured_text(measured)}"


def _measured_text(measured: dict[str, Any]) -> str:
    names = ("explicit_attention", "fused_attention", "projections", "mlp", "recurrent")
    rows = [
        [f"{row['tokens']:,}", *(None if row[name] is None else f"{1e3 * row[name]:.3g}" for name in names)]
        for row in measured["timings"]
    ]
    header = ["n", "attention, scores stored", "attention, fused", "projections", "MLP", "recurrent"]
    note = (
        "The fused kernel skips the masked half. A dash: attention was already the larger at the least n timed, was "
        "never so within these lengths, or its scores would not fit."
    )
    return f"CPU milliseconds on this machine, one thread, float32, forward\n{format_table(header, rows)}\n{note}"


def _measure(shape: Shape) -> dict[str, Any]:
    """Timings of `sweeps.attention_timing`, and where the measured lines cross. Needs torch."""
    try:
        timing = importlib.import_module("sweeps.attention_timing")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("scaling", "sweeps"):
            raise
        hint = "pip install 'isoflop[train]'"
        raise ScalingError(f"--measure needs {error.name}, which is not installed: {hint}") from error
    lengths = [n for n in default_lengths(shape, points=11) if n <= timing.longest(shape)]
    rows = timing.time_layer(shape, lengths)
    others = {label: [getattr(row, name) for row in rows] for name, label in _LABELS.items()}
    explicit = [row.explicit_attention for row in rows if row.explicit_attention is not None]
    fused = [row.fused_attention for row in rows]
    found = {
        label: {
            "explicit": crossing(lengths[: len(explicit)], explicit, values[: len(explicit)]),
            "fused": crossing(lengths, fused, values),
        }
        for label, values in others.items()
    }
    return {"timings": [asdict(row) for row in rows], "crossovers": found}


def _as_dict(shape: Shape, costs: Sequence[LayerCost], causal: bool, measured: dict[str, Any] | None) -> dict[str, Any]:
    memory = [asdict(attention_memory(shape, tokens=c.tokens, bytes_per_value=4)) for c in costs]
    pairs = zip(costs, memory, strict=True)
    return {
        "shape": shape_to_dict(shape),
        "counted": "multiply-adds, one layer, forward",
        "causal": causal,
        "costs": [{**asdict(c), "linear": c.linear, "memory_bytes_float32": m} for c, m in pairs],
        "crossovers": [asdict(c) for c in crossovers(shape, causal=causal)],
        "measured": measured,
    }


def _draw(shape: Shape, causal: bool, measured: dict[str, Any] | None, path: str) -> None:
    from scaling.plots.lecture import attention_cost_figure
    from scaling.plots.style import save_figure

    costs = [layer_cost(shape, n, causal=causal) for n in default_lengths(shape)]
    panel = None
    if measured is not None:
        rows = measured["timings"]
        panel = {
            "tokens": [row["tokens"] for row in rows],
            "attention": [row["explicit_attention"] for row in rows],
            "fused": [row["fused_attention"] for row in rows],
            "linear": [row["projections"] + row["mlp"] for row in rows],
            "recurrent": [row["recurrent"] for row in rows],
            "crossover": measured["crossovers"]["projections + MLP"]["explicit"],
        }
    save_figure(attention_cost_figure(costs, crossovers(shape, causal=causal), panel), path)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"
