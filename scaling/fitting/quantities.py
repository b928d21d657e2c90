"""What follows from the constants: exponents, and the best split of a budget 6ND = C, for one law or thousands of draws."""

from typing import Any

import numpy as np

from scaling.fitting.kernel import NAMES

CONSTANTS = ("E", "A", "B", "alpha", "beta")
SPLIT = ("N_exponent", "D_exponent", "params", "tokens", "tokens_per_param", "loss")  # what follows from a best split


def derived(theta: np.ndarray, budget: float | None = None) -> dict[str, np.ndarray]:
    """E, A, B, alpha, beta, N_exponent, D_exponent and, at a budget in FLOP, params, tokens, tokens_per_param, loss.

    theta (..., 5) holds log E, log A, log B, alpha, beta; each value comes back as (...,).
    """
    log_E, log_A, log_B, alpha, beta = np.moveaxis(np.asarray(theta, float), -1, 0)
    with np.errstate(over="ignore"):
        out = {"E": np.exp(log_E), "A": np.exp(log_A), "B": np.exp(log_B), "alpha": alpha, "beta": beta}
        out["N_exponent"] = beta / (alpha + beta)
        out["D_exponent"] = alpha / (alpha + beta)
        if budget is not None:
            log_N, log_D = log_optimum(theta, budget)
            out["params"], out["tokens"] = np.exp(log_N), np.exp(log_D)
            out["tokens_per_param"] = np.exp(log_D - log_N)
            out["loss"] = np.exp(log_E) + np.exp(log_A - alpha * log_N) + np.exp(log_B - beta * log_D)
    return out


def log_optimum(theta: np.ndarray, budget: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log N* and log D* at 6ND = budget: log N* = log G + a log(C/6), G = (alpha A / (beta B))^(1/(alpha + beta))."""
    _, log_A, log_B, alpha, beta = np.moveaxis(np.asarray(theta, float), -1, 0)
    log_G = (np.log(alpha / beta) + log_A - log_B) / (alpha + beta)
    log_N = log_G + beta / (alpha + beta) * np.log(budget / 6)
    return log_N, np.log(budget / 6) - log_N


def is_five(names) -> bool:
    """Whether fit variables are those of the five-constant law."""
    return tuple(names) == NAMES


def has_split(fit: Any) -> bool:
    """Whether the runs show a best split of a budget: not if the term of N or of D went to zero."""
    return not {"A", "B"} & set(fit.at_bounds)


def log_N(fit: Any, theta: np.ndarray, budget: float) -> np.ndarray | None:
    """log N* at a budget for fit variables (..., p) of any form; None for a form, or a fit, without a best split."""
    if not has_split(fit):
        return None
    if is_five(fit.names):
        return log_optimum(theta, budget)[0]
    found = fit.problem.quantities(theta, budget).get("params")
    if found is None or np.isnan(found).any():
        return None
    with np.errstate(divide="ignore"):
        values = np.log(found)
    if np.ndim(values) == 0 and not np.isfinite(values):
        return None
    return np.clip(values, -700, 700)  # beyond which a draw of N* is no number


def quantiles(values: np.ndarray, percent) -> np.ndarray:
    """Percentiles of a sample that may hold infinities (an A or B too large for a float): interpolated where finite."""
    ordered = np.sort(np.asarray(values, float))
    place = np.asarray(percent, float) / 100 * (len(ordered) - 1)
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, len(ordered) - 1)
    a, b, t = ordered[low], ordered[high], place - low
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(np.isfinite(a) & np.isfinite(b), a * (1 - t) + b * t, np.where(t > 0, b, a))


def deviation(values: np.ndarray) -> float:
    """Standard deviation of a sample; infinite where the sample is."""
    values = np.asarray(values, float)
    if not np.isfinite(values).all():
        return float("inf")
    size = float(np.abs(values).max(initial=0.0)) or 1.0
    return float(np.std(values / size, ddof=1)) * size if size < 1e300 else float("inf")
