"""The options that name a shape, shared by the commands that take one: a preset, a config file, flags, or flags on top
of either."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import click

from scaling.accounting import BIASES, NORMS, POSITIONS, Shape
from scaling.errors import InputError
from scaling.presets import PRESETS, ff_width, preset, read_shape

_OPTIONS = (
    click.option("--preset", metavar="NAME", help=f"A shape by name: {', '.join(PRESETS)}."),
    click.option("--config", metavar="FILE", help="A Hugging Face-style config.json, or a shape written by scale."),
    click.option("--d-model", type=int, help="Width d."),
    click.option("--n-layers", type=int, help="Blocks L."),
    click.option("--n-heads", type=int, help="Attention heads h."),
    click.option("--n-kv-heads", type=int, help="Heads of keys and values; fewer than h is grouped-query attention."),
    click.option("--head-dim", type=int, help="Width of a head, where it is not d/h."),
    click.option("--d-ff", type=int, help="Width of the MLP (default 4 d)."),
    click.option("--expansion", type=float, help="Width of the MLP as a multiple of d, whole or not."),
    click.option("--gated/--plain", "gated_mlp", default=None, help="Three or two matrices in the MLP."),
    click.option("--vocab-size", type=int, help="Vocabulary V."),
    click.option("--context", type=int, help="Context T, tokens."),
    click.option("--tied/--untied", default=None, help="Does the head share the token embedding?"),
    click.option("--positions", type=click.Choice(POSITIONS)),
    click.option("--norm", type=click.Choice(NORMS), help="Scale and shift, or scale alone."),
    click.option("--biases", type=click.Choice(BIASES), help="Biases of the linear maps."),
)
OPTION_NAMES = ("preset", "config", "expansion", *(field.name for field in fields(Shape)))


def shape_options(command: Callable) -> Callable:
    """Add the options that `chosen_shape` reads."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen_shape(*, preset: str | None, config: str | None, expansion: float | None, **flags: Any) -> Shape:
    """The shape that the options of `shape_options` name. Raises InputError for one that is missing or impossible."""
    given = {name: value for name, value in flags.items() if value is not None}
    base = _base_shape(preset, config)
    if expansion is not None:
        if "d_ff" in given:
            raise click.UsageError("give --d-ff or --expansion, not both.")
        width = given.get("d_model") or (base.d_model if base else None)
        if width is None:
            raise InputError("shape: --expansion needs --d-model, --preset or --config.")
        given["d_ff"] = ff_width(width, expansion)
    if base is not None:
        return replace(base, **given)
    required = ("d_model", "n_layers", "n_heads", "vocab_size", "context")
    missing = [f"--{name.replace('_', '-')}" for name in required if name not in given]
    if missing:
        raise InputError(f"shape: {', '.join(missing)} missing. Give them, or --preset NAME, or --config FILE.")
    return Shape(**given)


def _base_shape(name: str | None, config: str | None) -> Shape | None:
    if name is not None and config is not None:
        raise click.UsageError("give --preset or --config, not both.")
    if name is not None:
        return preset(name).shape
    return None if config is None else read_shape(config)


def describe_shape(shape: Shape) -> str:
    """One line: sizes, then what the counts depend on."""
    heads = f"{shape.n_heads} heads of {shape.head_width}"
    if shape.kv_heads != shape.n_heads:
        heads += f" ({shape.kv_heads} for keys and values)"
    return (
        f"{shape.n_layers} blocks, d = {shape.d_model}, {heads}, {'gated' if shape.gated_mlp else 'plain'} MLP of "
        f"{shape.ff_width}, vocabulary {shape.vocab_size:,}, context {shape.context:,}, "
        f"{'tied' if shape.tied else 'untied'} head, positions: {shape.positions}, norm: {shape.norm}, "
        f"biases: {shape.biases}"
    )
