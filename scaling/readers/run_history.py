"""Weights & Biases: the service by a full scan of each history, and offline runs from their files.

The service's `history()` is a sample of at most 500 points, so the last logged value can be missing from it;
`scan_history()` gives every point. Offline runs are logs of length-prefixed records in blocks of 32 KiB, the format of
LevelDB's log, after a header of seven bytes; the records are the library's own messages.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scaling.errors import InputError
from scaling.readers.raw import RawTable, read_file
from scaling.readers.trackers import flatten, missing_library, runs_table

_BLOCK = 32 * 1024
_HEADER = 7  # of the file, and of each piece: checksum (4), length (2), kind (1)
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def read_project(name: str, place: str) -> RawTable:
    """One row per run of a project of the service, or of a folder of offline runs.

    Raises InputError when wandb is absent, the service refuses, or there are no runs.
    """
    if Path(place).is_dir():
        rows = [_offline_row(name, path) for path in sorted(Path(place).rglob("run-*.wandb"))]
        return runs_table(name, rows, f"{len(rows)} offline runs: the last value of each key, all points read")
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise missing_library(name, "wandb") from error
    if place.count("/") != 1:
        raise InputError(f'{name}: neither a folder nor ENTITY/PROJECT. Write for example "wandb:my-team/my-project".')
    try:
        rows = [service_row(run) for run in wandb.Api().runs(place)]
    except (wandb.errors.Error, ValueError, OSError) as error:  # a dead network is an OSError there
        raise InputError(f"{name}: the service cannot be read ({str(error)[:200]}).") from error
    return runs_table(name, rows, f"{len(rows)} runs of the service: the last value of each key, by scan_history")


def service_row(run: Any) -> dict[str, Any]:
    """Settings, state and last values of one run, as `wandb.Api().runs(..)` gives it."""
    row = {"run_id": run.id, "name": run.name, "state": run.state}
    return row | flatten(run.config, "config.") | last_values(run.scan_history())


def last_values(points: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The last value of each key over all points of a history."""
    last: dict[str, Any] = {}
    for point in points:
        last.update({key: value for key, value in point.items() if value is not None})
    return {key: value for key, value in flatten(last).items() if key not in ("_timestamp", "_runtime", "_step")}


def _offline_row(name: str, path: Path) -> dict[str, Any]:
    """The row of one offline run, from its own file."""
    try:
        from wandb.proto import wandb_internal_pb2
    except ModuleNotFoundError as error:
        raise missing_library(name, "wandb") from error
    row: dict[str, Any] = {"run_id": path.stem.removeprefix("run-"), "state": "running"}
    config: dict[str, Any] = {}
    points = []
    for data in records(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            row["name"] = record.run.display_name
            config.update(_items(record.run.config.update))
        elif kind == "config":
            config.update(_items(record.config.update))
        elif kind == "history":
            points.append(_items(record.history.item))
        elif kind == "exit":
            row["state"] = "crashed" if record.exit.exit_code else "finished"
    config.pop("_wandb", None)
    return row | flatten(config, "config.") | last_values(points)


def _items(items: Any) -> dict[str, Any]:
    """Key and value of each item; nested keys are joined by dots."""
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def records(path: Path) -> Iterator[bytes]:
    """The records of an offline run. Raises InputError when the file is none; a cut last record ends the reading."""
    data = read_file(path)
    if data[:4] != b":W&B":
        raise InputError(f"{path}: not an offline run of Weights & Biases.")
    place = _HEADER
    parts: list[bytes] = []
    while place + _HEADER <= len(data):
        if _BLOCK - place % _BLOCK < _HEADER:  # the rest of a block too short for a piece is padding
            place += _BLOCK - place % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        piece = data[place + _HEADER : place + _HEADER + length]
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or len(piece) < length:
            return
        parts = [piece] if kind in (_WHOLE, _FIRST) else [*parts, piece]
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)
        place += _HEADER + length
