"""One line that a tired person can act on: usable up to a budget, provisional, or not identified, and why."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.fitting.identifiability import groups
from scaling.fitting.quantities import has_split, is_five, log_N
from scaling.fitting.result import FitResult, Status
from scaling.quantities import format_quantity

TIGHT = 2.0  # usable while the 95 % interval of N* stays within this factor on either side of N*
REACH = 100.0  # beyond the data, in compute, no fit is called usable: nothing has tested the law there
LOOSE = 10.0  # at the largest run's own compute: an interval of N* wider than this factor identifies nothing
POOR_HOLDOUT = 0.02  # mean error of the held-out decade
BENT_HOLDOUT, ONE_SIDED = 0.01, 0.9  # the same, where signed and absolute mean agree to this share: not noise but a bend
FEW_CLUSTERS = 10
MANY_LOST = 0.05  # of the resamples: not converged, or with E at zero, where draws do not spread
NO_REACH = 1.05  # limit over the largest run's compute, below which there is no "beyond the data" to speak of


@dataclass(frozen=True)
class Verdict:
    """`level` is usable, provisional or not_identified; `limit` the compute (FLOP) up to which N* is known within 2x."""

    level: str
    line: str
    reasons: tuple[str, ...]
    limit: float | None = None
    beyond: float | None = None  # limit over the largest run's compute

    def to_dict(self) -> dict[str, Any]:
        return {"level": self.level, "line": self.line, "reasons": list(self.reasons), "usable_to_flops": self.limit,
                "beyond_data": self.beyond}  # fmt: skip


def verdict(fit: FitResult, draws=None, *, holdout=None, influence=None, disagreement: str | None = None,
            lack=None, extra: tuple[str, ...] = ()) -> Verdict:  # fmt: skip
    """Weigh everything that is known of a fit."""
    if not fit.usable:
        return Verdict("not_identified", f"not identified: {fit.message}", (fit.message,))
    if not has_split(fit):
        line = f"not identified: these runs show no best split of a budget. {fit.message}"
        return Verdict("not_identified", line, (fit.message, *extra))
    largest = float(fit.problem.data.flops.max())
    if log_N(fit, fit.theta, largest) is None:
        line = f"provisional: the form {fit.form} has no split of a budget; its constants are {fit.status}."
        return Verdict("provisional", " ".join((line, *extra)), extra)
    reasons = [*_fit_reasons(fit), *_draw_reasons(fit, draws), *_outside_reasons(holdout, influence, disagreement, lack), *extra]
    if draws is None or len(draws.draws) < 20:
        why = "no intervals were made" if draws is None else f"{len(draws.draws)} draws are too few for an interval"
        return Verdict("provisional", f"provisional: {why}. {' '.join(reasons)}".strip(), (why, *reasons))
    if fit.status is Status.AT_BOUND:  # draws that sit on a bound do not spread: their interval says nothing
        return Verdict("provisional", f"provisional: {' '.join(reasons)}", tuple(reasons))
    if _undetermined(fit):
        return Verdict("provisional", f"provisional: {' '.join(reasons)}", tuple(reasons))
    low, high = spread(fit, draws, largest)
    if high > LOOSE * low:
        line = (f"not identified: at the largest run's own compute ({largest:.3g} FLOP) N* may be anywhere from {low:.2g} "
                f"to {high:.2g} times its estimate.")  # fmt: skip
        return Verdict("not_identified", " ".join((line, *extra)), (line, *reasons))
    limit = usable_limit(fit, draws, largest)
    if limit is None:
        low, high = spread(fit, draws, largest)
        reasons.insert(
            0, f"N* is not known within {TIGHT:g}x even at {largest:.3g} FLOP ({low:.2g} to {high:.2g} of it)."
        )
        return Verdict("provisional", f"provisional: {' '.join(reasons)}", tuple(reasons))
    reach = (f"to {limit:.2g} FLOP ({format_quantity(limit / largest, digits=2)}x beyond the data)" if limit > NO_REACH * largest
             else f"at the data's own {largest:.2g} FLOP and not beyond")  # fmt: skip
    if reasons:
        return Verdict("provisional", f"provisional, N* known within {TIGHT:g}x {reach}: {' '.join(reasons)}",
                       tuple(reasons), limit, limit / largest)  # fmt: skip
    return Verdict("usable", f"usable {reach}: N* within {TIGHT:g}x, at 95 %.", (), limit, limit / largest)


def spread(fit: FitResult, draws, budget: float, level: float = 0.95) -> tuple[float, float]:
    """The interval of N* at a budget, as factors of its estimate."""
    drawn, found = log_N(fit, draws.draws, budget), log_N(fit, fit.theta, budget)
    assert drawn is not None and found is not None
    low, high = np.percentile(drawn - found, [50 * (1 - level), 50 * (1 + level)])
    with np.errstate(over="ignore"):
        return float(np.exp(low)), float(np.exp(high))


def usable_limit(fit: FitResult, draws, largest: float) -> float | None:
    """The largest budget, at most 100x the largest run, up to which the interval of N* stays within 2x on either side."""
    limit = None
    for budget in np.geomspace(largest, REACH * largest, 41):
        low, high = spread(fit, draws, float(budget))
        if low < 1 / TIGHT or high > TIGHT:
            break
        limit = float(budget)
    return limit


def _fit_reasons(fit: FitResult) -> list[str]:
    out = []
    if _undetermined(fit):
        out.append(f"many resamples of {fit.n_runs} runs hold too few distinct (N, D) to determine a law: their intervals "
                   "miss the truth one time in five.")  # fmt: skip
    if fit.status is Status.AT_BOUND:
        out.append(f"{', '.join(fit.at_bounds)} at a bound: {fit.message}")
    if fit.n_starts > 2 and fit.n_agreeing < fit.n_starts / 3:
        out.append(f"only {fit.n_agreeing} of {fit.n_starts} starts reach this minimum.")
    out += [text for text in fit.warnings if "E =" in text or text.startswith(("Only", "alpha", "beta", "Condition"))]
    return out


def _undetermined(fit: FitResult) -> bool:
    """Whether resamples of the runs often hold fewer distinct (N, D) than the law has constants: n runs hold 0.63 n."""
    data = fit.problem.data
    used = data.weights > 0
    points = len(set(zip(groups(data.N[used]).tolist(), groups(data.D[used]).tolist(), strict=True)))
    return (1 - 1 / math.e) * points < fit.n_parameters - 1


def _draw_reasons(fit: FitResult, draws) -> list[str]:
    out = []
    if draws is not None and is_five(fit.names) and fit.status is Status.CONVERGED and len(draws.draws):
        gone = float(np.mean(draws.draws[:, 0] <= fit.problem.box.low[0] + 1e-6))
        if gone > MANY_LOST:
            out.append(f"E = 0 in {gone:.0%} of the resamples: these runs hardly show an irreducible loss.")
    if draws is not None and draws.clusters is not None and draws.clusters < FEW_CLUSTERS:
        out.append(f"only {draws.clusters} clusters: intervals from so few are too narrow.")
    if draws is not None and draws.not_converged > MANY_LOST * draws.resamples:
        out.append(f"{draws.not_converged / draws.resamples:.0%} of the resamples did not converge.")
    return out


def _too_few(holdout) -> bool:
    """Whether so few held-out losses inside their intervals are improbable (below 1 %) if the intervals are true."""
    inside, n, p = round(holdout.covered * holdout.n_test), holdout.n_test, holdout.level
    tail = sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(inside + 1)) if n <= 200 else None
    return holdout.covered < p - 0.1 if tail is None else tail < 0.01


def _bends(holdout) -> bool:
    return holdout.mean_abs > BENT_HOLDOUT and abs(holdout.mean_signed) > ONE_SIDED * holdout.mean_abs


def _outside_reasons(holdout, influence, disagreement, lack) -> list[str]:
    out = []
    if holdout is not None and holdout.mean_abs > POOR_HOLDOUT:
        out.append(f"the largest decade of compute was predicted {holdout.mean_abs:.1%} off on average.")
    elif holdout is not None and _bends(holdout):
        side = "high" if holdout.mean_signed > 0 else "low"
        out.append(f"the largest decade of compute was predicted {holdout.mean_abs:.1%} too {side}, nearly all runs alike: the "
                   "law bends there.")  # fmt: skip
    if holdout is not None and holdout.covered is not None and _too_few(holdout):
        out.append(f"only {holdout.covered:.0%} of the held-out losses lay in their {holdout.level:.0%} intervals.")
    if influence is not None and influence.warnings:
        worst = influence.handfuls[0]
        out.append(f"five runs decide the answer (N* times {1 + worst.change:.2f} without them).")
    if disagreement:
        out.append(disagreement)
    if lack is not None and lack.probability < 1e-3:
        out.append(f"the law misses the runs by more than their seed noise (F {lack.F:.3g}).")
    return out
