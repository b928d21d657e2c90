"""Reach a loss: the least C(N, D) along the curve L(N, D) = target, by formula where there is one.

The Lagrange condition is that of `spend`. Every function takes floats or, for bootstrap draws, arrays; what cannot be
reached comes out infinite or NaN.
"""

import math
from typing import Any

from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost
from scaling.allocation.either import LOG_MAX, clip, exp, log, log_inside, scalar, search_range, shaped, where
from scaling.allocation.repeats import repeated_tokens_for_loss
from scaling.allocation.spend import Point, binding, closed_form, lagrange, optimal_params
from scaling.allocation.surface import Surface
from scaling.laws import ChinchillaLaw, DataConstrainedLaw
from scaling.roots import bisect

LOG_MAX_BUDGET = math.log(1e60)
FIRST_BUDGET = 1e21  # where Newton's method begins
NEWTON_STEPS, MAX_NEWTON_STEP = 60, 8.0  # in log C


def reach(surface, cost, c: Constraints) -> Point:
    target = c.target_loss
    if c.params is not None:
        return Point(c.params, tokens_for_loss(surface, c.params, target), ("params fixed",))
    if c.tokens is not None:
        return Point(params_for_loss(surface, c.tokens, target), c.tokens, ("tokens fixed",))
    if c.ratio is not None:
        N = exp(bisect(lambda x: target - surface.loss(exp(x), c.ratio * exp(x)), *search_range(surface)))
        return Point(N, c.ratio * N, ("ratio fixed",))
    return cheapest(surface, cost, target, c)


def cheapest(surface: Surface, cost: Cost, target: Any, c: Constraints) -> Point:
    """The least C(N, D) on the curve of equal loss; limits clamp."""
    N = cheapest_params(surface, cost, target)
    D = tokens_for_loss(surface, N, target)
    if c.max_tokens is not None:
        over = D > c.max_tokens
        N = where(over, params_for_loss(surface, c.max_tokens, target), N)
        D = where(over, c.max_tokens, D)
    if c.max_params is not None:
        over = N > c.max_params
        D = where(over, tokens_for_loss(surface, c.max_params, target), D)
        N = where(over, c.max_params, N)
    return Point(N, D, binding(D, c.max_tokens, "max tokens") + binding(N, c.max_params, "max params"))


def cheapest_params(surface: Surface, cost: Cost, target: Any) -> Any:
    """N of the cheapest run of that loss, without limits.

    Under 6ND the reducible loss T - E splits as beta : alpha between parameters and tokens, hence
    N = (A (alpha + beta) / (beta (T - E)))^(1/alpha).
    """
    if closed_form(surface, cost):
        law = surface.law
        return _invert(target - law.E, law.A * (law.alpha + law.beta) / law.beta, law.alpha)
    return numeric_cheapest_params(surface, cost, target)


def numeric_cheapest_params(surface: Surface, cost: Cost, target: Any) -> Any:
    """The same by bisection on the Lagrange condition along the curve of equal loss, where that curve has a formula;
    otherwise by Newton's method for the budget whose best loss is the target."""
    if not surface.plain:
        return optimal_params(surface, cost, _budget_for_loss(surface, cost, target))
    low = log_inside(params_for_loss(surface, math.exp(LOG_MAX), target))
    high = log_inside(params_for_loss(surface, 1.0, target))

    def condition(x):
        N = exp(x)
        return lagrange(surface, cost, N, tokens_for_loss(surface, N, target))

    if not scalar(surface, target):
        low, high = shaped(surface, target, low, high)
    return exp(bisect(condition, low, high))


def _budget_for_loss(surface: Surface, cost: Cost, target: Any) -> Any:
    """C whose best loss is the target. log(L* - E) is close to linear in log C, and by the envelope theorem
    dL*/dlog C is dL/dlog D over dlog C/dlog D at the optimum."""
    floor = surface.law.constants().get("E", 0.0)
    log_C = _first_budget(surface, target) + 0.0 * (target + floor)
    for _ in range(NEWTON_STEPS):
        C = exp(log_C)
        N = optimal_params(surface, cost, C)
        D = where(cost.tokens(N, C) > 1.0, cost.tokens(N, C), 1.0)
        excess = surface.loss(N, D) - floor
        slope = surface.slopes(N, D)[1] / cost.slopes(N, D)[1] / excess
        step = clip((log(excess / (target - floor))) / slope, MAX_NEWTON_STEP)
        log_C = clip(log_C - step, LOG_MAX_BUDGET)
        small = abs(step) < 1e-13 * abs(log_C)
        if small.all() if hasattr(small, "all") else small:
            break
    return exp(log_C)


def _first_budget(surface: Surface, target: Any) -> Any:
    """log C to begin Newton's method at: the plain law's under 6ND where there is one."""
    if not isinstance(surface.law, ChinchillaLaw | DataConstrainedLaw):
        return math.log(FIRST_BUDGET)
    plain = Surface(surface.law)
    N = cheapest_params(plain, Cost(), target)
    return clip(log(6.0 * N * tokens_for_loss(plain, N, target)), LOG_MAX_BUDGET)


def tokens_for_loss(surface: Surface, N: Any, target: Any) -> Any:
    """D at which the loss at N falls to the target; infinite, or the end of the range, where it never does."""
    if surface.plain:
        law = surface.law
        return _invert(target - law.E - law.A / N**law.alpha, law.B, law.beta)
    if surface.unique_tokens is None:
        return exp(bisect(lambda y: target - surface.loss(N, exp(y)), *search_range(N, target, surface)))
    return _tokens_with_repeats(surface, N, target)


def _tokens_with_repeats(surface: Surface, N: Any, target: Any) -> Any:
    unique = surface.unique_tokens
    assert unique is not None
    repeats_needed = surface.loss(N, unique + 0.0 * N) > target
    if not hasattr(repeats_needed, "shape"):
        if repeats_needed:
            return repeated_tokens_for_loss(surface.law, N, target, unique)
        return math.exp(bisect(lambda y: target - surface.loss(N, math.exp(y)), 0.0, math.log(unique)))
    repeated = repeated_tokens_for_loss(surface.law, N, target, unique)
    if repeats_needed.all():
        return repeated
    low, high = search_range(N, target, surface)
    fresh = exp(bisect(lambda y: target - surface.loss(N, exp(y)), low, high * 0 + math.log(unique)))
    return where(repeats_needed, repeated, fresh)


def params_for_loss(surface: Surface, D: Any, target: Any) -> Any:
    """N at which the loss on D tokens falls to the target; infinite, or the end of the range, where it never does."""
    if not surface.plain:
        return exp(bisect(lambda x: target - surface.loss(exp(x), D), *search_range(D, target, surface)))
    law = surface.law
    return _invert(target - law.E - law.B / D**law.beta, law.A, law.alpha)


def _invert(gap, scale, exponent):
    """x at which scale / x^exponent = gap."""
    if not any(hasattr(value, "shape") for value in (gap, scale, exponent)):
        return (scale / gap) ** (1 / exponent) if gap > 0 else math.inf
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gap > 0, (scale / np.where(gap > 0, gap, 1.0)) ** (1 / exponent), np.inf)
