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

MISSING = {"", "nan", "na", "n/a", "#n/a", "null", "none", "-", "--", "—", "<na>", "nat", "?", "-nan", "+nan"}
_SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2212": "-", "\ufeff": ""})
_SUFFIXED = re.compile(r"^(?P<number>.*[0-9.])\s*(?P<suffix>[kKmMbBgGtTqQ])$")
_DECIMAL_COMMA = re.compile(r"^[+-]?\d+,\d+(?:[eE][+-]?\d+)?$")
_GROUPED = re.compile(r"^[+-]?\d{1,3}(?:,\d{3})+$")
_THOUSANDS = re.compile(r"^[+-]?\d{1,3}(?:[,_]\d{3})+$")
_DIGITS = 400  # a longer cell holds no number that float64 could


@dataclass
class Numbers:
    """A column as float64, NaN where it is missing or unreadable; `texts` holds what stands in such cells."""

    values: np.ndarray
    texts: dict[int, str] = field(default_factory=dict)  # position: the text, when it is neither a number nor empty
    forms: dict[str, tuple[str, float]] = field(default_factory=dict)  # form: an example and its value

    @property
    def unreadable(self) -> bool:
        """Whether some cell is neither a number nor a word for a missing one."""
        return any(text.lower() not in MISSING for text in self.texts.values())


def to_float64(column: pd.Series, *, exponent: int = 0, percent: bool = False, comma_decimals: bool = False) -> Numbers:
    """The cells of `column` times 10**exponent, each rounded once.

    A cell that carries its own suffix must carry the unit of the header (`exponent`), or the header none. Percentages
    are numbers only with `percent`. With `comma_decimals` a comma can be a decimal mark; a column in which it can be
    either raises InputError.
    """
    if column.dtype == bool:
        return Numbers(np.full(len(column), np.nan), {i: str(v) for i, v in enumerate(column)})
    if column.dtype.kind in "iuf":
        return Numbers(_scale(column.to_numpy(dtype=np.float64, na_value=np.nan), exponent))
    cells = column.to_numpy(dtype=object)
    quick = _plain_cells(cells) if exponent == 0 else None
    if quick is not None:
        gaps = np.flatnonzero(np.isnan(quick))
        return Numbers(quick, {int(i): str(cells[i]).strip() for i in gaps if not _is_missing(cells[i])})
    return _cell_by_cell(cells, exponent, percent, comma_decimals)


def _scale(values: np.ndarray, exponent: int) -> np.ndarray:
    """values * 10**exponent as if the shortest decimal of each value were multiplied exactly and rounded once."""
    if exponent == 0:
        return values
    finite = values[np.isfinite(values)]
    if 0 < exponent <= 22 and bool(np.all(finite % 1 == 0)) and bool(np.all(np.abs(finite) < 2**53)):
        return values * 10.0**exponent  # two exact factors, one rounding
    return np.array([_shift(repr(value), exponent) for value in values.tolist()], dtype=np.float64)


def _shift(number: str, exponent: int) -> float:
    """float("0.07" "e9"): the decimal text moved by a power of ten, then rounded once."""
    digits, _, power = number.lower().partition("e")
    if exponent == 0 or not (digits[-1:].isdigit() or digits.endswith(".")):
        return float(number)  # nan and inf among them
    return float(f"{digits}e{int(power or 0) + exponent}")


def _plain_cells(cells: np.ndarray) -> np.ndarray | None:
    """The cells as floats when each is a plain number or missing, else None."""
    try:
        return np.array([math.nan if _is_missing(cell) else _plain_number(cell) for cell in cells], dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return None


def _plain_number(cell: Any) -> float:
    if isinstance(cell, bool | np.bool_):
        raise ValueError(cell)
    return float(cell)


def _is_missing(cell: Any) -> bool:
    return cell is None or cell is pd.NaT or cell is pd.NA or (isinstance(cell, str) and not cell.strip())


def _cell_by_cell(cells: np.ndarray, exponent: int, percent: bool, comma_decimals: bool) -> Numbers:
    texts = [None if _is_missing(cell) else _clean(cell) for cell in cells]
    comma = _uses_decimal_comma([text for text in texts if text], comma_decimals)
    result = Numbers(np.full(len(cells), np.nan))
    for position, text in enumerate(texts):
        if text is None:
            continue
        try:
            form, value = _read_cell(text, exponent, percent, comma)
        except (ValueError, InputError):
            result.texts[position] = text
            continue
        result.values[position] = value
        if form:
            result.forms.setdefault(form, (text, value))
    return result


def _clean(cell: Any) -> str:
    if isinstance(cell, float):
        return repr(float(cell))
    try:
        return str(cell).translate(_SPACES).strip()
    except ValueError:  # a whole number of more digits than Python prints
        return "a number of thousands of digits"


def _uses_decimal_comma(texts: Sequence[str], possible: bool) -> bool:
    """Whether commas are decimal marks: some cell has one comma that cannot group thousands, and none has a point."""
    with_comma = [text for text in texts if "," in text]
    if not with_comma or any("." in text for text in texts) or not all(map(_DECIMAL_COMMA.match, with_comma)):
        return False
    if not all(map(_GROUPED.match, with_comma)):
        return True
    if possible:
        raise InputError(
            f'"{with_comma[0]}" can be {with_comma[0].replace(",", "")} or {with_comma[0].replace(",", ".")}. '
            "Write numbers with a decimal point and without separators."
        )
    return False


def _read_cell(text: str, exponent: int, percent: bool, comma: bool) -> tuple[str, float]:
    """How the number is written, "" when plainly, and its value. Raises ValueError or InputError when it is none."""
    if len(text) > _DIGITS:
        raise ValueError("too long")
    if text.lower() in MISSING:
        raise ValueError(text)
    plain = text.replace(",", ".") if comma else text
    if plain.endswith("%"):
        if not percent:
            raise ValueError(text)
        return "percent", _shift(_ungrouped(plain[:-1].strip()), exponent - 2)
    match = _SUFFIXED.match(plain)
    if match:
        if exponent and SUFFIXES[match["suffix"].lower()] != exponent:
            raise InputError(f"{text} has another unit than its header")
        return "suffix", parse_quantity(plain)
    try:
        return "decimal comma" if comma and plain != text else "", _shift(_as_float_text(plain), exponent)
    except ValueError:
        return "thousands separators", _shift(_ungrouped(plain), exponent)


def _as_float_text(text: str) -> str:
    if "_" in text:
        raise ValueError(text)
    float(text)
    return text


def _ungrouped(text: str) -> str:
    """The number without $ and separators of thousands, as Python writes it; ValueError when it is none."""
    text = re.sub(r"(?<=\d) (?=\d{3}(?:\D|$))", ",", text).removeprefix("$").strip()
    if "," in text or "_" in text:
        whole, point, rest = text.partition(".")
        if not _THOUSANDS.match(whole):
            raise ValueError(text)
        text = whole.replace(",", "").replace("_", "") + point + rest
    return _as_float_text(text)


def shortest(value: float) -> str:
    """A number for a message: whole numbers without a point, others as short as they round-trip."""
    return str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < 1e15 else repr(float(value))
