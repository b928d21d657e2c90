"""Pictures of an allocation: loss against N at fixed compute, isoFLOP curves, the frontier over budgets."""

import math

from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost
from scaling.allocation.result import Allocation, NearOptimal
from scaling.allocation.spend import best_split
from scaling.allocation.surface import Surface
from scaling.errors import InputError
from scaling.plots.style import COLOURS, styled
from scaling.quantities import format_flops, format_quantity

POINTS = 241
ISOFLOP_FACTORS = (0.01, 0.1, 1.0, 10.0, 100.0)
FRONTIER_DECADES = 3
MAX_DRAWS = 1000  # of the band: more do not change it visibly


def draw_sizes(answer: Allocation):
    """Loss against N at the answer's compute: the optimum, its interval, and the sizes that are nearly as good."""
    surface, cost, budget = _curve(answer)
    near = {n.within: n for n in answer.near_optimal if n.kind == "loss"}
    low, high = _window(answer, near)
    sizes = [N for N in _spaced(low, high) if cost.tokens(N, budget) > 0]
    losses = [surface.loss(N, cost.tokens(N, budget)) for N in sizes]
    with styled() as plt:
        figure, axes = plt.subplots()
        for (within, found), colour in zip(sorted(near.items(), reverse=True), (COLOURS[5], COLOURS[0]), strict=False):
            label = f"within {within:.1%} of the best loss: {_words(found)}"
            axes.axvspan(*found.params, color=colour, alpha=0.12 if within > 0.005 else 0.2, lw=0, label=label)
        axes.plot(sizes, losses, color=COLOURS[0], label=f"loss at {format_flops(budget)} FLOP")
        best = f"N = {format_quantity(answer.params)}, D = {format_quantity(answer.tokens)}"
        axes.plot([answer.params], [answer.loss], "o", color=COLOURS[1], ms=8, zorder=4, label=best)
        _interval_bar(axes, answer)
        _comparison_marks(axes, answer)
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        bottom = min(losses + [answer.loss])
        top = min(max(losses), bottom + 6 * (bottom * 0.01))
        axes.set_ylim(bottom - 0.12 * (top - bottom), top)
        axes.set_xlabel("parameters N")
        axes.set_ylabel("predicted loss, nats per token")
        axes.set_title(f"How flat the optimum is, under {_short(answer.law.name)}")
        quantity_ticks(axes.xaxis)
        _tokens_axis(axes, cost, budget)
        axes.legend(loc="upper center")
        return figure


def draw_isoflops(answer: Allocation):
    """IsoFLOP curves at budgets around the answer's, each with its optimum, and the optima joined."""
    surface, cost, budget = _curve(answer)
    with styled() as plt:
        figure, axes = plt.subplots(figsize=(8.6, 4.5))
        optima = []
        for factor, colour in zip(ISOFLOP_FACTORS, plt.get_cmap("viridis")([0.85, 0.68, 0.5, 0.3, 0.1]), strict=True):
            C = budget * factor
            best = best_split(surface, cost, C, Constraints())
            optima.append((best.N, surface.loss(best.N, best.D)))
            sizes = [N for N in _spaced(best.N / 30, best.N * 30) if cost.tokens(N, C) > 0]
            losses = [surface.loss(N, cost.tokens(N, C)) for N in sizes]
            axes.plot(sizes, losses, color=colour, label=f"{format_flops(C, digits=3)} FLOP")
        axes.plot(*zip(*optima, strict=True), "o--", color=COLOURS[6], lw=1, ms=4, label="optimum of each budget")
        axes.plot([answer.params], [answer.loss], "o", color=COLOURS[1], ms=8, zorder=4, label="this answer")
        _interval_bar(axes, answer)
        axes.set_xscale("log")
        span = optima[0][1] - optima[-1][1]
        axes.set_ylim(optima[-1][1] - 0.15 * span, optima[0][1] + 0.5 * span)
        axes.set_xlabel("parameters N")
        axes.set_ylabel("predicted loss, nats per token")
        axes.set_title(f"Loss at equal compute, under {_short(answer.law.name)}")
        quantity_ticks(axes.xaxis)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return figure


def draw_frontier(answer: Allocation):
    """N* and D/N against compute, with the band over the draws and the compute the law was fitted on."""
    surface, cost, budget = _curve(answer)
    low = min(budget / 10**FRONTIER_DECADES, *(answer.law.flops_range or (budget,)))
    budgets = _spaced(low, budget * 10**FRONTIER_DECADES, 61)
    points = [best_split(surface, cost, C, Constraints()) for C in budgets]
    bands = _bands(answer, surface, cost, budgets)
    panels = (
        ("params", "parameters N*", [p.N for p in points], answer.params),
        ("ratio", "tokens per parameter D*/N*", [p.D / p.N for p in points], answer.tokens_per_param),
    )
    with styled() as plt:
        figure, both = plt.subplots(1, 2, figsize=(9.2, 4.0))
        for axes, (name, label, values, here) in zip(both, panels, strict=True):
            if bands:
                band = f"{answer.intervals['level']:.0%} interval" if answer.intervals else None
                axes.fill_between(budgets, *bands[name], color=COLOURS[0], alpha=0.2, lw=0, label=band)
            axes.plot(budgets, values, color=COLOURS[0], label="optimum")
            axes.plot([budget], [here], "o", color=COLOURS[1], ms=7, zorder=4, label="this answer")
            if answer.law.flops_range:
                axes.axvspan(*answer.law.flops_range, color=COLOURS[2], alpha=0.15, lw=0, label="compute of the runs")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlim(budgets[0], budgets[-1])
            axes.set_xlabel("training compute, FLOP")
            axes.set_ylabel(label)
            quantity_ticks(axes.yaxis)
        both[0].legend(loc="upper left")
        title = f"The best split over budgets, under {_short(answer.law.name)}"
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        return figure


def _curve(answer: Allocation) -> tuple[Surface, Cost, float]:
    if answer.surface is None or answer.costing is None:
        raise InputError("this allocation holds no curve to draw; make it with scaling.allocation.allocate.")
    return answer.surface, answer.costing, answer.costing.total(answer.params, answer.tokens)


def _spaced(low: float, high: float, points: int = POINTS) -> list[float]:
    return [low * (high / low) ** (i / (points - 1)) for i in range(points)]


def _window(answer: Allocation, near: dict[float, NearOptimal]) -> tuple[float, float]:
    """A range of N that shows the near-optimal sizes, the interval and every compared choice."""
    shown = [answer.params / 4, answer.params * 4]
    shown += [N for found in near.values() for N in found.params]
    shown += list(answer.intervals["params"]) if answer.intervals else []
    shown += [c["params"] for c in answer.comparisons]
    return min(shown) / 1.6, max(shown) * 1.6


def _words(found: NearOptimal) -> str:
    return " to ".join(format_quantity(N, digits=3) for N in found.params)


def _interval_bar(axes, answer: Allocation) -> None:
    if not answer.intervals:
        return
    low, high = answer.intervals["params"]
    ends = f"{format_quantity(low, digits=3)} to {format_quantity(high, digits=3)}"
    label = f"{answer.intervals['level']:.0%} interval of N*: {ends}"
    axes.plot([low, high], [answer.loss] * 2, color=COLOURS[1], lw=3, alpha=0.6, solid_capstyle="butt", label=label)


def _comparison_marks(axes, answer: Allocation) -> None:
    for c, colour in zip(answer.comparisons, (COLOURS[2], COLOURS[3], COLOURS[4]), strict=False):
        choice = f"{format_quantity(c['params'])} on {format_quantity(c['tokens'])}"
        label = f"{choice}: {c['wasted_compute_factor']:.2f}x the compute needed"
        axes.plot([c["params"]], [c["loss"]], "D", color=colour, ms=6, zorder=5, label=label)


def quantity_ticks(axis) -> None:
    """Ticks as people write quantities: 10B, 1T."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    few = math.log10(high / low) < 2
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_quantity(value, digits=3)))
    axis.set_minor_formatter(NullFormatter())


def _tokens_axis(axes, cost: Cost, budget: float) -> None:
    """Tokens along the top, under 6ND alone: there D is C / 6N and both axes are logarithmic."""
    if cost.convention != "6nd" or cost.inference_tokens:
        return

    def other(value):  # N to D and back; matplotlib tries 0 while it lays the axis out
        import numpy as np

        return budget / (6 * np.maximum(value, 1e-9))

    top = axes.secondary_xaxis("top", functions=(other, other))
    top.set_xlabel("tokens D")
    quantity_ticks(top.xaxis)


def _bands(answer: Allocation, surface: Surface, cost: Cost, budgets: list[float]):
    """Bands of N* and D/N, one value per budget, from the draws or from the covariance; None without either."""
    if not answer.intervals:
        return None
    found = _drawn if answer.law.draws is not None else _delta
    ends = found(answer, surface, cost, budgets)
    if any(end is None for end in ends):
        return None
    return {name: tuple(zip(*(end[name] for end in ends), strict=True)) for name in ("params", "ratio")}


def _drawn(answer: Allocation, surface: Surface, cost: Cost, budgets: list[float]) -> list:
    import numpy as np

    from scaling.allocation.uncertainty import interval, stack_draws

    draws = stack_draws(answer.law.thinned(MAX_DRAWS), surface)
    level = answer.intervals["level"] if answer.intervals else 0.95
    ends = []
    for C in budgets:
        with np.errstate(all="ignore"):
            point = best_split(draws.surface, cost, C, Constraints())
            params, ratio = np.asarray(point.N), np.asarray(point.D / point.N)
        ends.append({"params": interval(params, level), "ratio": interval(ratio, level)})
    return ends


def _delta(answer: Allocation, surface: Surface, cost: Cost, budgets: list[float]) -> list:
    from scaling.allocation.budget import Budget, make_machine
    from scaling.allocation.delta import delta_intervals
    from scaling.allocation.question import Question

    level = answer.intervals["level"] if answer.intervals else 0.95
    machine = make_machine()
    questions = (Question(answer.law, surface, cost, Budget(C), Constraints(), machine) for C in budgets)
    found = (delta_intervals(question, level) for question in questions)
    return [one and {"params": one["params"], "ratio": one["tokens_per_param"]} for one in found]


def _short(name: str) -> str:
    """The last part of a path, or the name of a law."""
    return name.rpartition("/")[2]
