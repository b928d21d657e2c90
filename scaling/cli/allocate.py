"""scale allocate: split a compute budget between parameters and tokens."""

import click

from scaling.allocation import allocate, make_budget, make_machine
from scaling.allocation.cost import CONVENTIONS
from scaling.cli.allocate_text import gpu_table, law_table, text
from scaling.cli.output import print_json, warn
from scaling.errors import InputError
from scaling.files import to_json, write_text
from scaling.hardware import DEFAULT_MFU
from scaling.laws import DEFAULT_LAW, PUBLISHED
from scaling.quantities import parse_positive
from scaling.shape_plan import grid_toml
from scaling.shapes import ShapeRequest

SETTINGS = (  # options that `allocate` takes under the same name
    *("params", "tokens", "ratio", "max_params", "max_tokens", "target_loss", "reference"),
    *("unique_tokens", "inference_tokens", "gpu_hours_used", "context", "level"),
)
PLOTS = ("size", "isoflop", "frontier")


@click.command("allocate")
# budget
@click.option("--budget", metavar="FLOP", help="Compute to spend: 1e24, 5.76e23.")
@click.option("--dollars", metavar="AMOUNT", help="Money to spend: 10M. Takes --gpu, --price, --mfu.")
@click.option("--gpu-hours", metavar="HOURS", help="Device-hours to spend. Takes --gpu, --mfu.")
@click.option("--days", metavar="DAYS", help="With --gpus: that many devices for so long.")
@click.option("--gpus", metavar="COUNT", help="Devices; also turns the answer into days.")
@click.option("--gpu", metavar="NAME", help="Device of the catalogue (default h100; --list-gpus).")
@click.option("--dtype", metavar="DTYPE", help="Which dense peak of the device (default bf16).")
@click.option("--peak", metavar="FLOP/S", help="Dense peak of a device not listed: 989e12.")
@click.option("--mfu", type=float, help=f"Share of the peak that training reaches (default {DEFAULT_MFU:.2f}).")
@click.option("--price", metavar="DOLLARS", help="Per device-hour (default: the catalogue's, dated).")
@click.option("--gpu-hours-used", metavar="HOURS", help="Hours a past run took: prints its MFU.")
# law
@click.option("--law", metavar="NAME|fit.json|all", multiple=True, help=f"Default {DEFAULT_LAW}. More: side by side.")
@click.option("--level", type=float, default=0.95, show_default=True, help="Of the intervals.")
@click.option("--compare", metavar="N|N,D", multiple=True, help="What a choice such as 70B or 70B,1.4T wastes.")
# constraints
@click.option("--params", metavar="N", help="Fix N.")
@click.option("--tokens", metavar="D", help="Fix D.")
@click.option("--ratio", metavar="D/N", help="Fix tokens per parameter.")
@click.option("--max-params", metavar="N", help="N at most.")
@click.option("--max-tokens", metavar="D", help="D at most.")
@click.option("--target-loss", metavar="NATS", help="The cheapest run that reaches this loss.")
@click.option("--reference", metavar="N", help="The same, for the loss of a compute-optimal model of N.")
@click.option("--unique-tokens", metavar="U", help="Distinct tokens at hand; more are repeats, worth less.")
@click.option("--inference-tokens", metavar="D", help="Tokens served over its life: lifetime compute counts.")
@click.option("--flops", "convention", type=click.Choice(CONVENTIONS), default="6nd", show_default=True)
# shape
@click.option("--context", type=int, metavar="T", help="Context; attention is counted above 10 % of 6N.")
@click.option("--vocab", type=int, metavar="V", help="Vocabulary of the shape (default 32,000).")
@click.option("--aspect", metavar="LOW:HIGH", help="Range of d_model / n_layers (default 40:160).")
@click.option("--multiple-of", type=int, metavar="M", help="d_model in multiples of (default 128 above 1B, 64, 8).")
@click.option("--head-width", type=int, help="Width of a head (default 128, 64 or 16 by size).")
@click.option("--expansion", type=float, help="d_ff / d_model (default 4; 8/3 gated).")
@click.option("--gated/--plain", default=None, help="Three or two matrices in the MLP.")
@click.option("--kv-groups", type=int, help="Query heads per key-value head (default 1).")
@click.option("--tied/--untied", default=None, help="Does the head share the token embedding?")
@click.option("--positions", type=click.Choice(("learned", "rotary", "none")))
@click.option("--norm", type=click.Choice(("layer", "rms")))
@click.option("--batch-tokens", metavar="TOKENS", help="Batch (default: 0.2920 C^0.3271).")
# output
@click.option("--json", "as_json", is_flag=True, help="Print JSON at full precision.")
@click.option("--out", metavar="FILE", help="Write the same JSON to a file.")
@click.option("--grid", metavar="FILE", help="Write a grid.toml that trains the shape with scale sweep.")
@click.option("--plot", metavar="FILE", help="Draw it (.png, .svg, .pdf).")
@click.option("--plot-kind", type=click.Choice(PLOTS), default="size", show_default=True)
@click.option("--list-laws", is_flag=True, help="List the published laws with their sources, and stop.")
@click.option("--list-gpus", is_flag=True, help="List the devices with peaks, prices and their dates, and stop.")
def command(list_laws, list_gpus, as_json, out, grid, plot, plot_kind, **options):
    """Split a compute budget between parameters N and tokens D so that the loss is least.

    \b
    scale allocate --budget 1e24
    scale allocate --dollars 10M --gpu h100 --price 2.50 --mfu 0.40
    scale allocate --budget 1e22 --law fit.json --unique-tokens 25B
    scale allocate --reference 13B --inference-tokens 2T
    """
    if list_laws:
        return click.echo(law_table())
    if list_gpus:
        return click.echo(gpu_table())
    answer = _solve(options)
    _write(answer, out, grid, plot, plot_kind)
    if as_json:
        print_json(answer.to_dict())
    else:
        click.echo(text(answer))
    for message in answer.warnings:
        warn(message)


def _solve(options):
    machine = make_machine(**{key: options[key] for key in ("gpu", "dtype", "mfu", "price", "peak", "gpus")})
    ways = {key: options[key] for key in ("dollars", "gpu_hours", "days", "gpus")}
    budget = make_budget(options["budget"], machine=machine, **ways)
    settings = {key: options[key] for key in SETTINGS}
    fixed = settings["params"] is not None and settings["tokens"] is not None
    if budget is None and settings["target_loss"] is None and settings["reference"] is None and not fixed:
        raise click.UsageError(
            "give --budget FLOP, --dollars, --gpu-hours, --gpus with --days, --target-loss, --reference, "
            "or both --params and --tokens."
        )
    law, *others = _laws(options["law"])
    return allocate(
        budget,
        law=law,
        other_laws=others,
        flops_convention=options["convention"],
        machine=machine,
        comparisons=options["compare"],
        shape=_shape_request(options),
        **settings,
    )


def _laws(names):
    """The law to answer with, then those to stand beside it; "all" is every published one."""
    named = [name for name in names if name != "all"]
    if "all" in names:
        named = (named or [DEFAULT_LAW]) + list(PUBLISHED)
    return named or [None]


def _shape_request(options):
    """None when nothing was said of the shape: then a shape that does not fit is a warning, not an error."""
    names = {"vocab": "vocab_size", "multiple_of": "multiple_of", "head_width": "head_width", "context": "context"}
    names |= {"expansion": "expansion", "gated": "gated_mlp", "kv_groups": "kv_groups", "tied": "tied"}
    names |= {"positions": "positions", "norm": "norm"}
    given = {field: options[option] for option, field in names.items() if options[option] is not None}
    if options["aspect"] is not None:
        given["aspect"] = _aspect(options["aspect"])
    if options["batch_tokens"] is not None:
        given["batch_tokens"] = round(parse_positive(options["batch_tokens"], name="batch tokens"))
    return ShapeRequest(**given) if given else None


def _aspect(text):
    low, separator, high = text.partition(":")
    if not separator:
        raise InputError(f'aspect "{text}": write LOW:HIGH, for example 64:128.')
    return parse_positive(low, name="aspect"), parse_positive(high, name="aspect")


def _write(answer, out, grid, plot, plot_kind):
    if out:
        write_text(out, to_json(answer.to_dict()) + "\n")
    if grid:
        if answer.plan is None:
            raise InputError(f"{grid}: there is no shape to train; see the warnings.")
        write_text(grid, grid_toml(answer.plan))
    if plot:
        from scaling.plots import allocation as pictures
        from scaling.plots.style import save_figure

        draw = {
            "size": pictures.draw_sizes,
            "isoflop": pictures.draw_isoflops,
            "frontier": pictures.draw_frontier,
        }[plot_kind]
        save_figure(draw(answer), plot)
