"""Cells as people write them, to float64: "70B", "32.0K", "4.5E-05", "11%", "1,000,000", whole numbers beyond int64.

Units are powers of ten joined to the decimal text before the one rounding to float64, so 0.07 in a column of billions
is 7e7 exactly, which 0.07 * 1e9 is not.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from scaling.errors import InputError
from scaling.quantities import SUFFIXES, parse_quantity

MISSING = {"", "nan", "na", "n/a", "#n/a", "null", "none", "-", "--", "—", "<na>", "nat", "?"}
_SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2212": "-", "\ufeff": ""})
_SUFFIXED = re.compile(r"^(?P<number>.*[0-9.])\s*(?P<suffix>[kKmMbBgGtTqQ])$")
_DECIMAL_COMMA = re.compile(r"^[+-]?\d+,\d+(?:[eE][+-]?\d+)?$")
_GROUPED = re.compile(r"^[+-]?\d{1,3}(?:,\d{3})+$")


@dataclass
class Numbers:
    """A column as float64 (NaN where missing), what could not be read by position, and what was converted."""

    values: np.ndarray
    unreadable: dict[int, str] = field(default_factory=dict)  # position: the text
    forms: dict[str, str] = field(default_factory=dict)  # form ("suffix", "percent", ..): an example as written
    decimal_comma: bool = False


def to_float64(column: pd.Series, *, exponent: int = 0, semicolons: bool = False) -> Numbers:
    """The cells of `column` times 10**exponent, each rounded once.

    A cell that carries its own suffix must carry the unit of the header (`exponent`), or the header none.
    With `semicolons` (text delimited by ";") a lone comma may be a decimal mark.
    """
    if column.dtype == bool:
        return Numbers(np.full(len(column), np.nan), {i: str(v) for i, v in enumerate(column[:3])})
    if column.dtype.kind in "iuf":
        return Numbers(_scale(column.to_numpy(dtype=np.float64, na_value=np.nan), exponent))
    cells = column.to_numpy(dtype=object)
    quick = _all_plain(cells) if exponent == 0 else None
    return Numbers(quick) if quick is not None else _cell_by_cell(cells, exponent, semicolons)


def _scale(values: np.ndarray, exponent: int) -> np.ndarray:
    """values * 10**exponent as if the shortest decimal of each value were multiplied exactly and rounded once."""
    if exponent == 0:
        return values
    if abs(exponent) <= 22 and bool(np.all(values[np.isfinite(values)] % 1 == 0)) and exponent > 0:
        return values * 10.0**exponent  # two exact factors, one rounding
    return np.array([_shift(repr(value), exponent) for value in values.tolist()], dtype=np.float64)


def _shift(number: str, exponent: int) -> float:
    """float("0.07" "e9"): the decimal text moved by a power of ten, then rounded once."""
    digits, _, power = number.lower().partition("e")
    if not digits[-1:].isdigit() and not digits.endswith("."):
        return float(number)  # nan, inf
    return float(f"{digits}e{int(power or 0) + exponent}")


def _all_plain(cells: np.ndarray) -> np.ndarray | None:
    """The cells as floats when each is a plain number or missing, else None."""
    try:
        return np.array([math.nan if _is_missing(cell) else float(cell) for cell in cells], dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return None


def _is_missing(cell: Any) -> bool:
    return cell is None or cell is pd.NaT or cell is pd.NA or (cell.__class__ is str and not cell)


def _cell_by_cell(cells: np.ndarray, exponent: int, semicolons: bool) -> Numbers:
    texts = [None if _is_missing(cell) else _clean(cell) for cell in cells]
    comma = _uses_decimal_comma([text for text in texts if text], semicolons)
    result = Numbers(np.full(len(cells), np.nan), decimal_comma=comma)
    for position, text in enumerate(texts):
        if text is None or text.lower() in MISSING:
            continue
        try:
            result.values[position] = _read_cell(text, exponent, comma, result.forms)
        except (ValueError, InputError):
            result.unreadable[position] = text
    return result


def _clean(cell: Any) -> str:
    if isinstance(cell, bool | np.bool_):
        return f"{cell} (a truth value)"
    return (repr(float(cell)) if isinstance(cell, float) else str(cell)).translate(_SPACES).strip()


def _uses_decimal_comma(texts: Sequence[str], semicolons: bool) -> bool:
    """Whether commas are decimal marks: some cell has one comma that cannot group thousands, and none has a point."""
    with_comma = [text for text in texts if "," in text]
    if not with_comma or any("." in text for text in texts):
        return False
    single = all(_DECIMAL_COMMA.match(text) for text in with_comma)
    if not single:
        return False
    if not all(_GROUPED.match(text) for text in with_comma):
        return True
    if semicolons:
        raise InputError(
            f'"{with_comma[0]}" can be {with_comma[0].replace(",", "")} or {with_comma[0].replace(",", ".")}. '
            "Write numbers with a decimal point and without separators."
        )
    return False


def _read_cell(text: str, exponent: int, comma: bool, forms: dict[str, str]) -> float:
    if comma:
        forms.setdefault("decimal comma", text)
        text = text.replace(",", ".")
    if text.endswith("%"):
        forms.setdefault("percent", text)
        return _shift(_plain(text[:-1].strip()), exponent - 2)
    match = _SUFFIXED.match(text)
    if match:
        if exponent and SUFFIXES[match["suffix"].lower()] != exponent:
            raise InputError(f"{text} has another unit than its header")
        forms.setdefault("suffix", text)
        return parse_quantity(text)
    try:
        return _shift(text, exponent) if "_" not in text else _shift(_plain(text), exponent)
    except ValueError:
        forms.setdefault("thousands separators", text)
        return _shift(_plain(text), exponent)


def _plain(text: str) -> str:
    """The number without $ and separators of thousands, as Python writes it; ValueError when it is none."""
    text = re.sub(r"(?<=\d) (?=\d{3}(?:\D|$))", ",", text).removeprefix("$").strip()
    if "," in text or "_" in text:
        whole, point, rest = text.partition(".")
        if not re.match(r"^[+-]?\d{1,3}(?:[,_]\d{3})+$", whole):
            raise ValueError(text)
        text = whole.replace(",", "").replace("_", "") + point + rest
    float(text)
    return text


def shortest(value: float) -> str:
    """A number for a message: whole numbers without a point, others as short as they round-trip."""
    return str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < 1e15 else repr(float(value))
