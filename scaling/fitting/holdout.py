"""Hold-out: fit below the largest decade of compute, predict it, and say how far off the prediction was."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.errors import FitError
from scaling.fitting.data import RunData
from scaling.fitting.result import FitResult

MIN_TRAIN = 10
DECADE = 10.0


@dataclass(frozen=True)
class Holdout:
    """Errors of the predicted loss on the runs held out: relative to the loss, and root mean square in its own unit."""

    rule: str
    threshold: float
    n_train: int
    n_test: int
    mean_abs: float
    max_abs: float
    mean_signed: float  # above zero: predicted too high
    rmse: float
    covered: float | None  # share of held-out losses inside their predictive intervals
    level: float
    fit: FitResult

    def to_dict(self) -> dict[str, Any]:
        from scaling.fitting.payload import fit_dict

        kept = ("law", "status", "message", "objective", "N_exponent")
        return {
            "rule": self.rule, "threshold_flops": self.threshold, "n_train": self.n_train, "n_test": self.n_test,
            "mean_abs_relative_error": self.mean_abs, "max_abs_relative_error": self.max_abs,
            "mean_signed_relative_error": self.mean_signed, "rmse": self.rmse, "covered": self.covered,
            "level": self.level, "fit": {k: v for k, v in fit_dict(self.fit).items() if k in kept},
        }  # fmt: skip


def split_top(data: RunData, factor: float = DECADE) -> tuple[np.ndarray, float]:
    """Which runs lie above the largest compute over `factor`, and that threshold."""
    threshold = float(data.flops.max() / factor)
    return data.flops > threshold, threshold


def can_hold_out(data: RunData) -> bool:
    """Whether enough runs lie on either side of the largest decade."""
    test, _ = split_top(data)
    return int(test.sum()) >= 2 and int((~test).sum()) >= MIN_TRAIN


def hold_out(fit: FitResult, *, resamples: int = 1000, level: float = 0.95, seed: int = 0, kind: str = "runs",
             cluster: str | None = None) -> Holdout:  # fmt: skip
    """Refit `fit` without its largest decade of compute and predict it; every option of the fit holds in the refit.

    The predictive interval of a loss combines the joint draws of the refit (`kind` and `cluster` as in `bootstrap`) with
    its residuals. Runs of weight zero take no part. Raises FitError when fewer than 10 runs lie below the largest decade
    or none above, or the runs below determine no law.
    """
    data = fit.problem.data
    if not (data.weights > 0).all():
        data = data.take(data.weights > 0)
    test, threshold = split_top(data)
    if int((~test).sum()) < MIN_TRAIN or not test.any():
        raise FitError(f"hold-out: {int((~test).sum())} runs below {threshold:.3g} FLOP and {int(test.sum())} above; at "
                       f"least {MIN_TRAIN} below and 1 above are needed.")  # fmt: skip
    train = refit_on(fit, data.take(~test))
    if not train.usable:
        raise FitError(f"hold-out: the runs below {threshold:.3g} FLOP alone are {train.status}: {train.message}")
    held = data.take(test)
    predicted = predict(train, held)
    error = predicted / held.loss - 1
    covered = _covered(train, held, resamples, level, seed, kind, cluster) if resamples else None
    return Holdout(
        rule=f"flops > largest / {DECADE:g}", threshold=threshold, n_train=train.n_runs, n_test=held.n,
        mean_abs=float(np.abs(error).mean()), max_abs=float(np.abs(error).max()), mean_signed=float(error.mean()),
        rmse=float(np.sqrt(np.mean((predicted - held.loss) ** 2))), covered=covered, level=level, fit=train,
    )  # fmt: skip


def refit_on(fit: FitResult, data: RunData) -> FitResult:
    """The same fit, with every option, on other runs."""
    from scaling.fitting.parametric import fit_law

    o = fit.problem.objective
    return fit_law(data, delta=o.delta, loss_function=o.loss_function, bounds=fit.problem.bounds, form=fit.form)


def predict(fit: FitResult, data: RunData) -> np.ndarray:
    """Predicted loss of runs, from the logarithms of the constants, which extreme units cannot overflow."""
    return np.exp(fit.problem.losses_at(fit.theta[None], data)[0])


def residuals(fit: FitResult) -> np.ndarray:
    """log L - log Lhat of each run of a fit: above zero where the run is worse than the law."""
    data = fit.problem.data
    return np.log(data.loss) - np.log(predict(fit, data))


def rms_log_residual(fit: FitResult) -> float | None:
    """Root mean square of log L - log Lhat over the runs: the share by which runs miss the law. None without a law."""
    return None if fit.law is None else float(np.sqrt(np.mean(residuals(fit) ** 2)))


def _covered(train: FitResult, held: RunData, resamples: int, level: float, seed: int, kind: str,
             cluster: str | None) -> float | None:  # fmt: skip
    from scaling.fitting.resampling import bootstrap

    try:
        draws = bootstrap(train, resamples, kind=kind, cluster=cluster, seed=seed)
    except FitError:
        return None  # the runs below are of one cluster
    if len(draws.draws) < 20:
        return None
    losses = train.problem.losses_at(draws.draws, held)  # (R, m), log
    rng = np.random.default_rng(seed)
    n, p = train.n_runs, train.n_parameters
    noise = residuals(train) * np.sqrt(n / max(n - p, 1))
    losses = losses + noise[rng.integers(0, n, losses.shape)]
    low, high = np.percentile(losses, [50 * (1 - level), 50 * (1 + level)], axis=0)
    actual = np.log(held.loss)
    return float(((low <= actual) & (actual <= high)).mean())
