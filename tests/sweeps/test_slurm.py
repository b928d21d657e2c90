"""On a real Slurm of two virtual nodes: a sweep, a lost node, scancel, a time limit, and quoting."""

import csv
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeps.executors.slurm import SlurmExecutor, live_tasks
from sweeps.grid import SlurmSettings
from sweeps.launch import launch, request_stop
from sweeps.store import Store
from sweeps.table import COST_COLUMNS
from sweeps.worker import Job

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import slurm_cluster  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(slurm_cluster.missing() is not None, reason=f"no Slurm: {slurm_cluster.missing()}"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster.SlurmCluster(tmp_path_factory.mktemp("slurm") / "root") as started:
        yield started


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("sweeps.executors.slurm.POLL_SECONDS", 1.0)
    monkeypatch.setenv("FAKE_TRAINING_CHECKPOINTS", "1")


def start_sweep(grid, out):
    program = "import sweeps.executors.slurm as s; s.POLL_SECONDS = 1.0; from scaling.cli import main; main()"
    command = [sys.executable, "-c", program, "sweep", str(grid), "--out", str(out), "--executor", "slurm"]
    command += ["--train", "fake_training:train_trunk"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def table(out):
    with open(out / "runs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: value for name, value in row.items() if name not in COST_COLUMNS} for row in rows]


def events(out, *names):
    trunks = [path.name for path in (out / "trunks").iterdir()]
    return [(trunk, event) for trunk in trunks for event in Store(out).attempts(trunk) if event["event"] in names]


def wait_until(condition, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value


def test_a_sweep_runs_and_its_table_is_that_of_local_workers(cluster, tmp_path, fake_training, write_grid):
    out = tmp_path / "a folder; touch hacked"
    summary = launch(write_grid(), out, executor="slurm", train=fake_training)
    assert summary.done == 8
    local = tmp_path / "local"
    launch(write_grid(), local, workers=1, train=fake_training)
    assert table(out) == table(local)
    assert not (ROOT / "hacked").exists()
    again = launch(write_grid(), out, executor="slurm", train=fake_training)
    assert again.done == 8 and len(list((out / "slurm").glob("job-*.sh"))) == 1


def test_tasks_of_a_node_that_dies_go_on_from_their_checkpoints_on_the_other(
    cluster, tmp_path, fake_training, write_grid, monkeypatch
):
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "20")
    out = tmp_path / "out"
    process = start_sweep(write_grid(tokens='["512K"]', seeds=1, extra="[slurm]\ncpus = 2"), out)
    wait_until(lambda: len(list(out.glob("trunks/*/checkpoint-*.pt"))) >= 2)
    nodes = {line.split()[0]: line.split()[1] for line in slurm_cluster.run("squeue", "-h", "-o", "%N %i").splitlines()}
    assert set(nodes) == {"n1", "n2"}
    cluster.kill_node("n1")
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    rows = table(out)
    assert len(rows) == 2 and {row["status"] for row in rows} == {"done"}
    started = events(out, "started")
    assert len(started) == 3  # two, and the one that was lost again
    with open(out / "runs.csv", newline="") as file:
        trained = sorted(int(row["trained_tokens"]) for row in csv.DictReader(file))
    assert trained[0] < 10 and trained[1] == 10  # steps after its last start: the lost one went on
    cluster.start_node("n1")
    cluster.wait_until_idle()


def test_scancel_leaves_a_checkpoint_and_the_next_sweep_goes_on(
    cluster, tmp_path, fake_training, write_grid, monkeypatch
):
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "20")
    out = tmp_path / "out"
    grid = write_grid(tokens='["512K"]', seeds=1)
    process = start_sweep(grid, out)
    wait_until(lambda: len({path.parent for path in out.glob("trunks/*/checkpoint-*.pt")}) == 2)
    jobs = live_tasks(Store(out))
    assert len(jobs) == 2
    slurm_cluster.run("scancel", *jobs.values())
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "stopped with 2 runs to go" in errors and "was cancelled" in errors
    assert len(events(out, "cancelled")) == 2
    assert live_tasks(Store(out)) == {}
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "0")
    assert launch(grid, out, executor="slurm", train=fake_training).done == 2
    with open(out / "runs.csv", newline="") as file:
        assert all(int(row["trained_tokens"]) < 10 for row in csv.DictReader(file))


def test_a_time_limit_ends_in_a_checkpoint_and_a_requeue(cluster, tmp_path, fake_training, write_grid, monkeypatch):
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "30")
    out = tmp_path / "out"
    grid = write_grid(
        '[slurm]\ntime = "1"\nsignal_seconds = 50', tokens='["512K"]', seeds=1, sizes="{ d_model = 48, n_layers = 2 }"
    )
    summary = launch(grid, out, executor="slurm", train=fake_training)
    assert summary.done == 2 and summary.failed == 0
    assert len(events(out, "requeued")) >= 2
    assert len(events(out, "started")) >= 4
    with open(out / "runs.csv", newline="") as file:
        assert all(int(row["trained_tokens"]) < 10 for row in csv.DictReader(file))


def test_leaving_the_command_leaves_the_jobs_and_coming_back_finds_them(
    cluster, tmp_path, fake_training, write_grid, monkeypatch
):
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "8")
    out = tmp_path / "out"
    grid = write_grid(tokens='["512K"]', seeds=1)
    process = start_sweep(grid, out)
    wait_until(lambda: len(events(out, "started")) == 2 if (out / "trunks").is_dir() else False)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1 and "left running in Slurm" in errors
    assert len(live_tasks(Store(out))) == 2
    assert launch(grid, out, executor="slurm", train=fake_training).done == 2
    assert len(events(out, "started")) == 2


def test_stop_cancels_the_jobs(cluster, tmp_path, fake_training, write_grid, monkeypatch):
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "60")
    out = tmp_path / "out"
    process = start_sweep(write_grid(tokens='["512K"]', seeds=3), out)
    wait_until(lambda: list(out.glob("trunks/*/progress.json")))
    request_stop(out)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "stopped with 6 runs to go" in errors
    wait_until(lambda: not live_tasks(Store(out)), seconds=30)
    assert not list(out.glob("runs/*/result.json"))


def test_a_run_on_two_processes_ends_like_any_other(cluster, tmp_path, write_grid):
    out = tmp_path / "out"
    grid = write_grid("[slurm]\ncpus = 2\nprocesses = 2", tokens='["16K", "32K"]', seeds=1)
    summary = launch(grid, out, executor="slurm")
    assert (summary.done, summary.failed) == (4, 0)
    assert len(events(out, "started")) == len(list((out / "trunks").iterdir()))
    assert "--nproc-per-node=2" in (out / "slurm" / "job-1.sh").read_text()


def test_a_script_holds_only_quoted_words(cluster, tmp_path, fake_training):
    setup = tmp_path / "set'up.sh"
    setup.write_text("export X=1\n")
    folder = tmp_path / "it's; $(touch hacked) `id`"
    settings = SlurmSettings(partition="main", memory="1G", extra=("--exclusive",))
    executor = SlurmExecutor(Job(str(folder), "m:f; rm -rf /"), settings, Store(folder), setup=str(setup))
    script = executor._script(folder / "slurm" / "tasks-1.txt")
    words = shlex.split(script.splitlines()[-1])
    assert words[0] == "exec" and words[4] == str(folder) and words[7] == "m:f; rm -rf /"
    assert subprocess.run(["sh", "-n"], input=script, text=True).returncode == 0
    assert shlex.split(script.splitlines()[-2]) == [".", str(setup)]
    assert "--partition=main" in executor._options(1, 3) and "--array=0-2" in executor._options(1, 3)
    assert os.environ["SLURM_CONF"]
