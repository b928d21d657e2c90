"""One-dimensional root finding that works on floats without numpy, and on arrays elementwise."""

import math
from collections.abc import Callable
from typing import Any

ARRAY_STEPS = 64  # halvings for arrays: 2^-64 of a bracket is below the spacing of doubles


def bisect(f: Callable[[Any], Any], low: Any, high: Any) -> Any:
    """The x in [low, high] at which an f that goes from below to above zero crosses it, to the last bit.

    Floats or arrays. When f keeps one sign the nearer end comes back; NaN counts as below zero.
    """
    if hasattr(low, "shape") or hasattr(high, "shape"):
        return _bisect_arrays(f, low, high)
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return _smaller_residual(f, low, high)
        if f(middle) > 0:
            high = middle
        else:
            low = middle


def _smaller_residual(f, low, high):
    at_low, at_high = f(low), f(high)
    return low if abs(at_low) < abs(at_high) else high


def _bisect_arrays(f, low, high):
    import numpy as np

    low, high = (np.array(x, float) for x in np.broadcast_arrays(low, high))
    for _ in range(ARRAY_STEPS):
        middle = 0.5 * (low + high)
        above = f(middle) > 0
        high = np.where(above, middle, high)
        low = np.where(above, low, middle)
    return 0.5 * (low + high)


def least_on_grid(f: Callable[[float], float], low: float, high: float, *, points: int = 160) -> tuple[float, float]:
    """The grid cell pair around the least value of f on [low, high]; values that are NaN or infinite are skipped."""
    xs = [low + (high - low) * i / (points - 1) for i in range(points)]
    values = [f(x) for x in xs]
    best = min(range(points), key=lambda i: values[i] if math.isfinite(values[i]) else math.inf)
    return xs[max(0, best - 1)], xs[min(points - 1, best + 1)]


def minimise(f: Callable[[float], float], low: float, high: float, *, tolerance: float = 1e-6) -> float:
    """Where an f with one minimum on [low, high] is least, by golden section, to `tolerance` in x."""
    ratio = (math.sqrt(5) - 1) / 2
    inner, outer = high - ratio * (high - low), low + ratio * (high - low)
    at_inner, at_outer = f(inner), f(outer)
    while high - low > tolerance:
        if at_inner < at_outer:
            high, outer, at_outer = outer, inner, at_inner
            inner = high - ratio * (high - low)
            at_inner = f(inner)
        else:
            low, inner, at_inner = inner, outer, at_outer
            outer = low + ratio * (high - low)
            at_outer = f(outer)
    return 0.5 * (low + high)
