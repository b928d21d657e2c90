"""Quality labels of runs: what makes a row unusable, and what makes it doubtful.

Unusable rows are left out with their reasons; doubtful ones stay and warn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from scaling.readers.numbers import shortest

DONE = {"done", "finished", "complete", "completed", "success", "succeeded", "ok", "successful"}
DIVERGED = {"diverged", "nan", "exploded", "divergent", "loss_spike"}
UNFINISHED = {
    "running", "unfinished", "pending", "queued", "scheduled", "in_progress", "in progress", "incomplete", "preempted",
    "preempting", "paused", "started", "timeout", "not finished",
}  # fmt: skip


@dataclass(frozen=True)
class Label:
    """A doubt about one row, or about the table when `row` is None."""

    label: str
    text: str
    row: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Fault:
    """Why a row cannot take part, what its status becomes, and what to do about it."""

    text: str
    status: str
    advice: str


def read_status(column: pd.Series) -> np.ndarray:
    """Each status as done, diverged, unfinished or failed; whatever is not known to be done is not."""
    texts = column.astype(object).where(column.notna(), "").astype(str).str.strip().str.lower()
    known = {text: _status(text) for text in texts.unique()}
    return texts.map(known).to_numpy(dtype=object)


def _status(text: str) -> str:
    for label, words in (("done", DONE), ("diverged", DIVERGED), ("unfinished", UNFINISHED)):
        if text in words:
            return label
    return "failed"


def say_status(status: Any) -> str:
    return "no status" if pd.isna(status) or not str(status).strip() else f"status {str(status).strip()}"


def find_faults(frame: pd.DataFrame, unreadable: dict[str, dict[int, str]], metric: str) -> dict[int, Fault]:
    """Rows whose params, tokens, flops or loss no law can hold, by index, in the order of the table."""
    faults: dict[int, Fault] = {}
    for name in ("loss", "params", "tokens", "flops"):
        values = frame[name].to_numpy(dtype=float)
        bad = ~(np.isfinite(values) & (values > 0))
        for place in np.flatnonzero(bad):
            index = int(frame.index[place])
            faults.setdefault(index, _fault(name, float(values[place]), unreadable.get(name, {}).get(index)))
    return dict(sorted(faults.items()))


def _fault(name: str, value: float, text: str | None) -> Fault:
    if text is not None:
        shown = text if len(text) <= 40 else text[:37] + "..."
        return Fault(f'{name} is "{shown}", not a number', "failed", "Mend that cell or remove the row.")
    if name != "loss":
        what = "empty or nan" if math.isnan(value) else shortest(value) if math.isfinite(value) else str(value)
        return Fault(f"{name} is {what}", "failed", "It must be above zero: mend that cell or remove the row.")
    if math.isnan(value):
        status = "diverged"
        return Fault("loss is nan", status, 'Remove the row, or set its status to "diverged".')
    if math.isinf(value):
        return Fault(f"loss is {value}", "diverged", 'Remove the row, or set its status to "diverged".')
    if value in (0.0, -1.0):
        return Fault(
            f"loss is {shortest(value)}, as unfinished runs are written",
            "unfinished",
            'Remove the row, set its status to "failed", or leave such rows out with --skip-bad-rows.',
        )
    return Fault(
        f"loss is {shortest(value)}, below zero",
        "failed",
        "A cross-entropy is above zero; a loss normalised by another model's has no E + A/N^alpha + B/D^beta.",
    )


def label_rows(table: pd.DataFrame, roles: dict[str, str], unit: str) -> list[Label]:
    """Doubts about rows that stay in the table."""
    return []


def say_labels(labels: Sequence[Label], unit: str) -> list[str]:
    """One sentence per label, with the lines it is about."""
    return [label.text for label in labels]


def summarise(n_rows: int, excluded: Sequence[Any], unit: str) -> str:
    """"41 rows, 2 diverged and 1 unfinished left out (lines 14, 20, 33)"."""
    if not excluded:
        return f"{n_rows} rows"
    counts: dict[str, list[Any]] = {}
    for exclusion in excluded:
        counts.setdefault(exclusion.reason, []).append(exclusion)
    parts = [f"{len(group)} left out ({reason}: {lines_of(group, unit)})" for reason, group in counts.items()]
    shown = parts[:8] + ([f"and {len(parts) - 8} other reasons"] if len(parts) > 8 else [])
    return f"{n_rows} rows, {', '.join(shown)}"


def lines_of(rows: Sequence[Any], unit: str, limit: int = 12) -> str:
    """"lines 14, 20, 33", with the file where several files are involved; the rest counted."""
    files = {row.source for row in rows}
    names = [f"{row.source}:{row.row}" if len(files) > 1 else str(row.row) for row in rows]
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{unit}{'s' * (len(names) > 1)} {', '.join(names[:limit])}{more}"


def require_one_study(runs: Any, *, group_by: str | None = None, pool: Sequence[str] = ()) -> None:
    """Refuse runs that one law cannot describe."""
