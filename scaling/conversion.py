"""A table as it was read, written as our own runs.csv, and the report of how it was understood."""

import csv
import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from scaling.metrics import METRICS, NATS

if TYPE_CHECKING:
    from scaling.runs import Runs

FIRST = ("run_id", "params", "tokens", "loss", "flops", "status")


def runs_csv(runs: "Runs") -> str:
    """The runs as CSV text under our names: usable rows with status done, unusable ones with theirs and no loss.

    Numbers are written as short as they read back exactly. Rows that the caller chose to leave out are not written.
    """
    table = _whole(runs)
    names = _our_names(runs, table)
    order = [c for c in FIRST if c in table] + [c for c in table if c not in (*FIRST, "row", "source")] + ["source"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([names.get(str(column), column) for column in order])
    columns = [[_cell(value) for value in table[column].tolist()] for column in order]
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue()


def _whole(runs: "Runs") -> pd.DataFrame:
    """Used and unusable rows together, in the order of their files."""
    used = runs.table.assign(status="done")
    if runs.metric not in (NATS, "mixed") and "metric" not in runs.roles:
        used["metric"] = runs.metric
    if runs.left_out is None:
        return used
    lost = runs.left_out.assign(loss=float("nan"))
    place = {source: i for i, source in enumerate(dict.fromkeys([*used["source"], *lost["source"]]))}
    both = pd.concat([used, lost], ignore_index=True)
    return both.sort_values(["source", "row"], key=lambda c: c.map(place) if c.name == "source" else c, kind="stable")


def _our_names(runs: "Runs", table: pd.DataFrame) -> dict[str, str]:
    """{"peak_lr": "learning_rate"}: lesser roles under our names, where these are free."""
    free = {role: column for role, column in runs.roles.items() if role not in table.columns}
    return {column: role for role, column in free.items() if column in table.columns}


def _cell(value: Any) -> str:
    if value is None or value is pd.NA or value is pd.NaT:
        return ""
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return str(int(value)) if value == value // 1 and abs(value) < 2**53 else repr(value)
    return str(value)


def report_text(runs: "Runs") -> str:
    """How the table was understood, what was left out and why, and what deserves doubt, for people."""
    parts = [
        ("Read from", runs.sources),
        ("Understood as", runs.notes or ["the columns already carry our names"]),
        ("Loss", [METRICS.get(runs.metric, runs.metric)]),
        ("Rows", [runs.summary()]),
        ("Left out", [_say(exclusion, runs) for exclusion in runs.excluded]),
        ("Doubts", runs.warnings),
    ]
    return "\n".join(f"{title}\n" + "".join(f"  {line}\n" for line in lines) for title, lines in parts if lines)


def _say(exclusion: Any, runs: "Runs") -> str:
    where = f"{exclusion.source} {runs.unit} {exclusion.row}"
    return f"{where}{f' ({exclusion.run_id})' if exclusion.run_id else ''}: {exclusion.reason}"


def report_path(path: str | Path) -> Path:
    """runs.csv -> runs.report.txt, beside it."""
    return Path(path).with_suffix(".report.txt")
