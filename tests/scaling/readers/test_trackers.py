"""Trackers, each against files that its own library wrote, and against what it exports."""

import csv
import io
import os
import time

import pytest

from scaling.errors import InputError
from scaling.readers import run_history
from scaling.readers.exports import parse_dict
from scaling.readers.trackers import is_address
from scaling.runs import read_runs

SETTINGS = [{"n_params": 10**6 * (k + 1), "lr": 0.1 * (k + 1)} for k in range(3)]


def loss_at(k, step):
    return 4.0 - 0.25 * k - 0.001 * step


@pytest.fixture(autouse=True)
def library_warnings():
    """Warnings of the trackers' own libraries are not ours to turn into errors."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ----------------------------------------------------------------------------------------------------- TensorBoard


@pytest.fixture
def event_folder(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'isoflop[tensorboard]'")
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    def event(step, **value):
        summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(**value)])
        return event_pb2.Event(wall_time=time.time(), step=step, summary=summary)

    for k, settings in enumerate(SETTINGS):
        writer = EventFileWriter(str(tmp_path / "runs" / f"run{k}"))
        info = plugin_data_pb2.SessionStartInfo()
        for name, value in settings.items():
            info.hparams[name].number_value = value
        content = plugin_data_pb2.HParamsPluginData(session_start_info=info, version=metadata.PLUGIN_DATA_VERSION)
        writer.add_event(
            event(0, tag=metadata.SESSION_START_INFO_TAG, metadata=metadata.create_summary_metadata(content))
        )
        for step in range(12_000 if k == 0 else 20):  # above the default sample of 10,000 points
            writer.add_event(event(step, tag="eval/loss", simple_value=loss_at(k, step % 1000)))
            writer.add_event(event(step, tag="tokens", simple_value=1e6 * (step + 1)))
        writer.flush()
        writer.close()
    return tmp_path / "runs"


@pytest.mark.parametrize("address", ["tensorboard:{}", "{}"])
def test_event_files_give_the_last_of_every_point(event_folder, address):
    runs = read_runs(address.format(event_folder))
    assert runs.table["run_id"].tolist() == ["run0", "run1", "run2"]
    assert runs.table["params"].tolist() == [1e6, 2e6, 3e6]
    assert runs.table["loss"].tolist() == pytest.approx([loss_at(0, 999), loss_at(1, 19), loss_at(2, 19)], rel=1e-6)
    assert runs.table["tokens"].tolist() == pytest.approx([1.2e10, 2e7, 2e7], rel=1e-6)
    assert runs.table["last_step"].tolist() == [11_999, 19, 19]
    assert runs.table["lr"].tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_scalars_that_are_stored_as_tensors(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'isoflop[tensorboard]'")
    from tensorboard.summary import Writer

    writer = Writer(str(tmp_path / "run"))
    for step in range(5):
        for tag, value in (("eval/loss", 4 - step / 8), ("n_params", 1e6), ("tokens", 1e6 * (step + 1))):
            writer.add_scalar(tag, value, step=step)
    writer.flush()
    writer.close()
    runs = read_runs(f"tensorboard:{tmp_path}")
    assert runs.table[["params", "tokens", "loss"]].iloc[0].tolist() == [1e6, 5e6, 3.5]


def test_a_folder_without_event_files(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'isoflop[tensorboard]'")
    with pytest.raises(InputError, match="no runs there"):
        read_runs(f"tensorboard:{tmp_path}")
    with pytest.raises(InputError, match="is no folder"):
        read_runs(f"tensorboard:{tmp_path}/nowhere")


# ---------------------------------------------------------------------------------------------------------- MLflow


@pytest.fixture(params=["folder", "sqlite"])
def mlflow_store(request, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'isoflop[mlflow]'")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    if request.param == "sqlite":
        pytest.importorskip("sqlalchemy", reason="MLflow's SQLite stores need sqlalchemy")
        pytest.importorskip("alembic", reason="MLflow's SQLite stores need alembic")
        uri = f"sqlite:///{tmp_path}/mlflow.db"
    else:
        uri = str(tmp_path / "mlruns")
    with monkeypatch.context() as inside:
        inside.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment("sweep")
        for k, settings in enumerate(SETTINGS):
            mlflow.start_run(run_name=f"run{k}")
            mlflow.log_params(settings)
            for step in (0, 10, 5):  # the last step is not the last logged
                mlflow.log_metrics({"val_loss": loss_at(k, step), "tokens": 1e6 * (step + 1)}, step=step)
            mlflow.end_run("FAILED" if k == 2 else "FINISHED")
    return uri


def test_mlflow_stores_give_the_last_value_and_the_status(mlflow_store):
    runs = read_runs(f"mlflow:{mlflow_store}#sweep")
    table = runs.table.sort_values("params")
    assert table["name"].tolist() == ["run0", "run1"]
    assert table[["params", "tokens", "loss"]].to_numpy().tolist() == [
        [1e6, 1.1e7, loss_at(0, 10)],
        [2e6, 1.1e7, loss_at(1, 10)],
    ]
    assert [e.reason for e in runs.excluded] == ["status FAILED"]
    assert table[runs.column("learning_rate")].tolist() == [0.1, 0.2]
    assert len(read_runs(f"mlflow:{mlflow_store}")) == 2
    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ
    with pytest.raises(InputError, match='no experiment "other". Known: .*sweep'):
        read_runs(f"mlflow:{mlflow_store}#other")


@pytest.mark.parametrize("place", ["sqlite:///nowhere/m.db", "nowhere/mlruns", "file:./nowhere"])
def test_an_mlflow_store_that_is_not_there_is_not_made(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no such store"):
        read_runs(f"mlflow:{place}")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ Weights & Biases


@pytest.fixture
def offline_runs(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install 'isoflop[wandb]'")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    for k, settings in enumerate(SETTINGS):
        config = {**settings, "opt": {"beta": 0.9}}
        run = wandb.init(project="sweep", name=f"run{k}", id=f"id{k}", config=config, dir=str(tmp_path))
        for step in range(900 if k == 0 else 3):  # above the sample of 500, and across blocks of the log
            run.log({"eval/loss": loss_at(k, step), "tokens": 1e6 * (step + 1)})
        run.finish(exit_code=int(k == 2))
    return tmp_path / "wandb"


def test_offline_runs_give_the_last_of_every_point_and_the_exit(offline_runs):
    runs = read_runs(f"wandb:{offline_runs}")
    table = runs.table.sort_values("params")
    assert table["run_id"].tolist() == ["id0", "id1"] and table["name"].tolist() == ["run0", "run1"]
    assert table[["params", "tokens", "loss"]].to_numpy().tolist() == [
        [1e6, 9e8, loss_at(0, 899)],
        [2e6, 3e6, loss_at(1, 2)],
    ]
    assert table["config.opt.beta"].tolist() == [0.9, 0.9]
    assert [(e.run_id, e.reason) for e in runs.excluded] == [("id2", "status crashed")]


def test_a_cut_offline_run_counts_as_running(offline_runs):
    (path,) = offline_runs.rglob("run-id0.wandb")
    path.write_bytes(path.read_bytes()[:40_000])
    runs = read_runs(f"wandb:{offline_runs}")
    assert ("id0", "status running") in [(e.run_id, e.reason) for e in runs.excluded]


def test_what_is_no_offline_run(tmp_path):
    pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install 'isoflop[wandb]'")
    (tmp_path / "run-x.wandb").write_bytes(b"something else")
    with pytest.raises(InputError, match="not an offline run"):
        read_runs(f"wandb:{tmp_path}")


def test_the_last_value_of_each_key_is_taken_over_the_whole_history():
    points = [{"_step": s, "loss": 4 - s, "eval/loss": 5 - s if s % 2 else None, "opt": {"lr": 0.1}} for s in range(4)]
    assert run_history.last_values(points) == {"loss": 1, "eval/loss": 2, "opt.lr": 0.1}


def test_a_table_with_dicts_in_its_cells_is_taken_apart(tmp_path):
    """The service's own example writes summary and config of each run as the text of a Python dict."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["", "summary", "config", "name"])
    for k, settings in enumerate(SETTINGS):
        summary = {
            "_step": 9,
            "eval/loss": loss_at(k, 9),
            "tokens": 1e8,
            "best": float("nan"),
            "_wandb": {"runtime": 3},
        }
        writer.writerow([k, summary, settings, f"run{k}"])
    (tmp_path / "project.csv").write_text(text.getvalue())
    runs = read_runs(str(tmp_path / "project.csv"))
    assert runs.table["run_id"].tolist() == ["run0", "run1", "run2"]
    assert runs.table["params"].tolist() == [1e6, 2e6, 3e6]
    assert runs.table["loss"].tolist() == [loss_at(k, 9) for k in range(3)]
    assert 'loss = "summary.eval/loss"' in runs.notes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': 1, 'b': [1, 2], 'c': -inf}", {"a": 1, "b": "[1, 2]", "c": float("-inf")}),
        ('{"a": null, "b": {"c": true}}', {"a": None, "b": {"c": True}}),
        ("{'a': print(1)}", None),
        ("{'a'}", None),
        ("[1]", None),
    ],
)
def test_dicts_are_read_and_nothing_is_run(text, value):
    assert parse_dict(text) == value


def test_an_exported_chart_is_refused(tmp_path):
    (tmp_path / "chart.csv").write_text('"Step","a - eval/loss","a - eval/loss__MIN","a - eval/loss__MAX"\n1,2,2,2\n')
    with pytest.raises(InputError, match="a sampled history of curves, not one row per run"):
        read_runs(str(tmp_path / "chart.csv"))


def test_a_sampled_history_is_flagged(tmp_path):
    def table(steps):
        rows = "".join(f"{s},1e6,{1e6 * (s + 1)},{loss_at(0, s)}\n" for s in steps)
        (tmp_path / "history.csv").write_text("_step,n_params,tokens,loss\n" + rows)
        return {label.label for label in read_runs(str(tmp_path / "history.csv")).labels}

    assert "sampled history" not in table(range(0, 1000, 10))
    assert "sampled history" in table([0, 3, 9, 11, 20])
    assert "sampled history" in table(range(500))


def test_addresses():
    assert is_address("wandb:a/b") and is_address("mlflow:x") and not is_address("mlflow.csv") and not is_address("a:b")
    with pytest.raises(InputError, match="say where, for example mlflow:sqlite:///mlflow.db"):
        read_runs("mlflow:")


@pytest.mark.parametrize(
    ("address", "library"), [("wandb:a/b", "wandb"), ("mlflow:.", "mlflow"), ("tensorboard:.", "tensorboard")]
)
def test_an_absent_library_is_one_line(monkeypatch, address, library):
    for name in [name for name in __import__("sys").modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(__import__("sys").modules, name)
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(InputError, match=rf"pip install 'isoflop\[{library}\]'"):
        read_runs(address)
