"""The picture of an audit: N against D, the compute-optimal line, and every model on it."""

from scaling.allocation.cost import Cost
from scaling.allocation.spend import optimal_params
from scaling.allocation.surface import Surface, make_surface
from scaling.audit import Audit
from scaling.plots.allocation import quantity_ticks
from scaling.plots.style import COLOURS, styled

MARGIN = 3.0  # beyond the outermost models
POINTS = 61
MARKS = {
    "undertrained": ("v", COLOURS[1]),
    "balanced": ("o", COLOURS[2]),
    "over-trained, as for inference": ("^", COLOURS[0]),
}
PLACES = (  # of a name beside its mark: offset in points, alignment
    *((8, 0, "left", "center"), (-8, 0, "right", "center"), (0, 8, "center", "bottom"), (0, -8, "center", "top")),
    *((6, 6, "left", "bottom"), (-6, 6, "right", "bottom"), (6, -6, "left", "top"), (-6, -6, "right", "top")),
    *((14, 12, "left", "bottom"), (-14, 12, "right", "bottom"), (14, -12, "left", "top"), (-14, -12, "right", "top")),
)


def draw_audit(audit: Audit):
    """N against D with the compute-optimal line; above it undertrained, below it over-trained. Lines of equal compute
    run from the upper left to the lower right."""
    params = [row.model.params for row in audit.models]
    tokens = [row.model.tokens for row in audit.models]
    with styled() as plt:
        figure, axes = plt.subplots(figsize=(9.4, 5.4))
        axes.set_xscale("log")
        axes.set_yscale("log")
        x_range = min(tokens) / MARGIN, max(tokens) * MARGIN
        y_range = min(params) / MARGIN, max(params) * MARGIN
        axes.set_xlim(*x_range)
        axes.set_ylim(*y_range)
        _draw_optimum(axes, audit, x_range, y_range)
        _draw_budgets(axes, x_range, y_range)
        for verdict, (marker, colour) in MARKS.items():
            rows = [row for row in audit.models if row.verdict == verdict]
            if rows:
                points = [row.model.tokens for row in rows], [row.model.params for row in rows]
                axes.plot(*points, marker, color=colour, ms=7, zorder=4, label=verdict)
        axes.set_xlabel("training tokens D")
        axes.set_ylabel("parameters N")
        axes.set_title(f"Models and the compute-optimal line of {audit.law.name.rpartition('/')[2]}")
        quantity_ticks(axes.xaxis)
        quantity_ticks(axes.yaxis)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        _label_models(figure, axes, audit)  # last: the layout must be the final one
        return figure


def _draw_optimum(axes, audit: Audit, x_range, y_range) -> None:
    """The line (D*, N*) over budgets, and its band where the fit has draws."""
    low, high = 6 * x_range[0] * y_range[0], 6 * x_range[1] * y_range[1]
    budgets = [low * (high / low) ** (i / (POINTS - 1)) for i in range(POINTS)]
    surface, _ = make_surface(audit.law.law, None)
    sizes = [optimal_params(surface, Cost(), C) for C in budgets]
    if audit.law.draws is not None:
        _draw_band(axes, audit, surface, budgets)
    tokens = [C / (6 * N) for C, N in zip(budgets, sizes, strict=True)]
    axes.plot(tokens, sizes, color=COLOURS[6], label="compute-optimal")


def _draw_band(axes, audit: Audit, surface: Surface, budgets) -> None:
    import numpy as np

    from scaling.allocation.uncertainty import stack_draws

    level = next((row.intervals["level"] for row in audit.models if row.intervals), 0.95)
    tail = 50 * (1 - level)
    draws = stack_draws(audit.law.thinned(1000), surface)
    ends = [np.percentile(optimal_params(draws.surface, Cost(), C), [tail, 100 - tail]) for C in budgets]
    lower, upper = np.transpose(ends)
    C = np.asarray(budgets)
    outline = np.concatenate([C / (6 * lower), (C / (6 * upper))[::-1]]), np.concatenate([lower, upper[::-1]])
    axes.fill(*outline, color=COLOURS[6], alpha=0.12, lw=0, label=f"its {level:.0%} interval")


def _draw_budgets(axes, x_range, y_range) -> None:
    """Lines of equal 6ND, one a decade."""
    import math

    low = math.ceil(math.log10(6 * x_range[0] * y_range[0]))
    high = math.floor(math.log10(6 * x_range[1] * y_range[1]))
    for power in range(low, high + 1):
        C = 10.0**power
        axes.plot(x_range, [C / (6 * D) for D in x_range], color="0.6", lw=0.7, ls=":", zorder=1)
        D = max(x_range[0] * 1.03, C / (6 * y_range[1]) * 1.03)  # where the line enters the picture, upper left
        if D < x_range[1] and C / (6 * D) > 2 * y_range[0]:
            style = {"rotation": -33, "rotation_mode": "anchor", "va": "bottom"}
            axes.annotate(f"1e{power} FLOP", (D, C / (6 * D)), fontsize=7, color="0.45", **style)


def _label_models(figure, axes, audit: Audit) -> None:
    """Each name beside its mark, at the first of `PLACES` where it covers no other name and no mark."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    spots = [axes.transData.transform((row.model.tokens, row.model.params)) for row in audit.models]
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in spots]
    for row in sorted(audit.models, key=lambda row: -row.model.params):
        point = (row.model.tokens, row.model.params)
        name = row.model.name + ("" if row.model.certain else " ?")
        best = None
        for dx, dy, ha, va in PLACES:
            style = {"textcoords": "offset points", "fontsize": 7.5, "ha": ha, "va": va, "zorder": 5}
            label = axes.annotate(name, point, (dx, dy), **style)
            box = label.get_window_extent(renderer).extents
            overlap = sum(_shared(box, other) for other in taken)
            if best is None or overlap < best[0]:
                if best is not None:
                    best[1].remove()
                best = (overlap, label, box)
            else:
                label.remove()
            if overlap == 0:
                break
        if best is not None:
            taken.append(tuple(best[2]))


def _shared(a, b) -> float:
    """Area that two boxes share."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(width, 0) * max(height, 0)
