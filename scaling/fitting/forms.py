"""Fitting any form of the law. Adding a form: a law in `scaling.laws`, a class here or in `other_forms`, a test row.

`SumForm` covers every law that is a sum of terms, each a power of N, D or C: its terms are log-linear in the fit
variables, so Jacobian and curvature are exact in a few lines. Other laws inherit `FormProblem` and give `predict`
alone, in arithmetic that also works on complex numbers: the Jacobian is a complex step, exact to the last digit
(Squire and Trapp 1998), the curvature a second difference.
"""

import math
from collections.abc import Mapping
from itertools import combinations, product
from typing import Any, ClassVar

import numpy as np

from scaling.errors import FitError
from scaling.fitting.data import RunData
from scaling.fitting.kernel import E_FLOOR
from scaling.fitting.newton import Box, Minima
from scaling.fitting.objective import Objective
from scaling.fitting.problem import Problem
from scaling.fitting.solve import VANISH, merge, nearly_gone, polish, select, without_first
from scaling.laws import FORMS, InteractionLaw

CELLS = 1 << 20  # entries of a Jacobian held at once
COMPLEX_STEP = 1e-30
DIFFERENCE = 1e-4


class FormProblem(Problem):
    """A form given by `predict`: log Lhat (R, n) from fit variables (R, p), real or complex."""

    law_class: ClassVar[type]
    exponents: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[str, ...]] = ("N", "D")  # what the runs must vary in
    neighbours: ClassVar[int] = 0  # how many points around the best minimum to search from as well

    def __init__(self, data: RunData, objective: Objective, bounds: Mapping | None = None) -> None:
        super().__init__(data, objective, bounds or {})
        self.form = self.law_class.form  # type: ignore[attr-defined]
        self.z = self.prepare(data)

    def prepare(self, data: RunData) -> dict[str, np.ndarray]:
        """What `predict` reads of the runs."""
        return {
            "N": np.log(data.N),
            "D": np.log(data.D),
            "C": np.log(6 * data.N * data.D),
            "U": np.log(data.unique_tokens),
        }

    def predict(self, theta: np.ndarray, z: dict[str, np.ndarray]) -> np.ndarray:
        raise NotImplementedError

    def log_losses(self, theta, columns=slice(None)):
        return self.predict(theta, {k: v[columns] for k, v in self.z.items()})

    def losses_at(self, theta, data):
        return self.predict(self.inverse(theta), self.prepare(data))

    def derivatives(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log Lhat (R, n) and its Jacobian (R, n, p)."""
        p = theta.shape[1]
        value = self.predict(theta, self.z)
        J = np.empty((*value.shape, p))
        for k in range(p):
            J[..., k] = self.predict(theta + 1j * COMPLEX_STEP * np.eye(p)[k], self.z).imag / COMPLEX_STEP
        return value, J

    def curvature(self, theta: np.ndarray, J: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Sum over runs of s d2 log Lhat (p, p, R)."""
        p, h = theta.shape[1], DIFFERENCE
        out = np.empty((p, p, len(theta)))
        eye = np.eye(p) * h

        def total(t):
            return (s * self.predict(t, self.z)).sum(1)

        middle = total(theta)
        for j in range(p):
            out[j, j] = (total(theta + eye[j]) - 2 * middle + total(theta - eye[j])) / h**2
            for k in range(j):
                out[j, k] = out[k, j] = (
                    total(theta + eye[j] + eye[k]) - total(theta + eye[j] - eye[k])
                    - total(theta - eye[j] + eye[k]) + total(theta - eye[j] - eye[k])
                ) / (4 * h**2)  # fmt: skip
        return out

    def evaluate(self, theta, *, delta, weights=None, rows=None):
        R, p = theta.shape
        F, g, H = np.empty(R), np.empty((p, R)), np.empty((p, p, R))
        rows = np.arange(R) if rows is None else rows
        step = max(1, CELLS // (self.data.n * p))
        for top in range(0, R, step):
            block = slice(top, top + step)
            F[block], g[:, block], H[:, :, block] = self._evaluate(theta[block], delta, weights, rows[block])
        return F, g, H

    def _evaluate(self, theta, delta, weights, rows):
        log_space = self.objective.log_space
        w = self.weights if weights is None else weights[rows]
        with np.errstate(all="ignore"):
            value, J = self.derivatives(theta)
            loss = np.exp(value)
            target = self.log_loss if log_space else self.losses
            r = (value if log_space else loss) - (target if target.ndim == 1 else target[rows])
            psi = np.clip(r, -delta, delta)
            s = w * psi
            inside = w * (psi == r)
            F = (s * (r - 0.5 * psi)).sum(1)
            slope = s if log_space else s * loss
            g = np.einsum("rn,rnp->pr", slope, J)
            square = inside if log_space else inside * loss * loss + slope
            H = np.einsum("rn,rnp,rnq->pqr", square, J, J) + self.curvature(theta, J, slope)
        return np.where(np.isfinite(F), F, np.inf), np.nan_to_num(g), np.nan_to_num(H)

    def scale(self, theta, delta=None):
        delta = delta or self.objective.threshold
        out = np.empty((theta.shape[1], len(theta)))
        for k in range(len(theta)):
            with np.errstate(all="ignore"):
                value, J = self.derivatives(theta[k : k + 1])
                r = self.residual(theta[k : k + 1])
                r = r if r.ndim == 2 and len(r) == 1 else r[k : k + 1]
                weight = self.weights * np.minimum(1.0, delta / np.maximum(np.abs(r), 1e-300))
                if not self.objective.log_space:
                    weight = weight * np.exp(2 * value)
                out[:, k] = np.nan_to_num((weight[..., None] * J * J).sum((0, 1)))
        return np.maximum(out, 1e-10 * out.max(0) + 1e-300)

    def solve(self, wanted: Any = None, seed: int = 0) -> Minima:
        """Minima in the fit variables, from the form's own starts; a number of starts takes that many of them."""
        starts = self.starts(wanted, seed)
        minima = polish(self, np.clip(starts, self.box.low, self.box.high), max_iterations=200)
        best = np.array([int(np.argmin(minima.value))])
        if self.neighbours:
            minima = self._search_nearby(minima, best, seed)
        if self.box.terms and nearly_gone(minima.theta[best], self.box)[0]:
            minima = merge(minima, polish(self, without_first(minima.theta[best], self.box), lifting=False), best)
        return minima

    def _search_nearby(self, minima: Minima, best: np.ndarray, seed: int) -> Minima:
        """A narrow threshold has minima of its own, a step apart, that the ladder does not tell from each other."""
        jitter = 0.05 * np.random.default_rng(seed).standard_normal((self.neighbours, minima.theta.shape[1]))
        near = polish(self, np.clip(minima.theta[best] + jitter, self.box.low, self.box.high),
                      ladder=(self.objective.threshold,), max_iterations=200)  # fmt: skip
        lowest = np.array([int(np.argmin(near.value))])
        return merge(minima, select(near, lowest), best)

    def starts(self, wanted, seed):
        if wanted is not None and not isinstance(wanted, int):
            raise FitError(f"starts: laws to start from are for the chinchilla form; {self.form} has its own grid.")
        found = self.grid()
        F = self.evaluate(found, delta=self.objective.ladder()[0])[0]
        return found[np.argsort(F, kind="stable")[: wanted or 8]]

    def grid(self) -> np.ndarray:
        """Many cheap starts; the lowest of them are polished."""
        raise NotImplementedError

    def constants(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Constants of the law by name from public fit variables (..., p): logarithms undone."""
        with np.errstate(over="ignore"):
            return {name.removeprefix("log_"): np.exp(theta[..., k]) if name.startswith("log_") else theta[..., k]
                    for k, name in enumerate(self.names)}  # fmt: skip

    def law(self, theta):
        public = self.public(theta)
        values = {name: float(v) for name, v in self.constants(np.clip(public, -700, 700)).items()}
        if "E" in values and theta[0] <= self.box.low[0]:
            values["E"] = 0.0
        return self.law_class(**values)

    def quantities(self, theta, budget):
        theta = np.asarray(theta, float)
        found = dict(self.constants(theta))
        with np.errstate(all="ignore"):  # constants beyond what a number holds give no split, not a warning
            found |= self.split(found, budget)
        return found

    def split(self, constants: dict[str, np.ndarray], budget: float | None) -> dict[str, np.ndarray]:
        """Exponents and, at a budget, N*, D*, D/N and loss, where the form has a best split; else nothing."""
        return {}


class SumForm(FormProblem):
    """L = sum over terms of constant / (N^.. D^.. C^..). The first term is E, a constant.

    `terms` maps each constant to the exponents of its term: {"A": {"N": "alpha"}} is A / N^alpha.
    """

    terms: ClassVar[dict[str, dict[str, str]]]

    def __init__(self, data, objective, bounds=None):
        self.names = (*(f"log_{name}" for name in self.terms), *self.exponents)
        super().__init__(data, objective, bounds)
        self.means = {k: float(v.mean()) for k, v in self.z.items()}
        self.designs = self._designs(self.z)
        floor, ceiling = math.log(data.loss.min()) - E_FLOOR, math.log(data.loss.max())
        k, p = len(self.terms), len(self.names)
        low = np.concatenate([np.full(k, floor), np.full(p - k, 1e-3)])
        spread = max(float(np.abs(v - v.mean()).max()) for v in self.z.values())
        high = np.concatenate(
            [[ceiling], np.full(k - 1, ceiling + 5), np.full(p - k, min(3.0, 300 / max(spread, 1e-9)))]
        )
        vanish = np.concatenate([np.full(k, floor + E_FLOOR - VANISH), np.full(p - k, -np.inf)])
        self.box = Box(low, high, vanish, k)

    def _designs(self, z) -> list[np.ndarray]:
        """For each term the (n, p) matrix of its exponent in theta, centred."""
        n, p, k = len(z["N"]), len(self.names), len(self.terms)
        out = []
        for j, powers in enumerate(self.terms.values()):
            design = np.zeros((n, p))
            design[:, j] = 1.0
            for column, exponent in powers.items():
                design[:, k + self.exponents.index(exponent)] -= z[column] - self.means[column]
            out.append(design)
        return out

    def predict(self, theta, z):
        designs = self.designs if z is self.z else self._designs(z)
        return np.log(sum(np.exp(theta @ design.T) for design in designs))

    def derivatives(self, theta):
        terms = np.stack([np.exp(theta @ design.T) for design in self.designs])  # (k, R, n)
        total = terms.sum(0)
        self._shares = terms / total
        return np.log(total), np.einsum("krn,knp->rnp", self._shares, np.stack(self.designs))

    def curvature(self, theta, J, s):
        out = -np.einsum("rn,rnp,rnq->pqr", s, J, J)
        for share, design in zip(self._shares, self.designs, strict=True):
            n, p = design.shape
            pairs = (design[:, :, None] * design[:, None, :]).reshape(n, p * p)
            out += ((s * share) @ pairs).T.reshape(p, p, len(theta))
        return out

    def _shift(self, theta, sign):
        out = np.array(theta, float)
        k = len(self.terms)
        for j, powers in enumerate(self.terms.values()):
            for column, exponent in powers.items():
                out[..., j] += sign * out[..., k + self.exponents.index(exponent)] * self.means[column]
        return out

    def public(self, theta):
        return self._shift(theta, 1)

    def inverse(self, theta):
        return np.clip(self._shift(theta, -1), self.box.low, self.box.high)

    def grid(self):
        values = np.geomspace(0.03, 1.5, 24 if len(self.exponents) == 1 else 9)
        k, out = len(self.terms), []
        for exponents in product(values, repeat=len(self.exponents)):
            theta = np.concatenate([np.zeros(k), exponents])
            columns = np.stack([np.exp(np.clip(design @ theta, -600, 600)) for design in self.designs], axis=1)
            scales = non_negative(columns / self.data.loss[:, None], np.sqrt(self.weights))
            theta[:k] = np.log(np.maximum(scales, np.exp(self.box.low[:k])))
            out.append(theta)
        return np.array(out)


def non_negative(columns: np.ndarray, root: np.ndarray) -> np.ndarray:
    """Coefficients (k,) >= 0 that bring columns (n, k) closest to one, by trying every subset."""
    k = columns.shape[1]
    M, ones = columns * root[:, None], root
    size = np.sqrt((M * M).sum(0))
    M = M / size
    best, best_sse = np.zeros(k), float(ones @ ones)
    for count in range(k, 0, -1):
        for subset in combinations(range(k), count):
            index = list(subset)
            gram = M[:, index].T @ M[:, index] + 1e-12 * np.eye(count)
            found = np.linalg.solve(gram, M[:, index].T @ ones)
            rest = ones - M[:, index] @ found
            if (found >= 0).all() and rest @ rest < best_sse:
                best, best_sse = np.zeros(k), float(rest @ rest)
                best[index] = found
    return best / size


class TiedProblem(SumForm):
    """E + A/N^alpha + B/D^alpha."""

    law_class = FORMS["tied"]
    exponents = ("alpha",)
    terms = {"E": {}, "A": {"N": "alpha"}, "B": {"D": "alpha"}}

    def split(self, constants, budget):
        c = constants
        out = {"N_exponent": np.full_like(c["alpha"], 0.5), "D_exponent": np.full_like(c["alpha"], 0.5)}
        if budget is not None:
            N = np.exp(0.5 / c["alpha"] * np.log(c["A"] / c["B"])) * (budget / 6) ** 0.5
            out |= at_optimum(N, budget, c["E"] + c["A"] / N ** c["alpha"] + c["B"] / (budget / 6 / N) ** c["alpha"])
        return out


class InteractionProblem(SumForm):
    """E + A/N^alpha + B/D^beta + G/(N^alpha D^beta); its best split is found numerically."""

    law_class = InteractionLaw
    exponents = ("alpha", "beta")
    terms = {"E": {}, "A": {"N": "alpha"}, "B": {"D": "beta"}, "G": {"N": "alpha", "D": "beta"}}

    def split(self, constants, budget):
        if budget is None:
            return {}
        c = {name: np.asarray(value)[..., None] for name, value in constants.items()}

        def loss(log_N):
            a, b = np.exp(-c["alpha"] * log_N), np.exp(-c["beta"] * (math.log(budget / 6) - log_N))
            return c["E"] + c["A"] * a + c["B"] * b + c["G"] * a * b

        middle, width = np.full(np.shape(constants["E"]), math.log(budget / 6) / 2)[..., None], math.log(budget / 6) / 2
        for _ in range(8):  # a grid of 41 points, tightened 8 times around its lowest
            grid = middle + width * np.linspace(-1, 1, 41)
            pick = loss(grid).argmin(-1)[..., None]
            middle, width = np.take_along_axis(grid, pick, -1), width / 15
        return at_optimum(np.exp(middle[..., 0]), budget, loss(middle)[..., 0])


class ParameterProblem(SumForm):
    """E + A/N^alpha."""

    law_class = FORMS["power_N"]
    exponents = ("alpha",)
    columns = ("N",)
    terms = {"E": {}, "A": {"N": "alpha"}}


class TokenProblem(SumForm):
    """E + B/D^beta."""

    law_class = FORMS["power_D"]
    exponents = ("beta",)
    columns = ("D",)
    terms = {"E": {}, "B": {"D": "beta"}}


class ComputeProblem(SumForm):
    """E + K/C^gamma."""

    law_class = FORMS["power_C"]
    exponents = ("gamma",)
    columns = ("C",)
    terms = {"E": {}, "K": {"C": "gamma"}}


def at_optimum(N, budget: float, loss) -> dict[str, np.ndarray]:
    """The best split as it is reported."""
    D = budget / 6 / N
    return {"params": N, "tokens": D, "tokens_per_param": D / N, "loss": loss}
