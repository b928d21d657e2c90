"""`scale law`: what a law says, and its two pictures: the plateaus at fixed D, the bottlenecks at fixed C."""

from typing import Any

import click

from scaling.allocation.law_choice import LawChoice, choose_law
from scaling.cli.output import format_table, print_json, warn
from scaling.errors import InputError, LawError
from scaling.laws import ChinchillaLaw
from scaling.quantities import format_quantity, parse_positive


@click.command("law")
@click.argument("law", required=False, metavar="[NAME|fit.json]")
@click.option("--budget", "budgets", multiple=True, metavar="C", help="FLOPs to split; may be repeated.")
@click.option("--tokens", "tokens", multiple=True, metavar="D", help="D of a curve; may be repeated.")
@click.option("--plateaus", metavar="FILE", help="Draw loss against N, a curve for each D.")
@click.option("--bottlenecks", metavar="FILE", help="Draw the parts of the loss along N at the first budget.")
@click.option("--json", "as_json", is_flag=True, help="JSON for scripts.")
def command(law, budgets, tokens, plateaus, bottlenecks, as_json):
    """What a law says: its constants, the plateau at each D, the parts of the loss at the optimum of each C.

    \b
    scale law hoffmann2022 --budget 5.76e23
    scale law fit.json --plateaus plateaus.png --bottlenecks parts.png
    """
    choice = choose_law(law)
    plain = _plain(choice)
    C = [parse_positive(text, name="--budget") for text in budgets] or _default_budgets(choice)
    D = [parse_positive(text, name="--tokens") for text in tokens] or _default_tokens(plain, C)
    data = {
        "law": choice.to_dict(),
        "plateaus": [{"tokens": d, "loss_at_infinite_N": plain.E + plain.B / d**plain.beta} for d in D],
        "optima": [_parts(plain, c) for c in C],
        "warnings": list(choice.warnings),
    }
    for message in choice.warnings:
        warn(message)
    if as_json:
        print_json(data)
    else:
        click.echo(_text(choice, data))
    if plateaus or bottlenecks:
        _draw(plain, C, D, plateaus, bottlenecks)


def _plain(choice: LawChoice) -> ChinchillaLaw:
    law = choice.law.plain() if hasattr(choice.law, "plain") else choice.law
    if not isinstance(law, ChinchillaLaw):
        raise LawError(f"law {choice.name}: {law.form} has no parts of N and D to show; give one of form chinchilla.")
    return law


def _default_budgets(choice: LawChoice) -> list[float]:
    """The decades around what the law was fitted on."""
    low, high = choice.flops_range or (1e18, 1e24)
    return [low, (low * high) ** 0.5, high]


def _default_tokens(law: ChinchillaLaw, budgets: list[float]) -> list[float]:
    """Four D, a factor of 10 apart, the first near the optimum of the least budget, whole in its first digit."""
    first = float(f"{law.D_opt(min(budgets)):.0e}")
    return [first * 10**k for k in range(4)]


def _parts(law: ChinchillaLaw, C: float) -> dict[str, float]:
    N = float(law.N_opt(C))
    D = C / (6 * N)
    parts = {"irreducible": law.E, "too_few_params": law.A / N**law.alpha, "too_few_tokens": law.B / D**law.beta}
    return {"flops": C, "params": N, "tokens": D, "loss": sum(parts.values()), **parts}


def _text(choice: LawChoice, data: dict[str, Any]) -> str:
    law = choice.law
    constants = ", ".join(f"{name} = {value:.6g}" for name, value in law.constants().items())
    plateaus = [[format_quantity(row["tokens"]), f"{row['loss_at_infinite_N']:.4f}"] for row in data["plateaus"]]
    names = ("loss", "irreducible", "too_few_params", "too_few_tokens")
    optima = [
        [f"{row['flops']:.4g}", format_quantity(row["params"]), format_quantity(row["tokens"]),
         *(f"{row[name]:.4f}" for name in names)]
        for row in data["optima"]
    ]  # fmt: skip
    header = ["C = 6ND", "N*", "D*", "loss", "irreducible E", "A/N^alpha", "B/D^beta"]
    return "\n\n".join(
        [
            f"{choice.name}: {law.equation}\n{constants}\nSource: {choice.source}",
            format_table(["D", "plateau E + B/D^beta"], plateaus),
            format_table(header, optima),
        ]
    )


def _draw(law: ChinchillaLaw, C: list[float], D: list[float], plateaus: str | None, bottlenecks: str | None) -> None:
    from scaling.plots.lecture import bottlenecks_figure, plateaus_figure
    from scaling.plots.style import save_figure

    if plateaus:
        if len(D) > 8:
            raise InputError(f"--plateaus: {len(D)} curves are too many to tell apart; give at most 8 --tokens.")
        sizes = [float(law.N_opt(c)) for c in C]
        save_figure(plateaus_figure(law, D, params=(min(sizes) / 300, max(sizes) * 300)), plateaus)
    if bottlenecks:
        save_figure(bottlenecks_figure(law, C[0]), bottlenecks)
