"""`allocate`: from a budget, a target or a reference to an Allocation."""

from typing import Any

from scaling.allocation.budget import Budget, Machine, make_budget, make_machine
from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost
from scaling.allocation.law_choice import LawChoice, choose_law
from scaling.allocation.nearness import marginal, near_optimal
from scaling.allocation.result import Allocation
from scaling.allocation.solver import solve
from scaling.allocation.surface import make_surface
from scaling.quantities import format_quantity, parse_positive


def allocate(
    budget: float | str | Budget | None = None,
    *,
    law: Any = None,
    params: float | str | None = None,
    tokens: float | str | None = None,
    ratio: float | None = None,
    max_params: float | str | None = None,
    max_tokens: float | str | None = None,
    target_loss: float | None = None,
    machine: Machine | None = None,
) -> Allocation:
    """Minimise L(N, D) subject to C(N, D) = budget; with `target_loss`, the least C that reaches it.

    budget is in FLOP ("1e24" is read too). law is None (besiroglu2024), a published name, a fit.json or a law.
    Raises AllocationError when budget and constraints have no answer, LawError for a law that cannot be used and
    InputError for a quantity that cannot be read.
    """
    choice = choose_law(law)
    constraints = Constraints(
        params=_positive(params, "params"),
        tokens=_positive(tokens, "tokens"),
        ratio=_positive(ratio, "ratio"),
        max_params=_positive(max_params, "max params"),
        max_tokens=_positive(max_tokens, "max tokens"),
        target_loss=_positive(target_loss, "target loss"),
    )
    surface, notes = make_surface(choice.law, None)
    return _answer(choice, surface, Cost(), make_budget(budget), constraints, machine, notes)


def _answer(choice: LawChoice, surface, cost, budget, constraints, machine, notes) -> Allocation:
    point = solve(surface, cost, budget.flops if budget else None, constraints)
    flops = cost.training(point.N, point.D)
    factor, range_warnings = extrapolation(choice, flops)
    return Allocation(
        params=point.N,
        tokens=point.D,
        flops=flops,
        loss=surface.loss(point.N, point.D),
        budget=budget,
        law=choice,
        convention=cost.equation,
        constraints=tuple(constraints.described()),
        binding=point.binding,
        closed_form=surface.plain and cost.convention == "6nd" and constraints.free,
        near_optimal=near_optimal(surface, cost, point, constraints) if constraints.free else (),
        marginal=marginal(surface, cost, point, constraints),
        extrapolation_factor=factor,
        cost=(machine or make_machine()).cost(flops),
        warnings=(*choice.warnings, *range_warnings, *_no_draws(choice), *notes),
    )


def _positive(value, name) -> float | None:
    return None if value is None else parse_positive(value, name=name)


def extrapolation(choice: LawChoice, flops: float) -> tuple[float | None, list[str]]:
    """How far C lies outside the compute the law was fitted on, as a factor of at least 1, and what to say of it."""
    if choice.flops_range is None:
        return None, [f"{choice.name} does not say what compute it was fitted on: no extrapolation factor."]
    low, high = choice.flops_range
    if flops > high:
        factor = flops / high
        return factor, [
            f"{format_quantity(flops)} FLOP is {factor:.3g} times the largest run behind {choice.name} "
            f"({format_quantity(high)}): an extrapolation."
        ] * (factor > 10)
    if flops < low:
        return low / flops, [
            f"{format_quantity(flops)} FLOP is {low / flops:.3g} times below the smallest run behind {choice.name} "
            f"({format_quantity(low)}): an extrapolation."
        ]
    return 1.0, []


def _no_draws(choice: LawChoice) -> list[str]:
    if choice.draws is not None:
        return []
    if choice.status is None:
        return [f"No intervals: {choice.name} is published as constants, without joint draws. Fit runs to have them."]
    return [f"No intervals: {choice.name} holds no draws. Fit again with resamples."]

