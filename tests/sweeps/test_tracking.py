"""[track]: results go to trackers once, what a tracker holds reads back as runs.csv, and a broken one stops nothing."""

import warnings

import pytest

from scaling.errors import SweepError
from scaling.runs import read_runs
from sweeps import tracking
from sweeps.grid import parse_grid
from sweeps.store import Store
from sweeps.tracking import Tracking, TrackSettings, read_curve

CURVE = [{"tokens": 64, "loss": 5.5, "part": "trunk"}, {"tokens": 640, "loss": 4.5, "part": "trunk"}]


@pytest.fixture(autouse=True)
def library_warnings():
    """Warnings of the trackers' own libraries are not ours to turn into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def store(tmp_path, make_config):
    """Three results with curves: two done, one diverged; and a failed one."""
    store = Store(tmp_path / "sweep")
    for k, tokens in enumerate((6400, 12800)):
        store.write_result(make_config(tokens), "done", loss=3.25 - k / 7, loss_se=0.01, curve=CURVE)
    store.write_result(make_config(6400, seed=1), "diverged", reason="the loss is nan", curve=CURVE)
    store.write_result(make_config(6400, seed=2), "failed", reason="out of memory")
    store.write_table()
    return store


class Recorder:
    """A tracker that remembers what it was sent, and fails when told to."""

    def __init__(self, monkeypatch):
        self.sent, self.broken = [], False
        monkeypatch.setattr(tracking, "_open", lambda name, place, store: self)

    def __call__(self, result, curve):
        if self.broken:
            raise ConnectionError("the server is gone")
        self.sent.append((result.run_id, result.status, len(curve)))


def test_each_final_result_is_sent_once_even_by_the_next_sweep(store, monkeypatch):
    recorder = Recorder(monkeypatch)
    results = list(store.results()[0].values())
    for _ in range(2):
        tracker = Tracking(TrackSettings(tensorboard="x"), store)
        tracker.send(results)
        tracker.send(results)
    assert sorted(status for _, status, _ in recorder.sent) == ["diverged", "done", "done"]
    assert all(points == 2 for *_, points in recorder.sent)


def test_a_tracker_that_fails_is_told_of_once_and_gets_the_rest_next_time(store, monkeypatch):
    recorder, events = Recorder(monkeypatch), []
    results = list(store.results()[0].values())
    recorder.broken = True
    first = Tracking(TrackSettings(mlflow="x"), store, events.append)
    first.send(results)
    first.send(results)
    assert len(events) == 1 and "tracking to mlflow stopped: ConnectionError: the server is gone" in events[0]
    recorder.broken = False
    Tracking(TrackSettings(mlflow="x"), store).send(results)
    assert len(recorder.sent) == 3


def test_nothing_is_done_without_settings(store):
    Tracking(TrackSettings(), store).send(store.results()[0].values())
    assert not (store.folder / "tracked").exists()


def test_the_curve_of_a_run(store, make_config):
    assert read_curve(store, make_config(6400).run_id) == [
        {"tokens": 64.0, "loss": 5.5},
        {"tokens": 640.0, "loss": 4.5},
    ]
    assert read_curve(store, "none-such") == []


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_an_absent_library_is_one_line_before_the_sweep(store, monkeypatch, name):
    for module in [module for module in __import__("sys").modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(__import__("sys").modules, module)
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(SweepError, match=rf"\[track\] {name} needs .*pip install 'isoflop\[{name}\]'"):
        Tracking(TrackSettings(**{name: "a/b"}), store)


def test_the_grid_names_the_trackers():
    text = 'corpus = "python"\nparams = ["30K"]\ntokens = ["1M"]\n[track]\n'
    grid = parse_grid(text + 'wandb = "team/project"\nmlflow = "sqlite:///m.db#sweep"\ntensorboard = "runs/"\n')
    assert grid.track == TrackSettings("team/project", "sqlite:///m.db#sweep", "runs/")
    with pytest.raises(SweepError, match=r'line 5.*"comet".*track'):
        parse_grid(text + 'comet = "x"\n')
    with pytest.raises(SweepError, match="wandb"):
        parse_grid(text + 'wandb = "a b; rm"\n')


def same_as_the_table(runs, store, tolerance=0.0):
    table = read_runs(str(store.runs_csv))
    ours, theirs = (r.table.sort_values("tokens") for r in (table, runs))
    assert len(theirs) == 2
    for column in ("params", "tokens", "flops", "loss"):
        assert theirs[column].tolist() == pytest.approx(ours[column].tolist(), rel=tolerance, abs=0.0)
    assert len(runs.excluded) == 1


def test_tensorboard_reads_back_as_the_table(store, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'isoflop[tensorboard]'")
    Tracking(TrackSettings(tensorboard=str(tmp_path / "events")), store).send(store.results()[0].values())
    runs = read_runs(f"tensorboard:{tmp_path / 'events'}")
    same_as_the_table(runs, store, tolerance=1e-7)  # event files hold float32


def test_mlflow_reads_back_as_the_table(store, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'isoflop[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    place = f"{tmp_path / 'mlruns'}#sweep"
    Tracking(TrackSettings(mlflow=place), store).send(store.results()[0].values())
    same_as_the_table(read_runs(f"mlflow:{place}"), store)


def test_offline_wandb_reads_back_as_the_table(store, monkeypatch):
    pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install 'isoflop[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    Tracking(TrackSettings(wandb="team/project"), store).send(store.results()[0].values())
    same_as_the_table(read_runs(f"wandb:{store.folder / 'wandb'}"), store)
