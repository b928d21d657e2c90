"""Quality labels of runs: what makes a row unusable, and what makes it doubtful.

Unusable rows are left out with their reasons; doubtful ones stay and warn: `row_labels` for rows, `budget_quality` for
isoFLOP budgets, `studies` for mixtures of studies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from scaling.readers.numbers import MISSING, shortest

STATUSES = {
    "done": "done finished complete completed success succeeded successful ok",
    "diverged": "diverged divergent nan exploded loss_spike",
    "unfinished": (
        "unfinished running pending queued scheduled in_progress incomplete preempted preempting paused started timeout"
    ),
}
_STATUS = {word: label for label, words in STATUSES.items() for word in words.split()}


@dataclass(frozen=True)
class Label:
    """A doubt about the rows in `rows` (line numbers), or about the whole table when it is empty."""

    label: str
    text: str
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fault:
    """Why a row cannot take part: in one word, in a sentence, the status it becomes, and what to do."""

    label: str
    text: str
    status: str
    advice: str


# ----------------------------------------------------------------------------------------------- unusable rows


def read_status(column: pd.Series) -> np.ndarray:
    """Each status as done, diverged, unfinished or failed; whatever is not known to be done is not."""
    codes, texts = pd.factorize(column)
    known = [_STATUS.get(str(text).strip().lower().replace(" ", "_"), "failed") for text in texts]
    return np.array([*known, "failed"], dtype=object)[codes]  # code -1, a missing status, is the last


def say_status(status: Any, reason: Any = None) -> str:
    """ "status diverged", with the reason that the table gives."""
    if pd.isna(status) or not str(status).strip():
        return "status is empty"
    said = f"status {str(status).strip()[:40]}"
    given = "" if pd.isna(reason) else " ".join(str(reason).split())[:120]
    return given if given.startswith("status ") else f"{said}: {given}" if given else said


def find_faults(frame: pd.DataFrame, texts: dict[str, dict[int, str]], unit: str) -> dict[int, Fault]:
    """Rows whose params, tokens, flops or loss no law can hold, by index, in the order of the table."""
    faults: dict[int, Fault] = {}
    for name in ("loss", "params", "tokens", "flops"):
        values = frame[name].to_numpy(dtype=float)
        for place in np.flatnonzero(~(np.isfinite(values) & (values > 0))).tolist():
            index = int(frame.index[place])
            text = texts.get(name, {}).get(index, "")
            faults.setdefault(index, _fault(name, values[place], text, "empty" if unit == "line" else "empty or nan"))
    return dict(sorted(faults.items()))


def _fault(name: str, value: float, text: str, gap: str) -> Fault:
    if math.isnan(value) and text.lower() not in MISSING:
        text = " ".join(text.split())
        shown = text if len(text) <= 40 else text[:37] + "..."
        return Fault("unreadable", f'{name} is "{shown}", not a number', "failed", "Mend that cell or remove the row.")
    said = (text or gap) if math.isnan(value) else shortest(value)
    if name != "loss":
        label = "not finite" if not math.isfinite(value) else "zero or negative"
        return Fault(label, f"{name} is {said}", "failed", "It must be above zero: mend that cell or remove the row.")
    if not math.isfinite(value):
        return Fault("not finite", f"loss is {said}", "diverged", 'Remove the row, or set its status to "diverged".')
    if value in (0.0, -1.0):
        advice = 'Remove the row, or set its status to "failed".'
        return Fault("zero or sentinel", f"loss is {said}, as unfinished runs are written", "unfinished", advice)
    advice = "A cross-entropy is above zero; a loss below another model's has no floor E and no logarithm."
    return Fault("negative", f"loss is {said}", "failed", advice)


def summarise(n_rows: int, excluded: Sequence[Any], unit: str) -> str:
    """ "41 rows, 2 diverged and 1 unfinished left out (lines 14, 20, 33)"."""
    total = f"{n_rows} row{'s' * (n_rows != 1)}"
    if not excluded:
        return total
    counts: dict[str, int] = {}
    for exclusion in excluded:
        counts[exclusion.label] = counts.get(exclusion.label, 0) + 1
    *first, last = [f"{count} {label}" for label, count in counts.items()]
    return f"{total}, {', '.join(first)}{' and ' * bool(first)}{last} left out ({places(excluded, unit)})"


def places(rows: Sequence[Any], unit: str, limit: int = 12) -> str:
    """ "lines 14, 20, 33", with the file where several are involved; the rest counted."""
    files = {row.source for row in rows}
    names = [f"{row.source}:{row.row}" if len(files) > 1 else str(row.row) for row in rows[:limit]]
    return _listed(names, len(rows), unit)


def lines(rows: Sequence[int], unit: str, limit: int = 12) -> str:
    """ "lines 14, 20, 33 and 9 more"."""
    return _listed([str(row) for row in rows[:limit]], len(rows), unit)


def _listed(names: list[str], count: int, unit: str) -> str:
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return f"{unit}{'s' * (count > 1)} {', '.join(names)}{more}"
