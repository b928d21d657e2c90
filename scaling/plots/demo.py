"""Pictures of one small transformer: its loss, its causal mask, its heads, its temperature. numpy in, Figures out."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scaling.plots.style import COLOURS, styled
from scaling.quantities import format_quantity


def loss_figure(curves: Mapping[str, Sequence[tuple[int, float]]], *, held_out: Mapping[str, float] | None = None):
    """Training loss over tokens, one line for each named curve of (tokens, nats); a dot for a held-out loss."""
    with styled() as plt:
        figure, ax = plt.subplots()
        for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
            tokens, losses = zip(*curve, strict=True)
            ax.plot(tokens, losses, color=colour, alpha=0.3, lw=1)
            ax.plot(tokens, _smooth(losses), color=colour, lw=2, label=name)
            if held_out and name in held_out:
                ax.plot(tokens[-1], held_out[name], "o", color=colour, ms=7, mec="white", zorder=4, clip_on=False)
                ax.annotate(f"held out {held_out[name]:.2f}", (tokens[-1], held_out[name]), xytext=(0, 9),
                            textcoords="offset points", ha="right", color=colour, fontsize=9)  # fmt: skip
        uniform = math.log(256)
        ax.axhline(uniform, color="0.5", lw=1, ls=":")
        ax.annotate("every byte alike, ln 256", (1, uniform), xycoords=("axes fraction", "data"), xytext=(-2, 4),
                    textcoords="offset points", ha="right", fontsize=9, color="0.35")  # fmt: skip
        ax.set(xlabel="training tokens (bytes)", ylabel="loss, nats per byte")
        ax.set_ylim(0, uniform * 1.12)
        ax.set_xlim(left=0)
        ax.xaxis.set_major_formatter(lambda x, _: format_quantity(x, digits=3))
        ax.set_title("Training loss")
        if len(curves) > 1:
            ax.legend(loc="upper right", bbox_to_anchor=(1, 0.86))
        return figure


def mask_figure(scores: np.ndarray, mask: np.ndarray, weights: np.ndarray, labels: Sequence[str]):
    """The causal mask in three panels: the scores (T, T), the mask that is added, the weights after the softmax."""
    with styled() as plt:
        figure, axes = plt.subplots(1, 3, figsize=(11.2, 4.3))
        limit = float(np.abs(scores).max())
        image = axes[0].imshow(scores, cmap="RdBu_r", vmin=-limit, vmax=limit)
        _bar(figure, image, axes[0])
        axes[0].set_title(r"scores $QK^\top/\sqrt{d_h}$")
        axes[1].imshow(np.isneginf(mask), cmap=_two_colours(), vmin=0, vmax=1)
        n = len(mask)
        axes[1].text(0.7 * n, 0.3 * n, r"$-\infty$", color="white", fontsize=17, ha="center", va="center")
        axes[1].text(0.27 * n, 0.7 * n, "0", color="0.25", fontsize=17, ha="center", va="center")
        axes[1].set_title("mask, added to the scores")
        image = axes[2].imshow(np.ma.masked_where(np.isneginf(mask), weights), cmap="Blues", vmin=0, vmax=1)
        _bar(figure, image, axes[2])
        axes[2].set_title("weights after the softmax")
        for ax in axes:
            _name_cells(ax, labels)
        axes[0].set_ylabel("query: the byte that looks")
        axes[1].set_xlabel("key: the byte that is looked at")
        return figure


def heads_figure(weights: Sequence[np.ndarray], labels: Sequence[str]):
    """Attention weights by layer (rows) and head (columns): `weights` holds one (h, T, T) for each layer."""
    rows, columns = len(weights), weights[0].shape[0]
    with styled() as plt:
        figure, axes = plt.subplots(rows, columns, figsize=(2.9 * columns + 0.6, 3.0 * rows + 0.3), squeeze=False)
        image: Any = None
        hidden = ~np.tri(weights[0].shape[-1], dtype=bool)
        for layer, layer_weights in enumerate(weights):
            for head, matrix in enumerate(layer_weights):
                ax = axes[layer, head]
                image = ax.imshow(np.ma.masked_where(hidden, matrix), cmap="Blues", vmin=0, vmax=1)
                _name_cells(ax, labels, size=6)
                ax.set_title(f"layer {layer + 1}, head {head + 1}")
        figure.colorbar(image, ax=axes, shrink=0.6, label="attention weight", pad=0.01)
        return figure


def temperature_figure(rows: Sequence[Mapping[str, Any]], prompt: str, *, most: int = 14):
    """The next byte's distribution at each temperature, over the bytes that are likeliest at the middle one.

    Each row is {"temperature", "entropy" in nats, "p" (V,)}.
    """
    order = np.argsort(-np.asarray(rows[len(rows) // 2]["p"]), kind="stable")[:most]
    names = [name_byte(int(token)) for token in order]
    with styled() as plt:
        figure, axes = plt.subplots(1, len(rows), figsize=(2.1 * len(rows) + 0.6, 4.4), sharey=True)
        shades = plt.get_cmap("plasma")(np.linspace(0.05, 0.8, len(rows)))
        for ax, row, colour in zip(np.atleast_1d(axes), rows, shades, strict=True):
            p = np.asarray(row["p"])[order]
            ax.barh(range(len(order)), p, color=colour, height=0.75)
            ax.set_title(f"T = {row['temperature']:g}", fontsize=10.5)
            ax.annotate(f"entropy\n{row['entropy']:.2f} nats", (0.96, 0.05), xycoords="axes fraction", ha="right",
                        fontsize=8.5, color="0.3")  # fmt: skip
            ax.set_xlim(0, 1)
            ax.set_xticks([0, 0.5, 1], labels=["0", "0.5", "1"])
            ax.grid(axis="y", visible=False)
        first = np.atleast_1d(axes)[0]
        first.set_yticks(range(len(order)), labels=names, family="monospace")
        first.invert_yaxis()
        first.set_ylabel("next byte")
        figure.suptitle(f"The byte after “{prompt[-40:]}”", x=0.01, ha="left", fontweight="bold",
                        fontsize=11, parse_math=False)  # fmt: skip
        figure.supxlabel("probability", fontsize=10)
        return figure


def name_byte(token: int) -> str:
    """A byte as it can be printed: a visible space, an escape, or the character."""
    special = {10: "\\n", 9: "\\t", 13: "\\r", 32: "␣"}
    if token in special:
        return special[token]
    return chr(token) if 33 <= token < 127 else f"{token:02x}"


def _name_cells(ax, labels: Sequence[str], *, size: float = 8) -> None:
    ax.set_xticks(range(len(labels)), labels=labels, fontsize=size, family="monospace")
    ax.set_yticks(range(len(labels)), labels=labels, fontsize=size, family="monospace")
    ax.tick_params(length=0, pad=1.5)
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)


def _bar(figure, image, ax):
    bar = figure.colorbar(image, ax=ax, shrink=0.75, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8)
    return bar


def _two_colours():
    from matplotlib.colors import ListedColormap

    return ListedColormap(["#F2F2F2", "#3B4252"])


def _smooth(losses: Sequence[float], *, share: float = 0.04) -> np.ndarray:
    """A running mean over `share` of the curve, shorter at the ends."""
    values, half = np.asarray(losses, float), max(1, round(share * len(losses) / 2))
    return np.array([values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))])
