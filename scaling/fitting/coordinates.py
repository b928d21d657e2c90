"""The coordinates in which a Newton step is taken: the law's level, slopes and curvatures at the centre of the runs.

In theta = (log E, log A', log B', alpha, beta) the runs fix a *curved* valley when an exponent is small: E + A' and
alpha A' are known, E, A' and alpha apart are not, and Newton crawls. In

    phi = (log(E + A' + B'), log(alpha A'), log(beta B'), alpha, beta)

that valley is straight. Gradient and Hessian are carried over exactly, second derivatives of theta(phi) included.
Rows where log E is held at a bound, or E is next to nothing, keep theta as their coordinates.
"""

import numpy as np


class Identity:
    """Steps in the fit variables themselves."""

    def plain(self, theta, held):
        """Which rows step in the fit variables themselves."""
        return np.ones(len(theta), bool)

    def pull(self, theta, g, H, scale, held):
        """Gradient, Hessian and damping scale in the coordinates of the step."""
        return g, H, scale

    def move(self, theta, step, held):
        return theta + step


class Centred(Identity):
    """Steps in phi; arrays are (R, 5) for theta and (5, R), (5, 5, R) for derivatives, as in `newton`."""

    SMALL = 2e-3  # share of E in the level below which E is next to nothing

    def plain(self, theta, held):
        E, A, B = np.exp(theta[:, :3]).T
        return held[0] | (self.SMALL * (A + B) > E)

    def pull(self, theta, g, H, scale, held):
        E, A, B = np.exp(theta[:, :3]).T
        alpha, beta = theta[:, 3], theta[:, 4]
        level = E + A + B
        rows = (level / E, -A / E, -B / E, A / (E * alpha), B / (E * beta))  # d log E / d phi
        own_g, own_H = _transformed(g, H, rows, alpha, beta)
        keep = self.plain(theta, held)
        own = scale.copy()
        own[0] *= np.where(keep, (E / level) ** 2, 1.0)
        return np.where(keep, g, own_g), np.where(keep, H, own_H), own

    def move(self, theta, step, held):
        """theta after a step in phi, shortened where E would fall below a twentieth of itself."""
        out = theta + step
        rows = np.flatnonzero(~self.plain(theta, held))
        t, s = theta[rows], step[rows]
        factor = np.ones(len(rows))
        for _ in range(40):
            moved, E = _moved(t, s * factor[:, None])
            short = ~(E > 0.05 * np.exp(t[:, 0]))
            if not short.any():
                break
            factor[short] *= 0.7
        out[rows] = moved
        return out


def _moved(theta, step):
    E, A, B = np.exp(theta[:, :3]).T
    alpha, beta = theta[:, 3], theta[:, 4]
    new_alpha = np.maximum(alpha + step[:, 3], 0.2 * alpha)
    new_beta = np.maximum(beta + step[:, 4], 0.2 * beta)
    log_A = theta[:, 1] + step[:, 1] + np.log(alpha / new_alpha)
    log_B = theta[:, 2] + step[:, 2] + np.log(beta / new_beta)
    # E + A' + B' minus the new A' and B', each change by expm1 so that a small step keeps its digits
    new_E = E + (E + A + B) * np.expm1(step[:, 0]) - A * np.expm1(log_A - theta[:, 1]) - B * np.expm1(
        log_B - theta[:, 2])  # fmt: skip
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.column_stack([np.log(new_E), log_A, log_B, new_alpha, new_beta]), new_E


def _transformed(g, H, rows, alpha, beta):
    """Gradient and Hessian in phi: J^T H J + sum of g_j d2 theta_j / d phi^2, written out, as J is mostly zeros.

    Besides d log E / d phi (`rows`), log A' falls by d alpha / alpha and log B' by d beta / beta.
    """

    def shifted(v):  # J^T v without the part of log E, for v over (log A', log B', alpha, beta)
        return 0.0, v[0], v[1], v[2] - v[0] / alpha, v[3] - v[1] / beta

    e = g[0]
    side = shifted(H[0, 1:])
    inner = shifted([np.stack(shifted(H[k, 1:])[1:]) for k in range(1, 5)])
    new_H = np.empty_like(H)
    for j in range(5):
        for k in range(j, 5):
            entry = rows[j] * rows[k] * (H[0, 0] - e) + rows[j] * side[k] + side[j] * rows[k]
            new_H[j, k] = new_H[k, j] = entry + inner[j][k - 1] if j else entry
    new_H[0, 0] += e * rows[0]
    new_H[1, 1] += e * rows[1]
    new_H[2, 2] += e * rows[2]
    new_H[3, 3] += g[1] / alpha**2 - 2 * e * rows[3] / alpha
    new_H[4, 4] += g[2] / beta**2 - 2 * e * rows[4] / beta
    for j, k, extra in ((1, 3, e * rows[3]), (2, 4, e * rows[4])):
        new_H[j, k] += extra
        new_H[k, j] = new_H[j, k]
    return np.stack([e * row + part for row, part in zip(rows, shifted(g[1:]), strict=True)]), new_H
