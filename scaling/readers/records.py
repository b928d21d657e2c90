"""JSON, JSON Lines and Parquet: tables whose rows are records, not lines of text."""

import io
import json
from typing import Any

import numpy as np
import pandas as pd

from scaling.errors import InputError
from scaling.readers.raw import RawTable

WRAPPERS = ("runs", "data", "rows", "records", "results")  # keys under which an object keeps its list of records


def parse_json(name: str, data: bytes) -> RawTable:
    """A JSON array of objects, an object of columns, one object for one run, or one object a line (JSON Lines).

    Nested objects are flattened with dots. Raises InputError with the line for text that is not JSON.
    """
    text = data.decode("utf-8")
    try:
        value = _load(name, text)
    except ValueError as error:
        return _parse_json_lines(name, text, error)
    records = _records_of(name, value)
    return _from_records(name, records, np.arange(1, len(records) + 1), unit="record")


def _load(place: str, text: str) -> Any:
    """The JSON value; ValueError when it is none. Raises InputError for what JSON allows and a table cannot hold."""
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_int=_parse_int)
    except RecursionError as error:
        raise InputError(f"{place}: JSON nested too deeply to be a table.") from error
    except _DoubledKey as error:
        raise InputError(f'{place}: the key "{str(error)[:60]}" stands twice in one object. Remove one.') from error


def _parse_int(text: str) -> int | float:
    """Whole numbers of any length; beyond the digits Python converts, as the nearest float."""
    return int(text) if len(text) < 4000 else float(text)


class _DoubledKey(Exception):
    """A key that stands twice in one object, with different values."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict:
    result = dict(pairs)
    if len(result) != len(pairs):
        for key, value in pairs:
            if result[key] is not value and result[key] != value:
                raise _DoubledKey(key)
    return result


def _parse_json_lines(name: str, text: str, whole: ValueError) -> RawTable:
    """One object a line. `whole` is why the text is not one JSON document: the answer when line 1 fails too."""
    records: list[dict] = []
    lines: list[int] = []
    for line, row in enumerate(text.split("\n"), 1):
        if not row.strip():
            continue
        try:
            record = _load(f"{name} line {line}", row)
        except ValueError as error:
            reason = whole if not records else error
            where = f"line {getattr(reason, 'lineno', line)}" if not records else f"line {line}"
            raise InputError(f"{name} {where}: not JSON ({getattr(reason, 'msg', reason)}).") from error
        if not isinstance(record, dict):
            raise InputError(f"{name} line {line}: expected a JSON object, one a line, got {_kind(record)}.")
        records.append(record)
        lines.append(line)
    return _from_records(name, records, np.asarray(lines, dtype=np.int64), unit="line")


def _records_of(name: str, value: Any) -> list[dict]:
    """The list of records in a JSON document of any of the known shapes."""
    if isinstance(value, dict):
        for key in WRAPPERS:
            if isinstance(value.get(key), list) and all(isinstance(item, dict) for item in value[key]):
                return _records_of(name, value[key])
        if value and all(isinstance(column, list | dict) for column in value.values()):
            return _columns_to_records(name, value)
        return [value]
    if not isinstance(value, list):
        raise InputError(f"{name}: expected a list of runs, got {_kind(value)}.")
    for place, record in enumerate(value, 1):
        if not isinstance(record, dict):
            raise InputError(f"{name} record {place}: expected an object, got {_kind(record)}.")
    if not value:
        raise InputError(f"{name}: the list of runs is empty.")
    return value


def _columns_to_records(name: str, columns: dict) -> list[dict]:
    """Records from {"loss": [..], ..} or {"loss": {"0": ..}, ..}; the nested objects of one run stay one record."""
    sizes = {len(column) for column in columns.values()}
    kinds = {type(column) for column in columns.values()}
    if kinds == {list}:
        if len(sizes) > 1:
            lengths = ", ".join(f"{key}: {len(column)}" for key, column in list(columns.items())[:6])
            raise InputError(f"{name}: columns of different lengths ({lengths}).")
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    keys = [tuple(column) for column in columns.values() if isinstance(column, dict)]
    if kinds == {dict} and len(set(keys)) == 1 and all(key.isdigit() for key in keys[0]):
        return [{column: values[key] for column, values in columns.items()} for key in keys[0]]
    return [columns]


def _from_records(name: str, records: list[dict], lines: np.ndarray, *, unit: str) -> RawTable:
    flat = [_flatten(record) for record in records]
    columns = list(dict.fromkeys(key for record in flat for key in record))
    if not columns or not records:
        raise InputError(f"{name}: no runs in this file.")
    frame = pd.DataFrame(
        {i: pd.Series([record.get(key) for record in flat], dtype=object) for i, key in enumerate(columns)}
    )
    frame.columns = pd.Index(columns, dtype=object)
    return RawTable(name, frame, lines, unit)


def _flatten(record: dict, prefix: str = "") -> dict:
    """{"config": {"lr": 1}} -> {"config.lr": 1}; lists become their JSON text."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return flat


def _kind(value: Any) -> str:
    return {list: "a list", dict: "an object", str: "a text", type(None): "null"}.get(type(value), f"{value!r}"[:40])


def parse_parquet(name: str, data: bytes) -> RawTable:
    """A Parquet file; needs pyarrow. Raises InputError for a damaged one."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise InputError(f"{name} is Parquet: reading it needs pyarrow: pip install 'isoflop[parquet]'.") from error
    try:
        frame = parquet.read_table(io.BytesIO(data)).to_pandas()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{name}: damaged Parquet file ({str(error)[:120]}).") from error
    if not frame.size:
        raise InputError(f"{name}: no runs in this file.")
    frame = frame.reset_index(drop=frame.index.names == [None])
    frame.columns = pd.Index([str(column) for column in frame.columns], dtype=object)
    return RawTable(name, frame, np.arange(1, len(frame) + 1), "record")
