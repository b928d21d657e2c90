"""Choices side by side: what a given N (or N and D) wastes, and the same budget under several laws."""

import math
from typing import Any

from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost
from scaling.allocation.reach import cheapest
from scaling.allocation.solver import solve
from scaling.allocation.surface import Surface
from scaling.errors import AllocationError, InputError
from scaling.quantities import format_quantity, parse_positive
from scaling.roots import minimise


def parse_choice(text: str | float | tuple) -> tuple[float, float | None]:
    """ "70B" is N alone, "70B,1.4T" N and D. Raises InputError for anything else."""
    parts = list(text) if isinstance(text, tuple) else str(text).split(",")
    if len(parts) not in (1, 2):
        raise InputError(f'choice "{text}": write N or N,D, for example 70B or 70B,1.4T.')
    values = [parse_positive(part, name=f'choice "{text}"') for part in parts]
    return values[0], values[1] if len(values) == 2 else None


def compare(surface: Surface, cost: Cost, budget: float | None, choice: tuple[float, float | None]) -> dict[str, Any]:
    """What a choice costs against the optimum: its loss, the loss its compute could have bought, and the compute that
    would have bought its loss. N alone spends the whole budget on tokens."""
    N, D = choice
    if D is None:
        if budget is None:
            raise AllocationError(f"comparing N = {format_quantity(N)} needs a budget, or its tokens: write N,D.")
        D = cost.tokens(N, budget)
        if D <= 0:
            raise AllocationError(f"serving alone takes the budget at N = {format_quantity(N)}; nothing to compare.")
    spent, loss = cost.total(N, D), surface.loss(N, D)
    best = solve(surface, cost, spent, Constraints())
    least = least_compute(surface, cost, loss)
    return {
        "params": N,
        "tokens": D,
        "tokens_per_param": D / N,
        "flops": spent,
        "loss": loss,
        "loss_gap": loss - surface.loss(best.N, best.D),
        "params_optimal": best.N,
        "tokens_optimal": best.D,
        "flops_needed": least,
        "wasted_compute_factor": spent / least,
        "wasted_share": 1 - least / spent,
    }


def least_compute(surface: Surface, cost: Cost, loss: float) -> float:
    """The least total FLOPs that reach a loss."""
    point = cheapest(surface, cost, loss, Constraints())
    return cost.total(point.N, point.D)


def robust_across(laws: list[tuple[str, Surface]], cost: Cost, budget: float) -> dict[str, Any]:
    """The N whose worst wasted compute over the laws is least, at this budget: minimax over published answers."""
    optima = [math.log(solve(surface, cost, budget, Constraints()).N) for _, surface in laws]

    def factors(N: float) -> dict[str, float]:
        D = cost.tokens(N, budget)
        return {name: budget / least_compute(surface, cost, surface.loss(N, D)) for name, surface in laws}

    N = math.exp(minimise(lambda x: max(factors(math.exp(x)).values()), min(optima), max(optima), tolerance=1e-4))
    D = cost.tokens(N, budget)
    return {
        "params": N,
        "tokens": D,
        "tokens_per_param": D / N,
        "wasted_compute_factors": factors(N),
        "criterion": "least worst-case wasted compute over the laws",
    }
