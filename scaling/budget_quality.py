"""Quality of isoFLOP budgets: off-centre, weak curvature, edge minimum, too few sizes, a run that sticks out.

A budget is a compute that several sizes share. Its losses should trace a parabola over log N with its minimum inside.
"""

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from scaling.quality import Label, lines
from scaling.quantities import format_quantity

APART = 1.05  # ratio of one compute to the next from which a new cluster begins
SPAN = 1.1  # ratio of the largest to the smallest compute of one budget
SIZES = 4  # distinct N from which a budget has a parabola with something left over
CONFIDENCE = 0.975  # one-sided quantile of Student's t: a curvature within its 95 % interval of zero is weak
CENTRE = 0.2  # share of the range in log N that the minimum keeps from either end
CHORD = 0.03  # relative height over the chord of two neighbours


def label_budgets(table: pd.DataFrame, unit: str) -> list[Label]:
    """Doubts about the budgets of an isoFLOP table; nothing for a table that is none."""
    return [label for flops, group in budgets(table).items() for label in _label_budget(flops, group, unit)]


def budgets(table: pd.DataFrame) -> dict[float, pd.DataFrame]:
    """Runs by budget, ordered by size: clusters of compute, apart from each other, that hold most of the runs.

    A cluster ends where compute rises by more than 5 %; it is a budget when it spans at most 10 % and four sizes.
    """
    order = np.argsort(table["flops"].to_numpy(), kind="stable")
    flops = table["flops"].to_numpy()[order]
    groups = {}
    for rows in np.split(order, np.flatnonzero(flops[1:] > APART * flops[:-1]) + 1):
        group = table.iloc[rows]
        if (
            len(rows) >= SIZES
            and group["flops"].max() <= SPAN * group["flops"].min()
            and group["params"].nunique() >= SIZES
        ):
            groups[float(group["flops"].median())] = group.sort_values("params")
    return groups if sum(map(len, groups.values())) >= 0.5 * len(table) else {}


def _parabola(group: pd.DataFrame) -> tuple[float, float, float]:
    """The least-squares parabola over log10 N: curvature, its standard error, vertex as a share of the range."""
    x = np.log10(group["params"].to_numpy())
    loss = group["loss"].to_numpy()
    centred = x - x.mean()
    design = np.vander(centred, 3)
    coefficients = np.linalg.lstsq(design, loss, rcond=None)[0]
    spare = len(x) - 3
    noise = float(np.sum((design @ coefficients - loss) ** 2)) / spare if spare else np.nan
    error = np.sqrt(noise * np.linalg.pinv(design.T @ design)[0, 0])
    vertex = -coefficients[1] / (2 * coefficients[0]) if coefficients[0] else np.inf
    return float(coefficients[0]), float(error), float((vertex - centred.min()) / np.ptp(centred))


def _label_budget(flops: float, group: pd.DataFrame, unit: str) -> list[Label]:
    curvature, error, vertex = _parabola(group)
    name = f"budget {format_quantity(flops)} ({len(group)} runs)"
    rows = tuple(group["row"].tolist())
    labels = []
    best = int(group["loss"].to_numpy().argmin())
    if curvature <= 0:
        labels.append(Label("weak curvature", f"{name}: the losses open downward, so there is no optimum", rows))
    elif curvature < stdtrit(len(group) - 3, CONFIDENCE) * error:
        text = f"{name}: a curvature of {curvature:.2g} +- {error:.2g} is not above zero ({lines(rows, unit)})"
        labels.append(Label("weak curvature", text, rows))
    if curvature > 0 and not 0 < vertex < 1 or best in (0, len(group) - 1):
        side = "smallest" if best == 0 or vertex <= 0 else "largest"
        labels.append(Label("edge minimum", f"{name}: the lowest loss is at the {side} size; add sizes beyond", rows))
    elif curvature > 0 and not CENTRE < vertex < 1 - CENTRE:
        labels.append(Label("off-centre", f"{name}: the minimum lies at {vertex:.0%} of the range in log N", rows))
    return labels + _above_chord(name, group, unit)


def _above_chord(name: str, group: pd.DataFrame, unit: str) -> list[Label]:
    """Runs whose loss lies well above the line between the next smaller and the next larger size of the budget."""
    best = group.loc[group.groupby("params")["loss"].idxmin()].sort_values("params")
    x, loss, at = np.log(best["params"].to_numpy()), best["loss"].to_numpy(), best["row"].to_numpy()
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    chord = loss[:-2] + share * (loss[2:] - loss[:-2])
    out = at[1:-1][loss[1:-1] > (1 + CHORD) * chord].tolist()
    text = f"{name}: loss over 3 % above the line between its neighbours in N ({lines(out, unit)})"
    return [Label("outlier", text, tuple(out))] if out else []
