"""Does the learning rate transfer? A sweep of rates at three widths and two token counts, and what it says. Torch-free.

Runs of one width and D differ in their rate alone. Loss against log2 of the rate is fitted by a parabola through the
lowest rate and its neighbours; its vertex is the optimum, its curvature what being off by 2x costs. The optimum
transfers when it moves by less than 2x over the widths at every D.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scaling.accounting import Shape
from scaling.errors import SweepError
from scaling.quantities import format_quantity
from sweeps.config import RunConfig
from sweeps.recipe import Recipe, heads_for

MAX_SHIFT = 2.0  # of the optimum over the widths; more "does not transfer"
RATES = 5
_NEIGHBOURS = 2  # on each side of the lowest loss that the parabola goes through


@dataclass(frozen=True)
class Outcome:
    """What is known of one run: "done" with a loss, "diverged", or "missing"."""

    learning_rate: float
    status: str
    loss: float | None = None


@dataclass(frozen=True)
class Optimum:
    """The best rate of one width and D. `learning_rate` is None when the runs do not tell, and `reason` says why."""

    d_model: int
    tokens: int
    outcomes: tuple[Outcome, ...]  # by ascending rate
    learning_rate: float | None
    loss: float | None
    cost_of_factor_two: float | None  # nats lost at half or twice the optimum
    reason: str | None = None

    @property
    def best(self) -> Outcome | None:
        """The lowest loss that was measured."""
        done = [outcome for outcome in self.outcomes if outcome.loss is not None]
        return min(done, key=lambda outcome: outcome.loss) if done else None


@dataclass(frozen=True)
class Transfer:
    """Optima of all widths and token counts, and the verdict."""

    optima: tuple[Optimum, ...]
    shifts: dict[int, float | None]  # by D: the largest optimum over the smallest; None where one is unknown
    transfers: bool | None  # None: the runs do not tell
    message: str


def tuning_shapes(shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """Three widths over the range of a grid's shapes at the depth of the smallest: least, middle (geometric), largest.

    Raises SweepError when all shapes have one width.
    """
    widths = sorted({shape.d_model for shape in shapes})
    if len(widths) < 2:
        raise SweepError(f"tune: every size has d_model = {widths[0]}; a transfer needs at least two widths.")
    smallest = min(shapes, key=lambda shape: shape.d_model)
    middle = min(widths, key=lambda d: abs(math.log(d * d / (widths[0] * widths[-1]))))
    width = smallest.d_model // smallest.n_heads
    return tuple(
        replace(smallest, d_model=d, n_heads=heads_for(d, head_width=width), d_ff=4 * d)
        for d in sorted({widths[0], middle, widths[-1]})
    )


def tuning_recipes(recipe: Recipe, *, count: int = RATES) -> tuple[Recipe, ...]:
    """The recipe at `count` rates, a factor 2 apart, around its own."""
    powers = range(-(count // 2), count - count // 2)
    return tuple(replace(recipe, learning_rate=recipe.learning_rate * 2.0**k) for k in powers)


def analyse(configs: Iterable[RunConfig], results: dict[str, tuple[str, float | None]]) -> Transfer:
    """Optima and verdict from what became of the runs: `results` has (status, loss) by run_id."""
    groups: dict[tuple[int, int], list[Outcome]] = {}
    for config in configs:
        status, loss = results.get(config.run_id, ("missing", None))
        known = status == "done" and loss is not None and math.isfinite(loss)
        status = "done" if known else "diverged" if status in ("done", "diverged") else "missing"
        outcome = Outcome(config.learning_rate, status, loss if known else None)
        groups.setdefault((config.realised_tokens, config.d_model), []).append(outcome)
    optima = tuple(_optimum(d, tokens, outcomes) for (tokens, d), outcomes in sorted(groups.items()))
    counts = sorted({optimum.tokens for optimum in optima})
    shifts = {tokens: _shift([optimum for optimum in optima if optimum.tokens == tokens]) for tokens in counts}
    return Transfer(optima, shifts, *_verdict(optima, shifts))


def _optimum(d: int, tokens: int, outcomes: list[Outcome]) -> Optimum:
    outcomes = sorted(outcomes, key=lambda outcome: outcome.learning_rate)
    done = [outcome for outcome in outcomes if outcome.loss is not None]

    def unknown(reason: str) -> Optimum:
        return Optimum(d, tokens, tuple(outcomes), None, None, None, reason)

    if len(done) < 3:
        return unknown(f"only {len(done)} of {len(outcomes)} runs have a loss")
    lowest = min(range(len(done)), key=lambda i: done[i].loss)
    if lowest == 0:
        return unknown(f"the lowest rate, {done[0].learning_rate:.2g}, is the best; try lower ones")
    if lowest == len(done) - 1 and outcomes[-1].status != "diverged":
        return unknown(f"the highest rate, {done[-1].learning_rate:.2g}, is the best; try higher ones")
    near = done[max(0, lowest - _NEIGHBOURS) : lowest + _NEIGHBOURS + 1]
    x = np.log2([outcome.learning_rate for outcome in near])
    weights = _weights(np.array([outcome.loss for outcome in near]))
    curvature, slope, _ = np.polyfit(x - x.mean(), [outcome.loss for outcome in near], 2, w=weights)
    vertex = x.mean() - slope / (2 * curvature) if curvature > 0 else math.nan
    if not x[0] <= vertex <= x[-1] + (lowest == len(done) - 1):
        return unknown("the losses around the lowest do not bend upwards")
    loss = float(np.polyval(np.polyfit(x - x.mean(), [o.loss for o in near], 2, w=weights), vertex - x.mean()))
    return Optimum(d, tokens, tuple(outcomes), float(2**vertex), loss, float(curvature))


def _weights(losses: np.ndarray) -> np.ndarray:
    """Full weight for losses near the lowest, less the further up: a parabola holds near its minimum only."""
    return 1 / (1 + (losses - losses.min()) / (0.02 * losses.min()))


def _shift(optima: list[Optimum]) -> float | None:
    rates = [optimum.learning_rate for optimum in optima]
    return None if None in rates or len(rates) < 2 else max(rates) / min(rates)


def _verdict(optima: Sequence[Optimum], shifts: dict[int, float | None]) -> tuple[bool | None, str]:
    known = {tokens: shift for tokens, shift in shifts.items() if shift is not None}
    widths = f"from d_model {min(o.d_model for o in optima)} to {max(o.d_model for o in optima)}"
    worst = max(known.values(), default=None)
    if worst is not None and worst >= MAX_SHIFT:
        at = max(known, key=known.__getitem__)
        return False, f"does not transfer: the optimum moves by {worst:.2f}x {widths} at D = {format_quantity(at)}"
    if len(known) < len(shifts):
        gaps = "; ".join(
            f"d_model {o.d_model}, D = {format_quantity(o.tokens)}: {o.reason}" for o in optima if o.reason is not None
        )
        return None, f"cannot tell whether the optimum transfers. {gaps}"
    return True, f"transfers: the optimum moves by at most {worst:.2f}x {widths}"


def tuning_table(transfer: Transfer) -> tuple[list[str], list[list[str]]]:
    """Headers and rows for people: loss by rate for each width and D, the minimum marked with *."""
    rates = sorted({outcome.learning_rate for optimum in transfer.optima for outcome in optimum.outcomes})
    headers = ["D", "d_model", *(f"{rate:.2g}" for rate in rates), "optimum", "at 2x off"]
    rows = []
    for optimum in transfer.optima:
        cells = {outcome.learning_rate: _cell(outcome, optimum.best) for outcome in optimum.outcomes}
        fitted = "not known" if optimum.learning_rate is None else f"{optimum.learning_rate:.2g}"
        cost = "" if optimum.cost_of_factor_two is None else f"+{optimum.cost_of_factor_two:.3f}"
        row = [format_quantity(optimum.tokens), str(optimum.d_model), *(cells.get(rate, "missing") for rate in rates)]
        rows.append([*row, fitted, cost])
    return headers, rows


def _cell(outcome: Outcome, best: Outcome | None) -> str:
    return outcome.status if outcome.loss is None else f"{outcome.loss:.3f}{'*' if outcome is best else ''}"
