"""Thousands of refits of one problem as one batch: each is a row of weights of the runs (a resample, a run left out).

The start of each refit is the best of a few hundred candidates under its own weights: pilot refits and draws around
them. Rows that do not converge are started again with a ladder of thresholds, and are counted if that fails too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scaling.fitting.newton import Minima
from scaling.fitting.solve import polish

CHUNK = 1 << 22  # weights held at once: 32 MiB
PILOTS, CANDIDATES = 64, 192
TOLERANCE = 1e-12  # of the predicted decrease, relative to F


@dataclass(frozen=True)
class Refits:
    """Where a batch of refits ended: theta (R, p) in centred fit variables."""

    theta: np.ndarray
    value: np.ndarray
    converged: np.ndarray
    rescued: int  # how many needed a second start


def chunks(count: int, n: int) -> Iterator[slice]:
    """Slices of a batch of `count` rows over n runs, such that one slice of weights stays in memory."""
    size = max(1, CHUNK // max(n, 1))
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def refit(problem, weights: np.ndarray, theta: np.ndarray, candidates: np.ndarray | None = None) -> Refits:
    """Refit under each row of weights (R, n), from `theta` (p,) or the best of `candidates` (K, p)."""
    base = problem.points.weights
    weights = weights if (base == 1).all() else weights * base
    starts = np.repeat(theta[None], len(weights), 0) if candidates is None else choose(problem, weights, candidates)
    scale = problem.scale(theta[None])
    first = polish(problem.points, starts, problem.box, problem.objective, ladder=(problem.objective.threshold,),
                   tolerance=TOLERANCE, weights=weights, scale=scale, max_iterations=30)  # fmt: skip
    return _rescue(problem, problem.points, first, theta, weights)


def refit_losses(problem, log_losses: np.ndarray, theta: np.ndarray) -> Refits:
    """Refit to each row of log losses (R, n) at the same N and D."""
    points = problem.points.with_losses(log_losses)
    starts = np.repeat(theta[None], len(log_losses), 0)
    first = polish(points, starts, problem.box, problem.objective, ladder=(problem.objective.threshold,),
                   tolerance=TOLERANCE, scale=problem.scale(theta[None]), max_iterations=30)  # fmt: skip
    return _rescue(problem, points, first, theta, None)


def _rescue(problem, points, first: Minima, theta, weights) -> Refits:
    """Start the rows that did not converge again, from where they are and from theta, down a ladder of thresholds."""
    rows = np.flatnonzero(~first.converged)
    if len(rows):
        delta = problem.objective.threshold
        ladder = (delta,) if np.isinf(delta) else (32 * delta, 8 * delta, 2 * delta, delta)
        some = points if points.log_loss.ndim == 1 else points.with_losses(points.log_loss[rows])
        for start in (np.repeat(theta[None], len(rows), 0), first.theta[rows]):
            again = polish(some, start, problem.box, problem.objective, ladder=ladder, tolerance=TOLERANCE,
                           weights=None if weights is None else weights[rows], max_iterations=80)  # fmt: skip
            better = (again.value < first.value[rows]) | (again.converged & ~first.converged[rows] & (
                again.value <= first.value[rows] * (1 + 1e-9)))  # fmt: skip
            index = rows[better]
            first.theta[index], first.value[index] = again.theta[better], again.value[better]
            first.converged[index] = again.converged[better]
    return Refits(first.theta, first.value, first.converged, len(rows))


def choose(problem, weights: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """For each row of weights the candidate of lowest F: one matrix product of weights and rho of the residuals."""
    score = np.zeros((len(weights), len(candidates)))
    for left in range(0, weights.shape[1], 4096):
        columns = slice(left, left + 4096)
        score += weights[:, columns] @ rho(problem, candidates, columns).T
    return candidates[np.argmin(score, axis=1)]


def rho(problem, theta: np.ndarray, columns=slice(None)) -> np.ndarray:
    """rho of each run's residual (K, n) at each row of theta (K, p), without weights."""
    p, objective = problem.points, problem.objective
    log_E, log_A, log_B, alpha, beta = theta.T[:, :, None]
    total = np.exp(log_E) + np.exp(log_A - alpha * p.x[columns]) + np.exp(log_B - beta * p.y[columns])
    r = np.log(total) - p.log_loss[columns] if objective.log_space else total - p.loss[columns]
    size = np.abs(r)
    psi = np.minimum(size, objective.threshold)
    return psi * (size - 0.5 * psi)


def candidates_around(problem, pilots: Refits, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The pilot refits, the fit itself, and draws from a normal distribution about the pilots, within the box."""
    spread = np.cov(pilots.theta.T) + 1e-14 * np.eye(len(theta))
    draws = rng.multivariate_normal(theta, spread, CANDIDATES - len(pilots.theta) - 1, method="eigh")
    return np.clip(np.concatenate([theta[None], pilots.theta, draws]), problem.box.low, problem.box.high)
