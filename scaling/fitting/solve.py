"""The global fit: from starts, down a ladder of thresholds, to the minimum of F."""

from dataclasses import fields

import numpy as np

from scaling.fitting.newton import Box, Minima, minimise, vanish
from scaling.fitting.problem import Problem

VANISH = 9.0  # a term below exp(-9) of the smallest loss, and still shrinking, is tried at its floor


def polish(
    problem: Problem,
    theta: np.ndarray,
    *,
    ladder: tuple[float, ...] | None = None,
    tolerance: float = 1e-15,
    weights: np.ndarray | None = None,
    scale: np.ndarray | None = None,
    max_iterations: int = 100,
    lifting: bool = True,
    last_step: float = 0.0,
) -> Minima:
    """Minimise F from each row of theta (R, p), each threshold of the ladder starting where the last one ended.

    `weights` (R, n) gives each row its own weights of the runs; `scale` (p, 1 or R) the damping's (None: that of the start).
    Without `lifting`, terms that start at their floor stay there. `last_step`: see `minimise`.
    """
    target = problem.objective.threshold
    rungs = problem.objective.ladder() if ladder is None else ladder
    scale = np.broadcast_to(problem.scale(theta, rungs[0]) if scale is None else scale, theta.T.shape)

    def run(start, rows, delta, last):  # a rung above the last needs only a start for the next: its minimum to a percent
        def evaluate(t, some):
            return problem.evaluate(t, delta=delta, weights=weights, rows=rows[some])

        return minimise(
            evaluate, start, problem.box, scale[:, rows],
            tolerance=tolerance if last else 1e-4, max_iterations=max_iterations if last else 12,
            coordinates=problem.coordinates, noise=problem.noise, last_step=last_step if last else 1e-2,
        )  # fmt: skip

    everything = np.arange(len(theta))
    for delta in rungs:
        theta, _ = lift(problem, theta, delta, weights) if lifting else (theta, None)
        result = run(theta, everything, delta, delta == target)
        theta = result.theta
    lifted, rows = lift(problem, theta, target, weights) if lifting else (theta, everything[:0])
    return merge(result, run(lifted[rows], rows, target, True), rows) if len(rows) else result


def lift(problem: Problem, theta, delta, weights) -> tuple[np.ndarray, np.ndarray]:
    """theta with every term that sits at its floor raised to where it vanishes, where that lowers F; and those rows.

    At its floor a term has lost its gradient to rounding, so the question is asked where it has one.
    """
    box = problem.box
    lifted, changed = theta.copy(), np.zeros(len(theta), bool)

    def value(t, rows):
        return problem.evaluate(t, delta=delta, weights=weights, rows=rows)[0]

    for j in range(box.terms):
        rows = np.flatnonzero((lifted[:, j] <= box.low[j]) & np.isfinite(box.vanish[j]))
        if not len(rows):
            continue
        trial = lifted[rows]
        trial[:, j] = np.minimum(box.vanish[j] + 1e-3, box.high[j])
        others = [k for k in range(box.terms) if k != j]
        gained, left = np.exp(trial[:, j]), np.exp(trial[:, others]).sum(1)
        trial[:, others] += np.log1p(-gained / np.maximum(left, 2 * gained))[:, None]  # the level stays
        better = value(trial, rows) < value(lifted[rows], rows)
        lifted[rows[better]], changed[rows[better]] = trial[better], True
    return lifted, np.flatnonzero(changed)


def without_first(theta: np.ndarray, box: Box) -> np.ndarray:
    """theta (R, p) with the first term (E) at its floor and its share given to the others."""
    gone = np.zeros(theta.shape, bool)
    gone[:, 0] = True
    return vanish(np.where(gone, box.low, theta), gone, theta, box.terms)


def nearly_gone(theta: np.ndarray, box: Box) -> np.ndarray:
    """Whether the first term of each row is all but gone: along a vanishing term Newton creeps."""
    return theta[:, 0] < box.vanish[0] + 4


def select(minima: Minima, rows) -> Minima:
    """The given rows of a batch."""
    m = minima
    return Minima(m.theta[rows], m.value[rows], m.gradient[:, rows], m.hessian[:, :, rows], m.converged[rows],
                  m.iterations[rows], m.at_low[rows], m.at_high[rows])  # fmt: skip


def merge(first: Minima, second: Minima, rows: np.ndarray) -> Minima:
    """`first` with those rows replaced where `second` is lower, or as low and converged where `first` is not."""
    same = second.value <= first.value[rows] * (1 + 1e-9)
    take = (second.value <= first.value[rows]) | (same & second.converged & ~first.converged[rows])
    index, other = rows[take], select(second, np.flatnonzero(take))
    for field in fields(Minima):
        target, source = getattr(first, field.name), getattr(other, field.name)
        if field.name in ("gradient", "hessian"):
            target[..., index] = source
        else:
            target[index] = source
    return first
