"""Delimited text: CSV, TSV and their cousins, with exact line numbers.

Regular files go through pandas' C parser. A file with quoted line breaks or an odd row goes through the csv module,
which is slower and knows on which line each record starts.
"""

import csv
import io
import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd

from scaling.errors import InputError
from scaling.readers.aliases import SECONDARY
from scaling.readers.columns import normalise
from scaling.readers.raw import RawTable

DELIMITERS = (",", "\t", ";", "|")


def parse_delimited(name: str, data: bytes) -> RawTable:
    """Read delimited UTF-8 text with "\\n" line ends, its first row the header.

    Raises InputError, with the line, for a missing or doubled header and for a row of another width.
    """
    header_line, offset, delimiter = _find_header(name, data)
    notes = [] if delimiter == "," else [f"delimiter {_say_delimiter(delimiter)}"]
    table = _fast(name, data, header_line, offset, delimiter)
    if table is None:
        table = _exact(name, data, header_line, offset, delimiter)
    table.notes.extend(notes)
    table.comma_decimals = delimiter == ";"
    return _drop_empty_rows(_merge_doubles(table, header_line))


def _find_header(name: str, data: bytes) -> tuple[int, int, str]:
    """Line number and byte offset of the header, and the delimiter that cuts it into most cells."""
    offset, line = 0, 1
    declared = None
    while offset < len(data):
        end = data.find(b"\n", offset)
        text = data[offset : len(data) if end < 0 else end].decode("utf-8", "replace").strip()
        if text.lower().startswith("sep=") and len(text) == 5 and line == 1:  # Excel's own first line
            declared = text[4]
        elif text and not (text.startswith("#") and _is_comment(data, end, text)):
            return line, offset, declared or _sniff(text)
        if end < 0:
            break
        offset, line = end + 1, line + 1
    raise InputError(f"{name}: the file has no header line.")


def _is_comment(data: bytes, end: int, text: str) -> bool:
    """Whether a line that starts with "#" stands above the header: the line below it has more cells."""
    below = data[end + 1 : data.find(b"\n", end + 1) if end >= 0 else 0].decode("utf-8", "replace")
    return end >= 0 and (below.startswith("#") or below.count(_sniff(below)) > text.count(_sniff(text)))


def _sniff(header: str) -> str:
    outside = "".join(header.split('"')[::2])  # the parts that are not quoted
    return max(DELIMITERS, key=outside.count)


def _say_delimiter(delimiter: str) -> str:
    return {"\t": "tab"}.get(delimiter, f'"{delimiter}"')


def _headers(name: str, cells: list[str], line: int) -> list[str]:
    """Headers as written, those without a name called by their place. Raises InputError when there is no header."""
    headers = [cell.strip() for cell in cells]
    if headers and all(_is_number(cell) for cell in headers if cell) and any(headers):
        raise InputError(f"{name} line {line}: numbers where column names are expected. Add a header line.")
    return [header or f"column {place}" for place, header in enumerate(headers, 1)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------------------------------------------- regular files


def _fast(name: str, data: bytes, header_line: int, offset: int, delimiter: str) -> RawTable | None:
    """The table by pandas' C parser, or None when a row is odd enough to need the exact parser."""
    end = data.find(b"\n", offset)
    if end < 0:
        return None
    cells = next(csv.reader([data[offset:end].decode("utf-8")], delimiter=delimiter))
    body = memoryview(data)[end + 1 :]
    lines = _regular_lines(np.frombuffer(body, np.uint8), delimiter, len(cells))
    if lines is None:
        return None
    frame = _read_csv(body, delimiter, cells)
    if frame is None or len(frame) != len(lines):
        return None
    frame.columns = pd.Index(_headers(name, cells, header_line), dtype=object)
    return RawTable(name, frame, lines + header_line + 1)


def _regular_lines(text: np.ndarray, delimiter: str, width: int) -> np.ndarray | None:
    """Indices of the lines that hold a row; None unless each has `width` cells and closes its quotes."""
    breaks = np.flatnonzero(text == 10)
    starts = np.concatenate([[0], breaks + 1])
    ends = np.concatenate([breaks, [len(text)]])
    marks = np.flatnonzero(text == ord(delimiter))
    quotes = np.flatnonzero(text == 34)
    if len(quotes):
        if (np.diff(np.searchsorted(quotes, np.concatenate([starts, [len(text)]]))) % 2).any():
            return None
        marks = marks[np.searchsorted(quotes, marks) % 2 == 0]
    counts = np.searchsorted(marks, ends) - np.searchsorted(marks, starts)
    filled = ends > starts
    if (counts[filled] != width - 1).any():
        return None
    return np.flatnonzero(filled)


def _read_csv(body: memoryview, delimiter: str, headers: list[str]) -> pd.DataFrame | None:
    precision: Any = {} if _exact_by_default() else {"float_precision": "round_trip"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)
            return pd.read_csv(
                io.BytesIO(body),
                sep=delimiter,
                header=None,
                names=list(range(len(headers))),
                dtype={i: str for i, header in enumerate(headers) if normalise(header) in SECONDARY["run_id"]},
                keep_default_na=False,
                na_values=[""],
                low_memory=False,
                encoding="utf-8",
                **precision,
            )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, OverflowError):
        return None  # the exact parser finds the line and says why


def _exact_by_default() -> bool:
    """From 3.1 on pandas reads floats correctly rounded and deprecates the option that asked for it."""
    return tuple(int(part) for part in pd.__version__.split(".")[:2]) >= (3, 1)


# ------------------------------------------------------------------------------------------------------- odd files


def _exact(name: str, data: bytes, header_line: int, offset: int, delimiter: str) -> RawTable:
    """The table by the csv module, each record with the line on which it starts."""
    text = data[offset:].decode("utf-8")
    records, lines = _records(name, text, header_line, delimiter)
    if not records:
        raise InputError(f"{name}: the file has no header line.")
    if "".join(text.split("\n")[lines[-1] - header_line :]).count('"') % 2:
        raise InputError(f"{name} line {lines[-1]}: a quote is opened here and never closed. Close or remove it.")
    headers = _headers(name, records[0], lines[0])
    width = len(headers)
    for cells, line in zip(records[1:], lines[1:], strict=True):
        if len(cells) > width and not any(cell.strip() for cell in cells[width:]):
            del cells[width:]
        if len(cells) != width:
            raise InputError(
                f"{name} line {line}: {len(cells)} cells, but the header names {width} columns. "
                "Mend or remove that row; a cell that holds the delimiter must be quoted."
            )
    columns = list(zip(*records[1:], strict=True)) or [()] * width
    frame = pd.DataFrame({place: pd.Series(column, dtype=object) for place, column in enumerate(columns)})
    frame.columns = pd.Index(headers, dtype=object)
    return RawTable(name, frame, np.asarray(lines[1:], dtype=np.int64))


def _records(name: str, text: str, first_line: int, delimiter: str) -> tuple[list[list[str]], list[int]]:
    """Every record that is not blank, and its line."""
    limit = csv.field_size_limit(sys.maxsize)
    records, lines = [], []
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter)
    start = 0
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                records.append(cells)
                lines.append(first_line + start)
            start = reader.line_num
    except csv.Error as error:
        raise InputError(f"{name} line {first_line + start}: not readable as delimited text ({error}).") from error
    finally:
        csv.field_size_limit(limit)
    return records, lines


def _merge_doubles(table: RawTable, line: int) -> RawTable:
    """Drop a column that repeats another with the same header and content. Raises InputError when contents differ."""
    headers = list(table.frame.columns)
    if len(set(headers)) == len(headers):
        return table
    keep: dict[str, int] = {}
    for place, header in enumerate(headers):
        first = keep.setdefault(header, place)
        if first != place and not table.frame.iloc[:, first].equals(table.frame.iloc[:, place]):
            raise InputError(
                f'{table.name} line {line}: two columns are called "{header[:60]}" (columns {first + 1} and '
                f"{place + 1}) and differ. Rename one."
            )
        if first != place:
            table.notes.append(f'column {place + 1} repeats "{header}" and was left out')
    table.frame = table.frame.iloc[:, list(keep.values())]
    return table


def _drop_empty_rows(table: RawTable) -> RawTable:
    """Leave out rows in which every cell is empty, as spreadsheets append them."""
    empty = table.frame.isna().all(axis=1).to_numpy()
    if empty.any():
        table.notes.append(f"{int(empty.sum())} rows of empty cells left out")
        table.frame = table.frame.loc[~empty].reset_index(drop=True)
        table.lines = table.lines[~empty]
    if table.frame.empty:
        raise InputError(f"{table.name}: a header and no rows. There is nothing to read.")
    return table
