"""[track]: every result of a sweep, with its curve, goes to experiment trackers as soon as it is there.

    [track]
    wandb = "my-team/my-project"
    mlflow = "sqlite:///mlflow.db#my-experiment"
    tensorboard = "runs/"

Each run is sent once: a marker in DIR/tracked/TRACKER/RUN_ID says so, also to other processes and to the next sweep
into the folder, which sends what is missing. A tracker that fails is told of and left alone; the sweep goes on. Only
results that are done or diverged are sent, since a failed run is tried again.
"""

import contextlib
import csv
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scaling.errors import SweepError
from sweeps import durable
from sweeps.store import FINAL, Result, Store

_RESULTS = ("loss", "tokens", "run_id", "status", "reason")  # of a row: what came out, told apart from what went in


@dataclass(frozen=True)
class TrackSettings:
    """[track]: where each tracker is; None for those that are not used."""

    wandb: str | None = None  # PROJECT or ENTITY/PROJECT
    mlflow: str | None = None  # tracking URI, and "#EXPERIMENT"
    tensorboard: str | None = None  # folder


class Tracking:
    """Sends results that were not sent yet. Raises SweepError when the library of a tracker is absent."""

    def __init__(self, settings: TrackSettings, store: Store, on_event: Callable[[str], None] = lambda line: None):
        self._store, self._on_event = store, on_event
        wanted = {name: place for name, place in asdict(settings).items() if place}
        self._senders = {name: _open(name, place, store) for name, place in wanted.items()}
        self._sent: set[tuple[str, str]] = set()

    def send(self, results: Iterable[Result]) -> None:
        """Send those results that are final and were not sent before."""
        for result in results if self._senders else ():
            for name in [name for name in self._senders if (name, result.run_id) not in self._sent]:
                if result.status in FINAL:
                    self._send(name, result)

    def _send(self, name: str, result: Result) -> None:
        marker = self._store.folder / "tracked" / name / result.run_id
        try:
            with _once(marker) as first:
                if first:
                    self._senders[name](result, read_curve(self._store, result.run_id))
            self._sent.add((name, result.run_id))
        except Exception as error:  # whatever a tracker raises, the sweep is worth more
            del self._senders[name]
            self._on_event(
                f"tracking to {name} stopped: {type(error).__name__}: {str(error)[:200]}. "
                "The next sweep into this folder sends what is missing."
            )


@contextlib.contextmanager
def _once(marker: Path) -> Iterator[bool]:
    """True for the first to hold a marker; it goes again when the work under it fails."""
    durable.make_folder(marker.parent)
    try:
        marker.open("x").close()
    except FileExistsError:
        yield False
        return
    try:
        yield True
    except BaseException:
        marker.unlink(missing_ok=True)
        raise


def read_curve(store: Store, run_id: str) -> list[dict[str, float]]:
    """Tokens and loss along a run, in order of its tokens; [] when no curve was kept."""
    path = store.folder / "curves" / f"{run_id}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        points = [row for row in csv.DictReader(file) if row.get("tokens") and row.get("loss")]
    return sorted(({"tokens": float(p["tokens"]), "loss": float(p["loss"])} for p in points), key=lambda p: p["tokens"])


def _points(result: Result, curve: list[dict[str, float]]) -> list[dict[str, float]]:
    """The curve, ending with the run's own tokens and, when it is done, its loss."""
    end = {key: float(result.row[key]) for key in ("tokens", "loss") if result.row.get(key) is not None}
    return [point for point in curve if point != end] + ([end] if end else [])


def _settings(result: Result) -> dict[str, Any]:
    return {key: value for key, value in result.row.items() if key not in _RESULTS and value is not None}


def _open(name: str, place: str, store: Store) -> Callable[[Result, list[dict[str, float]]], None]:
    """The function that sends one result to a tracker."""
    try:
        return {"wandb": _wandb, "mlflow": _mlflow, "tensorboard": _tensorboard}[name](place, store)
    except ModuleNotFoundError as error:
        raise SweepError(f"[track] {name} needs {error.name}: pip install 'isoflop[{name}]'") from error


def _wandb(place: str, store: Store) -> Callable[[Result, list[dict[str, float]]], None]:
    import wandb

    entity, _, project = place.rpartition("/")

    def send(result: Result, curve: list[dict[str, float]]) -> None:
        run = wandb.init(
            project=project, entity=entity or None, name=result.run_id, id=result.run_id, config=_settings(result),
            dir=str(store.folder), settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        for point in _points(result, curve):
            run.log(point)
        run.finish(exit_code=0 if result.status == "done" else 1)

    return send


def _mlflow(place: str, store: Store) -> Callable[[Result, list[dict[str, float]]], None]:
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    uri, _, experiment = place.partition("#")
    client = MlflowClient(tracking_uri=uri)

    def send(result: Result, curve: list[dict[str, float]]) -> None:
        found = client.get_experiment_by_name(experiment or "isoflop")
        where = found.experiment_id if found else client.create_experiment(experiment or "isoflop")
        run = client.create_run(where, run_name=result.run_id).info.run_id
        now = int(time.time() * 1000)
        points = enumerate(_points(result, curve))
        metrics = [Metric(key, value, now, step) for step, point in points for key, value in point.items()]
        params = [Param(key, str(value)) for key, value in _settings(result).items()]
        for start in range(0, max(len(metrics), len(params)), 100):  # the most a request takes
            client.log_batch(run, metrics=metrics[start : start + 100], params=params[start : start + 100])
        client.set_terminated(run, "FINISHED" if result.status == "done" else "FAILED")

    return send


def _tensorboard(place: str, store: Store) -> Callable[[Result, list[dict[str, float]]], None]:
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    def event(step: int, **value: Any) -> Any:
        summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(**value)])
        return event_pb2.Event(wall_time=time.time(), step=step, summary=summary)

    def hyperparameters(settings: dict[str, Any]) -> Any:
        info = plugin_data_pb2.SessionStartInfo()
        for key, value in settings.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                info.hparams[key].number_value = value
            else:
                info.hparams[key].string_value = str(value)
        data = plugin_data_pb2.HParamsPluginData(session_start_info=info, version=metadata.PLUGIN_DATA_VERSION)
        return event(0, tag=metadata.SESSION_START_INFO_TAG, metadata=metadata.create_summary_metadata(data))

    def send(result: Result, curve: list[dict[str, float]]) -> None:
        writer = EventFileWriter(os.path.join(place, result.run_id))
        writer.add_event(hyperparameters({**_settings(result), "status": result.status}))
        for step, point in enumerate(_points(result, curve)):
            for key, value in point.items():
                writer.add_event(event(step, tag=key, simple_value=value))
        writer.flush()
        writer.close()

    return send
