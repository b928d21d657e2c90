"""Intervals of the constants and of what follows from them, from joint draws; and the Hessian's opinion beside them.

percentile   the quantiles of the draws
bca          quantiles corrected for bias and skewness (Efron 1987), the skewness from leaving out runs or clusters
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from scaling.errors import FitError
from scaling.fitting.quantities import SPLIT, derived, deviation, has_split, is_five, quantiles
from scaling.fitting.resampling import Bootstrap, cluster_labels, leave_out
from scaling.fitting.result import FitResult
from scaling.fitting.sandwich import covariance

METHODS = ("percentile", "bca")
TAIL = 5  # draws beyond each end of an interval, below which its ends are chance
DISAGREE = 2.0  # bootstrap and Hessian standard errors that differ by more than this factor get a line


@dataclass(frozen=True)
class Intervals:
    """Each quantity with its estimate, standard error and interval; `hessian` are standard errors by the Hessian."""

    level: float
    method: str
    resamples: int
    not_converged: int
    kind: str
    estimate: dict[str, float]
    standard_error: dict[str, float]
    interval: dict[str, tuple[float, float]]
    hessian: dict[str, float] = field(default_factory=dict)
    correlation: dict[str, float] = field(default_factory=dict)
    at_bound: int = 0  # draws in which E went to zero
    budget: float | None = None
    warnings: tuple[str, ...] = ()


def intervals(
    fit: FitResult,
    draws: Bootstrap,
    *,
    level: float = 0.95,
    method: str = "percentile",
    budget: float | None = None,
    cluster=None,
) -> Intervals:
    """Intervals at `level` of every constant, the exponents and, at a budget (FLOP), of N*, D*, D/N and the loss.

    Raises FitError for an unknown method or a level outside (0, 1).
    """
    if method not in METHODS:
        raise FitError(f'interval method "{method}" is not known. Known: {", ".join(METHODS)}.')
    if not 0 < level < 1:
        raise FitError(f"level = {level} must lie between 0 and 1, for example 0.95.")
    of = quantities_of(fit, budget)
    estimate = {name: float(value) for name, value in of(fit.theta).items() if not np.isnan(value)}
    values = {name: v for name, v in of(draws.draws).items() if name in estimate and not np.isnan(v).any()}
    estimate = {name: estimate[name] for name in values}
    if method == "bca":
        labels = cluster_labels(fit.problem.data, cluster) if draws.kind == "cluster" else None
        left = leave_out(fit, labels)[1]
        jack = of(fit.problem.public(left.theta))
        found = {name: _bca(values[name], estimate[name], jack[name], level) for name in values}
    else:
        tails = [50 * (1 - level), 50 * (1 + level)]
        found = {}
        for name, v in values.items():
            low, high = quantiles(v, tails)
            found[name] = (float(low), float(high))
    return Intervals(
        level=level,
        method=method,
        resamples=draws.resamples,
        not_converged=draws.not_converged,
        kind=draws.kind,
        estimate=estimate,
        standard_error={name: deviation(v) for name, v in values.items()},
        interval=found,
        hessian=hessian_errors(fit, of),
        correlation=_correlations(draws),
        at_bound=int((draws.draws[:, 0] <= fit.problem.box.low[0] + 1e-6).sum()) if is_five(fit.names) else 0,
        budget=budget,
        warnings=tuple(_warnings(fit, draws, of, level)),
    )


def quantities_of(fit: FitResult, budget: float | None) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """What is reported of this fit's form, as a function of its fit variables (..., p)."""
    if not has_split(fit):
        of = quantities_of_constants(fit)
        return lambda theta: {name: value for name, value in of(theta).items() if name not in SPLIT}
    if is_five(fit.names):
        return lambda theta: derived(theta, budget)
    return lambda theta: fit.problem.quantities(theta, budget)


def quantities_of_constants(fit: FitResult) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """The same without a budget."""
    return derived if is_five(fit.names) else lambda theta: fit.problem.quantities(theta, None)


def _bca(values, estimate, jack, level) -> tuple[float, float]:
    normal = NormalDist()
    below = (np.sum(values < estimate) + 0.5 * np.sum(values == estimate)) / len(values)
    z0 = normal.inv_cdf(float(np.clip(below, 1e-6, 1 - 1e-6)))
    centred = jack.mean() - jack
    spread = float((centred**2).sum())
    acceleration = float((centred**3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0
    tails = []
    for z in (normal.inv_cdf((1 - level) / 2), normal.inv_cdf((1 + level) / 2)):
        shifted = z0 + z
        tails.append(100 * normal.cdf(z0 + shifted / (1 - acceleration * shifted)))
    low, high = quantiles(values, tails)
    return float(low), float(high)


def hessian_errors(fit: FitResult, of: Callable) -> dict[str, float]:
    """Standard errors by the delta method from the sandwich covariance; empty where there is none."""
    spread = covariance(fit)
    if spread is None:
        return {}
    out: dict[str, float] = {}
    step = 1e-5
    plus = of(fit.theta + step * np.eye(len(fit.theta)))
    minus = of(fit.theta - step * np.eye(len(fit.theta)))
    for name in plus:
        slope = (plus[name] - minus[name]) / (2 * step)
        out[name] = math.sqrt(max(float(slope @ spread @ slope), 0.0))
    return out


def _correlations(draws: Bootstrap) -> dict[str, float]:
    """Correlations of the logs of A and B with their exponents: why A and B mean nothing alone."""
    if not is_five(draws.names) or len(draws.draws) < 3:
        return {}
    _, log_A, log_B, alpha, beta = draws.draws.T
    with np.errstate(invalid="ignore", divide="ignore"):
        pairs = {"log_A,alpha": np.corrcoef(log_A, alpha)[0, 1], "log_B,beta": np.corrcoef(log_B, beta)[0, 1]}
    return {name: float(value) for name, value in pairs.items() if np.isfinite(value)}


def _warnings(fit: FitResult, draws: Bootstrap, of: Callable, level: float) -> list[str]:
    out = []
    if draws.not_converged:
        share = draws.not_converged / draws.resamples
        out.append(
            f"{draws.not_converged} of {draws.resamples} resamples ({share:.1%}) did not converge and are left out."
        )
    if draws.clusters is not None and draws.clusters < 10:
        out.append(f"Only {draws.clusters} clusters: intervals from so few are too narrow.")
    if len(draws.draws) * (1 - level) / 2 < TAIL:
        out.append(f"{len(draws.draws)} resamples leave fewer than {TAIL} in each tail of a {level:.0%} interval; take "
                   f"{math.ceil(2 * TAIL / (1 - level)):,} or more.")  # fmt: skip
    errors = hessian_errors(fit, of)
    values = of(draws.draws)
    for name in ("N_exponent", "params") if is_five(fit.names) else ():
        if errors.get(name, 0.0) <= 0:
            continue
        spread = robust_error(values[name])
        ratio = spread / errors[name]
        if not 1 / DISAGREE <= ratio <= DISAGREE:
            needed = "" if ratio > 1 else f" So small an error would take about {fit.n_runs / ratio**2:.2g} runs."
            out.append(
                f"{name}: the bootstrap's standard error is {ratio:.2g}x the Hessian's; the curvature at the minimum "
                f"does not describe how far it moves. Trust the wider.{needed}"
            )
    return out


def robust_error(values: np.ndarray) -> float:
    """Half the central 68.3 % of draws: a standard error that a heavy tail does not rule."""
    low, high = quantiles(values, [15.87, 84.13])
    return float(high - low) / 2
