"""The lecture's pictures: the cost of attention over n, the law falling onto its plateaus, its three bottlenecks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scaling.attention_cost import Crossover, LayerCost
from scaling.laws import ChinchillaLaw
from scaling.plots.style import COLOURS, styled
from scaling.quantities import format_quantity

_PARTS = (("attention", "attention"), ("linear", "projections + MLP"), ("recurrent", "recurrent layer"))


def attention_cost_figure(
    costs: Sequence[LayerCost], crossings: Sequence[Crossover], measured: Mapping[str, Any] | None = None
):
    """Multiply-adds of one layer over n, with the n at which attention overtakes each part.

    `measured` adds a second panel: {"tokens": [...], "attention": [...], "linear": [...], "recurrent": [...],
    "fused": [...], "crossover": n or None}, in CPU seconds.
    """
    with styled() as plt:
        figure, axes = plt.subplots(1, 2 if measured else 1, figsize=(10.5 if measured else 7.2, 4.5), squeeze=False)
        _theory(axes[0, 0], costs, crossings)
        if measured:
            _measured(axes[0, 1], measured)
        return figure


def _theory(ax, costs: Sequence[LayerCost], crossings: Sequence[Crossover]) -> None:
    n = [cost.tokens for cost in costs]
    rows = [("attention", "attention", COLOURS[1]), ("linear", "projections + MLP", COLOURS[0])]
    rows += [("mlp", "MLP", COLOURS[2]), ("projections", "projections", COLOURS[5])]
    rows += [("recurrent", "recurrent layer", COLOURS[3])]
    overtaken = {c.against: f"{c.against}: overtaken at n = {c.exact:,.0f}" for c in crossings}
    for name, label, colour in rows:
        label, wide = overtaken.get(label, label), name in ("attention", "linear")
        ax.plot(n, [getattr(cost, name) for cost in costs], color=colour, label=label, lw=2.2 if wide else 1.3,
                ls="-" if wide else "--")  # fmt: skip
    attention = np.log([cost.attention for cost in costs])
    for crossing in crossings:
        colour = next(colour for _, label, colour in rows if label == crossing.against)
        y = float(np.exp(np.interp(np.log(crossing.exact), np.log(n), attention)))
        ax.plot([crossing.exact], [y], "o", color=colour, ms=5.5, zorder=3)
    ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="multiply-adds, one layer")
    ax.set_title("One layer over n tokens, counted")
    ax.legend(loc="upper left")


def _measured(ax, measured: Mapping[str, Any]) -> None:
    n, labels = measured["tokens"], {"attention": "attention, scores stored", "fused": "attention, fused kernel"}
    series = [("attention", COLOURS[1], "-"), ("fused", COLOURS[4], "-"), ("linear", COLOURS[0], "-")]
    for name, colour, dash in [*series, ("recurrent", COLOURS[3], "--")]:
        pairs = [(x, 1e3 * y) for x, y in zip(n, measured[name], strict=True) if y is not None]
        label = labels.get(name, dict(_PARTS).get(name, name))
        ax.plot(*zip(*pairs, strict=True), color=colour, ls=dash, marker="o", ms=3.5, label=label)
    if measured.get("crossover"):
        _mark(ax, measured["crossover"], f"n = {measured['crossover']:,.0f}")
    ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="CPU milliseconds, one layer")
    ax.set_title("The same, measured on one core")
    ax.legend(loc="upper left")


def _mark(ax, x: float, text: str) -> None:
    ax.axvline(x, color="0.45", lw=1, ls=":")
    ax.annotate(text, (x, 0.03), xycoords=("data", "axes fraction"), xytext=(5, 0), textcoords="offset points",
                color="0.3", fontsize=9)  # fmt: skip


def plateaus_figure(law: ChinchillaLaw, tokens: Sequence[float], *, params: tuple[float, float]):
    """Loss against N, one curve for each D, each falling onto its plateau E + B/D^beta; `params` is the range of N."""
    N = np.geomspace(*params, 300)
    with styled() as plt:
        figure, ax = plt.subplots()
        shades = plt.get_cmap("viridis")(np.linspace(0.05, 0.75, len(tokens)))
        low, high = law.E, float(law.loss(N[0], min(tokens)))
        ends = [float(law.loss(N[-1], D)) for D in sorted(tokens)]
        places = _spread(ends, least=0.035 * (high - low))
        for D, colour, place in zip(sorted(tokens), shades, places, strict=True):
            ax.plot(N, law.loss(N, D), color=colour, lw=2)
            ax.axhline(law.E + law.B / D**law.beta, color=colour, lw=0.9, ls=":")
            ax.annotate(f"D = {format_quantity(D, digits=3)}", (N[-1], place), xytext=(6, 0),
                        textcoords="offset points", va="center", color=colour, fontsize=9)  # fmt: skip
        ax.axhline(law.E, color="black", lw=1.2)
        ax.annotate(r"$L_\infty = $" + f"{law.E:.3g}", (N[0], law.E), xytext=(4, -13), textcoords="offset points")
        ax.set(xscale="log", xlabel="parameters N", ylabel="loss, nats per token", xlim=params)
        ax.set_ylim(low - 0.08 * (high - low), None)
        ax.set_title(r"At a fixed D the loss falls onto a plateau, $L_\infty + B/D^\beta$")
        return figure


def _spread(values: Sequence[float], *, least: float) -> list[float]:
    """The same values, falling, moved apart to at least `least`, the lowest kept where it is."""
    places = list(values)
    for i in range(len(places) - 2, -1, -1):
        places[i] = max(places[i], places[i + 1] + least)
    return places


def bottlenecks_figure(law: ChinchillaLaw, budget: float, *, spread: float = 30.0):
    """The loss along 6ND = `budget` as its three parts, stacked: irreducible, too few parameters, too few tokens.

    N runs from the optimum / `spread` to the optimum x `spread`.
    """
    best = float(law.N_opt(budget))
    N = np.geomspace(best / spread, best * spread, 400)
    D = budget / (6 * N)
    parts = [np.full_like(N, law.E), law.A / N**law.alpha, law.B / D**law.beta]
    labels = [r"irreducible $L_\infty$", r"model too small $A/N^\alpha$", r"too few tokens $B/D^\beta$"]
    with styled() as plt:
        figure, ax = plt.subplots()
        ax.stackplot(N, parts, colors=("#BFC5CC", COLOURS[5], COLOURS[4]), alpha=0.9)
        ax.plot(N, np.sum(parts, axis=0), color="black", lw=1.6)
        lowest = float(law.loss(best, budget / (6 * best)))
        ax.plot([best, best], [0, lowest], color="black", lw=1, ls=":")
        ax.plot([best], [lowest], "o", color="black", ms=5)
        text = f"N* = {format_quantity(best, digits=3)}\nloss {lowest:.3f}"
        ax.annotate(text, (best, lowest), xytext=(0, 10), textcoords="offset points", ha="center", fontsize=9.5)
        ax.set(xscale="log", xlabel="parameters N, with D = C/(6N)", ylabel="loss, nats per token", xlim=(N[0], N[-1]))
        top = float(np.sum(parts, axis=0).max())
        floor = max(0.0, law.E - 0.25 * (top - law.E))  # the irreducible part would fill the page: its foot is cut off
        ax.set_ylim(floor, top + 0.12 * (top - floor))
        if floor > 0:
            ax.set_ylabel(f"loss, nats per token (axis from {floor:.2f})")
        _name_parts(ax, N, parts, labels)
        ax.set_title(f"Where the loss comes from at C = {format_quantity(budget, digits=3)} FLOP")
        ax.grid(False)
        return figure


def _name_parts(ax, N, parts, labels) -> None:
    """Each band named inside itself, where it is widest."""
    base = np.cumsum([np.zeros_like(N), *parts[:-1]], axis=0)
    floor = ax.get_ylim()[0]
    for part, low, label, align in zip(parts, base, labels, ("center", "left", "right"), strict=True):
        at = {"center": int(0.72 * len(N)), "left": int(0.02 * len(N)), "right": int(0.98 * len(N))}[align]
        foot = max(floor, low[at])
        ax.annotate(label, (N[at], (foot + low[at] + part[at]) / 2), ha=align, va="center", fontsize=9.5)
