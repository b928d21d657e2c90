"""From a runs table to the arrays that a fit works on, checked once at the door."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scaling.errors import FitError

LIMITS = (1e-60, 1e60)  # of a count or a loss: whatever lies outside is a fault, and its square overflows soon after


@dataclass(frozen=True)
class RunData:
    """The columns of the runs that a fit uses, as float64, with the label of each row for messages."""

    N: np.ndarray
    D: np.ndarray
    loss: np.ndarray
    flops: np.ndarray  # the given C, or 6 N D
    weights: np.ndarray
    unique_tokens: np.ndarray
    labels: tuple[str, ...]
    table: Any = None  # the DataFrame itself, for columns that only diagnostics look at
    excluded: tuple = ()

    @property
    def n(self) -> int:
        return len(self.loss)

    def take(self, rows) -> "RunData":
        """The given rows (indices or mask)."""
        index = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows)
        table = self.table.iloc[index] if self.table is not None else None
        return replace(
            self, N=self.N[index], D=self.D[index], loss=self.loss[index], flops=self.flops[index],
            weights=self.weights[index], unique_tokens=self.unique_tokens[index],
            labels=tuple(self.labels[i] for i in index), table=table,
        )  # fmt: skip


def run_data(runs: Any, weights: Any = None) -> RunData:
    """RunData of a DataFrame or of a `scaling.runs.Runs`; `weights` a column name, an array, or None.

    Raises FitError that names the row and the value for anything that is not a finite number above zero.
    """
    if isinstance(runs, RunData):
        return runs if weights is None else replace(runs, weights=_weights(weights, runs.table, runs.n, runs.labels))
    table = getattr(runs, "table", runs)
    missing = [name for name in ("params", "tokens", "loss") if name not in table.columns]
    if missing:
        have = ", ".join(map(str, table.columns)) or "none"
        raise FitError(
            f"runs: column {', '.join(missing)} missing (columns: {have}). A fit needs params, tokens, loss."
        )
    labels = _labels(table, getattr(runs, "unit", "row"))
    N, D, loss = (_column(table, name, labels) for name in ("params", "tokens", "loss"))
    if not len(loss):
        raise FitError("runs: no rows to fit.")
    return RunData(
        N=N,
        D=D,
        loss=loss,
        flops=_column(table, "flops", labels) if "flops" in table.columns else 6 * N * D,
        weights=_weights(weights, table, len(loss), labels),
        unique_tokens=_column(table, "unique_tokens", labels) if "unique_tokens" in table.columns else D,
        labels=labels,
        table=table,
        excluded=tuple(getattr(runs, "excluded", ())),
    )


def _labels(table, unit: str) -> tuple[str, ...]:
    rows = table["row"] if "row" in table.columns else range(1, len(table) + 1)
    names = table["run_id"] if "run_id" in table.columns else [None] * len(table)
    return tuple(
        f"{unit} {row}" + (f" ({name})" if isinstance(name, str) and name else "")
        for row, name in zip(rows, names, strict=True)
    )


def _column(table, name: str, labels) -> np.ndarray:
    try:
        values = np.asarray(table[name], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise FitError(f"runs: column {name} holds something that is not a number ({error}).") from error
    if name in ("flops", "unique_tokens"):  # optional: an empty cell means 6ND, or fresh tokens
        default = 6 * np.asarray(table["params"], float) * np.asarray(table["tokens"], float)
        values = np.where(np.isnan(values), default if name == "flops" else np.asarray(table["tokens"], float), values)
    low, high = LIMITS
    bad = np.flatnonzero(~((values > low) & (values < high)))
    if len(bad):
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise FitError(
            f"runs, {labels[bad[0]]}{more}: {name} is {values[bad[0]]:g}; it must be a finite number above zero"
            f"{_extreme(values[bad[0]])}. Leave such rows out."
        )
    return values


def _extreme(value: float) -> str:
    return f", within {LIMITS[0]:g} and {LIMITS[1]:g}" if np.isfinite(value) and value > 0 else ""


def _weights(weights, table, n: int, labels) -> np.ndarray:
    """Weights of the runs, at mean 1 among those above zero."""
    if weights is None:
        return np.ones(n)
    if isinstance(weights, str):
        if table is None or weights not in table.columns:
            have = ", ".join(map(str, table.columns)) if table is not None else "none"
            raise FitError(f'weights: no column "{weights}" (columns: {have}).')
        weights = table[weights]
    try:
        values = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise FitError(f"weights hold something that is not a number ({error}).") from error
    if values.shape != (n,):
        raise FitError(f"weights: {values.shape} values for {n} runs.")
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        raise FitError(
            f"weights, {labels[bad[0]]}: {values[bad[0]]:g}; a weight must be a finite number, zero or above."
        )
    if not (values > 0).any():
        raise FitError("weights: all are zero.")
    return values / values[values > 0].mean()
