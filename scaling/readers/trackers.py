"""Experiment trackers as tables: one row per run, its settings and the last value of everything that it logged."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scaling.errors import InputError
from scaling.readers.raw import RawTable, is_table_name

SCHEMES = ("wandb", "mlflow", "tensorboard")


def is_address(name: str) -> bool:
    """Whether a source names a tracker: "wandb:..", "mlflow:..", "tensorboard:.."; "mlflow.csv" does not."""
    return name.partition(":")[0] in SCHEMES and ":" in name


def read_address(name: str) -> RawTable:
    """One row per run of a tracker.

    wandb:ENTITY/PROJECT reads the service, wandb:FOLDER offline runs; mlflow:URI or mlflow:URI#EXPERIMENT a tracking
    store; tensorboard:FOLDER event files. Raises InputError when the library is absent or nothing is there.
    """
    scheme, _, place = name.partition(":")
    if not place:
        raise InputError(f"{name}: say where, for example {_EXAMPLES[scheme]}.")
    if scheme == "mlflow":
        from scaling.readers.experiment_store import read_store

        return read_store(name, place)
    if scheme == "tensorboard":
        from scaling.readers.event_files import read_event_files

        return read_event_files(name, Path(place))
    from scaling.readers.run_history import read_project

    return read_project(name, place)


_EXAMPLES = {
    "wandb": "wandb:my-team/my-project or wandb:wandb/ (offline runs)",
    "mlflow": "mlflow:sqlite:///mlflow.db or mlflow:http://host:5000#experiment",
    "tensorboard": "tensorboard:runs/",
}


def is_event_folder(name: str) -> bool:
    """Whether a path is a folder without tables that holds TensorBoard event files, in itself or one level down."""
    try:
        folder = Path(name)
        if not folder.is_dir() or any(is_table_name(path.name) for path in folder.iterdir()):
            return False
        found = (path for pattern in ("", "*/") for path in folder.glob(f"{pattern}events.out.tfevents.*"))
        return next(found, None) is not None
    except (OSError, ValueError):  # unreadable or no path at all: whoever opens it says so
        return False


def missing_library(name: str, library: str) -> InputError:
    """The one line that says what to install."""
    return InputError(f"{name}: reading it needs {library}: pip install 'isoflop[{library}]'.")


def runs_table(name: str, rows: Sequence[Mapping[str, Any]], note: str) -> RawTable:
    """A raw table of one row per run. Raises InputError when there is none."""
    if not rows:
        raise InputError(f"{name}: no runs there.")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    frame = pd.DataFrame({i: pd.Series([row.get(c) for row in rows], dtype=object) for i, c in enumerate(columns)})
    frame.columns = pd.Index(columns, dtype=object)
    return RawTable(name, frame, np.arange(1, len(rows) + 1), "record", notes=[note])


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"opt": {"lr": 0.1}} -> {"opt.lr": 0.1}; lists become texts."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str | int | float | bool | None) else str(value)
    return flat
