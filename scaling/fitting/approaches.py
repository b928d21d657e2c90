"""Approaches 1, 2 and 3 side by side: the exponent and N* at a budget from each, and whether they agree."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.errors import FitError
from scaling.fitting.data import RunData
from scaling.fitting.envelope import Envelope, fit_envelope
from scaling.fitting.intervals import Intervals
from scaling.fitting.isoflop import MIN_BUDGETS, WIDE, Isoflop, fit_isoflop
from scaling.fitting.quantities import has_split, log_N, quantiles
from scaling.fitting.result import FitResult

NAMED = 5  # rejected budgets in one reason


@dataclass(frozen=True)
class Answer:
    """What one approach says. Numbers are None, with a reason, where it cannot be applied."""

    approach: str
    N_exponent: float | None = None
    N_exponent_interval: tuple[float, float] | None = None
    params: float | None = None  # N* at the budget
    params_interval: tuple[float, float] | None = None
    reason: str | None = None
    detail: Any = None

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "N_exponent": self.N_exponent, "N_exponent_interval": _listed(self.N_exponent_interval),
            "params": self.params, "params_interval": _listed(self.params_interval), "reason": self.reason,
        }  # fmt: skip
        if isinstance(self.detail, Isoflop):
            out |= _isoflop_dict(self.detail)
        if isinstance(self.detail, Envelope):
            out |= {"levels": len(self.detail.flops), "levels_tried": self.detail.n_levels,
                    "curves": self.detail.n_curves, "curves_by": self.detail.curves_by, "winners": self.detail.winners,
                    "D_exponent": self.detail.D_law.exponent, "warnings": list(self.detail.warnings)}  # fmt: skip
        return out


@dataclass(frozen=True)
class SideBySide:
    """The answers by approach and, where they differ beyond their intervals, the headline."""

    budget: float
    answers: dict[str, Answer]
    disagreement: str | None

    def to_dict(self) -> dict[str, Any]:
        return {**{name: answer.to_dict() for name, answer in self.answers.items()},
                "budget_flops": self.budget, "disagreement": self.disagreement}  # fmt: skip


def side_by_side(fit: FitResult, found: Intervals | None, budget: float, *, curves: np.ndarray | None = None,
                 budgets=None, wanted: str = "all", draws=None, level: float = 0.95, seed: int = 0,
                 winners: str = "interior") -> SideBySide:  # fmt: skip
    """Answers of the wanted approaches ("1", "2", "3" or "all") at a budget in FLOP; `winners` as in `fit_envelope`."""
    data = fit.problem.data
    answers = {}
    if wanted in ("1", "all"):
        answers["1"] = _envelope_answer(data, budget, curves, level, seed, winners)
    if wanted in ("2", "all"):
        answers["2"] = _isoflop_answer(data, budget, budgets, level, seed)
    if wanted in ("3", "all"):
        answers["3"] = _parametric_answer(fit, found, draws, budget, level)
    return SideBySide(budget, answers, _disagreement(fit, answers))


def _envelope_answer(data: RunData, budget, curves, level, seed, winners) -> Answer:
    try:
        found = fit_envelope(data, curves, seed=seed, level=level, winners=winners)
    except FitError as error:
        return Answer("1", reason=str(error))
    return _power_answer("1", found, budget, level)


def _isoflop_answer(data: RunData, budget, budgets, level, seed) -> Answer:
    try:
        found = fit_isoflop(data, budgets, seed=seed, level=level)
    except FitError as error:
        return Answer("2", reason=str(error))
    if found.N_law is None:
        return Answer("2", reason=f"isoFLOP: {len(found.accepted)} of {sum(b.n_sizes >= 3 for b in found.budgets)} curves are "
                      f"accepted, {MIN_BUDGETS} are needed. {_rejections(found)}", detail=found)  # fmt: skip
    return _power_answer("2", found, budget, level)


def _rejections(found: Isoflop) -> str:
    lines = [f"{b.flops:.3g} FLOP: {b.rejected}" for b in found.budgets if b.rejected and b.n_sizes >= 3]
    more = [f"and {len(lines) - NAMED} more"] if len(lines) > NAMED else []
    return f"Rejected: {'; '.join(lines[:NAMED] + more)}." if lines else ""


def _power_answer(name: str, found, budget, level) -> Answer:
    """Exponent and N*, each with the wider of two intervals: from the scatter about the line, and from resampled runs."""
    law, draws = found.N_law, found.draws
    interval, log_interval = law.interval, law.log_interval_at(budget)
    if draws is not None and len(draws) >= 20:
        tails = [50 * (1 - level), 50 * (1 + level)]
        interval = _wider(interval, np.percentile(draws[:, 0], tails))
        log_interval = _wider(log_interval, np.percentile(draws[:, 1] + draws[:, 0] * np.log(budget), tails))
    params_interval = None if log_interval is None else (float(np.exp(log_interval[0])), float(np.exp(log_interval[1])))
    return Answer(name, law.exponent, interval, float(law.at(budget)), params_interval, detail=found)


def _wider(one: tuple[float, float] | None, other: np.ndarray) -> tuple[float, float]:
    return one if one is not None and one[1] - one[0] >= other[1] - other[0] else (float(other[0]), float(other[1]))


def _parametric_answer(fit, found, draws, budget, level) -> Answer:
    if not fit.usable:
        return Answer("3", reason=f"{fit.form}: {fit.status}. {fit.message}")
    if not has_split(fit):
        return Answer("3", reason=f"{fit.form}: no best split of a budget. {fit.message}")
    log_params = log_N(fit, fit.theta, budget)
    if log_params is None:
        return Answer("3", reason=f"the form {fit.form} has no split of a budget.")
    exponent = _slope(fit, fit.theta, budget)
    interval = params_interval = None
    tails = [50 * (1 - level), 50 * (1 + level)]
    if draws is not None and len(draws.draws) >= 20:
        drawn = log_N(fit, draws.draws, budget)
        assert drawn is not None
        low, high = quantiles(np.exp(np.minimum(drawn, 700.0)), tails)
        params_interval = (float(low), float(high))
        low, high = quantiles(_slope(fit, draws.draws, budget), tails)
        interval = (float(low), float(high))
    if found is not None and "N_exponent" in found.interval:  # by the method that was asked for
        interval = found.interval["N_exponent"]
    with np.errstate(over="ignore"):
        return Answer("3", float(exponent), interval, float(np.exp(log_params)), params_interval)


def _slope(fit, theta, budget: float) -> np.ndarray:
    """d log N* / d log C at the budget: the exponent of N, for forms whose optimum is no power law as well."""
    up, down = log_N(fit, theta, budget * 1.1), log_N(fit, theta, budget / 1.1)
    assert up is not None and down is not None
    return (up - down) / (2 * np.log(1.1))


def _disagreement(fit: FitResult, answers: dict[str, Answer]) -> str | None:
    """The headline where two approaches' intervals of the exponent, or of N*, do not meet."""
    names = sorted(answers, reverse=True)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            a, b = answers[one], answers[other]
            for what, value, interval in (
                ("N_exponent", "N_exponent", "N_exponent_interval"),
                ("N*", "params", "params_interval"),
            ):
                first, second = getattr(a, interval), getattr(b, interval)
                if first and second and (first[0] > second[1] or second[0] > first[1]):
                    return (
                        f"approaches {other} and {one} disagree on {what} beyond their intervals: "
                        f"{getattr(b, value):.3g} ({second[0]:.3g} to {second[1]:.3g}) against "
                        f"{getattr(a, value):.3g} ({first[0]:.3g} to {first[1]:.3g}). {_cause(fit, answers, other)}"
                    )
    return None


def _cause(fit: FitResult, answers: dict[str, Answer], other: str) -> str:
    """The likeliest cause of a disagreement with the parametric fit."""
    data = fit.problem.data
    ratio = 6 * data.N * data.D / data.flops
    if np.abs(ratio - 1).max() > 0.05:
        return f"Likely cause: C and 6ND differ (6ND/C {ratio.min():.2f} to {ratio.max():.2f}), so the budgets mean two things."
    if other == "1":
        return ("Likely cause: the envelope takes losses before the end of a schedule, and its winners come in steps of "
                "whole sizes.")  # fmt: skip
    detail = answers[other].detail
    if isinstance(detail, Isoflop):
        wide = [b for b in detail.accepted if b.width > WIDE]
        off = [b for b in detail.accepted if any(note.startswith("off centre") for note in b.notes)]
        flat = [b for b in detail.accepted if any(note.startswith("weak") for note in b.notes)]
        if wide or off:
            return f"Likely cause: {len(wide)} wide and {len(off)} off-centre parabolas; with alpha != beta they are biased."
        if flat:
            return f"Likely cause: {len(flat)} of {len(detail.accepted)} isoFLOP curves are much flatter than the rest."
    return "Likely cause: a few runs pull the approaches apart; see the influence table."


def _listed(pair):
    return None if pair is None else list(pair)


def _isoflop_dict(found: Isoflop) -> dict[str, Any]:
    return {
        "D_exponent": None if found.D_law is None else found.D_law.exponent,
        "D_exponent_interval": None if found.D_law is None else _listed(found.D_law.interval),
        "sum_of_exponents": found.total,
        "budgets": [
            {"flops": b.flops, "n_runs": len(b.rows), "n_sizes": b.n_sizes, "accepted": b.accepted, "reason": b.rejected,
             "params": b.N_opt, "tokens": b.D_opt, "loss": b.loss, "log_params_standard_error": b.N_error,
             "decades": b.width, "notes": list(b.notes)}
            for b in found.budgets
        ],
        "warnings": list(found.warnings),
    }  # fmt: skip
