"""The best (N, D) for a surface, a cost and constraints: closed form where there is one, bisection otherwise.

Minimise L(N, D) subject to C(N, D) = budget. With C = c(N) (D + D_inf / 3) the Lagrange condition in logs is

    dL/dlog N * dlog C/dlog D = dL/dlog D * dlog C/dlog N,

whose difference changes sign once along the budget curve and, with the same condition, along a curve of equal loss.
Every function takes floats or, for bootstrap draws, arrays; with arrays an impossible draw comes out as NaN.
"""

import math
from dataclasses import dataclass
from typing import Any

from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost
from scaling.allocation.repeats import repeated_tokens_for_loss
from scaling.allocation.surface import Surface
from scaling.errors import AllocationError
from scaling.laws import ChinchillaLaw, DataConstrainedLaw
from scaling.quantities import format_quantity
from scaling.roots import bisect, least_on_grid

LOG_MAX = math.log(1e30)  # no N or D is sought beyond
LOG_MAX_BUDGET = math.log(1e60)
FIRST_BUDGET = 1e21  # where Newton's method begins
NEWTON_STEPS, MAX_NEWTON_STEP = 60, 8.0  # in log C


@dataclass(frozen=True)
class Point:
    """A solution: N, D, and which limits hold with equality."""

    N: Any
    D: Any
    binding: tuple[str, ...] = ()


def solve(surface: Surface, cost: Cost, budget: float | None, constraints: Constraints) -> Point:
    """The least loss within a budget, or the cheapest run that reaches the target loss.

    Raises AllocationError, naming what contradicts what, when nothing satisfies all of it.
    """
    fixed = constraints.point()
    if fixed is not None:
        point = Point(*fixed, ("params and tokens fixed",))
    else:
        if constraints.target_loss is not None:
            _check_reachable(surface, constraints)
        point = seek(surface, cost, budget, constraints)
    _verify(point, surface, cost, budget, constraints)
    return point


def seek(surface: Surface, cost: Cost, budget: Any, constraints: Constraints) -> Point:
    """`solve` without its refusals, for arrays of draws: what cannot be reached comes out infinite or NaN."""
    fixed = constraints.point()
    if fixed is not None:
        return Point(*fixed)
    if constraints.target_loss is not None:
        return _reach(surface, cost, constraints)
    if budget is None:
        raise AllocationError("give a budget, a target loss, a reference model, or both N and D.")
    return _spend(surface, cost, budget, constraints)


# --- spend a budget ---------------------------------------------------------------------------------------------------


def _spend(surface, cost, budget, c: Constraints) -> Point:
    if c.params is not None:
        return _cap(c.params, cost, budget, c, "params fixed")
    if c.tokens is not None:
        N, name = _lesser(params_for_cost(cost, budget, c.tokens), c.max_params, "max params")
        return Point(N, c.tokens, ("tokens fixed", name))
    if c.ratio is not None:
        limit = min(c.max_params or math.inf, (c.max_tokens or math.inf) / c.ratio)
        N, name = _lesser(_params_for_ratio(cost, budget, c.ratio), limit, "limit")
        return Point(N, c.ratio * N, ("ratio fixed", name))
    return best_split(surface, cost, budget, c)


def best_split(surface: Surface, cost: Cost, budget: Any, c: Constraints) -> Point:
    """N and D both free under the budget; limits clamp, as the loss has one minimum along the budget curve."""
    N = optimal_params(surface, cost, budget)
    D = cost.tokens(N, budget)
    if c.max_tokens is not None:
        N_full = params_for_cost(cost, budget, c.max_tokens)
        N, D = _where(D > c.max_tokens, N_full, N), _where(D > c.max_tokens, c.max_tokens, D)
    if c.max_params is None:
        return Point(N, D, _binding(D, c.max_tokens, "max tokens"))
    over = N > c.max_params
    D_full = cost.tokens(c.max_params, budget)
    if c.max_tokens is not None:
        D_full = _where(D_full > c.max_tokens, c.max_tokens, D_full)
    N, D = _where(over, c.max_params, N), _where(over, D_full, D)
    return Point(N, D, _binding(D, c.max_tokens, "max tokens") + _binding(N, c.max_params, "max params"))


def optimal_params(surface: Surface, cost: Cost, budget: Any) -> Any:
    """N of the least loss on the budget curve, without limits."""
    if closed_form(surface, cost):
        law = surface.law
        G = (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta))  # as ChinchillaLaw.N_opt
        return G * (budget / 6) ** (law.beta / (law.alpha + law.beta))
    return numeric_params(surface, cost, budget)


def numeric_params(surface: Surface, cost: Cost, budget: Any) -> Any:
    """The same by bisection on the Lagrange condition, for any form and any convention."""
    high = _log(params_for_cost(cost, budget, 1.0))
    low = high * 0.0

    def condition(x):
        N = _exp(x)
        D = cost.tokens(N, budget)
        if hasattr(D, "shape"):
            return _where(D > 0, _lagrange(surface, cost, N, abs(D)), 1.0)
        return _lagrange(surface, cost, N, D) if D > 0 else 1.0  # too large an N leaves no tokens

    def loss(x):
        D = cost.tokens(_exp(x), budget)
        return surface.loss(_exp(x), D) if D > 0 else math.inf

    if _scalar(surface, budget):
        if not surface.plain:
            low, high = least_on_grid(loss, low, high)
        return math.exp(bisect(condition, low, high))
    return _exp(bisect(condition, *_shaped(surface, budget, low, high)))


def closed_form(surface: Surface, cost: Cost) -> bool:
    """Whether the optimum is a formula: E + A/N^alpha + B/D^beta, fresh tokens, C = 6ND and nothing else."""
    return surface.plain and cost.convention == "6nd" and not cost.inference_tokens


def optimal_tokens_for(surface: Surface, cost: Cost, N: Any) -> Any:
    """D with which N is the compute-optimal size, training alone: the inverse of the optimum."""
    if closed_form(surface, cost):
        law = surface.law
        return (law.beta * law.B * N**law.alpha / (law.alpha * law.A)) ** (1 / law.beta)
    return _exp(bisect(lambda y: -_lagrange(surface, cost, N, _exp(y)), *_range_like(surface, N)))


def _lagrange(surface, cost, N, D):
    in_N, in_D = surface.slopes(N, D)
    cost_N, cost_D = cost.slopes(N, D)
    return in_N * cost_D - in_D * cost_N


def params_for_cost(cost: Cost, budget: Any, D: Any) -> Any:
    """N at which D tokens and the serving spend the whole budget."""
    if cost.convention == "6nd":
        return budget / (6.0 * (D + cost.inference_tokens / 3))
    return _exp(bisect(lambda x: cost.total(_exp(x), D) - budget, *_range_like(budget, D)))


def _params_for_ratio(cost, budget, ratio):
    return _exp(bisect(lambda x: cost.total(_exp(x), ratio * _exp(x)) - budget, *_range_like(budget)))


def _cap(N, cost, budget, c, why) -> Point:
    D, name = _lesser(cost.tokens(N, budget), c.max_tokens, "max tokens")
    return Point(N, D, (why, name))


# --- reach a loss -----------------------------------------------------------------------------------------------------


def _reach(surface, cost, c: Constraints) -> Point:
    target = c.target_loss
    if c.params is not None:
        return Point(c.params, tokens_for_loss(surface, c.params, target), ("params fixed",))
    if c.tokens is not None:
        return Point(params_for_loss(surface, c.tokens, target), c.tokens, ("tokens fixed",))
    if c.ratio is not None:
        N = _exp(bisect(lambda x: target - surface.loss(_exp(x), c.ratio * _exp(x)), *_range_like(surface)))
        return Point(N, c.ratio * N, ("ratio fixed",))
    return cheapest(surface, cost, target, c)


def cheapest(surface: Surface, cost: Cost, target: Any, c: Constraints) -> Point:
    """The least C(N, D) on the curve of equal loss; limits clamp."""
    N = cheapest_params(surface, cost, target)
    D = tokens_for_loss(surface, N, target)
    if c.max_tokens is not None:
        over = D > c.max_tokens
        N = _where(over, params_for_loss(surface, c.max_tokens, target), N)
        D = _where(over, c.max_tokens, D)
    if c.max_params is not None:
        over = N > c.max_params
        D = _where(over, tokens_for_loss(surface, c.max_params, target), D)
        N = _where(over, c.max_params, N)
    return Point(N, D, _binding(D, c.max_tokens, "max tokens") + _binding(N, c.max_params, "max params"))


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
    low = _log(params_for_loss(surface, math.exp(LOG_MAX), target))
    high = _log(params_for_loss(surface, 1.0, target))

    def condition(x):
        N = _exp(x)
        return _lagrange(surface, cost, N, tokens_for_loss(surface, N, target))

    if not _scalar(surface, target):
        low, high = _shaped(surface, target, low, high)
    return _exp(bisect(condition, low, high))


def _budget_for_loss(surface: Surface, cost: Cost, target: Any) -> Any:
    """C whose best loss is the target. log(L* - E) is close to linear in log C, and by the envelope theorem
    dL*/dlog C is dL/dlog D over dlog C/dlog D at the optimum."""
    floor = surface.law.constants().get("E", 0.0)
    log_C = _first_budget(surface, target) + 0.0 * (target + floor)
    for _ in range(NEWTON_STEPS):
        C = _exp(log_C)
        N = optimal_params(surface, cost, C)
        D = _where(cost.tokens(N, C) > 1.0, cost.tokens(N, C), 1.0)
        excess = surface.loss(N, D) - floor
        slope = surface.slopes(N, D)[1] / cost.slopes(N, D)[1] / excess
        step = _clip((_log_of(excess / (target - floor))) / slope, MAX_NEWTON_STEP)
        log_C = _clip(log_C - step, LOG_MAX_BUDGET)
        small = abs(step) < 1e-13 * abs(log_C)
        if small.all() if hasattr(small, "all") else small:
            break
    return _exp(log_C)


def _first_budget(surface: Surface, target: Any) -> Any:
    """log C to begin Newton's method at: the plain law's under 6ND where there is one."""
    if not isinstance(surface.law, ChinchillaLaw | DataConstrainedLaw):
        return math.log(FIRST_BUDGET)
    plain = Surface(surface.law)
    N = cheapest_params(plain, Cost(), target)
    return _clip(_log_of(6.0 * N * tokens_for_loss(plain, N, target)), LOG_MAX_BUDGET)


def tokens_for_loss(surface: Surface, N: Any, target: Any) -> Any:
    """D at which the loss at N falls to the target; infinite, or the end of the range, where it never does."""
    if surface.plain:
        law = surface.law
        return _invert(target - law.E - law.A / N**law.alpha, law.B, law.beta)
    if surface.unique_tokens is None:
        return _exp(bisect(lambda y: target - surface.loss(N, _exp(y)), *_range_like(N, target, surface)))
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
    low, high = _range_like(N, target, surface)
    fresh = _exp(bisect(lambda y: target - surface.loss(N, _exp(y)), low, high * 0 + math.log(unique)))
    return _where(repeats_needed, repeated, fresh)


def params_for_loss(surface: Surface, D: Any, target: Any) -> Any:
    """N at which the loss on D tokens falls to the target; infinite, or the end of the range, where it never does."""
    if not surface.plain:
        return _exp(bisect(lambda x: target - surface.loss(_exp(x), D), *_range_like(D, target, surface)))
    law = surface.law
    return _invert(target - law.E - law.B / D**law.beta, law.A, law.alpha)


def _invert(gap, scale, exponent):
    """x at which scale / x^exponent = gap."""
    if not any(hasattr(value, "shape") for value in (gap, scale, exponent)):
        return (scale / gap) ** (1 / exponent) if gap > 0 else math.inf
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gap > 0, (scale / np.where(gap > 0, gap, 1.0)) ** (1 / exponent), np.inf)


# --- refusals ---------------------------------------------------------------------------------------------------------


def _check_reachable(surface, c: Constraints) -> None:
    far, target = math.exp(LOG_MAX), c.target_loss
    limits = [
        f"{name} {format_quantity(value)}"
        for name, value in (
            ("N fixed at", c.params),
            ("N at most", c.max_params),
            ("D fixed at", c.tokens),
            ("D at most", c.max_tokens),
        )
        if value is not None
    ]
    floor = surface.law.constants().get("E")
    if floor is not None and target <= floor:
        raise AllocationError(
            f"target loss {target:g} is at or below the irreducible loss E = {floor:.6g} of this law: "
            "no model reaches it. Ask for a higher loss."
        )
    best = surface.loss(c.params or c.max_params or far, c.tokens or c.max_tokens or far)
    if best >= target:
        limited = " and ".join(limits) or "repeated tokens"
        raise AllocationError(
            f"target loss {target:g} cannot be reached: with {limited} the loss stays above {best:.6g}. "
            "Relax the limit or ask for a higher loss."
        )


def _verify(point: Point, surface, cost, budget, c: Constraints) -> None:
    N, D = point.N, point.D
    if not (math.isfinite(N) and math.isfinite(D)) or N > 1e29 or D > 1e29:
        raise AllocationError("no finite N and D answer this; relax a constraint or check the law's constants.")
    if D <= 0:
        raise AllocationError(
            f"serving {format_quantity(cost.inference_tokens)} tokens with N = {format_quantity(N)} costs "
            f"{format_quantity(cost.inference(N))} FLOP and leaves nothing of the budget {format_quantity(budget)} "
            "for training. Raise the budget, or lower N or the inference tokens."
        )
    if N < 1:
        raise AllocationError(
            f"the answer would have {N:.3g} parameters, which is less than one. Raise the budget or check the law."
        )
    if D < c.min_tokens * (1 - 1e-12):
        raise AllocationError(
            f"the answer would train on {D:.4g} tokens, below one step ({c.min_tokens_reason}, "
            f"{format_quantity(c.min_tokens)} tokens). Raise the budget, or take a smaller batch or context."
        )
    for value, limit, name in ((N, c.max_params, "params"), (D, c.max_tokens, "tokens")):
        if limit is not None and value > limit * (1 + 1e-9):
            raise AllocationError(
                f"reaching this needs {format_quantity(value)} {name}, above max {name} {format_quantity(limit)}."
            )
    if c.target_loss is not None and surface.loss(N, D) > c.target_loss * (1 + 1e-9):
        raise AllocationError(
            f"N = {format_quantity(N)} on D = {format_quantity(D)} gives loss {surface.loss(N, D):.6g}, "
            f"above the target {c.target_loss:g}."
        )
    if budget is not None and cost.total(N, D) > budget * (1 + 1e-9):
        raise AllocationError(
            f"this needs {format_quantity(cost.total(N, D))} FLOP (N = {format_quantity(N)}, "
            f"D = {format_quantity(D)}), above the budget of {format_quantity(budget)}. "
            "Raise the budget or relax a constraint."
        )


# --- floats or arrays -------------------------------------------------------------------------------------------------


def _scalar(surface: Surface, *values) -> bool:
    constants = surface.law.constants().values()
    return not any(hasattr(value, "shape") for value in (*constants, *values))


def _shaped(surface, value, low, high):
    """Bracket ends with the shape of the law's constants."""
    import numpy as np

    shape = np.broadcast_shapes(*(np.shape(v) for v in (*surface.law.constants().values(), value, low, high)))
    return np.broadcast_to(low, shape), np.broadcast_to(high, shape)


def _range_like(*values):
    """[0, LOG_MAX] for floats, arrays of it where any of the values is one."""
    arrays = [v for value in values for v in _arrays_in(value)]
    if not arrays:
        return 0.0, LOG_MAX
    import numpy as np

    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    return np.zeros(shape), np.full(shape, LOG_MAX)


def _arrays_in(value):
    values = value.law.constants().values() if isinstance(value, Surface) else (value,)
    return [v for v in values if hasattr(v, "shape")]


def _exp(x):
    if hasattr(x, "shape"):
        import numpy as np

        return np.exp(x)
    return math.exp(x) if x < 700 else math.inf


def _log(x):
    if hasattr(x, "shape"):
        import numpy as np

        with np.errstate(divide="ignore", invalid="ignore"):
            return np.clip(np.log(x), 0.0, LOG_MAX)
    return min(max(math.log(x), 0.0), LOG_MAX) if x > 0 else 0.0


def _log_of(x):
    if hasattr(x, "shape"):
        import numpy as np

        return np.log(x)
    return math.log(x)


def _clip(x, limit):
    if hasattr(x, "shape"):
        import numpy as np

        return np.clip(x, -limit, limit)
    return max(-limit, min(limit, x))


def _where(condition, this, that):
    if hasattr(condition, "shape"):
        import numpy as np

        return np.where(condition, this, that)
    return this if condition else that


def _lesser(value, limit, name) -> tuple[Any, str]:
    """The value under its limit, and the name of what binds."""
    if limit is None or limit == math.inf:
        return value, "budget"
    over = value > limit
    return _where(over, limit, value), name if over is True else "budget"


def _binding(value, limit, name) -> tuple[str, ...]:
    return (name,) if limit is not None and not hasattr(value, "shape") and value >= limit else ()
