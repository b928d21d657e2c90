"""Approach 1: the lowest loss at each level of compute, over training curves or over runs of each size.

Curves are the checkpoints of one run, or, where each run has one row, the runs of one model size in order of compute.
At log-spaced levels each curve is interpolated in log C; the lowest is the envelope. A level counts when at least three
sizes reach it and the winner is neither the smallest nor the largest of them: else the true optimum may lie outside.
Counting every level instead (`winners="all"`, as others do) draws the exponent to that of the grid itself.
Checkpoints before the end of a decaying schedule lie above what a run of that length would reach, which favours
small models at every level but a run's last (Hoffmann et al. 2022, section 3.1).
"""

from dataclasses import dataclass

import numpy as np

from scaling.errors import FitError
from scaling.fitting.data import RunData
from scaling.fitting.identifiability import groups
from scaling.fitting.regression import PowerLaw, power_law

LEVELS = {"interior": (200, 0.0), "all": (80, 0.05)}  # how many, and the quantile of the rows' FLOPs that they start at


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
    winners: str = "interior"
    curves_by: str = "size"  # or "run_id", or "given"


def fit_envelope(
    data: RunData, curves: np.ndarray | None = None, *, winners: str = "interior", levels: int | None = None,
    resamples: int = 1000, seed: int = 0, level: float = 0.95,
) -> Envelope:  # fmt: skip
    """Approach 1. `curves` labels the training curve of each row; None: the rows of one run_id where these repeat, else
    the runs of one size.

    `winners` says which levels count: "interior", or "all", also those that the smallest or largest size wins: 80
    levels from the 5th percentile of FLOPs. Rows of weight zero are left out. The interval resamples curves. Raises
    FitError when fewer than 5 levels count.
    """
    if winners not in LEVELS:
        raise FitError(f'envelope: winners = "{winners}" is not known. Known: {", ".join(LEVELS)}.')
    if not (data.weights > 0).all():
        used = data.weights > 0
        data, curves = data.take(used), None if curves is None else np.asarray(curves)[used]
    labels, curves_by = _curves(data, curves)
    number, start = LEVELS[winners]
    levels = levels or number
    grid = np.geomspace(np.quantile(data.flops, start), data.flops.max(), levels)
    losses, sizes = _table(data, labels, grid)
    inner = winners == "interior"
    C, N, loss, keep = _winners(losses, sizes, grid, inner)
    if not inner and len(np.unique(N)) < 2:
        raise FitError("envelope: one size wins at every FLOP level; there is no line to draw. Use the parametric fit.")
    if len(C) < 5 or len(np.unique(N)) < 2:
        raise FitError(
            f"envelope: only {len(C)} of {levels} FLOP levels have a winner between smaller and larger models that reach "
            "them; 5 are needed. Use more sizes per level, or the parametric fit."
        )
    D = C / (6 * N)
    warnings = []
    if inner and keep.mean() < 0.5:
        warnings.append(f"the envelope has an interior winner at {keep.mean():.0%} of the FLOP levels only.")
    if not inner:
        edge = 1 - _winners(losses, sizes, grid, True)[3].sum() / max(len(C), 1)
        warnings.append(f"the smallest or the largest size that reaches a level wins {edge:.0%} of them: there the grid's "
                        "edge is the answer, which draws the exponent to the grid's own.")  # fmt: skip
    if len(np.unique(N)) < 5:
        warnings.append(f"only {len(np.unique(N))} sizes ever win: the envelope is a staircase of few steps.")
    return Envelope(
        C, N, D, loss, power_law(C, N, level=level), power_law(C, D, level=level), len(sizes), levels, tuple(warnings),
        _resample(losses, sizes, grid, resamples, np.random.default_rng(seed), inner), winners, curves_by,
    )  # fmt: skip


def _curves(data: RunData, curves: np.ndarray | None) -> tuple[np.ndarray, str]:
    """The number of each row's curve, and what told the curves apart."""
    by, table = "given", data.table
    if curves is None and table is not None and "run_id" in table.columns and table["run_id"].nunique() <= data.n / 2:
        curves, by = np.asarray(table["run_id"]), "run_id"
    if curves is None:
        return groups(data.N), "size"
    return np.unique([str(c) for c in curves], return_inverse=True)[1], by


def _table(data: RunData, labels: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Loss of each curve at each level (curves, levels), infinite where it does not reach, and the size of each."""
    losses, sizes = [], []
    for k in range(labels.max() + 1):
        rows = np.flatnonzero(labels == k)
        rows = rows[np.argsort(data.flops[rows], kind="stable")]
        if len(rows) < 2 or data.flops[rows[0]] == data.flops[rows[-1]]:
            continue
        C, first = np.unique(data.flops[rows], return_index=True)
        lowest = np.minimum.reduceat(data.loss[rows], first)  # of several runs at one C
        losses.append(np.interp(np.log(grid), np.log(C), lowest, left=np.inf, right=np.inf))
        sizes.append(float(np.median(data.N[rows])))
    if not losses:
        raise FitError("envelope: no curve has 2 rows or more. Name the column of the run with --curves.")
    return np.array(losses), np.array(sizes)


def _winners(losses, sizes, grid, inner: bool):
    """FLOPs, N and loss at the levels that count, and which of the levels those are."""
    reach = np.isfinite(losses)
    kind = groups(sizes)
    best = losses.argmin(0)
    smallest = np.where(reach, kind[:, None], 1 << 30).min(0)
    largest = np.where(reach, kind[:, None], -1).max(0)
    keep = (kind[best] > smallest) & (kind[best] < largest) if inner else reach.any(0)  # inner: three sizes reach it
    return grid[keep], sizes[best[keep]], losses[best, np.arange(len(grid))][keep], keep


def _resample(losses, sizes, grid, resamples, rng, inner) -> np.ndarray | None:
    out = []
    for _ in range(resamples):
        drawn = rng.integers(0, len(sizes), len(sizes))
        C, N, _, _ = _winners(losses[drawn], sizes[drawn], grid, inner)
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
