"""`scale count`: parameters, FLOPs and memory of a shape, each number under the name of its convention."""

from typing import Any

import click

from scaling.accounting import forward_flops, training_flops
from scaling.cli.output import format_table, print_json, warn
from scaling.cli.shape_options import OPTION_NAMES, chosen_shape, describe_shape, shape_options
from scaling.conventions import Utilisation, training_utilisation
from scaling.counting import Count, count
from scaling.errors import InputError
from scaling.quantities import format_quantity, parse_positive


@click.command("count")
@shape_options
@click.option("--tokens", metavar="D", help="Training tokens, for the FLOPs of a run (300B).")
@click.option("--bytes", "bytes_per_value", type=click.IntRange(1, 8), default=2, show_default=True,
              help="Bytes of one score, key or value.")  # fmt: skip
@click.option("--params", metavar="N", help="Count from N alone (37B; the active ones of a mixture), without a shape.")
@click.option("--gpu-hours", metavar="H", help="With --params, --tokens and --peak: the utilisation of that run.")
@click.option("--peak", metavar="FLOP/S", help="Dense peak of one accelerator (989e12).")
@click.option("--json", "as_json", is_flag=True, help="JSON for scripts.")
def command(tokens, bytes_per_value, params, gpu_hours, peak, as_json, **shape):
    """Parameters by group, FLOPs per token and memory of attention for a shape.

    \b
    scale count --preset gpt2
    scale count --config config.json --tokens 300B
    scale count --d-model 64 --n-layers 2 --n-heads 4 --vocab-size 256 --context 128
    scale count --params 37B --tokens 14.8T --gpu-hours 2.79M --peak 1.513e15
    """
    D = None if tokens is None else parse_positive(tokens, name="--tokens")
    if params is not None:
        if any(value is not None for value in shape.values()):
            raise click.UsageError("--params counts without a shape: drop the options that describe one.")
        _print_run(parse_positive(params, name="--params"), D, gpu_hours, peak, as_json)
        return
    if gpu_hours is not None or peak is not None:
        raise click.UsageError("--gpu-hours and --peak go with --params and --tokens.")
    counted = count(
        chosen_shape(**{name: shape[name] for name in OPTION_NAMES}), tokens=D, bytes_per_value=bytes_per_value
    )
    if as_json:
        print_json(counted.to_dict())
    else:
        click.echo(count_text(counted))
    for message in counted.warnings:
        warn(message)


def count_text(counted: Count) -> str:
    """The count for people."""
    parts = [describe_shape(counted.shape), _groups(counted), _params(counted), _flops(counted), _memory(counted)]
    if counted.tokens is not None:
        parts.append(_training(counted))
    return "\n\n".join(parts)


def _groups(counted: Count) -> str:
    total = counted.params.total
    rows: list[list[Any]] = [
        [name.replace("_", " "), f"{n:,}", f"{n / total:.1%}"] for name, n in counted.params.groups().items()
    ]
    rows += [["total", f"{total:,}", "100.0%"], ["one block with its norms", f"{counted.per_block:,}", None]]
    return format_table(["Parameters", "count", "share"], rows)


def _params(counted: Count) -> str:
    rows = [[row.name, f"{row.params:,}", row.counts] for row in counted.params_conventions]
    return _labelled(["N by convention", "count", "counts"], rows)


def _flops(counted: Count) -> str:
    six_n, flops = counted.flops.six_n, counted.flops
    rows = [
        [row.name, _number(row.forward), _number(row.training), f"{row.training / six_n:.3f}", row.counts]
        for row in counted.flops_conventions
    ]
    table = _labelled(["FLOPs per token", "forward", "training", "/ 6N", "counts"], rows)
    return (
        f"{table}\nInput embedding: 0 (a look-up). Head 2Vd forward, tied or not: {_number(flops.head / 3)}. "
        f"Attention 12LTd: {_number(flops.attention)}, {flops.attention_share:.1%} of 6N; "
        f"its causal half: {_number(flops.attention_causal)}."
    )


def _memory(counted: Count) -> str:
    memory, shape = counted.memory, counted.shape
    rows = [
        ["scores h n^2, one layer", _bytes(memory.scores), "where they are materialised"],
        ["the same, fused kernel", _bytes(memory.fused), "h n normalisers; the scores are never stored"],
        ["KV cache, all layers", _bytes(memory.kv_cache), f"2 L n {shape.kv_width} values, while generating"],
    ]
    title = f"Memory, one sequence of n = {shape.context:,}, {counted.bytes_per_value} bytes a value"
    return _labelled([title, "bytes", "what"], rows)


def _training(counted: Count) -> str:
    assert counted.tokens is not None
    rows = [[row.name, f"{row.training * counted.tokens:.4g}"] for row in counted.flops_conventions]
    return format_table([f"Training FLOPs of D = {format_quantity(counted.tokens)} tokens", "C"], rows)


def _print_run(N: float, D: float | None, gpu_hours: str | None, peak: str | None, as_json: bool) -> None:
    if D is None:
        raise InputError("--params alone counts nothing: give --tokens as well.")
    if (gpu_hours is None) != (peak is None):
        raise click.UsageError("a utilisation needs both --gpu-hours and --peak.")
    used = None
    if gpu_hours is not None and peak is not None:
        hours, rate = parse_positive(gpu_hours, name="--gpu-hours"), parse_positive(peak, name="--peak")
        used = training_utilisation(N, D, gpu_hours=hours, peak=rate)
    if as_json:
        print_json(_run_dict(N, D, used))
        return
    click.echo(f"Training 6ND: {training_flops(N, D):.4g} FLOP (N = {format_quantity(N)}, D = {format_quantity(D)})")
    if used is not None:
        click.echo(f"Utilisation of the run (MFU, by 6ND): {used.mfu:.1%} of {used.available:.4g} FLOP")
    share = "" if used is None else f", {used.forward_share:.1%} of what was available"
    click.echo(f"Forward pass only, 2ND (inference, not training): {forward_flops(N, D):.4g} FLOP{share}")


def _run_dict(N: float, D: float, used: Utilisation | None) -> dict[str, Any]:
    data: dict[str, Any] = {"params": N, "tokens": D}
    data |= {"training_flops_6ND": training_flops(N, D), "inference_flops_2ND": forward_flops(N, D)}
    if used is not None:
        data |= {"available_flops": used.available, "mfu": used.mfu, "inference_share_of_available": used.forward_share}
    return data


def _labelled(headers: list[str], rows: list[list[str]]) -> str:
    """A table whose last column is words: aligned to the left, two spaces off."""
    table = format_table(headers[:-1], [row[:-1] for row in rows]).splitlines()
    words = [headers[-1], "-" * max(len(row[-1]) for row in rows), *(row[-1] for row in rows)]
    width = max(len(line) for line in table)
    return "\n".join(f"{line.ljust(width)}  {word}" for line, word in zip(table, words, strict=True))


def _number(value: float) -> str:
    return format_quantity(value)


def _bytes(value: float) -> str:
    for suffix, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{value / scale:.4g} {suffix}"
    return f"{value} B"
