"""Everything `scale fit` does with one table: the fit, its intervals and what is said beside it."""

from dataclasses import dataclass, field
from typing import Any

from scaling.fitting.intervals import Intervals, intervals
from scaling.fitting.parametric import fit_law
from scaling.fitting.payload import budget_dict, draws_dict, fit_dict, intervals_dict
from scaling.fitting.resampling import Bootstrap, bootstrap
from scaling.fitting.result import FitResult


@dataclass(frozen=True)
class Study:
    """A fit with what surrounds it; each part is None where it was not asked for or cannot be had."""

    fit: FitResult
    draws: Bootstrap | None = None
    intervals: Intervals | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def to_dict(self, *, draws: bool = False) -> dict[str, Any]:
        """The JSON of this study; `draws` adds the joint draws."""
        out = fit_dict(self.fit)
        out["warnings"] += list(self.warnings)
        if self.intervals is not None:
            out["intervals"] = intervals_dict(self.intervals)
            out["at_budget"] = budget_dict(self.intervals)
            out["warnings"] += list(self.intervals.warnings)
        out["inputs"] = self.inputs
        if draws and self.draws is not None:
            out["draws"] = draws_dict(self.fit, self.draws.draws)
        return out


@dataclass(frozen=True)
class StudyOptions:
    """What to do around the fit."""

    resamples: int | None = None  # None: 4000, fewer for very large tables; 0: none
    kind: str = "runs"
    cluster: str | None = None
    level: float = 0.95
    method: str = "percentile"
    budget: float | None = None
    seed: int = 0


def study(runs: Any, options: StudyOptions | None = None, **fit_options: Any) -> Study:
    """Fit and, unless the fit is unusable, say how sure it is. `fit_options` are those of `fit_law`."""
    options = options or StudyOptions()
    fit = fit_law(runs, seed=options.seed, **fit_options)
    if not fit.usable:
        return Study(fit, inputs=inputs_of(runs, fit))
    draws = found = None
    if options.resamples != 0:
        kind = "cluster" if options.cluster else options.kind
        draws = bootstrap(fit, options.resamples, kind=kind, cluster=options.cluster, seed=options.seed)
        found = intervals(fit, draws, level=options.level, method=options.method, budget=options.budget,
                          cluster=options.cluster)  # fmt: skip
    return Study(fit, draws, found, inputs_of(runs, fit))


def inputs_of(runs: Any, fit: FitResult) -> dict[str, Any]:
    """What was fitted: files, how many rows, the ranges, and how the columns were understood."""
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
        "flops_convention": "6ND, or the flops column where the table has one",
        "params_convention": "the column read as params, as these runs counted it",
    }
