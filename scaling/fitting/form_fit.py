"""Fit a form other than the five-constant law, with the same statuses."""

from typing import Any

import numpy as np

from scaling.errors import FitError
from scaling.fitting.data import RunData
from scaling.fitting.forms import (
    ComputeProblem,
    FormProblem,
    InteractionProblem,
    ParameterProblem,
    TiedProblem,
    TokenProblem,
)
from scaling.fitting.identifiability import SAME, groups
from scaling.fitting.objective import Objective
from scaling.fitting.other_forms import BrokenProblem, DataConstrainedProblem, KaplanProblem
from scaling.fitting.result import FitResult, Status

PROBLEMS: dict[str, type[FormProblem]] = {
    problem.law_class.form: problem  # type: ignore[attr-defined]
    for problem in (TiedProblem, KaplanProblem, InteractionProblem, DataConstrainedProblem, ParameterProblem,
                    TokenProblem, ComputeProblem, BrokenProblem)
}  # fmt: skip
MAX_CONDITION = 1e7
AGREE = 1e-9


def fit_form(
    data: RunData, form: str, objective: Objective, *, starts: Any = None, bounds: Any = None, seed: int = 0
) -> FitResult:
    """Fit one of `PROBLEMS`. Raises FitError for an unknown form, or bounds, which only the chinchilla form takes."""
    from scaling.fitting.five import DEFAULT_BOUNDS

    if form not in PROBLEMS:
        raise FitError(f'form "{form}" is not known. Known: chinchilla, {", ".join(PROBLEMS)}.')
    if bounds and dict(bounds) != dict(DEFAULT_BOUNDS):
        raise FitError(f"bounds are for the chinchilla form; {form} has its own.")
    problem = PROBLEMS[form](data, objective)
    reason = _unidentifiable(problem, data)
    if reason:
        return FitResult(None, Status.UNIDENTIFIABLE, reason, form, objective.loss_function, objective.reported_delta,
                         data.n, len(problem.names), names=problem.names, excluded=data.excluded, problem=problem)  # fmt: skip
    return _finish(problem, problem.solve(starts, seed))


def _unidentifiable(problem: FormProblem, data: RunData) -> str | None:
    values = {"N": data.N, "D": data.D, "C": 6 * data.N * data.D}
    for name in problem.columns:
        count = int(groups(values[name], SAME).max()) + 1
        needed = 2 if len(problem.columns) > 1 else len(problem.names) + 1
        if count < needed:
            return f"{count} distinct values of {name}: the form {problem.form} needs at least {needed}."
    points = len(np.unique(np.stack([groups(values[name], SAME) for name in problem.columns]), axis=1).T)
    if points <= len(problem.names):
        return f"{points} distinct points for {len(problem.names)} constants of the form {problem.form}."
    if isinstance(problem, DataConstrainedProblem):
        repeated = int((data.D > 1.01 * data.unique_tokens).sum())
        if repeated < 3:
            return (f"{repeated} runs repeat their data: R_D_star and R_N_star are unknowable. Give a column unique_tokens, "
                    "or fit --form chinchilla.")  # fmt: skip
    return None


def _finish(problem: FormProblem, minima) -> FitResult:
    data, objective = problem.data, problem.objective
    best = int(np.argmin(np.where(np.isfinite(minima.value), minima.value, np.inf)))
    theta, F = minima.theta[best], float(minima.value[best])
    agreeing = int((minima.value <= F * (1 + AGREE) + problem.blur(F)).sum())
    at = tuple(name.removeprefix("log_") for name, low, high in
               zip(problem.names, minima.at_low[best], minima.at_high[best], strict=True) if low or high)  # fmt: skip
    condition = _condition(problem, theta, minima.at_low[best] | minima.at_high[best])
    if not minima.converged[best]:
        status, message = (
            Status.NOT_CONVERGED,
            f"None of {len(minima.value)} starts reached zero gradient; no law is given.",
        )
    elif condition > MAX_CONDITION:
        status, message = (
            Status.UNIDENTIFIABLE,
            (
                f"The constants of the form {problem.form} cannot be told apart by these runs (condition {condition:.1e})."
            ),
        )
    elif at:
        status, message = (
            Status.AT_BOUND,
            (f"{', '.join(at)} at a bound: these runs do not need every constant of the form {problem.form}."),
        )
    else:
        status, message = Status.CONVERGED, f"{agreeing} of {len(minima.value)} starts agree."
    scale = problem.scale(theta[None])[:, 0]
    usable = status in (Status.CONVERGED, Status.AT_BOUND)
    return FitResult(
        law=problem.law(theta) if usable else None, status=status, message=message, form=problem.form,
        loss_function=objective.loss_function, delta=objective.reported_delta, n_runs=data.n,
        n_parameters=len(problem.names), objective=problem.reported(theta, F), n_starts=len(minima.value),
        n_agreeing=agreeing, condition=condition,
        gradient=float(np.abs(minima.gradient[:, best] / np.sqrt(scale * max(F, problem.blur(F), 1e-300))).max()), at_bounds=at,
        excluded=data.excluded, names=problem.names, theta=problem.public(theta),
        covariance=_covariance(problem, theta, minima.hessian[:, :, best]) if usable and not at else None, problem=problem,
    )  # fmt: skip


def _condition(problem: FormProblem, theta, held) -> float:
    """Condition of the Jacobian of log Lhat in the free fit variables, columns at unit length."""
    J = problem.derivatives(theta[None])[1][0][:, ~held]
    size = np.sqrt((J * J).sum(0))
    if held.all() or not (size > 0).all():
        return float("inf")
    values = np.linalg.svd(J / size, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def _covariance(problem: FormProblem, theta, hessian) -> np.ndarray | None:
    """Sandwich covariance of the public fit variables, by a difference of `public`."""
    value, J = problem.derivatives(theta[None])
    r = problem.residual(theta[None])[0]
    psi = problem.weights * np.clip(r, -problem.objective.threshold, problem.objective.threshold)
    if not problem.objective.log_space:
        psi = psi * np.exp(value[0])
    g = psi[:, None] * J[0]
    try:
        np.linalg.cholesky(hessian)
    except np.linalg.LinAlgError:
        return None
    inverse = np.linalg.inv(hessian)
    n, p = g.shape
    spread = inverse @ (g.T @ g) @ inverse * n / max(n - p, 1)
    h = 1e-6
    T = np.stack([(problem.public(theta + h * e) - problem.public(theta - h * e)) / (2 * h) for e in np.eye(p)], axis=1)
    return T @ spread @ T.T
