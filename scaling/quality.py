"""Quality labels of runs: what makes a row unusable, and what makes it doubtful.

Unusable rows are left out with their reasons; doubtful ones stay and warn. Labels of whole budgets are in
`budget_quality`, mixtures of studies in `studies`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from scaling.metrics import NATS
from scaling.readers.numbers import MISSING, shortest

STATUSES = {
    "done": "done finished complete completed success succeeded successful ok",
    "diverged": "diverged divergent nan exploded loss_spike",
    "unfinished": (
        "unfinished running pending queued scheduled in_progress incomplete preempted preempting paused started timeout"
    ),
}
_STATUS = {word: label for label, words in STATUSES.items() for word in words.split()}

WARMUP_SHARE = 0.2  # of a run's tokens; longer warm-ups bias exponents (Porian et al. 2024)
SCHEDULE_REACHED = 0.9  # of the schedule that a run must have seen to count as annealed
NEAR = 0.01  # relative distance in N and in C below which two runs are near-duplicates
RISE = 0.1  # relative rise of the loss over that of a shorter run of the same size
DIGITS = 6  # significant digits from which two equal losses are suspicious
SAMPLE = 500  # points that Weights & Biases' history() returns unless asked for more
COARSE = 0.2  # share of equal losses from which the whole column is quantised


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
    texts = column.astype(object).where(column.notna(), "").astype(str)
    known = {text: _STATUS.get(text.strip().lower().replace(" ", "_"), "failed") for text in texts.unique()}
    return texts.map(known).to_numpy(dtype=object)


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


# ------------------------------------------------------------------------------------------------ doubtful rows


def label_rows(table: pd.DataFrame, roles: dict[str, str], unit: str) -> list[Label]:
    """Doubts about rows that stay in the table, one label per kind of doubt."""
    found = []
    for name, say, test in _TESTS:
        rows = test(table, roles)
        if rows is not None and rows.any():
            at = table["row"].to_numpy()[rows].tolist()
            found.append(Label(name, f"{say}: {len(at)} of {len(table)} rows ({lines(at, unit)})", tuple(at)))
    return found + _identical_losses(table, unit) + _own_labels(table, roles, unit)


def _share(table: pd.DataFrame, roles: dict[str, str], part: str, whole: str) -> np.ndarray | None:
    names = [name if name in ("tokens", "params") else roles.get(name) for name in (part, whole)]
    if None in names:
        return None
    with np.errstate(all="ignore"):
        above, below = (pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=float) for name in names)
        return above / below


def _warmup(table: pd.DataFrame, roles: dict[str, str]) -> np.ndarray | None:
    shares = [_share(table, roles, *pair) for pair in (("warmup_tokens", "tokens"), ("warmup_steps", "steps"))]
    if "warmup_share" in roles and table[roles["warmup_share"]].dtype.kind == "f":
        stated = table[roles["warmup_share"]].to_numpy(dtype=float)
        shares.append(stated if np.nanmax(stated, initial=0.0) <= 1 else None)
    known = [share for share in shares if share is not None]
    return np.any([share > WARMUP_SHARE for share in known], axis=0) if known else None


def _schedule(table: pd.DataFrame, roles: dict[str, str]) -> np.ndarray | None:
    pairs = (("tokens", "schedule_end_tokens"), ("steps", "total_steps"))
    shares = [share for pair in pairs if (share := _share(table, roles, *pair)) is not None]
    if "fraction" in roles and table[roles["fraction"]].dtype.kind == "f":
        stated = table[roles["fraction"]].to_numpy(dtype=float)
        shares += [stated] if np.nanmax(stated, initial=0.0) <= 1 + 1e-9 else []
    return np.any([share < SCHEDULE_REACHED for share in shares], axis=0) if shares else None


def _checkpoints(table: pd.DataFrame, roles: dict[str, str]) -> np.ndarray | None:
    """Rows of a run (one id, one size) before its last checkpoint."""
    if "run_id" not in table or table["run_id"].nunique() == len(table):
        return None
    last = table.groupby(["run_id", "params", "source"], dropna=False)["tokens"].transform("max")
    return ((table["tokens"] < last) & table["run_id"].notna()).to_numpy()


def _sampled(table: pd.DataFrame, roles: dict[str, str]) -> np.ndarray | None:
    """Rows of a history whose steps are uneven or number exactly the default sample: its last value may be missing."""
    step = roles.get("history_step")
    if step is None or table[step].dtype.kind not in "iuf":
        return None
    runs = table.groupby([*(["run_id"] if "run_id" in table else []), "params", "source"], dropna=False, sort=False)
    gaps = runs[step].diff()
    uneven = gaps.groupby(runs.ngroup()).transform(lambda gap: gap.dropna().nunique() > 1)
    return ((runs[step].transform("size") == SAMPLE) | uneven.astype(bool)).to_numpy()


def _no_better_than_uniform(table: pd.DataFrame, roles: dict[str, str]) -> np.ndarray | None:
    if "vocab_size" not in roles or table[roles["vocab_size"]].dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):
        return (table["loss"] >= np.log(table[roles["vocab_size"]])).to_numpy()


def _rising(table: pd.DataFrame, roles: dict[str, str]) -> np.ndarray:
    """Runs whose loss is well above that of every run of the same size on fewer tokens."""
    order = np.lexsort((table["tokens"], table["params"]))
    size, loss = table["params"].to_numpy()[order], table["loss"].to_numpy()[order]
    start = np.concatenate([[True], size[1:] != size[:-1]])
    block = np.cumsum(start) - 1
    worst = pd.Series(loss).groupby(block).cummax().to_numpy()
    before = np.where(start, np.inf, np.concatenate([[np.inf], worst[:-1]]))
    result = np.zeros(len(table), dtype=bool)
    result[order] = loss > (1 + RISE) * before
    return result


def _exact_duplicates(table: pd.DataFrame, roles: dict[str, str]) -> np.ndarray:
    return table.duplicated(["params", "tokens", "loss"], keep=False).to_numpy()


def _near_duplicates(table: pd.DataFrame, roles: dict[str, str]) -> np.ndarray:
    """Runs within 1 % of another in N and in C that are not repetitions of the same (N, D)."""
    exact, first = _cells(table)
    n, c = (np.log(table[name].to_numpy()[first]) for name in ("params", "flops"))
    near = np.zeros(len(first), dtype=bool)
    width = 2 * math.log1p(NEAR)
    for shift_n in (0.0, 0.5):  # a pair closer than half a cell shares one in at least one of four grids
        for shift_c in (0.0, 0.5):
            key = np.floor(n / width + shift_n) * 1e6 + np.floor(c / width + shift_c)
            near |= _close_in_cell(key, n, c)
    return near[exact]


def _cells(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The (N, D) cell of each row, and the first row of each cell."""
    exact = table.groupby(["params", "tokens"], sort=False).ngroup().to_numpy()
    return exact, np.unique(exact, return_index=True)[1]


def _close_in_cell(key: np.ndarray, n: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Neighbours in one grid cell, ordered by N, that are near in both."""
    order = np.lexsort((n, key))
    near = key[order][1:] == key[order][:-1]
    near &= (np.diff(n[order]) <= math.log1p(NEAR)) & (np.abs(np.diff(c[order])) <= math.log1p(NEAR))
    result = np.zeros(len(key), dtype=bool)
    result[order[1:][near]] = result[order[:-1][near]] = True
    return result


_TESTS: tuple[tuple[str, str, Callable[[pd.DataFrame, dict[str, str]], np.ndarray | None]], ...] = (
    ("warm-up share", "warm-up longer than 20 % of the run, which biases the exponents", _warmup),
    ("schedule longer than the run", "stopped before 90 % of the schedule, so the loss is not annealed", _schedule),
    (
        "intermediate checkpoint",
        "checkpoints before the last of their run; --last-of run_id keeps the last",
        _checkpoints,
    ),
    (
        "sampled history",
        "a history sampled by its tracker, so the last logged loss may be missing; read wandb:ENTITY/PROJECT",
        _sampled,
    ),
    ("diverged", "loss no better than a uniform guess over the vocabulary", _no_better_than_uniform),
    ("diverged", "loss over 10 % above that of every shorter run of its size: diverged or over-fitted", _rising),
    ("exact duplicate", "the same N, D and loss as another row, so counted twice", _exact_duplicates),
    ("near-duplicate", "within 1 % of another run in N and in C, so not independent of it", _near_duplicates),
)


def label_metric(table: pd.DataFrame, metric: str) -> list[Label]:
    """A loss said to be in nats per token that is below one throughout."""
    highest = table["loss"].max()
    if metric != NATS or highest >= 1:
        return []
    text = f"every loss is below 1 (up to {highest:.4g}): hardly nats per token of text; say what it is with --metric"
    return [Label("metric", text)]


def _identical_losses(table: pd.DataFrame, unit: str) -> list[Label]:
    """Equal losses, to six digits or more, of runs that differ in N or D."""
    loss = table["loss"].to_numpy()
    ids, counts = np.unique(loss, return_inverse=True, return_counts=True)[1:]
    cells = _cells(table)[0]
    repeated = np.flatnonzero(counts[ids] > 1)
    if not len(repeated):
        return []
    first: dict[int, int] = {}
    several: set[int] = set()
    for place in repeated.tolist():
        if first.setdefault(ids[place], cells[place]) != cells[place]:
            several.add(ids[place])
    rows = [place for place in repeated.tolist() if ids[place] in several and _has_digits(loss[place])]
    if not rows:
        return []
    if len(rows) > COARSE * len(table):
        text = f"the loss takes {len(counts)} values in {len(table)} rows: rounded, or read off a figure"
        return [Label("suspiciously identical loss", text)]
    at = table["row"].to_numpy()[rows].tolist()
    text = f"runs of different N or D with one loss to the last digit: a copying slip? ({lines(at, unit)})"
    return [Label("suspiciously identical loss", text, tuple(at))]


def _has_digits(value: float) -> bool:
    return len(repr(float(value)).replace(".", "").lstrip("0").partition("e")[0]) >= DIGITS


def _own_labels(table: pd.DataFrame, roles: dict[str, str], unit: str) -> list[Label]:
    """Rows that the file itself marks as outliers."""
    column = roles.get("outlier")
    if column is None or table[column].dtype.kind not in "iufb":
        return []
    marked = table[column].to_numpy(dtype=float) == 1
    if not marked.any():
        return []
    at = table["row"].to_numpy()[marked].tolist()
    reasons = table.loc[marked, roles["reason"]].value_counts().to_dict() if "reason" in roles else {}
    why = f": {', '.join(f'{reason} {count}' for reason, count in reasons.items())}" if reasons else ""
    text = (
        f'the file marks {len(at)} rows in "{column}"{why} ({lines(at, unit)}); --where "{column} == 0" leaves them out'
    )
    return [Label("marked in the file", text, tuple(at))]
