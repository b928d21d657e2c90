"""Refitting to resampled runs: what the constants, and what follows from them, would have been from other runs.

runs         n runs drawn with replacement (Efron 1979)
cluster      whole clusters (checkpoints or seeds of one run, runs of one size) drawn with replacement
parametric   losses simulated from the fitted law, noise drawn from its own residuals, scaled by sqrt(n / (n - p))
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.errors import FitError
from scaling.fitting.refit import PILOTS, Refits, candidates_around, chunks, pilots, refit, refit_losses
from scaling.fitting.result import FitResult

DEFAULT_RESAMPLES = 4000
WORK = 80_000_000  # resamples times runs that the default does not exceed, about 10 s
COUNTED = 1 << 14  # draws counted at once: their bins stay in the cache
KINDS = ("runs", "cluster", "parametric")


@dataclass(frozen=True)
class Bootstrap:
    """The joint draws (resamples, constants) under the fit's `names`, those that converged only."""

    names: tuple[str, ...]
    draws: np.ndarray
    kind: str
    resamples: int
    not_converged: int
    rescued: int
    seed: int
    clusters: int | None = None  # how many there were to draw from

    def covariance(self) -> np.ndarray:
        """Covariance of the draws."""
        return np.cov(self.draws.T)


def default_resamples(n: int) -> int:
    """4000, or fewer for very large tables: at least 200."""
    return int(min(DEFAULT_RESAMPLES, max(200, WORK // max(n, 1))))


def bootstrap(
    fit: FitResult, resamples: int | None = None, *, kind: str = "runs", cluster: Any = None, seed: int = 0
) -> Bootstrap:
    """Refit `resamples` times (None: 4000, fewer above 20,000 runs), each refit to its own minimum.

    `cluster` (a column name or an array of labels) goes with kind "cluster". Every option of the fit holds in every
    refit. Raises FitError for a fit without a law, fewer than 2 clusters, or an unknown kind.
    """
    if not fit.usable:
        raise FitError(f"bootstrap: the fit is {fit.status}: {fit.message}")
    if kind not in KINDS:
        raise FitError(f'bootstrap: kind "{kind}" is not known. Known: {", ".join(KINDS)}.')
    problem = fit.problem
    resamples = default_resamples(problem.data.n) if resamples is None else resamples
    if resamples < 2:
        raise FitError(f"bootstrap: {resamples} resamples; at least 2 are needed, 1000 for a 95 % interval.")
    labels = cluster_labels(problem.data, cluster) if kind == "cluster" else None
    rng = np.random.default_rng(seed)
    theta = problem.inverse(fit.theta)
    if kind == "parametric":
        parts = list(_parametric(problem, theta, resamples, rng))
    else:
        parts = list(_resampled(problem, theta, resamples, rng, labels))
    draws = problem.public(np.concatenate([part.theta for part in parts]))
    converged = np.concatenate([part.converged for part in parts])
    return Bootstrap(fit.names, draws[converged], kind, resamples, int((~converged).sum()),
                     sum(part.rescued for part in parts), seed, None if labels is None else int(labels.max()) + 1)  # fmt: skip


def cluster_labels(data, cluster: Any) -> np.ndarray:
    """Cluster number of each run from a column name or an array. Raises FitError for fewer than 2 clusters."""
    if cluster is None:
        raise FitError("cluster: name the column whose values tell the clusters apart.")
    if isinstance(cluster, str):
        if data.table is None or cluster not in data.table.columns:
            have = ", ".join(map(str, data.table.columns)) if data.table is not None else "none"
            raise FitError(f'cluster: no column "{cluster}" (columns: {have}).')
        cluster = data.table[cluster]
    values = np.asarray(cluster)
    if values.shape != (data.n,):
        raise FitError(f"cluster: {values.shape} labels for {data.n} runs.")
    labels = np.unique([str(value) for value in values], return_inverse=True)[1]
    if labels.max() < 1:
        raise FitError("cluster: all runs are in one cluster; at least 2 are needed, 10 to mean much.")
    return labels


def counts(rng: np.random.Generator, resamples: int, n: int) -> np.ndarray:
    """How often each of n things is drawn (resamples, n), as floats."""
    drawn = rng.integers(0, n, (resamples, n), dtype=np.int32)
    out = np.empty((resamples, n))
    height = max(1, COUNTED // n)
    shift = n * np.arange(height)[:, None]  # row k of a block counts in bins of its own, n k and up
    for top in range(0, resamples, height):
        block = drawn[top : top + height]
        found = np.bincount((block + shift[: len(block)]).ravel(), minlength=block.size)
        out[top : top + height] = found.reshape(block.shape)
    return out


def _resampled(problem, theta, resamples, rng, labels):
    n = problem.data.n
    units = n if labels is None else int(labels.max()) + 1

    def weights(count):
        drawn = counts(rng, count, units)
        return drawn if labels is None else drawn[:, labels]

    candidates = candidates_around(problem, pilots(problem, weights(min(PILOTS, resamples)), theta), theta, rng)
    for part in chunks(resamples, n):
        yield refit(problem, weights(part.stop - part.start), theta, candidates)


def _parametric(problem, theta, resamples, rng):
    n, log_space = problem.data.n, problem.objective.log_space
    fitted = problem.log_losses(theta[None])[0]
    root = np.sqrt(np.where(problem.weights > 0, problem.weights, 1.0))
    r = -problem.residual(theta[None])[0] * root
    noise = (r - r.mean()) * np.sqrt(n / max(n - len(theta), 1))
    for part in chunks(resamples, n):
        drawn = noise[rng.integers(0, n, (part.stop - part.start, n))] / root
        losses = fitted + drawn if log_space else np.log(np.maximum(np.exp(fitted) + drawn, 1e-300))
        yield refit_losses(problem, losses, theta)


def leave_out(fit: FitResult, labels: np.ndarray | None = None, *, limit: int = 400) -> tuple[np.ndarray, Refits]:
    """Refits without each run, or each group of `labels`; (group number of each run, refits).

    Above `limit` runs without labels, runs are left out by `limit` interleaved groups.
    """
    problem, n = fit.problem, fit.problem.data.n
    if labels is None:
        labels = np.arange(n) % min(n, limit)
    theta = problem.inverse(fit.theta)
    parts = []
    for part in chunks(int(labels.max()) + 1, n):
        groups = np.arange(part.start, part.stop)[:, None]
        parts.append(refit(problem, (labels != groups).astype(float), theta))
    merged = Refits(
        theta=np.concatenate([p.theta for p in parts]),
        value=np.concatenate([p.value for p in parts]),
        converged=np.concatenate([p.converged for p in parts]),
        rescued=sum(p.rescued for p in parts),
    )
    return labels, merged
