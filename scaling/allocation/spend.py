"""Spend a budget: the least loss with C(N, D) = budget, by formula where there is one, by bisection otherwise.

With C = c(N) (D + D_inf / 3) the Lagrange condition in logs is

    dL/dlog N * dlog C/dlog D = dL/dlog D * dlog C/dlog N,

whose difference changes sign once along the budget curve. Every function takes floats or, for bootstrap draws, arrays.
"""

import math
from dataclasses import dataclass
from typing import Any

from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost
from scaling.allocation.either import exp, log_inside, scalar, search_range, shaped, where
from scaling.allocation.surface import Surface
from scaling.roots import bisect, least_on_grid


@dataclass(frozen=True)
class Point:
    """A solution: N, D, and which limits hold with equality."""

    N: Any
    D: Any
    binding: tuple[str, ...] = ()


def spend(surface, cost, budget, c: Constraints) -> Point:
    if c.params is not None:
        return _cap(c.params, cost, budget, c, "params fixed")
    if c.tokens is not None:
        N, name = lesser(params_for_cost(cost, budget, c.tokens), c.max_params, "max params")
        return Point(N, c.tokens, ("tokens fixed", name))
    if c.ratio is not None:
        limit = min(c.max_params or math.inf, (c.max_tokens or math.inf) / c.ratio)
        N, name = lesser(_params_for_ratio(cost, budget, c.ratio), limit, "limit")
        return Point(N, c.ratio * N, ("ratio fixed", name))
    return best_split(surface, cost, budget, c)


def best_split(surface: Surface, cost: Cost, budget: Any, c: Constraints) -> Point:
    """N and D both free under the budget; limits clamp, as the loss has one minimum along the budget curve."""
    N = optimal_params(surface, cost, budget)
    D = cost.tokens(N, budget)
    if c.max_tokens is not None:
        N_full = params_for_cost(cost, budget, c.max_tokens)
        N, D = where(D > c.max_tokens, N_full, N), where(D > c.max_tokens, c.max_tokens, D)
    if c.max_params is None:
        return Point(N, D, binding(D, c.max_tokens, "max tokens"))
    over = N > c.max_params
    D_full = cost.tokens(c.max_params, budget)
    if c.max_tokens is not None:
        D_full = where(D_full > c.max_tokens, c.max_tokens, D_full)
    N, D = where(over, c.max_params, N), where(over, D_full, D)
    return Point(N, D, binding(D, c.max_tokens, "max tokens") + binding(N, c.max_params, "max params"))


def optimal_params(surface: Surface, cost: Cost, budget: Any) -> Any:
    """N of the least loss on the budget curve, without limits."""
    if closed_form(surface, cost):
        law = surface.law
        G = (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta))  # as ChinchillaLaw.N_opt
        return G * (budget / 6) ** (law.beta / (law.alpha + law.beta))
    return numeric_params(surface, cost, budget)


def numeric_params(surface: Surface, cost: Cost, budget: Any) -> Any:
    """The same by bisection on the Lagrange condition, for any form and any convention."""
    high = log_inside(params_for_cost(cost, budget, 1.0))
    low = high * 0.0

    def condition(x):
        N = exp(x)
        D = cost.tokens(N, budget)
        if hasattr(D, "shape"):
            return where(D > 0, lagrange(surface, cost, N, abs(D)), 1.0)
        return lagrange(surface, cost, N, D) if D > 0 else 1.0  # too large an N leaves no tokens

    def loss(x):
        D = cost.tokens(exp(x), budget)
        return surface.loss(exp(x), D) if D > 0 else math.inf

    if scalar(surface, budget):
        if not surface.plain:
            low, high = least_on_grid(loss, low, high)
        return math.exp(bisect(condition, low, high))
    return exp(bisect(condition, *shaped(surface, budget, low, high)))


def closed_form(surface: Surface, cost: Cost) -> bool:
    """Whether the optimum is a formula: E + A/N^alpha + B/D^beta, fresh tokens, C = 6ND and nothing else."""
    return surface.plain and cost.convention == "6nd" and not cost.inference_tokens


def optimal_tokens_for(surface: Surface, cost: Cost, N: Any) -> Any:
    """D with which N is the compute-optimal size, training alone: the inverse of the optimum."""
    if closed_form(surface, cost):
        law = surface.law
        return (law.beta * law.B * N**law.alpha / (law.alpha * law.A)) ** (1 / law.beta)
    return exp(bisect(lambda y: -lagrange(surface, cost, N, exp(y)), *search_range(surface, N)))


def lagrange(surface, cost, N, D):
    in_N, in_D = surface.slopes(N, D)
    cost_N, cost_D = cost.slopes(N, D)
    return in_N * cost_D - in_D * cost_N


def params_for_cost(cost: Cost, budget: Any, D: Any) -> Any:
    """N at which D tokens and the serving spend the whole budget."""
    if cost.convention == "6nd":
        return budget / (6.0 * (D + cost.inference_tokens / 3))
    return exp(bisect(lambda x: cost.total(exp(x), D) - budget, *search_range(budget, D)))


def _params_for_ratio(cost, budget, ratio):
    return exp(bisect(lambda x: cost.total(exp(x), ratio * exp(x)) - budget, *search_range(budget)))


def _cap(N, cost, budget, c, why) -> Point:
    D, name = lesser(cost.tokens(N, budget), c.max_tokens, "max tokens")
    return Point(N, D, (why, name))


def lesser(value, limit, name) -> tuple[Any, str]:
    """The value under its limit, and the name of what binds."""
    if limit is None or limit == math.inf:
        return value, "budget"
    over = value > limit
    return where(over, limit, value), name if over is True else "budget"


def binding(value, limit, name) -> tuple[str, ...]:
    return (name,) if limit is not None and not hasattr(value, "shape") and value >= limit else ()
