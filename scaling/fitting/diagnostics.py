"""After the fit: does the answer depend on delta, on a convention, on the learning rate; does the law fit at all?"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scaling.errors import FitError
from scaling.fitting.holdout import refit_on, residuals
from scaling.fitting.parametric import fit_law
from scaling.fitting.quantities import derived, has_split
from scaling.fitting.regression import f_tail
from scaling.fitting.result import FitResult

DELTAS = (1e-4, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class Specification:
    """The answer under one set of choices."""

    what: str
    n_runs: int
    status: str
    N_exponent: float | None = None
    params: float | None = None  # N* at the budget
    tokens_per_param: float | None = None
    E: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class Trend:
    """A straight line of the residuals (log L - log Lhat) in the log of a column; t is the slope over its error."""

    column: str
    slope: float  # per e-fold
    t: float
    n: int

    @property
    def clear(self) -> bool:
        """Whether the line is there beyond doubt and beyond rounding: |t| above 3."""
        return abs(self.t) > 3 and abs(self.slope) > 1e-6


@dataclass(frozen=True)
class LackOfFit:
    """Residuals against replicates: F is the mean square about the law over the mean square between equal runs."""

    n_replicates: int
    noise: float  # standard deviation of log loss between runs of one N and D
    F: float
    probability: float  # of so large an F if the law held
    degrees: tuple[int, int]


def sensitivity(fit: FitResult, budget: float) -> list[Specification]:
    """The answer at each delta from 1e-4 to 1e-1; empty for loss functions without one."""
    if fit.loss_function != "huber_log":
        return []
    data, problem = fit.problem.data, fit.problem
    return [
        specification(f"delta {delta:g}", fit_law(data, delta=delta, bounds=problem.bounds, form=fit.form), budget)
        for delta in DELTAS
    ]


def specification(what: str, fit: FitResult, budget: float) -> Specification:
    """A fit's answer as one row of the specification table."""
    if not fit.usable:
        return Specification(what, fit.n_runs, str(fit.status))
    found = {name: float(value) for name, value in derived(fit.theta, budget).items()}
    if not has_split(fit):
        return Specification(what, fit.n_runs, str(fit.status), E=found["E"])
    return Specification(what, fit.n_runs, str(fit.status), found["N_exponent"], found["params"],
                         found["tokens_per_param"], found["E"])  # fmt: skip


def specification_table(fit: FitResult, budget: float, runs: Any = None) -> list[Specification]:
    """The answer as fitted, and under each other convention that the table has columns for.

    non-embedding N (`params_non_embedding` or what `runs.roles` names so), D from the given C (C/6N), without rows that
    the reading flagged or that a column `outlier` marks, and the other loss functions.
    """
    data = fit.problem.data
    out = [specification("as fitted", fit, budget)]
    for what, other in _variants(data, runs):
        try:
            out.append(specification(what, refit_on(fit, other), budget))
        except FitError as error:
            out.append(Specification(f"{what}: {error}", other.n, "not fitted"))
    for name in ("huber_log", "mse_log", "mse"):
        if name != fit.loss_function:
            other_fit = fit_law(data, loss_function=name, bounds=fit.problem.bounds, form=fit.form)
            out.append(specification(f"loss function {name}", other_fit, budget))
    return out


def _variants(data, runs):
    table, roles = data.table, getattr(runs, "roles", {})
    column = column_of(table, roles, "params_non_embedding", "n_params_nonemb", "N_no_emb")
    if column is not None:
        N = np.asarray(table[column], float)
        if np.isfinite(N).all() and (N > 0).all():
            yield f"non-embedding N ({column})", replace(data, N=N)
    ratio = 6 * data.N * data.D / data.flops
    if np.abs(ratio - 1).max() > 1e-3:
        yield f"D = C/6N from the given C (6ND/C {ratio.min():.2f} to {ratio.max():.2f})", replace(
            data, D=data.flops / (6 * data.N))  # fmt: skip
    flagged = flagged_rows(data, runs)
    if 0 < flagged.sum() < data.n:
        yield f"without {int(flagged.sum())} flagged rows", data.take(~flagged)


def flagged_rows(data, runs: Any) -> np.ndarray:
    """Rows that a column `outlier` marks, or that the reading labelled for a doubt that few rows share."""
    flagged = np.zeros(data.n, bool)
    table = data.table
    for name in ("outlier", "epoch_outlier"):
        if table is not None and name in table.columns:
            values = np.asarray(table[name])
            flagged |= np.isin(values.astype(str), ["1", "1.0", "true", "True"])
    rows = {row for label in getattr(runs, "labels", ()) if len(label.rows) <= 0.2 * data.n for row in label.rows}
    if rows and table is not None and "row" in table.columns:
        flagged |= np.isin(np.asarray(table["row"]), list(rows))
    return flagged


def column_of(table, roles, *names: str) -> str | None:
    """The first of the names that the table has, by role or by its own name."""
    for name in names:
        for candidate in (roles.get(name), name):
            if table is not None and candidate is not None and candidate in table.columns:
                return candidate
    return None


def trends(fit: FitResult, runs: Any = None) -> list[Trend]:
    """Residuals, clipped at 3 robust standard deviations, against log N, log D, and batch size and learning rate where
    the table has them."""
    data, r = _used(fit)
    reach = 4.5 * float(np.median(np.abs(r - np.median(r))))  # 3 standard deviations of normal noise
    r = np.clip(r, np.median(r) - reach, np.median(r) + reach)
    columns = {"params": data.N, "tokens": data.D}
    roles = getattr(runs, "roles", {})
    for label, names in (
        ("batch", ("batch_tokens", "batch_size", "global_bs")),
        ("learning rate", ("learning_rate", "peak_lr", "lr")),
    ):
        name = column_of(data.table, roles, *names)
        if name is not None:
            columns[label] = np.asarray(data.table[name], float)
    found = (_trend(name, values, r) for name, values in columns.items())
    return [trend for trend in found if trend is not None]


def _used(fit: FitResult):
    """The runs of positive weight, and their residuals."""
    data, r = fit.problem.data, residuals(fit)
    used = data.weights > 0
    return (data, r) if used.all() else (data.take(used), r[used])


def _trend(name, values, r) -> Trend | None:
    good = np.isfinite(values) & (values > 0)
    x = np.log(values[good]) if good.sum() > 5 else np.zeros(1)
    dx = x - x.mean()
    if not (dx @ dx > 1e-9):
        return None
    y = r[good] - r[good].mean()
    slope = float(dx @ y / (dx @ dx))
    rest = y - slope * dx
    error = math.sqrt(float(rest @ rest) / (len(x) - 2) / float(dx @ dx))
    return Trend(name, slope, slope / error if error > 0 else 0.0, int(good.sum()))


def lack_of_fit(fit: FitResult) -> LackOfFit | None:
    """Test of the law against the noise between runs of exactly one N and D; None without such replicates.

    Least squares on log residuals: mean square of the replicate means about the law, over the pure error.
    """
    data, r = _used(fit)
    cells = np.unique(np.stack([data.N, data.D]), axis=1, return_inverse=True)[1].ravel()
    counts = np.bincount(cells)
    pure_degrees = int(data.n - len(counts))
    model_degrees = len(counts) - fit.n_parameters
    if pure_degrees < 2 or model_degrees < 1:
        return None
    means = np.bincount(cells, r) / counts
    pure = float(((r - means[cells]) ** 2).sum()) / pure_degrees
    if pure <= 0:
        return None
    lack = float((counts * means**2).sum()) / model_degrees
    F = lack / pure
    return LackOfFit(
        pure_degrees, math.sqrt(pure), F, f_tail(F, model_degrees, pure_degrees), (model_degrees, pure_degrees)
    )
