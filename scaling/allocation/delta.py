"""Intervals from a covariance of the constants, by the delta method: for laws that come without joint draws.

Of a quantity f of the constants theta, var f = g^T S g with g the gradient of f and S the covariance. N, D, D/N and
FLOP are taken in logarithms, where they are close to normal, the loss as it is. Without numpy: five constants.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scaling.allocation.law_choice import Covariance, LawChoice
from scaling.allocation.question import Question, refer_to
from scaling.allocation.solver import solve
from scaling.allocation.surface import make_surface
from scaling.errors import AllocationError, ScalingError
from scaling.roots import bisect

STEP = 1e-4  # in log constants and in exponents; central differences are then good to about 1e-7
LOGARITHMIC = ("params", "tokens", "tokens_per_param", "flops")


def delta_intervals(question: Question, level: float) -> dict[str, Any] | None:
    """Intervals of N*, D*, D/N, loss and FLOP about the answer; None where a neighbouring law has no answer.

    Raises AllocationError for a level that is not a share.
    """
    check_level(level)
    covariance = question.law.covariance
    assert covariance is not None
    z = normal_quantile(0.5 + level / 2)
    try:
        centre = _quantities(question, question.law)
        slopes = [_slope(question, covariance, i) for i in range(len(covariance.variables))]
    except ScalingError:
        return None
    found: dict[str, Any] = {"level": level, "method": f"delta method; {covariance.source}"}
    for name, value in centre.items():
        g = [slope[name] for slope in slopes]
        half = z * math.sqrt(max(0.0, _quadratic(g, covariance.matrix)))
        ends = value - half, value + half
        found[name] = [math.exp(end) for end in ends] if name in LOGARITHMIC else list(ends)
    return found


def check_level(level: float) -> None:
    """A level is a share of probability."""
    if not 0 < level < 1:
        raise AllocationError(f"level {level:g} is not between 0 and 1; 0.95 is usual.")


def normal_quantile(p: float) -> float:
    """x with P(Z <= x) = p for a standard normal Z."""
    return bisect(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)) - p, -40.0, 40.0)


def _slope(question: Question, covariance: Covariance, i: int) -> dict[str, float]:
    up, down = (_quantities(question, _moved(question.law, covariance.variables[i], step)) for step in (STEP, -STEP))
    return {name: (up[name] - down[name]) / (2 * STEP) for name in up}


def _moved(choice: LawChoice, variable: str, step: float) -> LawChoice:
    """The law with one constant a little off."""
    constants = choice.law.constants()
    name = variable.removeprefix("log_")
    moved: Callable[[float], float] = (lambda x: x * math.exp(step)) if variable != name else (lambda x: x + step)
    return replace(choice, law=type(choice.law)(**constants | {name: moved(constants[name])}))


def _quantities(question: Question, choice: LawChoice) -> dict[str, float]:
    """The answer under another law, in the scale of the delta method."""
    surface, _ = make_surface(choice.law, question.surface.unique_tokens)
    q = replace(question, law=choice, surface=surface)
    if q.reference is not None:
        q = refer_to(q, q.reference["params"])
    point = solve(surface, q.cost, q.flops, q.constraints)
    N, D = point.N, point.D
    return {
        "params": math.log(N),
        "tokens": math.log(D),
        "tokens_per_param": math.log(D / N),
        "loss": surface.loss(N, D),
        "flops": math.log(q.cost.training(N, D)),
    }


def _quadratic(g: list[float], matrix: tuple[tuple[float, ...], ...]) -> float:
    return sum(a * m * b for a, row in zip(g, matrix, strict=True) for m, b in zip(row, g, strict=True))
