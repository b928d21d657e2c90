"""Which form of the law: information criteria, and the error on runs that were held out. The simplest wins ties."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.errors import FitError
from scaling.fitting.holdout import hold_out, residuals
from scaling.fitting.parametric import fit_law
from scaling.fitting.result import FitResult

DEFAULT_FORMS = ("tied", "chinchilla", "kaplan", "interaction")
BETTER = 0.9  # a form with more constants must bring the hold-out error below this share of a simpler one's
FAR = 10.0  # of AICc: the worse form has no support (Burnham and Anderson 2002)
CLOSE = 2.0  # without a hold-out: AICc within this of the best is as good


@dataclass(frozen=True)
class Ranked:
    """One form: its fit, AICc and BIC (lower is better) and the mean error on the largest decade of compute."""

    form: str
    fit: FitResult
    aicc: float | None = None
    bic: float | None = None
    holdout_error: float | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        from scaling.laws import law_to_dict

        law = self.fit.law
        return {
            "form": self.form, "status": str(self.fit.status), "n_parameters": self.fit.n_parameters,
            "law": None if law is None else law_to_dict(law), "objective": self.fit.objective, "aicc": self.aicc,
            "bic": self.bic, "holdout_error": self.holdout_error, "reason": self.reason,
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Forms in order of preference; `preferred` is the first, None when none can be fitted."""

    ranked: tuple[Ranked, ...]
    preferred: str | None
    why: str

    def to_dict(self) -> dict[str, Any]:
        return {"preferred": self.preferred, "why": self.why, "forms": [item.to_dict() for item in self.ranked]}


def compare_forms(runs: Any, forms: tuple[str, ...] = DEFAULT_FORMS, **options: Any) -> Comparison:
    """Fit each form to the same runs with the same options and rank them.

    AICc and BIC take the likelihood that goes with the loss function: Laplace for huber_log and lad (delta is far below
    the noise), normal for mse_log and mse; the scale counts as one more constant.
    """
    ranked = [_rank(fit_law(runs, form=form, **options)) for form in forms]
    fitted = sorted((r for r in ranked if r.aicc is not None), key=lambda r: (r.fit.n_parameters, _finite(r.aicc)))
    rest = tuple(r for r in ranked if r.aicc is None)
    if not fitted:
        return Comparison(rest, None, "none of these forms can be fitted to these runs.")
    best, why = _prefer(fitted)
    others = sorted((r for r in fitted if r is not best), key=lambda r: _finite(r.aicc))
    return Comparison((best, *others, *rest), best.form, why)


def criteria(fit: FitResult) -> tuple[float | None, float | None]:
    """AICc and BIC of a usable fit; None with too few runs for its constants."""
    deviance, n, k = _deviance(fit), int((fit.problem.data.weights > 0).sum()), fit.n_parameters + 1
    if n <= k + 1:
        return None, None
    return deviance + 2 * k + 2 * k * (k + 1) / (n - k - 1), deviance + k * math.log(n)


def better_form(fit: FitResult) -> str | None:
    """That the five constants describe these runs far better than the form that was asked for, if they do."""
    if fit.form == "chinchilla" or not fit.usable:
        return None
    o = fit.problem.objective
    five = fit_law(fit.problem.data, delta=o.delta, loss_function=o.loss_function)
    own, other = criteria(fit)[0], criteria(five)[0] if five.usable else None
    if own is None or other is None or own - other < FAR:
        return None
    return (f"the form chinchilla describes these runs far better (AICc lower by {own - other:.0f}): compare them with "
            "--compare.")  # fmt: skip


def _rank(fit: FitResult) -> Ranked:
    if not fit.usable:
        return Ranked(fit.form, fit, reason=fit.message)
    n, k = int((fit.problem.data.weights > 0).sum()), fit.n_parameters + 1
    aicc, bic = criteria(fit)
    if aicc is None:
        return Ranked(fit.form, fit, reason=f"{n} runs are too few for AICc with {k} constants.")
    error = reason = None
    try:
        error = hold_out(fit, resamples=0).mean_abs
    except FitError as problem:
        reason = str(problem)
    return Ranked(fit.form, fit, aicc, bic, error, reason)


def _deviance(fit: FitResult) -> float:
    """-2 log likelihood at its best scale."""
    data = fit.problem.data
    w, n = data.weights, int((data.weights > 0).sum())
    r = residuals(fit)
    if fit.loss_function == "mse":
        r = data.loss * -np.expm1(-r)
    if fit.loss_function in ("mse_log", "mse"):
        return n * (math.log(2 * math.pi * max(float(w @ r**2) / n, 1e-300)) + 1)
    return 2 * n * (math.log(2 * max(float(w @ np.abs(r)) / n, 1e-300)) + 1)


def _finite(value: float | None) -> float:
    """A number to compare by; what is missing comes last."""
    return math.inf if value is None else value


def _prefer(fitted: list[Ranked]) -> tuple[Ranked, str]:
    """From the simplest on: more constants only for a clearly better hold-out."""
    tested = [r for r in fitted if r.holdout_error is not None]
    if len(tested) < 2:
        best_aicc = min(_finite(r.aicc) for r in fitted)
        best = next(r for r in fitted if _finite(r.aicc) <= best_aicc + CLOSE)
        return best, f"no hold-out is possible; {best.form} is the simplest within {CLOSE:g} of the best AICc."
    best = tested[0]
    for other in tested[1:]:
        error, least = _finite(other.holdout_error), _finite(best.holdout_error)
        if error < BETTER * least or (other.fit.n_parameters == best.fit.n_parameters and error < least):
            best = other
    simplest = tested[0]
    if best is simplest:
        return best, f"{best.form} is the simplest, and no other form predicts the held-out decade clearly better."
    return best, (f"{best.form} predicts the held-out decade with {best.holdout_error:.2%} mean error, "
                  f"{simplest.form} with {simplest.holdout_error:.2%}.")  # fmt: skip
