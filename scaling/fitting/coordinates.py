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
        return self._plain(np.exp(theta.T[:3]), held)

    def _plain(self, terms, held):
        E, A, B = terms
        return held[0] | (self.SMALL * (A + B) > E)

    def pull(self, theta, g, H, scale, held):
        terms = np.exp(theta.T[:3])
        keep = self._plain(terms, held)
        new_g, new_H = _transformed(g, H, terms, theta[:, 3], theta[:, 4])
        if not keep.any():
            return new_g, new_H, scale
        new_scale = scale.copy()
        new_scale[0] *= np.where(keep, (terms[0] / terms.sum(0)) ** 2, 1.0)
        return np.where(keep, g, new_g), np.where(keep, H, new_H), new_scale

    def move(self, theta, step, held):
        """theta after a step in phi, shortened where E would fall below a twentieth of itself."""
        rows = np.flatnonzero(~self.plain(theta, held))
        out, t, s = theta + step, theta[rows], step[rows]
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


def _transformed(g, H, terms, alpha, beta):
    """Gradient and Hessian in phi: J^T H J + sum of g_j d2 theta_j / d phi^2, written out, as J is mostly zeros.

    J is the identity but that log A' falls by d alpha / alpha, log B' by d beta / beta, and for d log E / d phi.
    """
    (E, A, B), e = terms, g[0]
    dE = np.stack([E + A + B, -A, -B, A / alpha, B / beta]) / E  # d log E / d phi
    new_g, new_H = g.copy(), H.copy()
    for j, k, exponent in ((1, 3, alpha), (2, 4, beta)):
        new_g[k] -= g[j] / exponent
        new_H[:, k] -= new_H[:, j] / exponent
        new_H[k] -= new_H[j] / exponent
    side = new_H[0].copy()  # what log E shares with the others
    side[0] = 0.0
    side += 0.5 * (H[0, 0] - e) * dE
    new_g[0], new_H[0], new_H[:, 0] = 0.0, 0.0, 0.0
    cross = dE[:, None] * side
    new_H += cross
    new_H += cross.transpose(1, 0, 2)
    second = e * dE  # by which the gradient grows, and second derivatives of theta with it
    for j in range(3):
        new_H[j, j] += second[j]
    for j, k, exponent in ((1, 3, alpha), (2, 4, beta)):
        new_H[k, k] += (g[j] / exponent - 2 * second[k]) / exponent
        new_H[j, k] += second[k]
        new_H[k, j] += second[k]
    return new_g + second, new_H
