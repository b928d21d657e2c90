"""F, its gradient and its exact Hessian for L = E + A/N^alpha + B/D^beta, for many parameter vectors at once.

The fit variables are theta = (log E, log A', log B', alpha, beta), with log N and log D centred: A' = A exp(-alpha xbar)
is the parameter term at the geometric mean of N. With the terms T = (E, A' exp(-alpha x), B' exp(-beta y)) and their
shares p = T / Lhat, residuals of log loss have dr/du_j = p_j and d2r/du_j du_k = p_j [j = k] - p_j p_k in the exponents u;
residuals of loss have T_j and T_j [j = k]. So every entry of the Hessian is a moment of c p_j p_k + s p_j [j = k] against
1, x, y, x^2, xy, y^2, with s = w psi(r) and c = w (psi'(r) - psi(r)), or w psi'(r) for residuals of loss.

Work goes in blocks of at most 64 KiB per array: 13 of them stay in a cache of 1 MiB; larger temporaries cost page faults.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scaling.fitting.objective import Objective

BLOCK = 1 << 16  # bytes
NAMES = ("log_E", "log_A", "log_B", "alpha", "beta")
E_FLOOR = 30.0  # log E never goes further than this below the log of the smallest loss: 1e-13 of it is zero


@dataclass(frozen=True)
class Points:
    """The runs as the solver sees them: centred logs, losses and weights, and the products its moments need."""

    x: np.ndarray  # (n,) log N - x_mean
    y: np.ndarray  # (n,) log D - y_mean
    loss: np.ndarray  # (n,), or (R, n) when each row of a batch has its own
    log_loss: np.ndarray  # like loss
    weights: np.ndarray  # (n,)
    x_mean: float
    y_mean: float
    moments: np.ndarray  # (n, 6): 1, x, y, x^2, xy, y^2
    lines: np.ndarray  # (2, 2, n): 1 and -x, 1 and -y; by (log A', alpha) they give the log of A's term

    @property
    def n(self) -> int:
        return len(self.x)

    @property
    def precision(self) -> np.dtype:
        """The type that the work is done in."""
        return self.x.dtype

    def in_single(self) -> "Points":
        """The same runs in single precision: half the work, and residuals good to about 1e-7."""
        arrays: dict[str, Any] = {
            name: value.astype(np.float32) for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, **arrays)

    def with_losses(self, log_loss: np.ndarray) -> "Points":
        """The same runs with other losses, one row of them per refit."""
        return replace(self, log_loss=log_loss, loss=np.exp(log_loss))


def make_points(N, D, loss, weights=None) -> Points:
    """Points from parameters, tokens, losses and (optional) weights of the runs; float arrays, all above zero."""
    log_N, log_D, loss = np.log(np.asarray(N, float)), np.log(np.asarray(D, float)), np.asarray(loss, float)
    x_mean, y_mean = float(log_N.mean()), float(log_D.mean())
    x, y = log_N - x_mean, log_D - y_mean
    one = np.ones_like(x)
    moments, lines = np.column_stack([one, x, y, x * x, x * y, y * y]), np.array([[one, -x], [one, -y]])
    weights = one if weights is None else np.asarray(weights, float)
    return Points(x, y, loss, np.log(loss), weights, x_mean, y_mean, moments, lines)


def evaluate(points: Points, theta: np.ndarray, objective: Objective, *, delta=None, weights=None, rows=None):
    """F (R,), gradient (5, R) and Hessian (5, 5, R) of each row of theta (R, 5).

    `weights` (M, n) are the weights of each row of a batch (None: those of the runs); `rows` (R,) says which row of
    the batch each row of theta belongs to (None: the same one).
    """
    R, n = len(theta), points.n
    F, sums = np.zeros(R), np.zeros((9, R, 6))
    width = min(n, 4096)
    height = min(R, max(1, BLOCK // (width * points.precision.itemsize)))
    space = np.empty((13, height * width), points.precision)
    rows = np.arange(R) if rows is None else rows
    delta = objective.threshold if delta is None else delta
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for top in range(0, R, height):
            block = slice(top, min(top + height, R))
            for left in range(0, n, width):
                columns = slice(left, min(left + width, n))
                size = (block.stop - top, columns.stop - left)
                buffers = space[:, : size[0] * size[1]].reshape(13, *size)
                _residuals(points, theta[block], rows[block], columns, objective.log_space, buffers)
                F[block] += _influence(points, rows[block], columns, weights, delta, objective.log_space, buffers)
                _add_moments(points.moments[columns], buffers, sums[:, block])
        return F, *_assemble(np.exp(theta[:, 0]), sums, objective.log_space)


def _residuals(points, theta, rows, columns, log_space, buffers):
    """The shares (log loss) or terms (loss) of A and B into buffers 0 and 1, the residuals into 2."""
    A, B, r, t = buffers[:4]
    theta = theta.astype(points.precision)
    for k, out in enumerate((A, B)):  # a product with two rows is cheaper than two broadcast passes
        np.matmul(theta[:, 1 + k :: 2][:, :2], points.lines[k][:, columns], out=out)
        np.exp(out, out=out)
    np.add(A, B, out=r)
    r += np.exp(theta[:, :1])
    if log_space:
        np.divide(1.0, r, out=t)
        A *= t
        B *= t
        np.log(r, out=r)
    target = points.log_loss if log_space else points.loss
    r -= target[columns] if target.ndim == 1 else target[rows, columns]


def _influence(points, rows, columns, weights, delta, log_space, buffers):
    """s = w psi(r) into buffer 4, c = w psi'(r) - s (log loss) or w psi'(r) (loss) into 5; returns sum w rho."""
    r, psi, s, c, w = buffers[2:7]
    if weights is None:
        w[:] = points.weights[columns]
    elif w.shape[1] == weights.shape[1]:
        np.take(weights, rows, axis=0, out=w, mode="clip")
    else:
        w[:] = weights[rows, columns]
    np.minimum(r, delta, out=psi)
    np.maximum(psi, -delta, out=psi)
    np.multiply(w, psi, out=s)
    np.equal(psi, r, out=c, casting="unsafe")  # psi' is 1 inside, 0 outside
    c *= w
    if log_space:
        c -= s
    # rho = psi (r - psi / 2)
    return np.einsum("ij,ij->i", s, r) - 0.5 * np.einsum("ij,ij->i", s, psi)


def _add_moments(M, buffers, sums):
    """Add the moments of s, c, sA, sB, cA, cB, cAA, cBB, cAB against 1, x, y, x^2, xy, y^2."""
    A, B = buffers[:2]
    s, c, sA, sB, cA, cB, cAA, cBB, cAB = parts = buffers[4:13]
    for left, right, out in ((s, A, sA), (s, B, sB), (c, A, cA), (c, B, cB), (cA, A, cAA), (cB, B, cBB), (cA, B, cAB)):
        np.multiply(left, right, out=out)
    k, rows, columns = parts.shape
    sums += (parts.reshape(k * rows, columns) @ M).reshape(k, rows, 6)


def _assemble(E, sums, log_space):
    """Gradient (5, R) and Hessian (5, 5, R) from the moment sums."""
    s, c = sums[:2, :, 0]
    sA, sB, cA, cB, cAA, cBB, cAB = (part.T for part in sums[2:])  # each (6, R)
    one, x, y, xx, xy, yy = range(6)
    if log_space:  # the share of E is 1 - A - B
        sE = s - sA[one] - sB[one]
        EE = c - 2 * (cA[one] + cB[one]) + cAA[one] + 2 * cAB[one] + cBB[one] + sE
        EA, EB = cA - cAA - cAB, cB - cAB - cBB
    else:
        sE = E * s
        EE, EA, EB = E * E * c + sE, E * cA, E * cB
    AA, BB = cAA + sA, cBB + sB
    gradient = np.stack([sE, sA[one], sB[one], -sA[x], -sB[y]])
    upper = (
        (EE, EA[one], EB[one], -EA[x], -EB[y]),
        (AA[one], cAB[one], -AA[x], -cAB[y]),
        (BB[one], -cAB[x], -BB[y]),
        (AA[xx], cAB[xy]),
        (BB[yy],),
    )
    hessian = np.empty((5, 5, len(E)))
    for j, row in enumerate(upper):
        for k, entry in enumerate(row, start=j):
            hessian[j, k] = hessian[k, j] = entry
    return gradient, hessian
