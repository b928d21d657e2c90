"""Damped Newton for a whole batch of small problems at once, with box bounds and a modified LDL^T.

Each row of the batch is one minimisation; it retires when its predicted decrease is below `tolerance` times its value.
The damping matrix is the diagonal of the iteratively re-weighted Gauss-Newton matrix (Marquardt's scaling), floored,
because a column may vanish. Everything is a loop over the five variables of vectors over the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scaling.fitting.coordinates import Identity

MAX_STEP = 1.0  # no fit variable (a logarithm or an exponent) moves further in one iteration
TINY_PIVOT = 1e-9  # of the damping's scale
FEW = 64  # rows for which LAPACK, called once for each, takes less time than the loops of solve_ldl
FIRST_DAMPING, MAX_DAMPING = 1e-2, 1e9  # a step that failed is rarely cured by less than the first


@dataclass(frozen=True)
class Minima:
    """What a batch of minimisations ended at."""

    theta: np.ndarray  # (R, p)
    value: np.ndarray  # (R,)
    gradient: np.ndarray  # (p, R), zero where a bound holds
    hessian: np.ndarray  # (p, p, R)
    converged: np.ndarray  # (R,) bool
    iterations: np.ndarray  # (R,) int
    at_low: np.ndarray  # (R, p) bool: held at the lower bound
    at_high: np.ndarray  # (R, p) bool


@dataclass(frozen=True)
class Box:
    """Bounds of the fit variables; a variable that falls below `vanish` on its way down goes to `low` at once.

    A term that vanishes does so along an exponential: Newton would need one iteration per factor of e.
    """

    low: np.ndarray  # (p,)
    high: np.ndarray  # (p,)
    vanish: np.ndarray  # (p,)
    terms: int = 0  # how many leading variables are logarithms of terms that add up to the loss at the centre

    def project(self, theta: np.ndarray, trial: np.ndarray) -> np.ndarray:
        """The trial point, reached from theta, within the box."""
        trial = np.clip(trial, self.low, self.high)
        gone = (trial < self.vanish) & (trial < theta - 0.5)  # a term that only shrinks a little is not on its way out
        return vanish(np.where(gone, self.low, trial), gone, trial, self.terms) if gone.any() else trial


def vanish(theta: np.ndarray, gone: np.ndarray, before: np.ndarray, count: int) -> np.ndarray:
    """theta with what its `gone` terms were before shared among the others, so that the level at the centre stays."""
    lead, terms = gone[:, :count], np.exp(before[:, :count])
    lost, left = np.where(lead, terms, 0.0).sum(1), np.where(lead, 0.0, terms).sum(1)
    share = np.log1p(lost / np.maximum(left, 1e-300))[:, None]
    out = theta.copy()
    out[:, :count] += np.where(lead, 0.0, np.minimum(share, 1.0))
    return out


def minimise(
    evaluate: Callable,
    theta: np.ndarray,
    box: Box,
    scale: np.ndarray,
    *,
    tolerance: float = 1e-13,
    max_iterations: int = 60,
    coordinates: Identity | None = None,
    noise: float = 0.0,
    last_step: float = 0.0,
) -> Minima:
    """Minimise each row of theta (R, p). `evaluate(theta, rows)` gives F (R,), gradient (p, R), Hessian (p, p, R).

    `scale` (p, R) is the diagonal of the damping matrix, in the given coordinates. Rounding
    makes F uncertain by about noise * sqrt(F) + noise^2: a smaller decrease is none. An undamped row converges
    quadratically: when its predicted decrease is below `last_step` times F, it takes that step and needs no evaluation.
    """
    coordinates = coordinates or Identity()
    theta = np.clip(theta, box.low, box.high)
    R = len(theta)
    F, g, H = evaluate(theta, np.arange(R))
    result = _Rows(theta, F, g, H, np.zeros(R), scale)
    converged, iterations = np.zeros(R, bool), np.zeros(R, int)
    active = np.flatnonzero(np.isfinite(F))
    now = result.take(active)
    for _ in range(max_iterations):
        held = _held(now.theta, now.g, box)
        pulled = coordinates.pull(now.theta, now.g, now.H, now.scale, held)
        step, decrease = _steps(pulled, held, now.damping)
        blur = noise * np.sqrt(now.F) + noise * noise
        limit = np.where(now.damping > 0, tolerance, max(tolerance, last_step))
        small = decrease <= np.maximum(limit * now.F, 0.02 * blur)
        going = ~small & (now.damping < MAX_DAMPING)
        if not going.all():
            done = small & (now.damping <= 1e-2)
            converged[active[done]] = True
            result.put(active[~going], now.take(~going))
            if last_step and done.any():
                moved = coordinates.move(now.theta[done], step[done], held[:, done])
                result.theta[active[done]] = box.project(now.theta[done], moved)
                result.F[active[done]] -= decrease[done]
            now, active, step, held, blur = now.take(going), active[going], step[going], held[:, going], blur[going]
            if not len(active):
                break
        trial = box.project(now.theta, coordinates.move(now.theta, step, held))
        F, g, H = evaluate(trial, active)
        now.accept(F <= now.F + 0.02 * blur, trial, F, g, H)
        iterations[active] += 1
    result.put(active, now)
    held = _held(result.theta, result.g, box)
    return Minima(
        result.theta, result.F, np.where(held, 0.0, result.g), result.H,
        converged | _stationary(result.F, result.g, held, result.scale), iterations,
        held.T & (result.theta <= box.low), held.T & (result.theta > box.low),
    )  # fmt: skip


@dataclass
class _Rows:
    """Where some rows of a batch are."""

    theta: np.ndarray  # (R, p)
    F: np.ndarray  # (R,)
    g: np.ndarray  # (p, R)
    H: np.ndarray  # (p, p, R)
    damping: np.ndarray  # (R,)
    scale: np.ndarray  # (p, R)

    def take(self, rows) -> "_Rows":
        return _Rows(self.theta[rows], self.F[rows], self.g[:, rows], self.H[:, :, rows], self.damping[rows],
                     self.scale[:, rows])  # fmt: skip

    def put(self, rows, other: "_Rows") -> None:
        self.theta[rows], self.F[rows], self.g[:, rows], self.H[:, :, rows] = other.theta, other.F, other.g, other.H

    def accept(self, better, theta, F, g, H) -> None:
        """Move where that is better, else stay; less damping or more."""
        if better.all():
            self.theta, self.F, self.g, self.H = theta, F, g, H
        else:
            self.theta, self.F = np.where(better[:, None], theta, self.theta), np.where(better, F, self.F)
            self.g, self.H = np.where(better, g, self.g), np.where(better, H, self.H)
        less = np.where(self.damping < 1e-6, 0.0, self.damping * 0.1)
        self.damping = np.where(better, less, np.maximum(10 * self.damping, FIRST_DAMPING))


def _held(theta, g, box):
    """Which variables (p, R) sit on a bound that the gradient pushes them against."""
    low, high = theta.T <= box.low[:, None], theta.T >= box.high[:, None]
    # a term at its floor has lost its gradient to rounding: it stays
    return (low & ((g >= 0) | np.isfinite(box.vanish)[:, None])) | (high & (g <= 0))


def _stationary(F, g, held, scale):
    """A row that ran into rounding has converged all the same when its scaled gradient is negligible."""
    size = np.where(held, 0.0, g * g / scale).sum(0)
    return size <= 1e-12 * np.maximum(F, 1e-300)


def _steps(pulled, held, damping):
    """Newton steps (R, p) of the free variables, capped, and the decrease of F that the quadratic model predicts."""
    g, H, scale = pulled
    free = ~held
    g = np.where(held, 0.0, g)
    x = solve_few(H, g, scale, damping) if len(damping) <= FEW and free.all() else None
    step = -(solve_ldl(H, g, scale, damping, free) if x is None else x)
    decrease = -0.5 * (step * g).sum(0)
    largest = np.abs(step).max(0)
    step *= np.minimum(1.0, MAX_STEP / np.maximum(largest, 1e-300))
    return step.T, decrease


def solve_few(H, g, scale, damping):
    """x of (H + damping diag(scale)) x = g by LAPACK, which is faster for a few rows; None unless all pivots are positive."""
    A = np.ascontiguousarray(H.transpose(2, 0, 1))
    diagonal = np.arange(len(g))
    A[:, diagonal, diagonal] += (damping * scale).T
    try:
        roots = np.linalg.cholesky(A)[:, diagonal, diagonal]
    except np.linalg.LinAlgError:
        return None
    return np.linalg.solve(A, g.T[..., None])[..., 0].T if (roots * roots > TINY_PIVOT * scale.T).all() else None


def solve_ldl(H, g, scale, damping, free):
    """x of (H + damping diag(scale)) x = g by LDL^T over the batch; held variables get zero.

    A pivot that is not clearly positive is replaced by one of the size of `scale`, so -x is always downhill.
    """
    p = len(g)
    if not free.all():
        H = np.where(free[:, None] & free, H, 0.0)
    diagonal, least, floor = np.einsum("jjr->jr", H) + damping * scale, TINY_PIVOT * scale, 1e-2 * scale
    L: list[list] = [[None] * p for _ in range(p)]
    pivots: list = []
    x = list(g)
    for j in range(p):
        row: list = []  # row[k] = L[j][k] * pivots[k]
        d = diagonal[j]
        for k in range(j):
            entry = H[j, k]
            for m in range(k):
                entry = entry - row[m] * L[k][m]
            row.append(entry)
            L[j][k] = entry / pivots[k]
            d = d - entry * L[j][k]
            x[j] = x[j] - L[j][k] * x[k]
        pivots.append(np.where(d > least[j], d, np.maximum(np.abs(d), floor[j])))
    for j in reversed(range(p)):
        x[j] = x[j] / pivots[j]
        for i in range(j + 1, p):
            x[j] = x[j] - L[i][j] * x[i]
    return np.stack(x)
