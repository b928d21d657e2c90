"""How sure: the same question asked of every joint draw of the constants, all draws at once.

numpy is imported here and nowhere on the path of published constants.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost, without_inference
from scaling.allocation.delta import check_level
from scaling.allocation.law_choice import LawChoice
from scaling.allocation.reach import cheapest
from scaling.allocation.solver import seek
from scaling.allocation.spend import closed_form, optimal_tokens_for
from scaling.allocation.surface import Surface, stack_laws, with_law
from scaling.errors import AllocationError, LawError
from scaling.laws import TiedLaw

ROBUST_SIZES = 121  # sizes tried for the robust choice, evenly spaced in log N


@dataclass(frozen=True)
class Draws:
    """The surface under every usable draw at once, and how many draws were not usable."""

    surface: Surface
    usable: int
    dropped: int


def stack_draws(choice: LawChoice, surface: Surface) -> Draws:
    """All draws of a fit as one surface. Draws with impossible constants (A, B, alpha or beta not above zero, E below
    zero) are dropped and counted. Raises LawError when a column is not a constant of the law, or none is usable."""
    law = choice.law
    unknown = [name for name in choice.draw_names if name not in law.constants()]
    if unknown:
        raise LawError(f"{choice.name}: draws of {', '.join(unknown)}, which a law of form {law.form} does not have.")
    draws = np.asarray(choice.draws, float)
    valid = _possible(law, choice.draw_names, draws)
    if not valid.any():
        raise LawError(f"{choice.name}: none of its {len(draws)} draws is a possible law. Fit again.")
    columns = {name: draws[valid, i] for i, name in enumerate(choice.draw_names)}
    if isinstance(law, TiedLaw) and "alpha" in columns:
        columns["beta"] = columns["alpha"]
    stacked = stack_laws(surface.law, columns)
    return Draws(with_law(surface, stacked), int(valid.sum()), int((~valid).sum()))


def _possible(law: Any, names: tuple[str, ...], draws: Any) -> Any:
    """Which draws keep within the ranges that the form declares."""
    valid = np.isfinite(draws).all(axis=1)
    for i, name in enumerate(names):
        if name in getattr(law, "POSITIVE", ()):
            valid &= draws[:, i] > 0
        if name in getattr(law, "NON_NEGATIVE", ()):
            valid &= draws[:, i] >= 0
    return valid


def intervals(
    draws: Draws, cost: Cost, budget: float | None, c: Constraints, level: float, *, reference: float | None = None
) -> dict[str, Any]:
    """Percentile intervals of N*, D*, D/N, loss and FLOPs over the draws, each draw with its own optimum.

    With a reference N each draw has a target of its own: the loss of its compute-optimal model of that size.
    """
    check_level(level)
    with np.errstate(all="ignore"):
        if reference is not None:
            D_reference = optimal_tokens_for(draws.surface, without_inference(cost), reference)
            c = replace(c, target_loss=draws.surface.loss(reference, D_reference))
        point = seek(draws.surface, cost, budget, c)
        N, D = np.broadcast_arrays(
            np.asarray(point.N, float) + np.zeros(draws.usable), np.asarray(point.D, float) + np.zeros(draws.usable)
        )
        values = {
            "params": N,
            "tokens": D,
            "tokens_per_param": D / N,
            "loss": draws.surface.loss(N, D),
            "flops": cost.training(N, D),
        }
        if cost.inference_tokens:
            values["saved_share"] = _saved_share(draws, cost, N, D, values["loss"])
    solved = np.isfinite(values["loss"]) & (N >= 1) & (D > 0) & np.isfinite(N * D)
    result: dict[str, Any] = {
        "level": level,
        "method": "percentiles of the joint draws, each with its own optimum",
        "draws": draws.usable,
        "dropped": draws.dropped,
        "unsolved": int((~solved).sum()),
    }
    result |= {name: interval(value[solved], level) for name, value in values.items()}
    result["median"] = {name: float(np.median(value[solved])) for name, value in values.items()}
    return result


def _saved_share(draws: Draws, cost: Cost, N: Any, D: Any, loss: Any) -> Any:
    """Lifetime compute saved against the training-only optimum of the same loss, per draw."""
    alone = cheapest(draws.surface, without_inference(cost), loss, Constraints())
    return 1 - cost.total(N, D) / cost.total(alone.N, alone.D)


def interval(values, level: float) -> list[float]:
    """Central percentile interval of the finite values. Raises AllocationError when there is none."""
    values = np.asarray(values)[np.isfinite(values)]
    if not len(values):
        raise AllocationError("none of the draws of this fit has an answer here; relax a constraint.")
    tail = 50 * (1 - level)
    low, high = np.percentile(values, [tail, 100 - tail])
    return [float(low), float(high)]


def wasted_factors(draws: Draws, cost: Cost, N: Any, D: Any) -> Any:
    """C(N, D) over the least compute that reaches the same loss, one per draw: 1 where N and D are optimal."""
    with np.errstate(all="ignore"):
        loss = draws.surface.loss(N, D)
        best = cheapest(draws.surface, cost, loss, Constraints())
        return cost.total(N, D) / cost.total(best.N, best.D)


def robust_choice(
    draws: Draws, cost: Cost, budget: float, c: Constraints, best_N: float, level: float
) -> dict[str, Any] | None:
    """The N that is least bad on average over the draws at this budget, beside the best single guess.

    Waste is the compute factor against each draw's own optimum, less one; where that has no formula the size is chosen
    by the mean loss above each draw's own optimum instead, and the waste of the two sizes is still reported. None where
    no draw tells sizes apart.
    """
    with np.errstate(all="ignore"):
        own = seek(draws.surface, cost, budget, c)
        own_N, own_loss = np.asarray(own.N, float), draws.surface.loss(own.N, own.D)
    solved = own_N[np.isfinite(own_N) & (own_N > 0)]
    low, high = np.percentile(solved, [1, 99])
    sizes = np.geomspace(min(low, best_N), max(high, best_N), ROBUST_SIZES)
    formula = closed_form(draws.surface, cost)

    def badness(N: float) -> float:
        D = _affordable(cost, N, budget, c)
        if D <= 0:
            return float("inf")
        with np.errstate(all="ignore"):
            bad = wasted_factors(draws, cost, N, D) if formula else draws.surface.loss(N, D) - own_loss
        return float(np.mean(bad[np.isfinite(bad)]))

    N = float(min((n for n in sizes if c.max_params is None or n <= c.max_params), key=badness, default=best_N))
    waste, at_best = (_finite_waste(draws, cost, n, _affordable(cost, n, budget, c)) for n in (N, best_N))
    if not len(waste) or not len(at_best):
        return None
    D, upper = _affordable(cost, N, budget, c), 100 * (1 + level) / 2
    return {
        "params": N,
        "tokens": float(D),
        "tokens_per_param": float(D / N),
        "mean_waste": float(np.mean(waste)),
        "high_waste": float(np.percentile(waste, upper)),
        "mean_waste_of_best": float(np.mean(at_best)),
        "high_waste_of_best": float(np.percentile(at_best, upper)),
        "high_percentile": upper,
        "criterion": f"least mean {'wasted compute' if formula else 'loss above the optimum'} over the draws",
    }


def _finite_waste(draws: Draws, cost: Cost, N: float, D: float) -> Any:
    waste = wasted_factors(draws, cost, N, D) - 1
    return waste[np.isfinite(waste)]


def _affordable(cost: Cost, N: float, budget: float, c: Constraints) -> float:
    D = cost.tokens(N, budget)
    return D if c.max_tokens is None else min(D, c.max_tokens)
