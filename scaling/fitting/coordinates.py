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
        c0, one = E + A + B, np.ones_like(E)
        J = np.zeros_like(H)  # d theta_j / d phi_k
        J[0] = np.stack([c0, -A, -B, A / alpha, B / beta]) / E
        J[1, 1], J[1, 3], J[2, 2], J[2, 4], J[3, 3], J[4, 4] = one, -1 / alpha, one, -1 / beta, one, one
        new_g = _contract(J, g)
        new_H = np.einsum("jar,jbr->abr", J, np.einsum("jkr,kbr->jbr", H, J))
        curvature = np.zeros_like(H)  # g_j d2 theta_j / d phi2; d2 log E = d2E / E - dE dE / E^2
        curvature[0, 0], curvature[1, 1], curvature[2, 2] = c0, -A, -B
        curvature[1, 3] = curvature[3, 1] = A / alpha
        curvature[2, 4] = curvature[4, 2] = B / beta
        curvature[3, 3], curvature[4, 4] = -2 * A / alpha**2, -2 * B / beta**2
        new_H += g[0] * (curvature / E - J[0][:, None] * J[0][None])
        new_H[3, 3] += g[1] / alpha**2
        new_H[4, 4] += g[2] / beta**2
        keep = self.plain(theta, held)
        own = scale.copy()
        own[0] *= np.where(keep, (E / c0) ** 2, 1.0)
        return np.where(keep, g, new_g), np.where(keep, H, new_H), own

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


def _contract(J, g):
    return np.einsum("jkr,jr->kr", J, g)
