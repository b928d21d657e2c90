"""TensorBoard event files: hyperparameters and the last value of each scalar, every point read."""

from pathlib import Path
from typing import Any

from scaling.errors import InputError
from scaling.readers.raw import RawTable
from scaling.readers.trackers import missing_library, runs_table


def read_event_files(name: str, folder: Path) -> RawTable:
    """One row per folder that holds event files. Raises InputError when there is none or tensorboard is absent."""
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ModuleNotFoundError as error:
        raise missing_library(name, "tensorboard") from error
    if not folder.is_dir():
        raise InputError(f"{name}: {folder} is no folder.")
    runs = sorted({path.parent for path in folder.rglob("events.out.tfevents.*")})
    keep_all = {kind: 0 for kind in event_accumulator.DEFAULT_SIZE_GUIDANCE}  # the default keeps a sample of each
    rows = [_row(folder, run, event_accumulator.EventAccumulator(str(run), size_guidance=keep_all)) for run in runs]
    return runs_table(name, rows, f"{len(rows)} runs of event files: the last value of each scalar, all points read")


def _row(folder: Path, run: Path, events: Any) -> dict[str, Any]:
    events.Reload()
    row: dict[str, Any] = {"run_id": str(run.relative_to(folder)) if run != folder else run.name}
    row.update(_hyperparameters(events))
    for tag, step, value in _last_scalars(events):
        row[tag] = value
        row["last_step"] = max(step, row.get("last_step", step))
    return row


def _last_scalars(events: Any) -> list[tuple[str, int, float]]:
    """Tag, step and value of the last point of each scalar, in either of the two ways they are stored."""
    tags = events.Tags()
    found = []
    for tag in tags["scalars"]:
        last = max(events.Scalars(tag), key=lambda event: (event.step, event.wall_time))
        found.append((tag, last.step, float(last.value)))
    scalars = _content(events, "scalars")
    for tag in (tag for tag in tags["tensors"] if tag in scalars):
        last = max(events.Tensors(tag), key=lambda event: (event.step, event.wall_time))
        found.append((tag, last.step, float(_as_array(last.tensor_proto))))
    return found


def _content(events: Any, plugin: str) -> dict[str, bytes]:
    """What a plugin stored, by tag; {} when it stored nothing."""
    try:
        return events.PluginTagToContent(plugin)
    except KeyError:
        return {}


def _as_array(proto: Any) -> Any:
    from tensorboard.util import tensor_util

    return tensor_util.make_ndarray(proto)


def _hyperparameters(events: Any) -> dict[str, Any]:
    """Settings that were written by the hparams plugin; {} without it."""
    from tensorboard.plugins.hparams import metadata

    content = _content(events, metadata.PLUGIN_NAME).get(metadata.SESSION_START_INFO_TAG)
    if content is None:
        return {}
    hparams = metadata.parse_session_start_info_plugin_data(content).hparams
    return {
        name: getattr(value, value.WhichOneof("kind")) for name, value in hparams.items() if value.WhichOneof("kind")
    }
