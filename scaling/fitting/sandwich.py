"""Covariance of a fit whose threshold lies below the noise: the curvature from all runs near the law, not from a few.

With delta far below the noise the objective is nearly sum |r|, and its Hessian counts the runs within delta of the law:
a handful of a small table. The expected curvature is 2 delta f(0) sum J J', f the density of the residuals; f(0) is
counted within the bandwidth of Hall and Sheather (1988) instead, as for quantile regression (Powell 1991).
"""

import math
from statistics import NormalDist

import numpy as np

from scaling.fitting.data import RunData
from scaling.fitting.result import FitResult

STEP = 1e-5


def bandwidth(r: np.ndarray, level: float = 0.95) -> float:
    """Half width of the window about zero in which residuals are counted, in the residuals' unit."""
    normal = NormalDist()
    z = normal.inv_cdf((1 + level) / 2)
    share = len(r) ** (-1 / 3) * z ** (2 / 3) * (1.5 / (2 * math.pi)) ** (1 / 3)
    low, high = np.percentile(r, [25, 75])
    scale = min(float(np.std(r)), float(high - low) / 1.349) or float(np.std(r))
    return scale * normal.inv_cdf(min(0.5 + share, 0.99))


def covariance(fit: FitResult) -> np.ndarray | None:
    """Covariance of the fit variables `fit.theta`: H^-1 (sum of g g') H^-1 n / (n - p). None where a bound holds.

    Where the threshold is not below the bandwidth the exact Hessian of `fit.covariance` stands.
    """
    if fit.covariance is None or fit.theta is None:
        return None
    problem = fit.problem
    used = problem.data.weights > 0
    data = problem.data if used.all() else problem.data.take(used)
    delta = problem.objective.threshold
    r = problem.losses_at(fit.theta[None], data)[0] - np.log(data.loss)
    h = bandwidth(r)
    if not problem.objective.log_space or delta >= h or not h > 0:
        return fit.covariance
    J = jacobian(fit, data)
    size = np.sqrt((J * J).sum(0))
    if not (np.isfinite(size) & (size > 0)).all():
        return fit.covariance
    J, w = J / size, data.weights
    H = (J.T * (w * (np.abs(r) < h))) @ J * (delta / h)
    g = J * (w * np.clip(r, -delta, delta))[:, None]
    n, p = J.shape
    values = np.linalg.eigvalsh(H)
    if not values[0] > 1e-13 * values[-1]:
        return fit.covariance
    inverse = np.linalg.inv(H)
    return inverse @ (g.T @ g) @ inverse * n / max(n - p, 1) / np.outer(size, size)


def jacobian(fit: FitResult, data: RunData) -> np.ndarray:
    """d log Lhat / d theta (n, p), by central differences."""
    p = len(fit.theta)
    up, down = (fit.problem.losses_at(fit.theta + sign * STEP * np.eye(p), data) for sign in (1, -1))
    return (up - down).T / (2 * STEP)
