"""Approach 1: the lowest loss at each level of compute, over training curves or over runs of each size.

Curves are the checkpoints of one run, or, where each run has one row, the runs of one model size in order of compute.
At log-spaced levels each curve is interpolated in log C; the lowest is the envelope. A level counts when at least three
sizes reach it and the winner is neither the smallest nor the largest of them: else the true optimum may lie outside.
Checkpoints before the end of a decaying schedule lie above what a run of that length would reach, which favours
small models at every level but a run's last (Hoffmann et al. 2022, section 3.1).
"""

from dataclasses import dataclass

import numpy as np

from scaling.errors import FitError
from scaling.fitting.data import RunData
from scaling.fitting.identifiability import groups
from scaling.fitting.regression import PowerLaw, power_law

LEVELS = 200


@dataclass(frozen=True)
class Envelope:
    """The levels that count with N, D and loss of the winner, and the power laws of N and D through them."""

    flops: np.ndarray
    N: np.ndarray
    D: np.ndarray
    loss: np.ndarray
    N_law: PowerLaw
    D_law: PowerLaw
    n_curves: int
    n_levels: int  # tried, of which len(flops) count
    warnings: tuple[str, ...]
    draws: np.ndarray | None = None  # (resamples, 2): exponent and log coefficient of N*


def fit_envelope(
    data: RunData, curves: np.ndarray | None = None, *, levels: int = LEVELS, resamples: int = 1000, seed: int = 0,
    level: float = 0.95,
) -> Envelope:  # fmt: skip
    """Approach 1. `curves` labels the training curve of each row; None: the runs of one size make a curve.

    The interval resamples curves. Raises FitError when fewer than 5 levels have an interior winner.
    """
    labels = groups(data.N) if curves is None else np.unique([str(c) for c in curves], return_inverse=True)[1]
    grid = np.geomspace(data.flops.min(), data.flops.max(), levels)
    losses, sizes = _table(data, labels, grid)
    C, N, loss, keep = _winners(losses, sizes, grid)
    if len(C) < 5 or len(np.unique(N)) < 2:
        raise FitError(
            f"envelope: only {len(C)} of {levels} FLOP levels have a winner between smaller and larger models that reach "
            "them; 5 are needed. Use more sizes per level, or the parametric fit."
        )
    D = C / (6 * N)
    warnings = []
    if keep.mean() < 0.5:
        warnings.append(f"the envelope has an interior winner at {keep.mean():.0%} of the FLOP levels only.")
    if len(np.unique(N)) < 5:
        warnings.append(f"only {len(np.unique(N))} sizes ever win: the envelope is a staircase of few steps.")
    return Envelope(
        C, N, D, loss, power_law(C, N, level=level), power_law(C, D, level=level), len(sizes), levels, tuple(warnings),
        _resample(losses, sizes, grid, resamples, np.random.default_rng(seed)),
    )  # fmt: skip


def _table(data: RunData, labels: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Loss of each curve at each level (curves, levels), infinite where it does not reach, and the size of each."""
    losses, sizes = [], []
    for k in range(labels.max() + 1):
        rows = np.flatnonzero(labels == k)
        rows = rows[np.argsort(data.flops[rows], kind="stable")]
        if len(rows) < 2 or data.flops[rows[0]] == data.flops[rows[-1]]:
            continue
        x, lowest = np.log(data.flops[rows]), data.loss[rows]
        losses.append(np.interp(np.log(grid), x, lowest, left=np.inf, right=np.inf))
        sizes.append(float(np.exp(np.log(data.N[rows]).mean())))
    if not losses:
        raise FitError("envelope: no curve has 2 rows or more. Name the column of the run with --curves.")
    return np.array(losses), np.array(sizes)


def _winners(losses, sizes, grid):
    """FLOPs, N and loss at the levels that count, and which of the levels those are."""
    reach = np.isfinite(losses)
    kind = groups(sizes)
    best = losses.argmin(0)
    smallest = np.where(reach, kind[:, None], 1 << 30).min(0)
    largest = np.where(reach, kind[:, None], -1).max(0)
    keep = (kind[best] > smallest) & (kind[best] < largest)  # so at least three sizes reach the level
    return grid[keep], sizes[best[keep]], losses[best, np.arange(len(grid))][keep], keep


def _resample(losses, sizes, grid, resamples, rng) -> np.ndarray | None:
    out = []
    for _ in range(resamples):
        drawn = rng.integers(0, len(sizes), len(sizes))
        C, N, _, _ = _winners(losses[drawn], sizes[drawn], grid)
        if len(C) >= 5 and len(np.unique(N)) >= 2:
            law = power_law_only(C, N)
            out.append(law)
    return np.array(out) if len(out) >= 20 else None


def power_law_only(C, value) -> tuple[float, float]:
    """Exponent and log coefficient."""
    x, y = np.log(C), np.log(value)
    dx = x - x.mean()
    slope = float(dx @ y / (dx @ dx))
    return slope, float(y.mean() - slope * x.mean())
