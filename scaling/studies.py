"""Several studies in one table: metrics, tokenizers, evaluation sets, corpora or code versions under one law."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from scaling.errors import InputError
from scaling.quality import Label

if TYPE_CHECKING:
    from scaling.runs import Runs

MIXABLE = ("metric", "tokenizer", "vocab_size", "eval_set", "corpus", "version")
MOST_VALUES = 12  # of a column that could tell studies apart
MOST_ROWS = 200_000  # rows up to which repeated cells are searched for such a column


def label_studies(table: pd.DataFrame, roles: dict[str, str]) -> list[Label]:
    """Columns whose several values make several studies, and (N, D) cells that hold several runs."""
    labels = []
    for role in MIXABLE:
        column = roles.get(role)
        if column is not None and table[column].nunique() > 1:
            labels.append(Label("mixed", f'"{column}" takes {_values(table[column])}: {_advice(column)}'))
    return labels + label_repeats(table, roles)


def label_repeats(table: pd.DataFrame, roles: dict[str, str]) -> list[Label]:
    """(N, D) cells with several runs, and the columns in which these differ."""
    if len(table) > MOST_ROWS:
        return []
    repeated = table.duplicated(["params", "tokens"], keep=False)
    if not repeated.any():
        return []
    cells = table[repeated].groupby(["params", "tokens"], sort=False)
    several = [c for c in _telling(table, roles) if (cells[c].nunique() > 1).mean() > 0.5]
    swept = [c for c in several if c == roles.get("learning_rate")]
    hint = f"; --best-of {swept[0]} keeps the lowest loss of each" if swept else ""
    differ = f" that differ in {', '.join(several[:6])}" if several else ""
    count = int(repeated.sum())
    text = f"{count} rows share their (N, D) with others: {cells.ngroups} cells hold several runs{differ}{hint}"
    return [Label("repeated", text)]


def _telling(table: pd.DataFrame, roles: dict[str, str]) -> list[str]:
    """Columns with a few values each, in which runs could differ by design."""
    marks = {roles.get("outlier"), roles.get("reason")}
    skip = {"params", "tokens", "loss", "flops", "row", "run_id", "status"} | marks
    return [c for c in table.columns if c not in skip and 1 < table[c].nunique() <= MOST_VALUES]


def study_column(table: pd.DataFrame, roles: dict[str, str]) -> str | None:
    """A column of texts for each of whose values the same (N, D) points stand in the table: one study each."""
    if len(table) > MOST_ROWS or not table.duplicated(["params", "tokens"]).any():
        return None
    cells = table.groupby(["params", "tokens"], sort=False)
    for column in _telling(table, roles):
        if table[column].dtype.kind in "iufb" or column in ("source", roles.get("seed")):
            continue  # numbers are swept, and files that are given together are meant together
        values = table[column].nunique()
        complete = (cells[column].nunique() == values) & (cells.size() == values)
        if complete.mean() > 0.9:
            return column
    return None


def require_one_study(runs: "Runs", *, group_by: str | None = None, pool: Sequence[str] = ()) -> None:
    """Refuse runs of several studies, unless `group_by` separates them or `pool` names the column on purpose.

    Raises InputError with the values and the options that would go on.
    """
    table, roles = runs.table, runs.roles
    pooled = {runs.column(name) for name in pool}
    groups = [part for _, part in table.groupby(runs.column(group_by), dropna=False)] if group_by else [table]
    named = [roles[role] for role in MIXABLE if role in roles]
    for part in groups:
        repeated = study_column(part, roles)
        for column in [*named, *([repeated] if repeated and repeated not in named else [])]:
            if column not in pooled and part[column].nunique() > 1:
                raise InputError(
                    f'{_files(runs)}: several studies, "{column}" takes {_values(part[column])}. {_advice(column)}'
                )


def _files(runs: "Runs") -> str:
    return ", ".join(runs.sources[:3]) + (f" and {len(runs.sources) - 3} more" if len(runs.sources) > 3 else "")


def _values(column: pd.Series) -> str:
    counts = column.value_counts()
    shown = ", ".join(f"{str(value)[:40]} ({count})" for value, count in counts.head(6).items())
    return f"{len(counts)} values: {shown}{', ..' if len(counts) > 6 else ''}"


def _advice(column: str) -> str:
    quoted = f"`{column}`" if not str(column).isidentifier() else column
    return (
        f'Fit each with --group-by "{column}", take one with --where "{quoted} == ..", or pool them on purpose with '
        f'--pool "{column}".'
    )
