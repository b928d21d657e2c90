"""A fit as the JSON that scripts rely on; the same dictionary is written to fit.json with the joint draws added."""

import math
from typing import Any

import numpy as np

from scaling.fit_file import FIT_FORMAT, encode_draws
from scaling.fitting.holdout import rms_log_residual
from scaling.fitting.intervals import Intervals
from scaling.fitting.quantities import has_split
from scaling.fitting.result import FitResult
from scaling.laws import law_to_dict

AT_BUDGET = ("params", "tokens", "tokens_per_param", "loss")


def fit_dict(fit: FitResult) -> dict[str, Any]:
    """The fit itself, without what was done around it."""
    law = fit.law
    out: dict[str, Any] = {
        "format": FIT_FORMAT,
        "law": None if law is None else law_to_dict(law),
        "form": fit.form,
        "equation": None if law is None else law.equation,
        "status": str(fit.status),
        "message": fit.message,
        "objective": fit.objective,
        "rms_log_residual": rms_log_residual(fit),
        "delta": fit.delta,
        "loss_function": fit.loss_function,
        "n_runs": fit.n_runs,
        "n_parameters": fit.n_parameters,
        "excluded": [exclusion_dict(item) for item in fit.excluded],
        "starts": {"tried": fit.n_starts, "agreeing": fit.n_agreeing},
        "N_exponent": getattr(law, "N_exponent", None) if has_split(fit) else None,
        "D_exponent": getattr(law, "D_exponent", None) if has_split(fit) else None,
        "condition": finite(fit.condition),
        "gradient": finite(fit.gradient),
        "at_bounds": list(fit.at_bounds),
        "warnings": list(fit.warnings),
    }
    return out


def exclusion_dict(item: Any) -> dict[str, Any]:
    """An excluded row as row, run_id, reason."""
    if hasattr(item, "to_dict"):
        return item.to_dict()
    return {"row": item.row, "run_id": item.run_id, "reason": item.reason}


def intervals_dict(found: Intervals) -> dict[str, Any]:
    """Intervals by quantity, with how they were made; standard errors of both kinds beside them."""
    return {
        "level": found.level,
        "method": found.method,
        "kind": found.kind,
        "resamples": found.resamples,
        "not_converged": found.not_converged,
        "at_bound": found.at_bound,
        **{name: list(pair) for name, pair in found.interval.items() if name not in AT_BUDGET},
        "standard_error": {k: finite(v) for k, v in found.standard_error.items() if k not in AT_BUDGET},
        "standard_error_hessian": {k: finite(v) for k, v in found.hessian.items() if k not in AT_BUDGET},
        "correlation": found.correlation,
    }


def budget_dict(found: Intervals) -> dict[str, Any] | None:
    """The best split at the budget, with its intervals."""
    names = [name for name in AT_BUDGET if name in found.estimate]
    if found.budget is None or not names:
        return None
    return {
        "flops": found.budget,
        **{name: found.estimate[name] for name in names},
        "intervals": {name: list(found.interval[name]) for name in names},
        "standard_error": {name: finite(found.standard_error[name]) for name in names},
    }


def draws_dict(fit: FitResult, draws: np.ndarray) -> dict[str, Any]:
    """The joint draws, compactly."""
    return encode_draws(fit.names, draws)


def finite(value: float | None) -> float | None:
    """The value, or None where it is not finite."""
    return None if value is None or not math.isfinite(value) else float(value)

