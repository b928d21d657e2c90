"""How flat the optimum is: the sizes that are nearly as good, and what one doubling of compute buys."""

from dataclasses import replace

from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost
from scaling.allocation.either import LOG_MAX, exp, log_inside
from scaling.allocation.reach import tokens_for_loss
from scaling.allocation.result import Marginal, NearOptimal
from scaling.allocation.solver import solve
from scaling.allocation.spend import Point
from scaling.allocation.surface import Surface
from scaling.roots import bisect

LOSS_SHARES = (0.001, 0.01)
COMPUTE_SHARES = (0.01, 0.10)


def near_optimal(surface: Surface, cost: Cost, point: Point, c: Constraints) -> tuple[NearOptimal, ...]:
    """N whose loss is within 0.1 % and 1 % of the best at the same C, and N that need at most 1 % and 10 % more C
    for the same loss. Limits on N and D are kept."""
    budget, loss = cost.total(point.N, point.D), surface.loss(point.N, point.D)
    by_loss = (within_loss(surface, cost, point.N, budget, loss, share, c) for share in LOSS_SHARES)
    by_compute = (within_compute(surface, cost, point.N, budget, loss, share, c) for share in COMPUTE_SHARES)
    return (*by_loss, *by_compute)


def within_loss(surface, cost, N_best, budget, loss, share, c: Constraints) -> NearOptimal:
    """The range of N along the budget curve with loss at most (1 + share) of the best."""

    def tokens(N):
        D = cost.tokens(N, budget)
        return D if c.max_tokens is None else min(D, c.max_tokens)

    def excess(x):
        D = tokens(exp(x))
        return surface.loss(exp(x), D) - loss * (1 + share) if D > 0 else float("inf")

    low, high = _ends(excess, N_best, c)
    return NearOptimal(share, "loss", (low, high), (tokens(low), tokens(high)))


def within_compute(surface, cost, N_best, budget, loss, share, c: Constraints) -> NearOptimal:
    """The range of N that reach the best loss with at most (1 + share) of its compute."""
    limit = budget * (1 + share)

    def tokens(N):
        return tokens_for_loss(surface, N, loss)

    def excess(x):
        D = tokens(exp(x))
        over_cap = c.max_tokens is not None and D > c.max_tokens * (1 + 1e-12)
        return float("inf") if over_cap else cost.total(exp(x), D) - limit

    low, high = _ends(excess, N_best, c)
    return NearOptimal(share, "compute", (low, high), (tokens(low), tokens(high)))


def _ends(excess, N_best, c: Constraints) -> tuple[float, float]:
    """Where an excess that is below zero at the best N crosses it on either side."""
    best, top = log_inside(N_best), LOG_MAX if c.max_params is None else log_inside(c.max_params)
    low = bisect(lambda x: -excess(x), 0.0, best) if best > 0 else best
    high = bisect(excess, best, top) if top > best else best
    return min(exp(low), N_best), max(exp(high), N_best)


def marginal(surface: Surface, cost: Cost, point: Point, c: Constraints) -> Marginal | None:
    """The Lagrange multiplier -dL/dC at the answer, and the loss that twice the compute buys under the same
    constraints; None when N and D are both fixed."""
    if c.point() is not None:
        return None
    budget, loss = cost.total(point.N, point.D), surface.loss(point.N, point.D)
    double = solve(surface, cost, 2 * budget, _without_target(c))
    at_double = surface.loss(double.N, double.D)
    return Marginal(loss - at_double, at_double, _multiplier(surface, cost, point, c, budget))


def _multiplier(surface, cost, point: Point, c: Constraints, budget) -> float:
    """-dL/dlog C over C, moving along whatever is still free."""
    in_N, in_D = surface.slopes(point.N, point.D)
    cost_N, cost_D = cost.slopes(point.N, point.D)
    D_held = c.tokens is not None or (c.max_tokens is not None and point.D >= c.max_tokens * (1 - 1e-12))
    N_held = c.params is not None or (c.max_params is not None and point.N >= c.max_params * (1 - 1e-12))
    if D_held and N_held:
        return 0.0
    if c.ratio is not None:
        return -(in_N + in_D) / (cost_N + cost_D) / budget
    if D_held:
        return -in_N / cost_N / budget
    return -in_D / cost_D / budget


def _without_target(c: Constraints) -> Constraints:
    return replace(c, target_loss=None)

