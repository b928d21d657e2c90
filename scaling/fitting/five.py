"""The variables of the five-constant law: bounds, centring, and the scale of each."""

from collections.abc import Mapping

import numpy as np

from scaling.errors import FitError
from scaling.fitting.kernel import E_FLOOR, Points
from scaling.fitting.newton import Box
from scaling.fitting.objective import Objective
from scaling.fitting.solve import VANISH

DEFAULT_BOUNDS: Mapping[str, tuple[float, float | None]] = {"E": (0.0, None), "alpha": (1e-3, 3.0), "beta": (1e-3, 3.0)}


def make_box(points: Points, bounds: Mapping[str, tuple[float, float | None]] = DEFAULT_BOUNDS) -> Box:
    """Bounds of theta from bounds of E, alpha and beta. Raises FitError for another constant or an empty interval."""
    unknown = sorted(set(bounds) - set(DEFAULT_BOUNDS))
    if unknown:
        raise FitError(f"bounds: {', '.join(unknown)} cannot be bounded; only E, alpha and beta can (A and B shift "
                       "with their exponents).")  # fmt: skip
    limits = {**DEFAULT_BOUNDS, **bounds}
    floor, ceiling = np.log(points.loss.min()) - E_FLOOR, np.log(points.loss.max()) + 5
    low, high = np.full(5, floor), np.full(5, ceiling)
    vanish = np.full(5, -np.inf)
    vanish[:3] = floor + E_FLOOR - VANISH
    for j, name in ((0, "E"), (3, "alpha"), (4, "beta")):
        lo, hi = limits[name]
        hi = np.inf if hi is None else hi
        if not (np.isfinite(lo) and 0 <= lo < hi):
            raise FitError(f"bounds: {name} in ({lo}, {hi}) is not an interval of non-negative numbers.")
        if name != "E":
            spread = np.abs(points.x if name == "alpha" else points.y).max(initial=1e-9)
            low[j], high[j] = lo, min(hi, max(600 / spread, lo + 1e-6))  # beyond it exp() overflows
            continue
        if lo > 0:
            low[0], vanish[0] = np.log(lo), -np.inf
        high[0] = min(ceiling, np.log(hi)) if np.isfinite(hi) else np.log(points.loss.max())
        low[0] = min(low[0], high[0] - 1e-9)
    return Box(low, high, vanish, 3)


def damping_scale(points: Points, theta: np.ndarray, objective: Objective, delta: float) -> np.ndarray:
    """Diagonal (5, R) of the re-weighted Gauss-Newton matrix in the coordinates of `Centred`, floored."""
    log_E, log_A, log_B, alpha, beta = theta.T[:, :, None]
    with np.errstate(over="ignore", invalid="ignore"):
        E, A, B = np.exp(log_E), np.exp(log_A), np.exp(log_B)
        fA, fB = A * np.expm1(-alpha * points.x), B * np.expm1(-beta * points.y)
        level = E + A + B
        total = level + fA + fB
        r = np.log(total) - points.log_loss if objective.log_space else total - points.loss
        weight = points.weights * np.minimum(1.0, delta / np.maximum(np.abs(r), 1e-300))
        columns = [level, fA, fB, (A + fA) * points.x + fA / alpha, (B + fB) * points.y + fB / beta]
        if objective.log_space:
            columns = [c / total for c in columns]
        scale = np.stack([(weight * c * c).sum(1) for c in columns])
    scale = np.where(np.isfinite(scale), scale, 1.0)
    return np.maximum(scale, 1e-10 * scale.max(0) + 1e-300)


def uncentre(theta: np.ndarray, points: Points) -> np.ndarray:
    """theta with log A and log B of the law itself: log A = log A' + alpha mean(log N)."""
    out = np.array(theta, float)
    out[..., 1] += out[..., 3] * points.x_mean
    out[..., 2] += out[..., 4] * points.y_mean
    return out


def centre(theta: np.ndarray, points: Points) -> np.ndarray:
    """The inverse of `uncentre`."""
    out = np.array(theta, float)
    out[..., 1] -= out[..., 3] * points.x_mean
    out[..., 2] -= out[..., 4] * points.y_mean
    return out
