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
MAX_DAMPING = 1e9


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
) -> Minima:
    """Minimise each row of theta (R, p). `evaluate(theta, rows)` gives F (R,), gradient (p, R), Hessian (p, p, R).

    `scale` (p,) or (p, R) is the diagonal of the damping matrix, in the given coordinates. Rounding
    makes F uncertain by about noise * sqrt(F) + noise^2: a smaller decrease is none.
    """
    coordinates = coordinates or Identity()
    theta = np.clip(theta, box.low, box.high)
    R, p = theta.shape
    scale = np.broadcast_to(scale.reshape(p, -1), (p, R))
    F, g, H = evaluate(theta, np.arange(R))
    damping, active = np.zeros(R), np.flatnonzero(np.isfinite(F))
    converged, iterations = np.zeros(R, bool), np.zeros(R, int)
    for _ in range(max_iterations):
        held = _held(theta[active], g[:, active], box)
        pulled = coordinates.pull(theta[active], g[:, active], H[:, :, active], scale[:, active], held)
        step, decrease = _steps(pulled, held, damping[active])
        blur = noise * np.sqrt(F[active]) + noise * noise
        done = decrease <= np.maximum(tolerance * F[active], 0.02 * blur)
        converged[active[done & (damping[active] <= 1e-2)]] = True
        going = ~done & (damping[active] < MAX_DAMPING)
        active, step, held, blur = active[going], step[going], held[:, going], blur[going]
        if not len(active):
            break
        trial = box.project(theta[active], coordinates.move(theta[active], step, held))
        F_new, g_new, H_new = evaluate(trial, active)
        better = F_new <= F[active] + 0.02 * blur
        rows = active[better]
        theta[rows], F[rows] = trial[better], F_new[better]
        g[:, rows], H[:, :, rows] = g_new[:, better], H_new[:, :, better]
        damping[rows] = np.where(damping[rows] < 1e-6, 0.0, damping[rows] * 0.1)
        worse = active[~better]
        damping[worse] = np.maximum(10 * damping[worse], 1e-3)
        iterations[active] += 1
    held = _held(theta, g, box)
    return Minima(
        theta, F, np.where(held, 0.0, g), H, converged | _stationary(F, g, held, scale), iterations,
        held.T & (theta <= box.low), held.T & (theta > box.low),
    )  # fmt: skip


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
    step = -solve_ldl(H, g, scale, damping, free)
    decrease = -0.5 * (step * g).sum(0)
    largest = np.abs(step).max(0)
    step *= np.minimum(1.0, MAX_STEP / np.maximum(largest, 1e-300))
    return step.T, decrease


def solve_ldl(H, g, scale, damping, free):
    """x of (H + damping diag(scale)) x = g by LDL^T over the batch; held variables get zero.

    A pivot that is not clearly positive is replaced by one of the size of `scale`, so -x is always downhill.
    """
    p = len(g)
    L: list[list] = [[None] * p for _ in range(p)]
    pivots: list = [None] * p
    for j in range(p):
        d = H[j, j] + damping * scale[j]
        for k in range(j):
            d = d - L[j][k] * L[j][k] * pivots[k]
        d = np.where(d > 1e-9 * scale[j], d, np.maximum(np.abs(d), 1e-2 * scale[j]))
        pivots[j] = np.where(free[j], d, 1.0)
        for i in range(j + 1, p):
            entry = np.where(free[i] & free[j], H[i, j], 0.0)
            for k in range(j):
                entry = entry - L[i][k] * L[j][k] * pivots[k]
            L[i][j] = entry / pivots[j]
    x = list(g)
    for j in range(p):
        for k in range(j):
            x[j] = x[j] - L[j][k] * x[k]
    for j in reversed(range(p)):
        x[j] = x[j] / pivots[j]
        for i in range(j + 1, p):
            x[j] = x[j] - L[i][j] * x[i]
    return np.stack(x)
