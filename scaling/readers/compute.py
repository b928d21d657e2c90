"""How a table's own compute compares with 6ND: the median of 6ND/C, its spread, and what would explain it."""

import numpy as np
import pandas as pd

from scaling.quantities import format_quantity
from scaling.readers.columns import PF_DAY


def explain_compute(table: pd.DataFrame, roles: dict[str, str]) -> tuple[list[str], list[str]]:
    """Notes and warnings about 6ND/C, of a table with columns for all three."""
    if table.empty:
        return [], []
    with np.errstate(all="ignore"):
        ratio = (6.0 * table["params"] * table["tokens"] / table["flops"]).to_numpy()
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    if not len(ratio):
        return [], []
    if np.abs(ratio - 1).max() < 1e-6:
        return ["6ND/C is 1 in every row"], []
    low, middle, high = ratio.min(), float(np.median(ratio)), ratio.max()
    why = _explanation(low, middle, high, table, roles)
    said = f"6ND/C has median {middle:.4g} and runs from {low:.4g} to {high:.4g}: {why}"
    return ([], [said]) if not 0.5 <= middle <= 2 or high / low > 2 else ([said], [])


def _explanation(low: float, middle: float, high: float, table: pd.DataFrame, roles: dict[str, str]) -> str:
    spread = high / low
    power = round(np.log10(middle) / 3) * 3
    if power and abs(np.log10(middle) - power) < 0.35 and spread < 3:
        return f"N, D or C is off by a factor 1e{power:d}; state the unit, for example --map params=COLUMN:M"
    if 0.3 < middle / PF_DAY < 3:
        return "C is in PF-days; call its column compute_pf_days"
    if abs(middle - 3) < 0.15 and spread < 1.1:
        return "C counts 2ND, the forward pass alone"
    if abs(middle - 0.75) < 0.03 and spread < 1.05:
        return "C counts 8ND, with activations recomputed"
    beside = _other_count(table, roles)
    if beside:
        return beside
    if spread < 1.25 and low < 1 < high:
        return "C is a nominal budget that the runs meet only about"
    if 0.5 <= middle < 1:
        return (
            "C counts more than 6ND: attention, the output head or padding, or N leaves the embeddings out. The budget "
            "axis is C as given"
        )
    if 1 < middle <= 6:
        return (
            "C counts less than 6ND: N holds embeddings, which cost no matrix product, or C leaves the head out. "
            f"N starts at {format_quantity(table['params'].min())}, and embeddings weigh most in small models"
        )
    return "no usual convention explains it; check the columns"


def _other_count(table: pd.DataFrame, roles: dict[str, str]) -> str:
    """Whether another count of parameters in the table makes 6ND = C."""
    for role, words in (("params_non_embedding", "non-embedding"), ("params_active", "active")):
        column = roles.get(role)
        if column is None or table[column].dtype.kind not in "iuf":
            continue
        with np.errstate(all="ignore"):
            ratio = (6.0 * table[column] * table["tokens"] / table["flops"]).to_numpy()
        if abs(np.nanmedian(ratio) - 1) < 0.02:
            return f"C is 6 x {words} parameters ({column}) x D"
    return ""
