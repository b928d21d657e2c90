"""Which runs decide the answer: leave one run out, leave one size out, leave a handful of five out together."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.fitting.holdout import residuals
from scaling.fitting.identifiability import groups
from scaling.fitting.quantities import log_optimum
from scaling.fitting.refit import refit
from scaling.fitting.resampling import leave_out
from scaling.fitting.result import FitResult

TOP = 5
LARGE = 0.5  # a handful of runs that moves N* by more than this, up or down, is named in a warning


@dataclass(frozen=True)
class Left:
    """What leaving something out does: N* without it over N* with it, minus one."""

    what: str
    N: float
    D: float
    loss: float
    change: float
    N_exponent: float
    rows: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"left_out": self.what, "params": self.N, "tokens": self.D, "loss": self.loss,
                "params_change": self.change, "N_exponent": self.N_exponent}  # fmt: skip


@dataclass(frozen=True)
class Influence:
    """The five most influential runs and sizes at a budget (FLOP), and handfuls of five runs left out together."""

    budget: float
    runs: tuple[Left, ...]
    sizes: tuple[Left, ...]
    handfuls: tuple[Left, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"budget_flops": self.budget, "runs": [item.to_dict() for item in self.runs],
                "sizes": [item.to_dict() for item in self.sizes],
                "handfuls": [item.to_dict() for item in self.handfuls]}  # fmt: skip


def influence(fit: FitResult, budget: float) -> Influence:
    """Change of N* at `budget` when each run, or each size, is left out; five-constant fits only."""
    data = fit.problem.data
    base = float(log_optimum(fit.theta, budget)[0])
    each = _without(fit, None, budget, base)
    runs = [Left(data.labels[i], float(data.N[i]), float(data.D[i]), float(data.loss[i]), float(change), float(a), (i,))
            for i, (change, a) in enumerate(zip(*each, strict=True))] if len(each[0]) == data.n else []  # fmt: skip
    sizes = _sizes(fit, budget, base)
    order = sorted(range(len(runs)), key=lambda i: -_size(runs[i].change))[:TOP]
    handfuls = _handfuls(fit, order, budget, base)
    return Influence(
        budget,
        tuple(runs[i] for i in order),
        tuple(sorted(sizes, key=lambda item: -_size(item.change))[:TOP]),
        tuple(handfuls),
        tuple(_warnings(fit, handfuls, budget)),
    )


def _without(fit, labels, budget, base):
    left = leave_out(fit, labels)[1]
    return _change(fit.problem.public(left.theta), budget, base)


def _change(theta: np.ndarray, budget: float, base: float) -> tuple[np.ndarray, np.ndarray]:
    """N* over exp(base), minus one, and the exponent of N, for each row of public fit variables."""
    ratio = np.clip(log_optimum(theta, budget)[0] - base, -50, 50)
    return np.expm1(ratio), theta[:, 4] / (theta[:, 3] + theta[:, 4])


def _sizes(fit, budget, base) -> list[Left]:
    data = fit.problem.data
    number = groups(data.N)
    if number.max() < 3 or number.max() > 400:
        return []
    changes, exponents = _without(fit, number, budget, base)
    out = []
    for k, (change, a) in enumerate(zip(changes, exponents, strict=True)):
        rows = number == k
        N = float(data.N[rows].mean())
        out.append(Left(f"size {N:.4g} ({int(rows.sum())} runs)", N, float(data.D[rows].mean()),
                        float(data.loss[rows].mean()), float(change), float(a)))  # fmt: skip
    return out


def _handfuls(fit, order, budget, base) -> list[Left]:
    """Five runs left out together, in five ways that faults tend to come in; the most influential way first."""
    data, problem = fit.problem.data, fit.problem
    if data.n < 3 * TOP:
        return []
    ratio, size = data.D / data.N, np.abs(residuals(fit))
    ways = {"most influential": order, "highest losses": np.argsort(-data.loss), "lowest D/N": np.argsort(ratio),
            "highest D/N": np.argsort(-ratio), "largest residuals": np.argsort(-size)}  # fmt: skip
    chosen = {name: [int(i) for i in rows[:TOP]] for name, rows in ways.items() if len(rows) >= TOP}
    weights = np.ones((len(chosen), data.n))
    for k, rows in enumerate(chosen.values()):
        weights[k, rows] = 0
    left = refit(problem, weights, problem.inverse(fit.theta))
    changes, exponents = _change(problem.public(left.theta), budget, base)
    out = []
    for k, (name, rows) in enumerate(chosen.items()):
        out.append(Left(f"the {TOP} {name} ({', '.join(data.labels[i] for i in rows)})", float(data.N[rows].mean()),
                        float(data.D[rows].mean()), float(data.loss[rows].mean()), float(changes[k]),
                        float(exponents[k]), tuple(rows)))  # fmt: skip
    return sorted(out, key=lambda item: -_size(item.change))


def _size(change: float) -> float:
    """|log of the ratio|: half and double are alike."""
    return abs(math.log1p(max(change, -1 + 1e-15)))


def _warnings(fit, handfuls, budget) -> list[str]:
    data = fit.problem.data
    large = [item for item in handfuls if _size(item.change) >= math.log1p(LARGE)]
    out = []
    for item in large[:2]:
        rows = list(item.rows)
        ratio, loss = data.D[rows] / data.N[rows], data.loss[rows]
        out.append(
            f"{TOP} of {data.n} runs decide the answer: without {item.what}, loss {loss.min():.3g} to {loss.max():.3g} and "
            f"D/N {ratio.min():.2g} to {ratio.max():.2g}, N* at {budget:.3g} FLOP is {1 + item.change:.2f}x what it is with "
            "them. Nothing was dropped: look at them, then use --exclude or --drop-top-loss if they are faulty."
        )
    return out
