"""The global fit of the five-constant law: from starts, down a ladder of thresholds, to the minimum of F."""

from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from scaling.errors import FitError
from scaling.fitting.coordinates import Centred
from scaling.fitting.kernel import E_FLOOR, Points, evaluate
from scaling.fitting.newton import Box, Minima, minimise
from scaling.fitting.objective import Objective
from scaling.fitting.starts import refine

DEFAULT_BOUNDS: Mapping[str, tuple[float, float | None]] = {"E": (0.0, None), "alpha": (1e-3, 3.0), "beta": (1e-3, 3.0)}
VANISH = 9.0  # a term below exp(-9) of the smallest loss, and still shrinking, is tried at its floor


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
    return Box(low, high, vanish)


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


def polish(
    points: Points,
    theta: np.ndarray,
    box: Box,
    objective: Objective,
    *,
    ladder=None,
    tolerance: float = 1e-15,
    weights: np.ndarray | None = None,
    scale: np.ndarray | None = None,
    max_iterations: int = 100,
) -> Minima:
    """Minimise F from each row of theta (R, 5), each threshold of the ladder starting where the last one ended.

    `weights` (R, n) gives each row its own weights of the runs; `scale` a damping scale to use throughout.
    """
    target = objective.threshold
    noise = rounding_noise(points, objective)
    for delta in (*(objective.ladder() if ladder is None else ladder), None):  # None: once more for what was lifted

        def at_delta(t, rows, delta=delta or target):
            return evaluate(points, t, objective, delta=delta, weights=weights, rows=rows)

        lifted, rows = lift(theta, box, at_delta)
        if delta is None and not len(rows):
            break
        minima = minimise(
            at_delta if delta else lambda t, some, rows=rows: at_delta(t, rows[some], target),
            lifted if delta else lifted[rows],
            box,
            damping_scale(points, lifted if delta else lifted[rows], objective, delta or target)
            if scale is None
            else scale,
            tolerance=tolerance if delta in (target, None) else 1e-6,
            max_iterations=max_iterations if delta in (target, None) else 12,
            coordinates=Centred(),
            noise=noise,
        )
        result = minima if delta else merge(result, minima, rows)
        theta = result.theta
    return result


def lift(theta: np.ndarray, box: Box, evaluate_rows) -> tuple[np.ndarray, np.ndarray]:
    """theta with every term that sits at its floor raised to where it vanishes, where that lowers F; and those rows.

    At its floor a term has lost its gradient to rounding, so the question is asked where it has one.
    """
    lifted, changed = theta.copy(), np.zeros(len(theta), bool)
    for j in range(3):
        rows = np.flatnonzero((lifted[:, j] <= box.low[j]) & np.isfinite(box.vanish[j]))
        if not len(rows):
            continue
        trial = lifted[rows]
        trial[:, j] = np.minimum(box.vanish[j] + 1e-3, box.high[j])
        better = evaluate_rows(trial, rows)[0] < evaluate_rows(lifted[rows], rows)[0]
        lifted[rows[better]], changed[rows[better]] = trial[better], True
    return lifted, np.flatnonzero(changed)


def rounding_noise(points: Points, objective: Objective) -> float:
    """The uncertainty of F by rounding is noise sqrt(F) + noise^2: each residual is off by a few units in the last place."""
    size = np.abs(points.log_loss if objective.log_space else points.loss).max()
    return 4 * np.finfo(float).eps * max(size, 1.0) * np.sqrt(2 * points.weights.sum())


def solve_from(points: Points, theta: np.ndarray, box: Box, objective: Objective) -> Minima:
    """Polish from each start as it is and with its terms re-projected; the lower of the two for each start."""
    starts = np.concatenate([np.clip(theta, box.low, box.high), refine(points, theta)])
    both = polish(points, starts, box, objective)
    k = len(theta)
    pick = np.where(both.value[:k] <= both.value[k:], np.arange(k), np.arange(k) + k)
    return select(both, pick)


def select(minima: Minima, rows) -> Minima:
    """The given rows of a batch."""
    m = minima
    return Minima(m.theta[rows], m.value[rows], m.gradient[:, rows], m.hessian[:, :, rows], m.converged[rows],
                  m.iterations[rows], m.at_low[rows], m.at_high[rows])  # fmt: skip


def merge(first: Minima, second: Minima, rows: np.ndarray) -> Minima:
    """`first` with those rows replaced where `second` is lower."""
    take = second.value <= first.value[rows]
    index, other = rows[take], select(second, np.flatnonzero(take))
    for field in fields(Minima):
        target, source = getattr(first, field.name), getattr(other, field.name)
        if field.name in ("gradient", "hessian"):
            target[..., index] = source
        else:
            target[index] = source
    return first


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
