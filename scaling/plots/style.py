"""One look for every figure: sizes, colours, labels, and the Agg backend so that no display is needed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scaling.errors import InputError

# colour-blind safe (Okabe and Ito 2008), strongest first
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FORMATS = (".png", ".svg", ".pdf")


@contextmanager
def styled() -> Iterator:
    """Within it, `matplotlib.pyplot` (yielded) draws in the house style on the Agg backend."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from cycler import cycler

    settings: Any = {
        "figure.figsize": (7.2, 4.5),
        "figure.dpi": 150,
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "lines.linewidth": 1.6,
        "axes.prop_cycle": cycler(color=COLOURS),
        "svg.hashsalt": "isoflop",
    }
    with plt.rc_context(settings):
        yield plt


def save_figure(figure, path: str | os.PathLike) -> None:
    """Write a figure and close it; the suffix chooses the format. Raises InputError for one that is not offered."""
    import io

    import matplotlib.pyplot as plt

    from scaling.files import write_bytes

    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f'{path}: cannot draw a "{suffix or "no suffix"}" file. Use one of {", ".join(FORMATS)}.')
    buffer = io.BytesIO()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {"Software": None})
    figure.savefig(buffer, format=suffix[1:], metadata=metadata)
    plt.close(figure)
    write_bytes(path, buffer.getvalue())
