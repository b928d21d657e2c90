"""Quality of isoFLOP budgets: off-centre, weak curvature, edge minimum, too few sizes, a run that sticks out.

A budget is a compute that several sizes share. Its losses should trace a parabola over log N with its minimum inside.
"""

import numpy as np
import pandas as pd

from scaling.quality import Label, lines
from scaling.quantities import format_quantity

SIZES = 4  # distinct N from which a budget has a parabola with something left over
WEAK = 0.75  # curvature, against the median of the budgets
CENTRE = 0.2  # share of the range in log N that the minimum keeps from either end
CHORD = 0.03  # relative height over the chord of two neighbours


def label_budgets(table: pd.DataFrame, unit: str) -> list[Label]:
    """Doubts about the budgets of an isoFLOP table; nothing for a table that is none."""
    groups = budgets(table)
    curvatures = {c: _parabola(group)[0] for c, group in groups.items()}
    upward = [value for value in curvatures.values() if value > 0]
    typical = float(np.median(upward)) if upward else 0.0
    labels: list[Label] = []
    for flops, group in groups.items():
        labels += _label_budget(flops, group, typical, unit)
    return labels


def budgets(table: pd.DataFrame) -> dict[float, pd.DataFrame]:
    """Runs by compute, rounded to four digits, where most runs share theirs with three other sizes or more."""
    if len(table) < SIZES or len(table) > 100_000:
        return {}
    key = np.array([float(f"{value:.4g}") for value in table["flops"]])
    groups = {float(c): g.sort_values("params") for c, g in table.groupby(key) if g["params"].nunique() >= SIZES}
    inside = sum(map(len, groups.values()))
    return groups if inside >= 0.5 * len(table) and len(groups) <= len(table) / SIZES else {}


def _parabola(group: pd.DataFrame) -> tuple[float, float, float]:
    """Curvature of the least-squares parabola over log10 N, its vertex as a share of the range, and its RMS residual."""
    x = np.log10(group["params"].to_numpy())
    loss = group["loss"].to_numpy()
    centred = x - x.mean()
    design = np.vander(centred, 3)
    coefficients = np.linalg.lstsq(design, loss, rcond=None)[0]
    vertex = -coefficients[1] / (2 * coefficients[0]) if coefficients[0] else np.inf
    share = (vertex - centred.min()) / (centred.max() - centred.min())
    return float(coefficients[0]), float(share), float(np.sqrt(np.mean((design @ coefficients - loss) ** 2)))


def _label_budget(flops: float, group: pd.DataFrame, typical: float, unit: str) -> list[Label]:
    curvature, vertex, _ = _parabola(group)
    name = f"budget {format_quantity(flops)} ({len(group)} runs)"
    rows = tuple(group["row"].tolist())
    labels = []
    best = int(group["loss"].to_numpy().argmin())
    if curvature <= 0:
        labels.append(Label("weak curvature", f"{name}: the losses open downward, so there is no optimum", rows))
    elif curvature < WEAK * typical:
        share = curvature / typical
        labels.append(
            Label("weak curvature", f"{name}: {share:.0%} of the usual curvature ({lines(rows, unit)})", rows)
        )
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
