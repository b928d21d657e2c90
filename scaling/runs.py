"""The runs table: `read_runs` maps any table onto params, tokens, loss and flops; `validate_runs` checks one.

Everything that is left out stands in `Runs.excluded` with its line and reason; everything that was understood,
converted or derived in `Runs.notes`. What deserves doubt but stays in is in `Runs.warnings`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from scaling import quality, row_labels, selection, studies
from scaling.budget_quality import label_budgets
from scaling.errors import InputError
from scaling.quality import Label
from scaling.readers import read_tables
from scaling.readers.choosing import CANONICAL
from scaling.readers.columns import parse_mapping
from scaling.readers.compute import explain_compute
from scaling.readers.interpret import Interpreted, interpret
from scaling.readers.raw import RawTable

REQUIRED = ("params", "tokens", "loss")


@dataclass(frozen=True)
class Exclusion:
    """A row that takes no part, where it stands and why."""

    row: int  # line in its file, the header being line 1 (record number in JSON and Parquet)
    run_id: str | None
    reason: str
    source: str = ""
    label: str = ""  # the reason in a word or two: "diverged"

    def to_dict(self) -> dict[str, Any]:
        return {"row": self.row, "run_id": self.run_id, "reason": self.reason}


@dataclass(frozen=True)
class Runs:
    """Usable runs and the account of how they were read.

    `table` holds float64 `params`, `tokens`, `loss`, `flops`, then `row` and `source`, `run_id` where there is one, and
    every other column under the name it has in the file; `column` finds any of them by file name, role or own name.
    """

    table: pd.DataFrame
    excluded: list[Exclusion] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # header in the file -> column of `table`
    roles: dict[str, str] = field(default_factory=dict)  # "learning_rate" -> column of `table`
    labels: list[Label] = field(default_factory=list)
    metric: str = "nats_per_token"
    n_rows: int = 0  # rows that were read, before any was left out
    left_out: pd.DataFrame | None = None  # unusable rows, with `status` and `reason`; None when there are none
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.table)

    def column(self, name: str) -> str:
        """The column of `table` for a header as in the file, a role ("learning_rate") or a name of ours.

        Raises InputError that lists the columns.
        """
        return selection.find_column(name, self.table, self.names, self.roles)

    def summary(self) -> str:
        """ "41 rows, 2 diverged and 1 unfinished left out (lines 14, 20, 33)"."""
        return quality.summarise(self.n_rows, self.excluded, self.unit)


def read_runs(
    sources: Any,
    *,
    mapping: Mapping[str, str] | Sequence[str] | None = None,
    where: str | Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    last_of: str | None = None,
    best_of: str | None = None,
    drop_top_loss: int = 0,
    metric: str | None = None,
    group_by: str | None = None,
    skip_bad_rows: bool = False,
) -> Runs:
    """Read runs from files, globs, folders, "-", tracker addresses or a DataFrame; map, convert, select and label them.

    mapping: {"params": "Model Size"} or ["params=Model Size"], for what the headers leave open.
    where: a condition such as "dataset == 'c4' and params < 1e9", or several that must all hold.
    exclude: run ids, or "line 14". last_of: a column that names the run of a checkpoint; its last one stays.
    best_of: a column that was swept, such as the learning rate; the lowest loss per (N, D) stays.
    drop_top_loss: how many of the highest losses to leave out. metric: what the loss is in, when its name does not say.
    group_by: a column within whose values best_of works.
    skip_bad_rows: leave out rows whose numbers are unusable, with their reasons, where otherwise the reading stops.

    Raises InputError: one message with file, line, value and what to do.
    """
    wanted = parse_mapping(mapping)
    tables = read_tables(sources)
    parts = [interpret(table, mapping=wanted, metric=metric) for table in tables]
    draft = _Draft(parts, tables)
    conditions = [where] if isinstance(where, str) else list(where or ())
    for condition in conditions:
        draft.keep_where(condition)
    draft.exclude(exclude)
    draft.leave_out_unfinished()
    draft.leave_out_unusable(skip_bad_rows)
    groups = [draft.column(group_by)] if group_by else []
    draft.select(last_of, best_of, drop_top_loss, groups)
    return draft.finish()


class _Draft:
    """The rows while they are being sorted into used and left out."""

    def __init__(self, parts: list[Interpreted], tables: list[RawTable]):
        _align(parts)
        self.sources = [source for table in tables for source in table.sources()]
        self.frame = pd.concat([part.frame for part in parts], ignore_index=True) if len(parts) > 1 else parts[0].frame
        self.names = {k: v for part in parts for k, v in part.names.items()}
        self.roles = {k: v for part in parts for k, v in part.roles.items()}
        self.unit = parts[0].unit
        self.texts = _joined([part.texts for part in parts], [len(part.frame) for part in parts])
        names = [table.name for table in tables]
        self.notes = _by_file(names, [part.notes for part in parts])
        self.warnings = _by_file(names, [part.warnings for part in parts])
        metrics = {part.metric for part in parts}
        self.metric = metrics.pop() if len(metrics) == 1 else "mixed"
        self.compute_given = all(part.compute_given for part in parts)
        self.n_rows = len(self.frame)
        self.excluded: list[Exclusion] = []
        self.left_out: list[pd.DataFrame] = []

    def column(self, name: str) -> str:
        return selection.find_column(name, self.frame, self.names, self.roles)

    def place(self, index: int) -> str:
        """Where a row stands, for a message."""
        found = self.frame.loc[index]
        return f"{found['_file']} {self.unit} {found['row']}"

    def drop(self, rows: np.ndarray, reasons: list[str] | str, labels: list[str] | str, status: Any = None) -> None:
        """Leave out the rows where `rows` is True; those with a `status` are unusable, the others only not wanted."""
        if not rows.any():
            return
        gone = self.frame.loc[rows]
        reasons = [reasons] * len(gone) if isinstance(reasons, str) else reasons
        labels = [labels] * len(gone) if isinstance(labels, str) else labels
        ids = gone["run_id"] if "run_id" in gone else [None] * len(gone)
        for row, run_id, reason, source, label in zip(gone["row"], ids, reasons, gone["_file"], labels, strict=True):
            name = None if pd.isna(run_id) else str(run_id)
            self.excluded.append(Exclusion(int(row), name, reason, str(source), label))
        if status is not None:
            self.left_out.append(gone.assign(status=status, reason=reasons))
        self.frame = self.frame.loc[~rows]

    def keep_where(self, condition: str) -> None:
        before = len(self.frame)
        self.frame = self.frame.loc[selection.where(self.frame, condition, self.column)]
        if self.frame.empty:
            raise InputError(f'--where "{condition}" keeps none of the {before} rows.')
        self.notes.append(f'where "{condition}": {len(self.frame)} of {before} rows')
        self.n_rows = len(self.frame)

    def exclude(self, wanted: Sequence[str]) -> None:
        for name in wanted:
            self.drop(selection.named(self.frame, name), "excluded by name", "excluded by name")

    def leave_out_unfinished(self) -> None:
        """Rows whose status is not "done" take no part, whatever their numbers."""
        if "status" not in self.frame:
            return
        status = quality.read_status(self.frame["status"])
        rows = status != "done"
        gone = self.frame.loc[rows]
        given = gone[self.roles["reason"]] if "reason" in self.roles else [None] * len(gone)
        reasons = [quality.say_status(text, why) for text, why in zip(gone["status"], given, strict=True)]
        self.drop(rows, reasons, list(status[rows]), status[rows])

    def leave_out_unusable(self, skip: bool) -> None:
        """Rows with numbers that no law can hold: the reading stops at the first, or leaves them out when told to."""
        faults = quality.find_faults(self.frame, self.texts, self.unit)
        if faults and not skip:
            index, fault = next(iter(faults.items()))
            more = f" {len(faults) - 1} more rows are unusable." if len(faults) > 1 else ""
            raise InputError(
                f"{self.place(index)}: {fault.text}. {fault.advice}{more} "
                f"To leave {'such rows' if more else 'it'} out, listed, add --skip-bad-rows."
            )
        rows = np.asarray(self.frame.index.isin(list(faults)))
        found = [faults[index] for index in self.frame.index[rows]]
        self.drop(rows, [f.text for f in found], [f.label for f in found], [f.status for f in found])

    def select(self, last_of: str | None, best_of: str | None, drop_top_loss: int, groups: list[str]) -> None:
        if self.frame.empty:
            left = quality.summarise(self.n_rows, self.excluded, self.unit)
            done = (
                f" Only status {', '.join(quality.STATUSES['done'].split())} count." if "status" in self.frame else ""
            )
            raise InputError(f"{', '.join(self.sources[:3])}: no usable row. {left}.{done}")
        if last_of is not None:
            keep = selection.last_of(self.frame, self.column(last_of))
            self.drop(~keep, f"not the last checkpoint of its {last_of}", f"not the last of {last_of}")
        if best_of is not None:
            self.best_of(best_of, groups)
        if drop_top_loss:
            reason = f"one of the {drop_top_loss} highest losses"
            self.drop(selection.top_loss(self.frame, drop_top_loss), reason, "of the highest loss")

    def best_of(self, swept: str, groups: list[str]) -> None:
        values, before = self.frame[self.column(swept)].nunique(), len(self.frame)
        keep = selection.best_of(self.frame, groups)
        self.drop(~keep, f"not the lowest loss over {swept} at its N and D", f"not the best of {swept}")
        after = len(self.frame)
        self.notes.append(f"best of {swept} ({values} values): {after} (N, D) cells, {before - after} runs set aside")

    def finish(self) -> Runs:
        table = self.frame.drop(columns="_file").reset_index(drop=True)
        labels = [
            *row_labels.label_rows(table, self.roles, self.unit),
            *row_labels.label_metric(table, self.roles, self.metric),
            *studies.label_studies(table, self.roles),
        ]
        if not any(label.label == "mixed" for label in labels) and not studies.study_column(table, self.roles):
            labels += label_budgets(table, self.unit)
        notes, doubts = explain_compute(table, self.roles) if self.compute_given else ([], [])
        order = {source: place for place, source in enumerate(self.sources)}
        return Runs(
            table=table,
            excluded=sorted(self.excluded, key=lambda e: (order.get(e.source, 0), e.row)),
            notes=self.notes + notes,
            warnings=self.warnings + doubts + [f"{label.label}: {label.text}" for label in labels],
            sources=self.sources,
            names=self.names,
            roles=self.roles,
            labels=labels,
            metric=self.metric,
            n_rows=self.n_rows,
            left_out=pd.concat(self.left_out).drop(columns="_file") if self.left_out else None,
            unit=self.unit,
        )


def _align(parts: list[Interpreted]) -> None:
    """One column name per role over all files, and the file of each row."""
    for role in {role for part in parts for role in part.roles}:
        used = {part.roles[role] for part in parts if role in part.roles}
        if len(used) > 1:
            for part in parts:
                if role in part.roles and part.roles[role] != role:
                    part.frame = part.frame.rename(columns={part.roles[role]: role})
                    part.names[part.roles[role]] = part.roles[role] = role
    if len({part.metric for part in parts}) > 1:
        for part in parts:
            if "metric" not in part.roles:
                part.frame["metric"] = part.metric
                part.roles["metric"] = "metric"
    for part in parts:
        part.frame["_file"] = part.source


def _joined(unreadable: list[dict[str, dict[int, str]]], sizes: list[int]) -> dict[str, dict[int, str]]:
    """Cells that are no number, by role and position in the joined table."""
    joined: dict[str, dict[int, str]] = {}
    offset = 0
    for part, size in zip(unreadable, sizes, strict=True):
        for role, found in part.items():
            joined.setdefault(role, {}).update({offset + position: text for position, text in found.items()})
        offset += size
    return joined


def _by_file(sources: list[str], messages: list[list[str]]) -> list[str]:
    """Messages once each: plain when every file shares them, else with the file they are about."""
    counts: dict[str, list[str]] = {}
    for source, own in zip(sources, messages, strict=True):
        for message in dict.fromkeys(own):
            counts.setdefault(message, []).append(source)
    return [
        m if len(files) == len(sources) else f"{files[0] if len(files) == 1 else f'{len(files)} files'}: {m}"
        for m, files in counts.items()
    ]


def validate_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """A table with the columns params, tokens and loss (and flops, 6ND when absent) as float64, every one above zero.

    The door of the library: what passes is trusted afterwards. Raises InputError with the row and the value.
    """
    missing = [name for name in REQUIRED if name not in runs.columns]
    if missing:
        raise InputError(f"runs: no column {', '.join(missing)}. Read foreign tables with scaling.read_runs.")
    if runs.empty:
        raise InputError("runs: the table has no rows.")
    table = runs.copy()
    for name in [c for c in CANONICAL if c in table.columns]:
        try:
            values = table[name].to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError) as error:
            raise InputError(f"runs: column {name} holds something that is no number ({error}).") from error
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if len(bad):
            row = table["row"].iloc[bad[0]] if "row" in table.columns else table.index[bad[0]]
            raise InputError(f"runs: {name} is {values[bad[0]]} in row {row}; it must be finite and above zero.")
        table[name] = values
    if "flops" not in table.columns:
        table["flops"] = 6.0 * table["params"] * table["tokens"]
    return table
