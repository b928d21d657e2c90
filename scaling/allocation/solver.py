"""The best (N, D) for a surface, a cost and constraints: spend a budget, or reach a loss."""

from typing import Any

from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost
from scaling.allocation.reach import reach
from scaling.allocation.refusals import check_reachable, verify
from scaling.allocation.spend import Point, spend
from scaling.allocation.surface import Surface
from scaling.errors import AllocationError


def solve(surface: Surface, cost: Cost, budget: float | None, constraints: Constraints) -> Point:
    """The least loss within a budget, or the cheapest run that reaches the target loss.

    Raises AllocationError, naming what contradicts what, when nothing satisfies all of it.
    """
    fixed = constraints.point()
    if fixed is not None:
        point = Point(*fixed, ("params and tokens fixed",))
    else:
        if constraints.target_loss is not None:
            check_reachable(surface, constraints)
        point = seek(surface, cost, budget, constraints)
    verify(point, surface, cost, budget, constraints)
    return point


def seek(surface: Surface, cost: Cost, budget: Any, constraints: Constraints) -> Point:
    """`solve` without its refusals, for arrays of draws: what cannot be reached comes out infinite or NaN."""
    fixed = constraints.point()
    if fixed is not None:
        return Point(*fixed)
    if constraints.target_loss is not None:
        return reach(surface, cost, constraints)
    if budget is None:
        raise AllocationError("give a budget, a target loss, a reference model, or both N and D.")
    return spend(surface, cost, budget, constraints)
