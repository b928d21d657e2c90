"""Thousands of refits of one problem as one batch: each is a row of weights of the runs (a resample, a run left out).

The start of each refit is the best of a few hundred candidates under its own weights: pilot refits and draws around
them. Rows that do not converge are started again with a ladder of thresholds, and are counted if that fails too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scaling.fitting.newton import Minima
from scaling.fitting.problem import Problem
from scaling.fitting.solve import merge, nearly_gone, polish, without_first

CHUNK = 1 << 22  # weights held at once: 32 MiB
PILOTS, CANDIDATES = 64, 192
TOLERANCE, LAST_STEP = 1e-11, 1e-9  # of the predicted decrease, relative to F: damped, and undamped


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


def refit(problem: Problem, weights: np.ndarray, theta: np.ndarray, candidates: np.ndarray | None = None) -> Refits:
    """Refit under each row of weights (R, n), from `theta` (p,) or the best of `candidates` (K, p)."""
    weights = _weighted(problem, weights)
    starts = np.repeat(theta[None], len(weights), 0) if candidates is None else choose(problem, weights, candidates)
    return _solve(problem, starts, theta, weights)


def refit_losses(problem: Problem, log_losses: np.ndarray, theta: np.ndarray) -> Refits:
    """Refit to each row of log losses (R, n) at the same N and D."""
    return _solve(problem.with_losses(log_losses), np.repeat(theta[None], len(log_losses), 0), theta, None)


def pilots(problem: Problem, weights: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """About where refits from `theta` under each row of weights (R, n) end: theta (R, p)."""
    single = problem.in_single() or problem
    return _approach(single, np.repeat(theta[None], len(weights), 0), _weighted(problem, weights), _options(problem, theta))


def _weighted(problem, weights):
    return weights if (problem.weights == 1).all() else weights * problem.weights


def _options(problem, theta) -> dict:
    return dict(ladder=problem.objective.short_ladder(), scale=problem.scale(theta[None]))


def _approach(problem, starts, weights, options) -> np.ndarray:
    """Most of the way; the last step, taken without an evaluation, leads to where double precision is due."""
    own = None if weights is None else weights.astype(problem.precision)
    return polish(problem, starts, weights=own, tolerance=1e-6, last_step=1e-6, max_iterations=10, **options).theta


def _solve(problem: Problem, starts, theta, weights) -> Refits:
    options, single = _options(problem, theta), problem.in_single()
    if single is not None:
        starts = _approach(single, starts, weights, options)
    first = polish(problem, starts, weights=weights, tolerance=TOLERANCE, last_step=LAST_STEP, max_iterations=30, **options)
    rows = np.flatnonzero(~first.converged)
    if len(rows):
        first = _rescue(problem, first, theta, weights, rows)
    return Refits(first.theta, first.value, first.converged, len(rows))


def _rescue(problem: Problem, first: Minima, theta, weights, rows) -> Minima:
    """Start the rows that did not converge again, from the fit and from where they are, down a ladder of thresholds.

    Rows whose E is all but gone are then tried with E at its floor.
    """
    ladder = problem.objective.short_ladder(rescue=True)

    def again(rows, start, ladder, lifting):
        part = problem if problem.log_loss.ndim == 1 else problem.with_losses(problem.log_loss[rows])
        own = None if weights is None else weights[rows]
        return polish(part, start, ladder=ladder, tolerance=TOLERANCE, weights=own, max_iterations=200, lifting=lifting)

    first = merge(first, again(rows, np.repeat(theta[None], len(rows), 0), ladder, True), rows)
    first = merge(first, again(rows, first.theta[rows], ladder, True), rows)
    left = rows[~first.converged[rows] & nearly_gone(first.theta[rows], problem.box)]
    if len(left):
        first = merge(first, again(left, without_first(first.theta[left], problem.box), ladder[-1:], False), left)
    return first


def choose(problem: Problem, weights: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """For each row of weights the candidate of lowest F: one matrix product of weights and rho of the residuals."""
    score = np.zeros((len(weights), len(candidates)), np.float32)  # single precision is enough to choose a start
    for left in range(0, weights.shape[1], 4096):
        columns = slice(left, left + 4096)
        score += weights[:, columns].astype(np.float32) @ problem.rho(candidates, columns).T.astype(np.float32)
    return candidates[np.argmin(score, axis=1)]


def candidates_around(problem: Problem, pilots: np.ndarray, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The pilot refits (R, p), the fit itself, and draws from a normal distribution about the pilots, within the box."""
    spread = np.cov(pilots.T) + 1e-14 * np.eye(len(theta))
    draws = rng.multivariate_normal(theta, spread, CANDIDATES - len(pilots) - 1, method="eigh")
    return np.clip(np.concatenate([theta[None], pilots, draws]), problem.box.low, problem.box.high)
