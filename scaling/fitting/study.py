"""Everything `scale fit` does with one table: the fit, its intervals and what is said beside it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scaling.errors import FitError
from scaling.fitting.approaches import SideBySide, side_by_side
from scaling.fitting.comparison import Comparison, better_form, compare_forms
from scaling.fitting.diagnostics import (
    LackOfFit,
    Specification,
    Trend,
    lack_of_fit,
    sensitivity,
    specification_table,
    trends,
)
from scaling.fitting.doubts import doubts
from scaling.fitting.holdout import Holdout, can_hold_out, hold_out, residuals
from scaling.fitting.influence import Influence, influence
from scaling.fitting.intervals import Intervals, intervals
from scaling.fitting.parametric import fit_law
from scaling.fitting.payload import budget_dict, draws_dict, fit_dict, intervals_dict
from scaling.fitting.quantities import has_split, is_five
from scaling.fitting.resampling import Bootstrap, bootstrap, default_resamples
from scaling.fitting.result import FitResult
from scaling.fitting.verdict import Verdict, verdict

MANY = 20_000  # above so many runs, leave-one-out and the tables of refits are left out unless asked for
OTHER_FORM_RESAMPLES = 400  # by default: forms other than the five constants cost more per refit


@dataclass(frozen=True)
class StudyOptions:
    """What to do around the fit."""

    resamples: int | None = None  # None: 4000, fewer for very large tables and other forms; 0: none
    kind: str = "runs"  # or "parametric"; a cluster column makes it "cluster"
    cluster: str | None = None
    level: float = 0.95
    method: str = "percentile"
    budget: float | None = None  # FLOP; None: ten times the largest run
    seed: int = 0
    approach: str = "3"
    isoflop_budgets: tuple[float, ...] | None = None
    curves: str | None = None
    envelope: str = "interior"  # which FLOP levels of approach 1 count; or "all"
    holdout: bool | None = None  # None: when there are enough runs
    compare: tuple[str, ...] = ()
    diagnose: bool = True


@dataclass(frozen=True)
class Study:
    """A fit with what surrounds it; each part is None where it was not asked for or cannot be had."""

    fit: FitResult
    verdict: Verdict
    budget: float
    draws: Bootstrap | None = None
    intervals: Intervals | None = None
    holdout: Holdout | None = None
    approaches: SideBySide | None = None
    comparison: Comparison | None = None
    influence: Influence | None = None
    sensitivity: tuple[Specification, ...] = ()
    specifications: tuple[Specification, ...] = ()
    trends: tuple[Trend, ...] = ()
    lack_of_fit: LackOfFit | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def all_warnings(self) -> list[str]:
        """Every warning, the headline first."""
        headline = [self.approaches.disagreement] if self.approaches and self.approaches.disagreement else []
        others = [*self.fit.warnings, *self.warnings]
        for part in (self.intervals, self.influence):
            others += part.warnings if part is not None else ()
        return headline + others

    def to_dict(self, *, draws: bool = False) -> dict[str, Any]:
        """The JSON of this study; `draws` adds the joint draws."""
        out = fit_dict(self.fit)
        out["warnings"] = self.all_warnings()
        out["verdict"] = self.verdict.to_dict()
        if self.intervals is not None:
            out["intervals"] = intervals_dict(self.intervals)
            out["at_budget"] = budget_dict(self.intervals)
        for name in ("holdout", "approaches", "comparison", "influence"):
            part = getattr(self, name)
            out[name] = None if part is None else part.to_dict()
        out["diagnostics"] = {
            "rms_log_residual": _rms(self.fit),
            "sensitivity": [row.to_dict() for row in self.sensitivity],
            "specifications": [row.to_dict() for row in self.specifications],
            "trends": [dict(trend.__dict__) for trend in self.trends],
            "lack_of_fit": None if self.lack_of_fit is None else dict(self.lack_of_fit.__dict__),
        }
        out["inputs"] = self.inputs
        if draws and self.draws is not None:
            out["draws"] = draws_dict(self.fit, self.draws.draws)
        return out


def _rms(fit: FitResult) -> float | None:
    return float(np.sqrt(np.mean(residuals(fit) ** 2))) if fit.usable else None


def study(runs: Any, options: StudyOptions | None = None, **fit_options: Any) -> Study:
    """Fit and, unless the fit is unusable, say how sure it is. `fit_options` are those of `fit_law`.

    Raises FitError where something that was asked for by name cannot be done.
    """
    o = options or StudyOptions()
    fit = fit_law(runs, seed=o.seed, **fit_options)
    data = fit.problem.data
    budget = o.budget or 10 * float(data.flops.max())
    inputs = inputs_of(runs, fit, o, fit_options)
    comparison = compare_forms(data, o.compare, **_without_form(fit_options)) if o.compare else None
    if not fit.usable:
        sides = None if o.approach == "3" else _sides(fit, None, None, budget, o, data)
        return Study(fit, verdict(fit), budget, approaches=sides, comparison=comparison, inputs=inputs)
    draws = found = None
    trouble: tuple[str, ...] = ()
    if o.resamples != 0:
        draws = _draws(fit, o)
        trouble = _too_few(draws)
    if trouble:
        draws = None
    if draws is not None:
        found = intervals(fit, draws, level=o.level, method=o.method, budget=budget, cluster=o.cluster)
    held = _held_out(fit, o)
    sides = None if o.approach == "3" else _sides(fit, found, draws, budget, o, data)
    five, few = is_five(fit.names) and has_split(fit), o.diagnose and data.n <= MANY
    pull = influence(fit, budget) if five and few else None
    lack = lack_of_fit(fit) if few else None
    drift = tuple(trends(fit, runs)) if o.diagnose else ()
    against = (*_beyond(runs, data), *_doubts(runs, data, o), *_better(fit))
    judged = verdict(fit, draws, holdout=held, influence=pull, lack=lack, extra=against,
                     disagreement=sides.disagreement if sides else None)  # fmt: skip
    return Study(
        fit, judged, budget, draws, found, held, sides, comparison, pull,
        sensitivity=tuple(sensitivity(fit, budget)) if five and few else (),
        specifications=tuple(specification_table(fit, budget, runs)) if five and few else (),
        trends=drift, lack_of_fit=lack, inputs=inputs, warnings=(*trouble, *_trend_warnings(drift)),
    )  # fmt: skip


def _without_form(options: dict[str, Any]) -> dict[str, Any]:
    """Options for other forms: each has its own bounds and starts, and the data carries its weights already."""
    return {k: v for k, v in options.items() if k in ("delta", "loss_function")}


def _draws(fit: FitResult, o: StudyOptions) -> Bootstrap:
    resamples = o.resamples
    if resamples is None:
        resamples = default_resamples(fit.problem.data.n)
        if not is_five(fit.names):
            resamples = min(resamples, OTHER_FORM_RESAMPLES)
    return bootstrap(fit, resamples, kind=_kind(o), cluster=o.cluster, seed=o.seed)


def _kind(o: StudyOptions) -> str:
    if o.cluster is not None and o.kind == "parametric":
        raise FitError("parametric resamples come from the law and know no clusters: leave out --cluster or --parametric.")
    return "cluster" if o.cluster else o.kind


def _better(fit: FitResult) -> tuple[str, ...]:
    found = better_form(fit) if fit.problem.data.n <= MANY else None
    return () if found is None else (found,)


def _doubts(runs: Any, data, o: StudyOptions) -> list[str]:
    return doubts(data, metric=getattr(runs, "metric", None), clustered=o.cluster is not None)


def _too_few(draws: Bootstrap) -> tuple[str, ...]:
    """Why there are no intervals, if so few resamples converged."""
    if len(draws.draws) >= max(2, draws.resamples / 2):
        return ()
    return (f"no intervals: only {len(draws.draws)} of {draws.resamples} resamples converged; these runs barely "
            "determine the law.",)  # fmt: skip


def _held_out(fit: FitResult, o: StudyOptions) -> Holdout | None:
    if o.holdout is False or (o.holdout is None and not can_hold_out(fit.problem.data)):
        return None
    resamples = 0 if o.resamples == 0 else min(1000 if is_five(fit.names) else 200, default_resamples(fit.n_runs))
    try:
        return hold_out(fit, resamples=resamples, level=o.level, seed=o.seed, kind=_kind(o), cluster=o.cluster)
    except FitError:
        if o.holdout:
            raise
        return None  # not asked for: the runs below determine no law, which the design of the table explains


def _sides(fit, found, draws, budget, o: StudyOptions, data) -> SideBySide:
    curves = None
    if o.curves is not None:
        if data.table is None or o.curves not in data.table.columns:
            raise FitError(f'curves: no column "{o.curves}".')
        curves = np.asarray(data.table[o.curves])
    return side_by_side(fit, found, budget, curves=curves, budgets=o.isoflop_budgets, wanted=o.approach, draws=draws,
                        level=o.level, seed=o.seed, winners=o.envelope)  # fmt: skip


def _beyond(runs: Any, data) -> list[str]:
    """Budgets above the fitted runs whose cells were left out as diverged or unfinished."""
    left = getattr(runs, "left_out", None)
    if left is None or "flops" not in left.columns:
        return []
    flops = np.asarray(left["flops"], float)
    above = flops[np.isfinite(flops)] > 1.05 * data.flops.max()
    if not above.any():
        return []
    return [
        f"{int(above.sum())} runs of larger budgets did not finish: nothing tests the law above {data.flops.max():.3g} FLOP."
    ]


def _trend_warnings(drift: tuple[Trend, ...]) -> list[str]:
    return [
        f"residuals {'rise' if t.slope > 0 else 'fall'} with {t.column} ({t.slope:+.2%} per e-fold, t = {t.t:.1f}): "
        + ("the form of the law misses something." if t.column in ("params", "tokens") else
           f"the {t.column} was not equally good for all runs; keep the best of it, or fit the runs apart.")
        for t in drift if t.clear
    ]  # fmt: skip


def inputs_of(runs: Any, fit: FitResult, o: StudyOptions, fit_options: dict[str, Any]) -> dict[str, Any]:
    """What was fitted and how: files, how many rows, the ranges, how the columns were understood, the options."""
    data = fit.problem.data
    return {
        "files": list(getattr(runs, "sources", ())),
        "n_rows": getattr(runs, "n_rows", None) or data.n,
        "flops_range": [float(data.flops.min()), float(data.flops.max())],
        "params_range": [float(data.N.min()), float(data.N.max())],
        "tokens_range": [float(data.D.min()), float(data.D.max())],
        "loss_range": [float(data.loss.min()), float(data.loss.max())],
        "metric": getattr(runs, "metric", None),
        "mapping": list(getattr(runs, "notes", ())),
        "doubts": [*getattr(runs, "warnings", ()), *(f"{label.label}: {label.text}" for label in getattr(runs, "labels", ()))],
        "options": _options(data, o, fit_options),
        "flops_convention": "the flops column where the table has one, else 6ND",
        "params_convention": "the column read as params, as these runs counted it",
    }  # fmt: skip


def _options(data, o: StudyOptions, fit_options: dict[str, Any]) -> dict[str, Any]:
    """Every choice that the numbers depend on, besides form, loss function and delta, which the fit itself carries."""
    weights = fit_options.get("weights")
    return {
        "budget": o.budget, "seed": o.seed, "cluster": o.cluster, "level": o.level, "method": o.method,
        "weighted": bool((data.weights != 1).any()), "weights": weights if isinstance(weights, str) else None,
        "approach": o.approach, "isoflop_budgets": None if o.isoflop_budgets is None else list(o.isoflop_budgets),
        "curves": o.curves, "envelope": o.envelope,
    }  # fmt: skip
