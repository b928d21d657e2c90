"""Runs tables from a known law, for tests of a fit and for trying a design before paying for it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scaling.errors import InputError

NOISES = ("normal", "laplace", "student")  # student: 3 degrees of freedom, heavy tails


def synthetic_runs(
    law: Any,
    *,
    params: Sequence[float] = (3e7, 3e9),
    tokens_per_param: Sequence[float] = (2.0, 300.0),
    runs: int = 100,
    noise: float = 0.005,
    kind: str = "normal",
    seed: int = 0,
):
    """`runs` runs with log N and log D/N uniform over the given ranges; losses in the law's unit.

    noise: standard deviation of the log loss (normal), or the scale of the other kinds. Returns a DataFrame with
    params, tokens, flops, loss. Raises InputError for impossible ranges.
    """
    rng = np.random.default_rng(seed)
    for name, (low, high) in (("params", params), ("tokens_per_param", tokens_per_param)):
        if not 0 < low <= high:
            raise InputError(f"synthetic runs: {name} from {low:g} to {high:g} is no range of numbers above zero.")
    N = np.exp(rng.uniform(np.log(params[0]), np.log(params[1]), runs))
    D = N * np.exp(rng.uniform(np.log(tokens_per_param[0]), np.log(tokens_per_param[1]), runs))
    return _table(law, N, D, noise, kind, rng)


def synthetic_isoflop(
    law: Any,
    budgets: Sequence[float],
    *,
    sizes: int = 9,
    decades: float = 1.0,
    off_centre: float = 0.0,
    noise: float = 0.005,
    kind: str = "normal",
    seed: int = 0,
):
    """An isoFLOP grid: at each budget C, `sizes` sizes log-spaced over `decades` decades about the best N, shifted by
    `off_centre` decades; D = C / 6N. Columns as in `synthetic_runs`."""
    rng = np.random.default_rng(seed)
    C = np.repeat(np.asarray(budgets, float), sizes)
    offset = np.tile(np.linspace(-decades / 2, decades / 2, sizes) + off_centre, len(budgets))
    N = law.N_opt(C) * 10**offset
    return _table(law, N, C / (6 * N), noise, kind, rng)


def _table(law, N, D, noise: float, kind: str, rng):
    import pandas as pd

    if kind not in NOISES:
        raise InputError(f'synthetic runs: noise "{kind}" is not known. Known: {", ".join(NOISES)}.')
    draw: dict = {"normal": rng.standard_normal, "laplace": lambda size: rng.laplace(size=size),
                  "student": lambda size: rng.standard_t(3, size)}  # fmt: skip
    noisy = law.loss(N, D) * np.exp(noise * draw[kind](len(N)))
    return pd.DataFrame({"params": N, "tokens": D, "flops": 6 * N * D, "loss": noisy})
