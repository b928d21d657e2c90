"""Which rows take part: --where, --exclude, --last-of, --best-of, --drop-top-loss. Each says what it set aside."""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from scaling.errors import InputError
from scaling.quantities import parse_quantity
from scaling.readers.columns import list_columns

_COMPARE: dict[type, Callable] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_QUANTITY = re.compile(r"(?<![\w.])(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)([kKmMbBtT])\b")
_PLACE = re.compile(r"^(?:(?P<file>.+) )?(?:line|record|row) (?P<number>\d+)$")
_STRINGS = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)""")


def where(frame: pd.DataFrame, condition: str, column: Callable[[str], str]) -> np.ndarray:
    """Rows for which a condition holds: comparisons of columns and values joined by and, or, not, in.

    Columns with spaces stand in backquotes (`Model Size`), values may carry a suffix (1.5B). `column` finds the name in
    `frame` of a column as the user writes it. Raises InputError for anything that is no such condition.
    """
    return _Where(frame, condition, column).rows()


class _Where:
    """Evaluates one condition; nothing but comparisons, arithmetic and column names is ever run."""

    def __init__(self, frame: pd.DataFrame, condition: str, column: Callable[[str], str]):
        self.frame, self.condition, self.column = frame, condition, column
        self.quoted: dict[str, str] = {}

    def rows(self) -> np.ndarray:
        try:
            tree = ast.parse(self._python(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._error(f"cannot be read ({getattr(error, 'msg', error)})") from error
        result = self._value(tree.body)
        if not isinstance(result, pd.Series) or result.dtype != bool:
            raise self._error("is not a condition on the rows")
        return result.to_numpy()

    def _error(self, what: str) -> InputError:
        return InputError(f"--where \"{self.condition}\" {what}. Write for example: dataset == 'c4' and params < 1e9.")

    def _python(self) -> str:
        """The condition with backquoted names as identifiers and suffixed numbers as floats."""
        parts = _STRINGS.split(self.condition.strip())
        for place, part in enumerate(parts):
            if part.startswith("`") and place % 2:
                name = f"_column_{len(self.quoted)}"
                self.quoted[name], parts[place] = part[1:-1], name
            elif place % 2 == 0:
                parts[place] = _QUANTITY.sub(lambda m: repr(parse_quantity(m[1] + m[2])), part)
        return "".join(parts)

    def _value(self, node: ast.AST) -> Any:
        match node:
            case ast.BoolOp():
                return self._joined(node)
            case ast.Compare():
                return self._compared(node)
            case ast.UnaryOp(op=ast.Not()):
                return ~self._condition(node.operand)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign):
                number = self._number(node.operand)
                return -number if isinstance(sign, ast.USub) else number
            case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
                with np.errstate(all="ignore"):
                    return _ARITHMETIC[type(op)](self._number(node.left), self._number(node.right))
            case ast.Name():
                return self.frame[self.column(self.quoted.get(node.id, node.id))]
            case ast.Constant(value=str() | int() | float() | bool()):
                return float(node.value) if type(node.value) is int else node.value
            case ast.List() | ast.Tuple() | ast.Set():
                return [self._value(item) for item in node.elts]
        raise self._error(f"holds {type(node).__name__}, which is not allowed")

    def _condition(self, node: ast.AST) -> pd.Series:
        value = self._value(node)
        if not isinstance(value, pd.Series):
            raise self._error("joins something that is no condition")
        if value.dtype != bool:
            raise self._error(f"uses the column {value.name} as a condition; compare it with a value")
        return value

    def _joined(self, node: ast.BoolOp) -> pd.Series:
        first, *others = [self._condition(value) for value in node.values]
        for other in others:
            first = first & other if isinstance(node.op, ast.And) else first | other
        return first

    def _number(self, node: ast.AST) -> Any:
        value = self._value(node)
        kind = value.dtype.kind if isinstance(value, pd.Series) else "f" if isinstance(value, float) else "O"
        if kind not in "iuf":
            raise self._error("does arithmetic on something that is no number")
        return value.astype(float) if isinstance(value, pd.Series) else value

    def _compared(self, node: ast.Compare) -> pd.Series:
        left = self._value(node.left)
        result: pd.Series | None = None
        for op, item in zip(node.ops, node.comparators, strict=True):
            right = self._value(item)
            one = self._one(left, op, right)
            result, left = one if result is None else result & one, right
        assert result is not None
        return result

    def _one(self, left: Any, op: ast.cmpop, right: Any) -> pd.Series:
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(left, pd.Series) or not isinstance(right, list):
                raise self._error("needs a column before `in` and a list after it")
            left, *right = self._alike(left, *right)
            hits = left.isin(right)
            return hits if isinstance(op, ast.In) else ~hits
        if type(op) not in _COMPARE:
            raise self._error(f"holds {type(op).__name__}, which is not allowed")
        left, right = self._alike(left, right)
        result = _COMPARE[type(op)](left, right)
        if not isinstance(result, pd.Series):
            raise self._error("compares two values, neither of them a column")
        return result.fillna(False).astype(bool)

    def _alike(self, *values: Any) -> list[Any]:
        """The values as numbers when all of them are, as texts when a text is among them and columns allow it."""
        numbers = [_is_numeric(value) for value in values]
        if all(numbers):
            return [v.astype(float) if isinstance(v, pd.Series) else float(v) for v in values]
        for value, numeric in zip(values, numbers, strict=True):
            if numeric and isinstance(value, pd.Series):
                raise self._error(f"compares the numbers in {value.name} with a text")
            if numeric and any(isinstance(v, pd.Series) and not _is_numeric(v) for v in values):
                name = next(v.name for v in values if isinstance(v, pd.Series))
                raise self._error(f"compares the texts in {name} with a number; put it in quotes")
        return [v.astype(object).where(v.notna(), "").astype(str) if isinstance(v, pd.Series) else v for v in values]


def _is_numeric(value: Any) -> bool:
    return value.dtype.kind in "iufb" if isinstance(value, pd.Series) else isinstance(value, float | int)


def cells(frame: pd.DataFrame, groups: Sequence[str] = ()) -> np.ndarray:
    """A number for each (N, D) cell, within each value of `groups`; N and D must agree to every digit."""
    return frame.groupby(["params", "tokens", *groups], sort=False, dropna=False).ngroup().to_numpy()


def best_of(frame: pd.DataFrame, groups: Sequence[str] = ()) -> np.ndarray:
    """True for the lowest loss of each (N, D) cell, the first of equals."""
    order = np.lexsort((np.arange(len(frame)), frame["loss"].to_numpy(), cells(frame, groups)))
    return _first_of_each(cells(frame, groups), order)


def last_of(frame: pd.DataFrame, run: str) -> np.ndarray:
    """True for the row with the most tokens of each run, the last of equals; one id at two sizes is two runs."""
    ids = frame.groupby([run, "params"], sort=False, dropna=False).ngroup().to_numpy()
    order = np.lexsort((-np.arange(len(frame)), -frame["tokens"].to_numpy(), ids))
    return _first_of_each(ids, order)


def _first_of_each(ids: np.ndarray, order: np.ndarray) -> np.ndarray:
    keep = np.zeros(len(ids), dtype=bool)
    keep[order[np.unique(ids[order], return_index=True)[1]]] = True
    return keep


def top_loss(frame: pd.DataFrame, count: int) -> np.ndarray:
    """True for the `count` highest losses, the earlier row first among equals."""
    if count < 0 or count >= len(frame):
        raise InputError(f"--drop-top-loss {count}: give a number from 0 to {len(frame) - 1}, one row must remain.")
    order = np.lexsort((np.arange(len(frame)), -frame["loss"].to_numpy()))
    drop = np.zeros(len(frame), dtype=bool)
    drop[order[:count]] = True
    return drop


def find_column(name: str, frame: pd.DataFrame, names: Mapping[str, str], roles: Mapping[str, str]) -> str:
    """The column of `frame` that a user means by its header in the file, its name here or its role."""
    if name in names:
        return names[name]
    if name in frame.columns:
        return name
    if name in roles:
        return roles[name]
    raise InputError(f'no column "{name}". Columns: {list_columns([*frame.columns, *names])}.')


def named(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Rows with a run id, or at "line 14", or at "a.csv line 14". Raises InputError when there is none."""
    place = _PLACE.match(name)
    if place:
        rows = (frame["row"] == int(place["number"])).to_numpy()
        if place["file"]:
            rows = rows & (frame["_file"] == place["file"]).to_numpy()
        if rows.any():
            return rows
        raise InputError(f'--exclude "{name}": no row stands there.')
    if "run_id" not in frame:
        raise InputError(f'--exclude "{name}": the table has no column of run ids. Write --exclude "line 14".')
    ids = frame["run_id"].astype(str)
    rows = (ids == name).to_numpy()
    if not rows.any():
        known = ", ".join(ids.head(5)) + (", .." if len(ids) > 5 else "")
        raise InputError(f'--exclude "{name}": no run has this id. Known ids: {known}.')
    return rows
