"""Forms that are not sums of powers: Kaplan 2020, repeated data, and a smoothly broken power law."""

import math
from itertools import product

import numpy as np

from scaling.fitting.forms import FormProblem, at_optimum, non_negative
from scaling.fitting.kernel import E_FLOOR
from scaling.fitting.newton import Box
from scaling.laws import FORMS


class KaplanProblem(FormProblem):
    """((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D, in u = alpha_N log N_c and v = alpha_D log D_c at the centre."""

    law_class = FORMS["kaplan"]
    names = ("log_N_c", "log_D_c", "alpha_N", "alpha_D")

    def __init__(self, data, objective, bounds=None):
        super().__init__(data, objective, bounds)
        self.x, self.y = float(self.z["N"].mean()), float(self.z["D"].mean())
        self.box = Box(np.array([-40.0, -40.0, 1e-3, 1e-3]), np.array([10.0, 10.0, 3.0, 3.0]), np.full(4, -np.inf))

    def predict(self, theta, z):
        u, v, alpha_N, alpha_D = (theta[:, k : k + 1] for k in range(4))
        first = (u - alpha_N * (z["N"] - self.x)) / alpha_D
        second = (v - alpha_D * (z["D"] - self.y)) / alpha_D
        top = np.where(first.real > second.real, first, second)
        return alpha_D * (top + np.log(np.exp(first - top) + np.exp(second - top)))

    def public(self, theta):
        out = np.array(theta, float)
        out[..., 0] = theta[..., 0] / theta[..., 2] + self.x
        out[..., 1] = theta[..., 1] / theta[..., 3] + self.y
        return out

    def inverse(self, theta):
        out = np.array(theta, float)
        out[..., 0] = (theta[..., 0] - self.x) * theta[..., 2]
        out[..., 1] = (theta[..., 1] - self.y) * theta[..., 3]
        return np.clip(out, self.box.low, self.box.high)

    def grid(self):
        out = []
        x, y = self.z["N"] - self.x, self.z["D"] - self.y
        middle = float(np.log(self.data.loss).mean())  # in units of it, whose powers stay numbers
        for alpha_N, alpha_D in product(np.geomspace(0.02, 1.0, 9), repeat=2):
            target = np.exp((np.log(self.data.loss) - middle) / alpha_D)  # is (N_c/N)^r + D_c/D: linear
            columns = np.stack([np.exp(-alpha_N / alpha_D * x), np.exp(-y)], axis=1) / target[:, None]
            scales = np.maximum(non_negative(columns, np.sqrt(self.weights)), 1e-12)
            u, v = (alpha_D * math.log(scale) + middle for scale in scales)
            out.append([u, v, alpha_N, alpha_D])
        return np.array(out)

    def split(self, constants, budget):
        a, d = constants["alpha_N"], constants["alpha_D"]
        out = {"N_exponent": d / (a + d), "D_exponent": a / (a + d)}
        if budget is not None:
            r = a / d
            log_N = (np.log(r) + r * np.log(constants["N_c"]) + math.log(budget / 6) - np.log(constants["D_c"])) / (
                r + 1
            )
            log_D = math.log(budget / 6) - log_N
            loss = d * np.logaddexp(r * (np.log(constants["N_c"]) - log_N), np.log(constants["D_c"]) - log_D)
            out |= at_optimum(np.exp(log_N), budget, np.exp(loss))
        return out


class DataConstrainedProblem(FormProblem):
    """E + A/N_eff^alpha + B/D_eff^beta with repeats (Muennighoff et al. 2023); needs a column unique_tokens."""

    law_class = FORMS["data_constrained"]
    neighbours = 16
    names = ("log_E", "log_A", "log_B", "alpha", "beta", "log_R_D_star", "log_R_N_star")

    def __init__(self, data, objective, bounds=None):
        super().__init__(data, objective, bounds)
        self.x, self.y = float(self.z["N"].mean()), float(self.z["D"].mean())
        floor, ceiling = math.log(data.loss.min()) - E_FLOOR, math.log(data.loss.max())
        self.box = Box(
            np.array([floor, floor, floor, 1e-3, 1e-3, math.log(1e-2), math.log(1e-2)]),
            np.array([ceiling, ceiling + 5, ceiling + 5, 3.0, 3.0, math.log(1e4), math.log(1e4)]),
            np.full(7, -np.inf),
        )

    def predict(self, theta, z):
        log_E, a, b, alpha, beta, log_RD, log_RN = (theta[:, k : k + 1] for k in range(7))
        log_A, log_B = a + alpha * self.x, b + beta * self.y
        log_G = (np.log(alpha / beta) + log_A - log_B) / (alpha + beta)
        U = np.minimum(z["U"], z["D"])
        log_NU = log_G + beta / alpha * (log_G + U)
        log_NU = np.where(log_NU.real < z["N"], log_NU, z["N"])
        repeats, excess = np.exp(z["D"] - U) - 1, np.exp(z["N"] - log_NU) - 1
        log_D = U + _log_worth(repeats, np.exp(log_RD))
        log_N = log_NU + _log_worth(excess, np.exp(log_RN))
        return np.log(np.exp(log_E) + np.exp(log_A - alpha * log_N) + np.exp(log_B - beta * log_D))

    def public(self, theta):
        out = np.array(theta, float)
        out[..., 1] += out[..., 3] * self.x
        out[..., 2] += out[..., 4] * self.y
        return out

    def inverse(self, theta):
        out = np.array(theta, float)
        out[..., 1] -= out[..., 3] * self.x
        out[..., 2] -= out[..., 4] * self.y
        return np.clip(out, self.box.low, self.box.high)

    def grid(self):
        from scaling.fitting.five import centre
        from scaling.fitting.parametric import ChinchillaProblem

        fresh = self.data.unique_tokens >= 0.999 * self.data.D
        out = []
        for rows in (fresh, np.ones(self.data.n, bool)):
            if rows.sum() < 6:
                continue
            part = ChinchillaProblem(self.data.take(rows), self.objective)
            minima = part.solve()
            public = part.public(minima.theta[int(np.argmin(minima.value))])
            whole = ChinchillaProblem(self.data, self.objective)
            base = centre(public, whole.points)
            for R_D, R_N in product((1.0, 5.0, 15.0, 50.0), (0.3, 1.0, 5.0, 20.0, 100.0)):
                out.append([*base, math.log(R_D), math.log(R_N)])
                out.append([*base[:3], *(0.5 * base[3:] + 0.15), math.log(R_D), math.log(R_N)])
        return np.array(out)

    def split(self, constants, budget):
        a, b = constants["alpha"], constants["beta"]
        return {"N_exponent": b / (a + b), "D_exponent": a / (a + b)}  # of fresh tokens


def _log_worth(repeats, R_star):
    """log(1 + R* (1 - exp(-repeats / R*)))."""
    return np.log(1 + R_star * (1 - np.exp(-repeats / R_star)))


class BrokenProblem(FormProblem):
    """E + K C^-gamma (1 + (C/C_break)^(1/width))^(-bend width)."""

    law_class = FORMS["broken"]
    names = ("log_E", "log_K", "gamma", "log_C_break", "bend", "log_width")
    columns = ("C",)

    def __init__(self, data, objective, bounds=None):
        super().__init__(data, objective, bounds)
        self.c = float(self.z["C"].mean())
        floor, ceiling = math.log(data.loss.min()) - E_FLOOR, math.log(data.loss.max())
        low, high = float(self.z["C"].min()) - self.c, float(self.z["C"].max()) - self.c
        self.box = Box(
            np.array([floor, floor, -1.0, low, -2.0, math.log(0.05)]),
            np.array([ceiling, ceiling + 8, 3.0, high, 3.0, math.log(5.0)]),
            np.full(6, -np.inf),
        )

    def predict(self, theta, z):
        log_E, log_K, gamma, log_break, bend, log_width = (theta[:, k : k + 1] for k in range(6))
        c, width = z["C"] - self.c, np.exp(log_width)
        u = (c - log_break) / width
        top = np.where(u.real > 0, u, 0 * u)
        soft = top + np.log(np.exp(-top) + np.exp(u - top))  # log(1 + exp(u))
        return np.log(np.exp(log_E) + np.exp(log_K - gamma * c - bend * width * soft))

    def public(self, theta):
        out = np.array(theta, float)
        out[..., 1] += out[..., 2] * self.c
        out[..., 3] += self.c
        return out

    def inverse(self, theta):
        out = np.array(theta, float)
        out[..., 1] -= out[..., 2] * self.c
        out[..., 3] -= self.c
        return np.clip(out, self.box.low, self.box.high)

    def grid(self):
        out = []
        c = self.z["C"] - self.c
        for gamma, bend, place, width in product(
            (0.0, 0.05, 0.15, 0.3), (-0.1, 0.1, 0.3), (0.2, 0.4, 0.6, 0.8), (0.2, 1.0)
        ):
            where = float(np.quantile(c, place))
            shape = np.exp(-gamma * c - bend * width * np.logaddexp(0, (c - where) / width))
            scales = non_negative(
                np.stack([np.ones_like(c), shape], axis=1) / self.data.loss[:, None], np.sqrt(self.weights)
            )
            E, K = np.log(np.maximum(scales, np.exp(self.box.low[:2])))
            out.append([E, K, gamma, where, bend, math.log(width)])
        return np.array(out)
