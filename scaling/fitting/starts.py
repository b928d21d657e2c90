"""Where to start: variable projection. At fixed (alpha, beta) the law is linear in (E, A, B).

On a grid of exponents the sum of ((Lhat - L) / L)^2 is minimised over non-negative (E, A', B') in closed form: every
entry of the Gram matrix is a sum over runs of a function of N, of D, or one matrix product of the two.
"""

from itertools import product

import numpy as np

from scaling.fitting.kernel import E_FLOOR, Points

GRID = np.array([0.03, 0.06, 0.1, 0.15, 0.21, 0.28, 0.36, 0.46, 0.6, 0.85, 1.3])
_SUBSETS = np.array([s for s in product((True, False), repeat=3) if any(s)])[:, None, None]  # (7, 1, 1, 3)


def grid_starts(points: Points, count: int = 6, grid: np.ndarray = GRID) -> np.ndarray:
    """The `count` best cells of the grid as theta (count, 5), local minima of the grid first."""
    theta, sse = project(points, grid, grid)
    low = np.pad(sse, 1, constant_values=np.inf)
    k = len(grid)
    neighbours = [low[1 + i : 1 + i + k, 1 + j : 1 + j + k] for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
    is_minimum = np.all([sse <= other for other in neighbours], axis=0)
    order = np.lexsort((sse.ravel(), ~is_minimum.ravel()))
    return theta.reshape(-1, 5)[order[:count]]


def project(points: Points, alphas, betas):
    """theta (a, b, 5) of the best non-negative (E, A', B') for each pair of exponents, and its sum of squares (a, b)."""
    relative = points.weights / (points.loss * points.loss)
    fA = np.exp(np.clip(-np.outer(alphas, points.x), -600, 600))  # (a, n)
    fB = np.exp(np.clip(-np.outer(betas, points.y), -600, 600))  # (b, n)
    wA, wB = fA * relative, fB * relative
    target = points.loss
    a, b = len(alphas), len(betas)
    gram = np.empty((a, b, 3, 3))
    gram[..., 0, 0] = relative.sum()
    gram[..., 0, 1] = gram[..., 1, 0] = wA.sum(1)[:, None]
    gram[..., 0, 2] = gram[..., 2, 0] = wB.sum(1)
    gram[..., 1, 1] = (wA * fA).sum(1)[:, None]
    gram[..., 2, 2] = (wB * fB).sum(1)
    gram[..., 1, 2] = gram[..., 2, 1] = wA @ fB.T
    right = np.empty((a, b, 3))
    right[..., 0] = relative @ target
    right[..., 1] = (wA @ target)[:, None]
    right[..., 2] = wB @ target
    scales, sse = _non_negative(gram, right, float(relative @ (target * target)))
    theta = np.empty((a, b, 5))
    floor = np.log(points.loss.min()) - E_FLOOR
    theta[..., :3] = np.log(np.maximum(scales, np.exp(floor)))
    theta[..., 3], theta[..., 4] = np.asarray(alphas)[:, None], betas
    return theta, sse


def _non_negative(gram, right, total):
    """Least squares over three non-negative coefficients: the best of the seven subsets that stays non-negative."""
    diagonal = np.sqrt(np.einsum("...ii->...i", gram))
    gram, right = gram / (diagonal[..., :, None] * diagonal[..., None, :]), right / diagonal
    # of each subset, all at once: a coefficient outside it has a row and a column of the identity, and is zero
    gram = np.where(_SUBSETS[..., :, None] & _SUBSETS[..., None, :], gram + 1e-13 * np.eye(3), np.eye(3))
    solved = np.linalg.solve(gram, (_SUBSETS * right)[..., None])[..., 0]  # (7, a, b, 3)
    sse = np.where((solved >= 0).all(-1), total - (solved * right).sum(-1), np.inf)
    best = sse.argmin(0)[None]
    return np.take_along_axis(solved, best[..., None], 0)[0] / diagonal, np.take_along_axis(sse, best, 0)[0]


def random_starts(count: int, seed: int, points: Points) -> np.ndarray:
    """theta (count, 5): exponents uniform on (0.02, 1.5), terms log-uniform over a wide range about the losses."""
    rng = np.random.default_rng(seed)
    theta = np.empty((count, 5))
    theta[:, :3] = np.log(points.loss.min()) + rng.uniform(-6, 1, (count, 3))
    theta[:, 3:] = rng.uniform(0.02, 1.5, (count, 2))
    return theta


def refine(points: Points, theta: np.ndarray) -> np.ndarray:
    """Each start with its (E, A', B') replaced by the best ones for its exponents."""
    return np.stack([project(points, row[3:4], row[4:5])[0][0, 0] for row in theta])
