"""Doubts about rows that stay in the table: one label per kind, with the lines that it is about."""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from scaling.metrics import NATS
from scaling.quality import Label, lines

WARMUP_SHARE = 0.2  # of a run's tokens; longer warm-ups bias exponents (Porian et al. 2024)
SCHEDULE_REACHED = 0.9  # of the schedule that a run must have seen to count as annealed
NEAR = 0.01  # relative distance in N and in C below which two runs are near-duplicates
RISE = 0.1  # relative rise of the loss over that of a shorter run of the same size
BYTES = 256  # vocabulary up to which a token is a byte or less, where losses below one are usual
DIGITS = 6  # significant digits from which two equal losses are suspicious
SAMPLE = 500  # points that Weights & Biases' history() returns unless asked for more
COARSE = 0.2  # share of equal losses from which the whole column is quantised


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
    lift = np.cumsum(start) * (2 * loss.max())  # sizes one above the other, so that a running maximum starts anew
    worst = np.maximum.accumulate(loss + lift) - lift
    before = np.where(start, np.inf, np.concatenate([[np.inf], worst[:-1]]))
    result = np.zeros(len(table), dtype=bool)
    result[order] = loss > (1 + RISE) * before
    return result


def _exact_duplicates(table: pd.DataFrame, roles: dict[str, str]) -> np.ndarray:
    return table.duplicated(["params", "tokens", "loss"], keep=False).to_numpy()


def _near_duplicates(table: pd.DataFrame, roles: dict[str, str]) -> np.ndarray:
    """Runs within 1 % of another in N and in C that are not repetitions of the same (N, D)."""
    exact, first = cells(table)
    width = 2 * math.log1p(NEAR)
    n, c = (np.log(table[name].to_numpy()[first]) / width for name in ("params", "flops"))
    near = np.zeros(len(first), dtype=bool)
    for shift_n in (0.0, 0.5):  # a pair closer than half a cell shares one in at least one of four grids
        for shift_c in (0.0, 0.5):
            near |= _close_in_cell(n + shift_n, c + shift_c)
    return near[exact]


def cells(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The (N, D) cell of each row, and the first row of each cell."""
    exact = table.groupby(["params", "tokens"], sort=False).ngroup().to_numpy()
    first = np.empty(exact.max() + 1, dtype=np.int64)
    first[exact[::-1]] = np.arange(len(exact))[::-1]
    return exact, first


def _close_in_cell(n: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Neighbours in one unit cell, ordered by N, that are within half a unit in both."""
    row, column = np.floor(n), np.floor(c)
    key = row * 1e6 + column
    order = np.argsort(key + (n - row))  # one number that orders by cell, then by N
    near = key[order][1:] == key[order][:-1]
    near &= (np.diff(n[order]) <= 0.5) & (np.abs(np.diff(c[order])) <= 0.5)
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


def label_metric(table: pd.DataFrame, roles: dict[str, str], metric: str) -> list[Label]:
    """A loss said to be in nats per token that is below one throughout, where tokens are more than bytes."""
    highest = table["loss"].max()
    vocabulary = roles.get("vocab_size")
    if vocabulary and table[vocabulary].dtype.kind == "f" and table[vocabulary].max() <= BYTES:
        return []
    if metric != NATS or highest >= 1:
        return []
    text = f"every loss is below 1 (up to {highest:.4g}): hardly nats per token of text; say what it is with --metric"
    return [Label("metric", text)]


def _identical_losses(table: pd.DataFrame, unit: str) -> list[Label]:
    """Equal losses, to six digits or more, of runs that differ in N or D."""
    again = table[table.duplicated("loss", keep=False)]
    if again.empty:
        return []
    cell = pd.Series(cells(again)[0], index=again.index)
    several = cell.groupby(again["loss"]).transform("nunique") > 1
    known = {value: _has_digits(value) for value in again["loss"].unique()}
    rows = again.loc[several & again["loss"].map(known), "row"].tolist()
    if not rows:
        return []
    if len(rows) > COARSE * len(table):
        text = f"the loss takes {table['loss'].nunique()} values in {len(table)} rows: rounded, or read off a figure"
        return [Label("suspiciously identical loss", text)]
    text = f"runs of different N or D with one loss to the last digit: a copying slip? ({lines(rows, unit)})"
    return [Label("suspiciously identical loss", text, tuple(rows))]


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
