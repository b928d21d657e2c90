"""Approach 3, the parametric fit: the global minimum of F over the constants of a law, with a status that can be trusted."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scaling.errors import FitError
from scaling.fitting.coordinates import Centred
from scaling.fitting.data import RunData, run_data
from scaling.fitting.five import DEFAULT_BOUNDS, centre, damping_scale, make_box, uncentre
from scaling.fitting.identifiability import WARN_CONDITION, condition_number, design_of
from scaling.fitting.kernel import NAMES, evaluate, make_points
from scaling.fitting.newton import Minima
from scaling.fitting.objective import DEFAULT_DELTA, Objective
from scaling.fitting.problem import Problem
from scaling.fitting.quantities import derived
from scaling.fitting.result import FitResult, Status
from scaling.fitting.solve import VANISH, merge, nearly_gone, polish, select, without_first
from scaling.fitting.starts import grid_starts, random_starts, refine
from scaling.laws import ChinchillaLaw

SINGLE_DELTA = 1e-4  # single precision leaves 1e-7 of a residual uncertain, which must be little beside delta
AGREE = 1e-9  # starts agree when their objectives differ by less, relative


def fit_law(
    runs: Any,
    *,
    delta: float = DEFAULT_DELTA,
    loss_function: str = "huber_log",
    weights: Any = None,
    starts: int | Sequence | None = None,
    bounds: Mapping[str, tuple[float, float | None]] = DEFAULT_BOUNDS,
    form: str = "chinchilla",
    seed: int = 0,
) -> FitResult:
    """Fit L(N, D) = E + A/N^alpha + B/D^beta (or another `form`) to runs; losses in nats per token.

    `runs` is a DataFrame with params, tokens, loss, or what `read_runs` returns. `loss_function` and `delta` say what
    is minimised; `weights` is a column name or an array; `starts` is None (a grid by variable projection), a number of
    random starts drawn with `seed`, or laws to start from. The result carries status and message: a law only where
    the runs determine one. Raises FitError for values that cannot be fitted or options that are unknown.
    """
    objective = Objective(loss_function, delta)
    data = run_data(runs, weights)
    if form != "chinchilla":
        from scaling.fitting.form_fit import fit_form

        return fit_form(data, form, objective, starts=starts, bounds=bounds, seed=seed)
    design = design_of(data)
    problem = ChinchillaProblem(data, objective, bounds)
    if design.problem:
        return FitResult(
            None, Status.UNIDENTIFIABLE, design.message, form, loss_function, objective.reported_delta, data.n, 5,
            condition=design.condition, names=NAMES, excluded=data.excluded, problem=problem,
        )  # fmt: skip
    return _finish(problem, problem.solve(starts, seed), design.n_points)


class ChinchillaProblem(Problem):
    """The five-constant fit."""

    form = "chinchilla"
    names = NAMES
    coordinates = Centred()

    def __init__(self, data: RunData, objective: Objective, bounds: Mapping = DEFAULT_BOUNDS) -> None:
        super().__init__(data, objective, bounds)
        self.points = make_points(data.N, data.D, data.loss, data.weights)
        self.box = make_box(self.points, bounds)

    def with_losses(self, log_losses: np.ndarray) -> "ChinchillaProblem":
        other = copy.copy(self)
        other.log_loss, other.losses = log_losses, np.exp(log_losses)
        other.points = replace(self.points, log_loss=other.log_loss, loss=other.losses)
        return other

    def in_single(self) -> "ChinchillaProblem | None":
        if self.objective.threshold < SINGLE_DELTA:
            return None
        other = copy.copy(self)
        other.precision, other.points = np.float32, self.points.in_single()
        return other

    def evaluate(self, theta, *, delta, weights=None, rows=None):
        return evaluate(self.points, theta, self.objective, delta=delta, weights=weights, rows=rows)

    def starts(self, wanted, seed: int) -> np.ndarray:
        if wanted is None:
            return grid_starts(self.points)
        if isinstance(wanted, int):
            if wanted < 1:
                raise FitError(f"starts = {wanted} must be at least 1.")
            return random_starts(wanted, seed, self.points)
        return centre(np.array([_theta_of(start) for start in wanted]), self.points)

    def solve(self, wanted=None, seed: int = 0) -> Minima:
        """Minima (R starts) in centred fit variables; a start of the caller's is also tried with its terms re-projected."""
        starts = self.starts(wanted, seed)
        minima = polish(self, starts) if wanted is None else self._solve_from(starts)
        best = np.array([int(np.argmin(minima.value))])
        if wanted is None and len(self.objective.ladder()) > 1:  # the ladder's wide rungs lead all starts into one basin
            narrow = (self.objective.threshold,)
            straight = polish(self, starts, ladder=narrow, tolerance=1e-6, max_iterations=10, last_step=1e-2)
            lowest = np.array([int(np.argmin(straight.value))])
            if straight.value[lowest[0]] < minima.value[best[0]] * (1 - 1e-9):
                minima = merge(minima, polish(self, straight.theta[lowest], ladder=narrow), best)
        if nearly_gone(minima.theta[best], self.box)[0]:
            minima = merge(minima, polish(self, without_first(minima.theta[best], self.box), lifting=False), best)
        if not minima.converged[best[0]]:
            ladder = tuple(self.objective.threshold * 2.0**k for k in (5, 4, 3, 2, 1, 0))
            minima = merge(minima, polish(self, minima.theta[best], ladder=ladder, max_iterations=400), best)
        return minima

    def gone(self, theta: np.ndarray) -> np.ndarray:
        """Which of E, A and B stay below exp(-9) of the smallest loss at every run: the runs do not show them."""
        x, y = self.points.x, self.points.y
        largest = [theta[0], (theta[1] - theta[3] * x).max(), (theta[2] - theta[4] * y).max()]
        return np.array(largest) < math.log(self.data.loss.min()) - VANISH

    def _solve_from(self, starts) -> Minima:
        """The lowest of three ways from each start: as it is, with its terms re-projected, and, where E went to zero, from
        Chinchilla-like exponents: E = 0 with a small exponent is a local minimum of many tables."""
        k = len(starts)
        both = polish(self, np.concatenate([np.clip(starts, self.box.low, self.box.high), refine(self.points, starts)]))
        minima = merge(select(both, np.arange(k)), select(both, np.arange(k, 2 * k)), np.arange(k))
        stuck = np.flatnonzero(minima.theta[:, 0] <= self.box.vanish[0])
        if len(stuck):
            other = minima.theta[stuck].copy()
            other[:, 3:] = np.maximum(other[:, 3:], 0.35)
            minima = merge(minima, polish(self, refine(self.points, other)), stuck)
        return minima

    def law(self, theta: np.ndarray) -> ChinchillaLaw:
        """The law at centred fit variables; E at its floor is zero."""
        log_E, log_A, log_B, alpha, beta = (float(v) for v in uncentre(theta, self.points))
        E = 0.0 if theta[0] <= self.box.low[0] and np.isfinite(self.box.vanish[0]) else math.exp(log_E)
        for name, value, centre_of, what in (
            ("A", log_A, self.points.x_mean, "N"),
            ("B", log_B, self.points.y_mean, "D"),
        ):
            if abs(value) > 690:
                raise FitError(f"{name} = exp({value:.0f}) is beyond what a number can hold: {what} is about "
                               f"exp({centre_of:.0f}) in these runs. Give {what} as a plain count.")  # fmt: skip
        return ChinchillaLaw(E, math.exp(log_A), math.exp(log_B), alpha, beta)

    def public(self, theta: np.ndarray) -> np.ndarray:
        return uncentre(theta, self.points)

    def inverse(self, theta: np.ndarray) -> np.ndarray:
        return np.clip(centre(theta, self.points), self.box.low, self.box.high)

    def log_losses(self, theta: np.ndarray, columns=slice(None)) -> np.ndarray:
        return _log_loss(theta, self.points.x[columns], self.points.y[columns])

    def losses_at(self, theta: np.ndarray, data: RunData) -> np.ndarray:
        return _log_loss(theta, np.log(data.N), np.log(data.D))

    def quantities(self, theta: np.ndarray, budget: float | None) -> dict[str, np.ndarray]:
        return derived(theta, budget)

    def scale(self, theta: np.ndarray, delta: float | None = None) -> np.ndarray:
        return damping_scale(self.points, theta, self.objective, delta or self.objective.threshold)


def _log_loss(theta, x, y) -> np.ndarray:
    log_E, log_A, log_B, alpha, beta = theta.T[:, :, None]
    with np.errstate(over="ignore"):
        return np.log(np.exp(log_E) + np.exp(log_A - alpha * x) + np.exp(log_B - beta * y))


def _theta_of(start) -> list[float]:
    """Fit variables of a law, or of a mapping of its constants."""
    constants = start.constants() if hasattr(start, "constants") else dict(start)
    try:
        E, A, B, alpha, beta = (float(constants[name]) for name in ("E", "A", "B", "alpha", "beta"))
    except KeyError as error:
        raise FitError(f"starts: {error.args[0]} missing; a start needs E, A, B, alpha, beta.") from error
    if not all(math.isfinite(v) for v in (E, A, B, alpha, beta)) or min(A, B, alpha, beta) <= 0 or E < 0:
        raise FitError(f"starts: {constants} is not a law (A, B, alpha, beta above zero, E not below).")
    return [math.log(max(E, 1e-300)), math.log(A), math.log(B), alpha, beta]


def _finish(problem: ChinchillaProblem, minima: Minima, n_points: int) -> FitResult:
    data, objective = problem.data, problem.objective
    best = int(np.argmin(np.where(np.isfinite(minima.value), minima.value, np.inf)))
    theta, F = minima.theta[best], float(minima.value[best])
    limit = F * (1 + AGREE) + problem.blur(F)
    agreeing = int((minima.value <= limit).sum())
    law = problem.law(theta)
    condition = condition_number(data.N, data.D, law.alpha, law.beta, law.E, law.A, law.B)
    status, message, at = _status(problem, minima, best, agreeing)
    return FitResult(
        law=law if status in (Status.CONVERGED, Status.AT_BOUND) else None,
        status=status,
        message=message,
        form="chinchilla",
        loss_function=objective.loss_function,
        delta=objective.reported_delta,
        n_runs=data.n,
        n_parameters=5,
        objective=problem.reported(theta, F),
        n_starts=len(minima.value),
        n_agreeing=agreeing,
        condition=condition,
        gradient=_scaled_gradient(problem, minima, best),
        at_bounds=at,
        warnings=_warnings(data, law, condition, n_points),
        excluded=data.excluded,
        names=NAMES,
        theta=problem.public(theta),
        covariance=None if at else sandwich(problem, theta, minima.hessian[:, :, best]),
        problem=problem,
    )


def _scaled_gradient(problem, minima, best) -> float:
    """Largest free component of the gradient over sqrt(F times curvature): 1 is a step worth taking, 1e-9 is zero."""
    scale = problem.scale(minima.theta[best : best + 1])[:, 0]
    F = max(float(minima.value[best]), problem.blur(float(minima.value[best])), 1e-300)
    return float(np.abs(minima.gradient[:, best] / np.sqrt(scale * F)).max())


def _status(problem, minima, best, agreeing) -> tuple[Status, str, tuple[str, ...]]:
    low, high = minima.at_low[best].copy(), minima.at_high[best]
    low[:3] |= problem.gone(minima.theta[best])
    names = ("E", "A", "B", "alpha", "beta")
    at = tuple(name for name, lo, hi in zip(names, low, high, strict=True) if lo or hi)
    started = len(minima.value)
    if not minima.converged[best]:
        return Status.NOT_CONVERGED, f"None of {started} starts reached zero gradient; no law is given.", at
    if at:
        return Status.AT_BOUND, " ".join(_bound_line(problem, minima.theta[best], j, low[j]) for j in range(5)
                                         if low[j] or high[j]), at  # fmt: skip
    return Status.CONVERGED, f"{agreeing} of {started} starts agree.", ()


def _bound_line(problem, theta, j: int, at_low: bool) -> str:
    data = problem.data
    if j < 3 and at_low and np.isfinite(problem.box.vanish[j]):
        return (
            "E = 0: the runs show no irreducible loss, so E is unknown and extrapolation follows a pure power law. "
            "Larger budgets, or --form with fewer constants, would help.",
            "A went to zero: the loss does not fall with N in these runs. Check the column of N, or fit --form power_D.",
            "B went to zero: the loss does not fall with D in these runs. Check the column of D, or fit --form power_N.",
        )[j]
    name = ("E", "A", "B", "alpha", "beta")[j]
    value = math.exp(theta[0]) if j == 0 else theta[j]
    lo, hi = problem.bounds.get(name, DEFAULT_BOUNDS.get(name, (0.0, None)))
    spread = {"alpha": data.N, "beta": data.D}.get(name)
    advice = f" The runs span {spread.max() / spread.min():.3g}x in {'N' if name == 'alpha' else 'D'}; widen the grid." if (
        spread is not None) else ""  # fmt: skip
    high = "largest loss" if hi is None else f"{hi:g}"
    return f"{name} = {value:.4g} is at its {'lower' if at_low else 'upper'} bound ({lo:g}, {high}).{advice}"


def _warnings(data: RunData, law: ChinchillaLaw, condition: float, n_points: int) -> tuple[str, ...]:
    out = []
    if n_points < 10:
        out.append(f"Only {n_points} distinct (N, D) for five constants: intervals will be wide.")
    if condition > WARN_CONDITION:
        out.append(
            f"Condition of the scaled Jacobian is {condition:.2g}: E, A and alpha, or B and beta, barely separate."
        )
    if law.E >= data.loss.min():
        out.append(f"E = {law.E:.4g} is above the smallest loss {data.loss.min():.4g}: no law can lie below its own E.")
    for name, value in (("alpha", law.alpha), ("beta", law.beta)):
        if value < 0.05 or value > 1:
            out.append(
                f"{name} = {value:.3g} is outside (0.05, 1), where text models lie: the runs may not show its term."
            )
    return tuple(out)


def sandwich(problem: ChinchillaProblem, theta: np.ndarray, hessian: np.ndarray) -> np.ndarray | None:
    """Covariance of (log E, log A, log B, alpha, beta): H^-1 (sum of g_i g_i^T) H^-1 n / (n - 5), of the law's own logs.

    g_i is the gradient of run i's part of F, H the exact Hessian (Huber 1967). None where H is not positive definite.
    """
    points, n = problem.points, problem.points.n
    g = run_gradients(problem, theta)
    try:
        np.linalg.cholesky(hessian)
    except np.linalg.LinAlgError:
        return None
    inverse = np.linalg.inv(hessian)
    spread = inverse @ (g.T @ g) @ inverse * n / max(n - 5, 1)
    J = np.eye(5)
    J[1, 3], J[2, 4] = points.x_mean, points.y_mean
    return J @ spread @ J.T


def run_gradients(problem: ChinchillaProblem, theta: np.ndarray) -> np.ndarray:
    """Gradient (n, 5) of each run's part of F."""
    p, log_space = problem.points, problem.objective.log_space
    terms = np.stack(
        [np.full(p.n, np.exp(theta[0])), np.exp(theta[1] - theta[3] * p.x), np.exp(theta[2] - theta[4] * p.y)]
    )
    total = terms.sum(0)
    r = np.log(total) - p.log_loss if log_space else total - p.loss
    psi = p.weights * np.clip(r, -problem.objective.threshold, problem.objective.threshold)
    shares = terms / total if log_space else terms
    return (psi * np.stack([shares[0], shares[1], shares[2], -p.x * shares[1], -p.y * shares[2]])).T
