"""The fit as a picture: runs and law along curves of equal compute, the residuals, and the best N with its interval."""

from typing import Any

import numpy as np

from scaling.fitting.holdout import residuals
from scaling.fitting.isoflop import TOLERANCE, group_budgets
from scaling.fitting.quantities import is_five, log_optimum
from scaling.plots.style import COLOURS, styled
from scaling.quantities import format_quantity

LEVELS = 6  # curves of equal compute, where the runs have no budgets of their own
MOST = 14  # budgets that still read well


def draw_fit(study: Any) -> Any:
    """A matplotlib Figure of a `scaling.fitting.study.Study` that holds a law."""
    with styled() as plt:
        figure = plt.figure(figsize=(11, 5.6))
        grid = figure.add_gridspec(2, 2, width_ratios=(1.55, 1))
        main = figure.add_subplot(grid[:, 0])
        top = figure.add_subplot(grid[0, 1])
        bottom = figure.add_subplot(grid[1, 1])
        norm, cmap = _colours(plt, study)
        two = hasattr(study.fit.law, "N_opt") or study.fit.form == "interaction"
        (_draw_isoflops if two else _draw_by_compute)(main, study, norm, cmap)
        _draw_residuals(top, study, norm, cmap)
        if is_five(study.fit.names):
            _draw_optimum(bottom, study)
        else:
            _draw_histogram(bottom, study)
        figure.suptitle(_title(study), x=0.01, ha="left", fontsize=10.5)
    return figure


def _colours(plt, study):
    from matplotlib.colors import ListedColormap, LogNorm

    low, high = study.inputs["flops_range"]
    return LogNorm(low, high * 1.0001), ListedColormap(plt.get_cmap("viridis")(np.linspace(0, 0.9, 256)))


def _title(study) -> str:
    fit = study.fit
    constants = ", ".join(f"{name} {_short(value)}" for name, value in fit.law.constants().items())
    return f"{fit.law.equation}\n{constants}   ({fit.status}, {fit.n_runs} runs)"


def _short(value: float) -> str:
    return f"{value:.4g}" if value < 1e6 else f"{value:.3e}"


def _draw_isoflops(axes, study, norm, cmap) -> None:
    fit = study.fit
    data, law = fit.problem.data, fit.law
    loss = data.loss
    axes.scatter(data.N, loss, c=data.flops, norm=norm, cmap=cmap, s=22, edgecolor="white", linewidth=0.4, zorder=3)
    span = np.log(loss.max() / loss.min())
    bottom, top = loss.min() * np.exp(-0.06 * span), loss.max() * np.exp(0.06 * span)
    N = np.geomspace(data.N.min() / 1.3, data.N.max() * 1.3, 300)
    low, high = study.inputs["flops_range"]
    levels, reach = _levels(data)
    for C in levels:
        near = data.N[
            np.abs(np.log(data.flops / C)) <= reach
        ]  # the law is drawn where there are runs to hold it against
        if not len(near):
            continue
        curve = law.loss(N, C / (6 * N))
        shown = (curve < top) & (curve > bottom) & (N > near.min() / 1.6) & (N < near.max() * 1.6)
        axes.plot(N[shown], curve[shown], color=cmap(norm(C)), lw=1.5, alpha=0.95)
    if hasattr(law, "N_opt"):
        C = np.geomspace(low, high, 100)
        best = law.N_opt(C)
        inside = (best > N[0]) & (best < N[-1])
        axes.plot(best[inside], law.loss(best, C / (6 * best))[inside], color="black", ls=(0, (4, 2)), lw=1.4,
                  label="best N at each compute", zorder=4)  # fmt: skip
    if getattr(law, "E", 0) > bottom:
        axes.axhline(law.E, color="grey", lw=0.9, ls=":", label=f"E = {law.E:.3g}")
    axes.set(xscale="log", yscale="log", xlabel="parameters N", ylabel="loss", ylim=(bottom, top))
    axes.set_title("Runs and law, along curves of equal compute")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper right")
    _count_axis(axes.xaxis)
    _plain_axis(axes.yaxis, bottom, top)
    _colour_bar(axes, norm, cmap)


def _levels(data) -> tuple[np.ndarray, float]:
    """Compute of the curves, and how near in log C a run is to its curve: the runs' own budgets where they have some."""
    found = [(C, rows) for C, rows in group_budgets(data.flops, None, TOLERANCE) if len(np.unique(data.N[rows])) >= 3]
    if 2 <= len(found) <= MOST and sum(len(rows) for _, rows in found) > 0.8 * data.n:
        return np.array([C for C, _ in found]), TOLERANCE
    levels = np.geomspace(data.flops.min(), data.flops.max(), LEVELS)
    return levels, 0.75 * float(np.log(levels[1] / levels[0]))


def _draw_by_compute(axes, study, norm, cmap) -> None:
    fit = study.fit
    data = fit.problem.data
    column, name = {"power_N": (data.N, "parameters N"), "power_D": (data.D, "tokens D")}.get(
        fit.form, (6 * data.N * data.D, "compute 6ND, FLOP"))  # fmt: skip
    axes.scatter(
        column, data.loss, c=data.flops, norm=norm, cmap=cmap, s=22, edgecolor="white", linewidth=0.4, zorder=3
    )
    if fit.form in ("power_N", "power_D", "power_C", "broken"):
        x = np.geomspace(column.min(), column.max(), 300)
        N, D = {"power_N": (x, x), "power_D": (x, x)}.get(fit.form, (x / 6, np.ones_like(x)))
        axes.plot(x, fit.law.loss(N, D), color="black", lw=1.6, label="law", zorder=4)
    else:
        fitted = data.loss / np.exp(residuals(fit))
        axes.scatter(column, fitted, marker="_", s=60, color="black", lw=1.2, label="law", zorder=4)
    axes.set(xscale="log", yscale="log", xlabel=name, ylabel="loss")
    axes.set_title("Runs and law")
    axes.legend(loc="upper right")
    if fit.form in ("power_N", "power_D"):
        _count_axis(axes.xaxis)
    _plain_axis(axes.yaxis, *axes.get_ylim())
    _colour_bar(axes, norm, cmap)


def _draw_residuals(axes, study, norm, cmap) -> None:
    data = study.fit.problem.data
    r = 100 * residuals(study.fit)
    axes.axhline(0, color="black", lw=0.8)
    axes.scatter(data.flops, r, c=data.flops, norm=norm, cmap=cmap, s=14, edgecolor="white", linewidth=0.3, zorder=3)
    reach = float(np.abs(r).max()) or 1e-9
    usual = max(4.5 * float(np.median(np.abs(r))) * 2, 1e-9)
    if reach > 1.5 * usual:  # a few far outliers: show the rest, and say how many lie beyond
        beyond = int((np.abs(r) > usual).sum())
        axes.set_ylim(-usual, usual)
        axes.text(1, 1.02, f"{beyond} beyond the axis, up to {r[np.abs(r).argmax()]:+.1f} %", ha="right", va="bottom",
                  transform=axes.transAxes, fontsize=8, color="dimgrey")  # fmt: skip
    axes.set(xscale="log", xlabel="compute, FLOP", ylabel="loss above law, %")
    axes.set_title("Residuals")


def _draw_optimum(axes, study) -> None:
    fit = study.fit
    low, high = study.inputs["flops_range"]
    end = max(study.budget, 10 * high)
    C = np.geomspace(low, end, 120)
    axes.plot(C, np.exp(log_optimum(fit.theta, C)[0]), color=COLOURS[0])
    if study.draws is not None:
        draws = study.draws.draws[:: max(1, len(study.draws.draws) // 1000)]
        log_N = np.stack([log_optimum(draws, float(c))[0] for c in C])
        lo, hi = np.exp(np.percentile(log_N, [2.5, 97.5], axis=1))
        axes.fill_between(C, lo, hi, color=COLOURS[0], alpha=0.18, lw=0, label="95 % interval")
    axes.axvspan(low, high, color="grey", alpha=0.12, lw=0, label="runs")
    N = float(np.exp(log_optimum(fit.theta, study.budget)[0]))
    axes.plot([study.budget], [N], marker="*", ms=11, color=COLOURS[1], zorder=5, ls="",
              label=f"{format_quantity(N, digits=3)} at {study.budget:.3g} FLOP")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="compute, FLOP", ylabel="best N")
    axes.set_title("Best model size")
    axes.legend(loc="upper left")
    _count_axis(axes.yaxis)


def _draw_histogram(axes, study) -> None:
    r = 100 * residuals(study.fit)
    axes.hist(r, bins=min(40, max(8, len(r) // 6)), color=COLOURS[0], alpha=0.8)
    axes.set(xlabel="loss above law, %", ylabel="runs")
    axes.set_title("Distribution of residuals")


def _count_axis(axis) -> None:
    """Counts as people write them: 100M, 1B."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: format_quantity(value, digits=3)))
    axis.set_minor_formatter(NullFormatter())


def _plain_axis(axis, bottom: float, top: float) -> None:
    """A log axis of losses with round, readable ticks."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    ticks = MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]).tick_values(bottom, top)
    axis.set_major_locator(FixedLocator([t for t in ticks if bottom <= t <= top]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _colour_bar(axes, norm, cmap) -> None:
    from matplotlib.cm import ScalarMappable

    bar = axes.figure.colorbar(ScalarMappable(norm, cmap), ax=axes, pad=0.015, aspect=40)
    bar.set_label("compute, FLOP")
    bar.outline.set_visible(False)
