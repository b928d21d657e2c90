"""What trackers export as CSV: runs whose settings stand in one cell as a dict, and charts, which are no runs."""

import ast
import json
import math
import re
from typing import Any

import pandas as pd

from scaling.errors import InputError
from scaling.readers.raw import RawTable
from scaling.readers.trackers import flatten

_CHART = re.compile(r" - .+__(?:MIN|MAX)$")
_LONGEST = 100_000  # characters of a cell that is read as a dict


def read_export(table: RawTable) -> RawTable:
    """The table with cells like "{'loss': 3.2}" taken apart into columns "summary.loss".

    Raises InputError for an exported chart, which holds a sampled history in the place of runs.
    """
    charts = [header for header in table.frame.columns if _CHART.search(header)]
    if charts:
        raise InputError(
            f'{table.name}: a chart exported from Weights & Biases ("{charts[0][:60]}"): a sampled history of curves, '
            "not one row per run. Export the table of runs, or read wandb:ENTITY/PROJECT."
        )
    for header in [h for h in table.frame.columns if _holds_dicts(table.frame[h])]:
        _take_apart(table, header)
    return table


def _holds_dicts(column: pd.Series) -> bool:
    if column.dtype.kind in "iufb":
        return False
    filled = column.dropna()
    first = filled.iloc[0] if len(filled) else ""
    return isinstance(first, str) and first.lstrip().startswith("{") and first.rstrip().endswith("}")


def _take_apart(table: RawTable, header: str) -> None:
    """Replace a column of dicts by one column per key; leave it when some cell is none."""
    found = [parse_dict(cell) if isinstance(cell, str) else {} for cell in table.frame[header]]
    rows = [flatten(value, f"{header}.") for value in found if value is not None]
    if len(rows) < len(found):
        return
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in table.frame.columns]
    parts = {key: pd.Series([row.get(key) for row in rows], dtype=object, index=table.frame.index) for key in keys}
    table.frame = pd.concat([table.frame.drop(columns=header), pd.DataFrame(parts)], axis=1)
    table.notes.append(f'column "{header}" holds dicts: {len(keys)} columns taken out of it')


def parse_dict(text: str) -> dict[str, Any] | None:
    """A dict written as JSON or as Python prints it (nan and inf included); None for anything else."""
    if len(text) > _LONGEST:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = _literal(ast.parse(text.strip(), mode="eval").body)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else None


def _literal(node: ast.AST) -> Any:
    """The value of a literal, with the bare names nan and inf as floats. Raises ValueError for any other expression."""
    match node:
        case ast.Name(id="nan" | "inf" as name):
            return math.nan if name == "nan" else math.inf
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_literal(operand)
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_literal(k): _literal(v) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return str([_literal(item) for item in items])
        case ast.Constant(value=str() | int() | float() | bool() | None as value):
            return value
    raise ValueError(f"{type(node).__name__} is no literal")
