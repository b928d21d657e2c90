"""MLflow tracking stores: parameters, status and the last value of each metric of every run."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scaling.errors import InputError
from scaling.readers.raw import RawTable
from scaling.readers.trackers import missing_library, runs_table

_SETTINGS = {  # while reading: a folder that was named is meant, a dead server answers soon, nothing is reported
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_PAGE = 1000  # runs a request


def read_store(name: str, place: str) -> RawTable:
    """One row per run of a tracking URI, of all experiments or the one after "#". Raises InputError when absent."""
    uri, _, experiment = place.partition("#")
    _require_file(name, uri)
    with _settings():
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ModuleNotFoundError as error:
            raise missing_library(name, "mlflow") from error
        try:
            rows = [_row(run) for run in _runs(MlflowClient(tracking_uri=uri), name, experiment)]
        except ModuleNotFoundError as error:
            raise InputError(f"{name}: MLflow needs {error.name} for this store: pip install {error.name}.") from error
        except MlflowException as error:
            raise InputError(f"{name}: MLflow cannot read it ({str(error)[:200]}).") from error
    return runs_table(name, rows, f"{len(rows)} runs of an MLflow store: the last value of each metric")


def _require_file(name: str, uri: str) -> None:
    """A store that is a file or a folder must exist, since MLflow would make an empty one."""
    scheme, sign, rest = uri.partition(":")
    path = rest.removeprefix("///") if scheme == "sqlite" else rest.removeprefix("//") if scheme == "file" else uri
    if (not sign or scheme in ("sqlite", "file")) and not Path(path).exists():
        raise InputError(f"{name}: no such store: {path}.")


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    added = {key: value for key, value in _SETTINGS.items() if key not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            os.environ.pop(key, None)


def _runs(client: Any, name: str, experiment: str) -> Iterator[Any]:
    """Every run, page after page."""
    known = {found.name: found.experiment_id for found in client.search_experiments()}
    if experiment and experiment not in known:
        raise InputError(f'{name}: no experiment "{experiment}". Known: {", ".join(sorted(known))}.')
    ids = [known[experiment]] if experiment else list(known.values())
    token = None
    while True:
        page = client.search_runs(ids, max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _row(run: Any) -> dict[str, Any]:
    data, info = run.data, run.info
    row = {"run_id": info.run_id, "name": info.run_name, "status": info.status, "experiment_id": info.experiment_id}
    row |= {f"params.{key}": value for key, value in data.params.items()}
    return row | {f"metrics.{key}": value for key, value in data.metrics.items()}
