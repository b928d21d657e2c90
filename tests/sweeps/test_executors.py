"""Local workers, with a training function that takes milliseconds. Real clusters have files of their own."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scaling.errors import SweepError
from sweeps.executors import Task
from sweeps.executors.local import LocalExecutor, cause_of_death
from sweeps.launch import launch, request_stop
from sweeps.status import read_status
from sweeps.store import Store
from sweeps.worker import Ending, Job, load_train

ROOT = Path(__file__).parents[2]


def rows_of(out):
    with open(out / "runs.csv", newline="") as file:
        return {row["run_id"]: row for row in csv.DictReader(file)}


def test_a_grid_is_trained_and_tabulated_and_not_trained_again(tmp_path, fake_training, write_grid):
    out = tmp_path / "out"
    summary = launch(write_grid(), out, workers=2, train=fake_training)
    assert (summary.done, summary.missing, summary.failed) == (8, 0, 0)
    table = (out / "runs.csv").read_bytes()
    assert len(rows_of(out)) == 8
    assert len(list((out / "curves").iterdir())) == 8
    again = launch(write_grid(), out, workers=2, train=fake_training)
    assert again.done == 8 and again.seconds < 1
    assert (out / "runs.csv").read_bytes() == table
    attempts = [e for trunk in (out / "trunks").iterdir() for e in Store(out).attempts(trunk.name)]
    assert sum(event["event"] == "started" for event in attempts) == len(list((out / "trunks").iterdir()))


def test_a_wider_grid_trains_what_is_new(tmp_path, fake_training, write_grid):
    out = tmp_path / "out"
    launch(write_grid(), out, train=fake_training, workers=1)
    before = rows_of(out)
    launch(write_grid(tokens='["64K", "128K", "256K"]'), out, train=fake_training, workers=1)
    after = rows_of(out)
    assert len(before) == 8 and len(after) == 12
    assert all(after[run_id] == row for run_id, row in before.items())


def test_a_defect_in_one_run_costs_that_trunk_alone(tmp_path, fake_training, write_grid, monkeypatch):
    monkeypatch.setenv("FAKE_TRAINING_MODE", "raise")
    out = tmp_path / "out"
    summary = launch(write_grid("retries = 1"), out, workers=1, train=fake_training)
    assert (summary.done, summary.failed) == (4, 4)
    failed = [row for row in rows_of(out).values() if row["status"] == "failed"]
    assert all("RuntimeError: a defect in training" in row["reason"] and row["loss"] == "" for row in failed)
    assert all("attempt 2 of 2" in row["reason"] for row in failed)
    trunk = next(p.name for p in (out / "trunks").iterdir() if "-s1-" in p.name)
    assert any("misbehave" in event.get("text", "") for event in Store(out).attempts(trunk))
    monkeypatch.delenv("FAKE_TRAINING_MODE")
    assert launch(write_grid(), out, workers=1, train=fake_training).done == 8


def test_a_worker_that_is_killed_is_a_failed_attempt_with_its_reason(tmp_path, fake_training, write_grid, monkeypatch):
    monkeypatch.setenv("FAKE_TRAINING_MODE", "die")
    summary = launch(write_grid("retries = 0"), tmp_path / "out", workers=1, train=fake_training)
    assert (summary.done, summary.failed) == (4, 4)
    assert all("killed by SIGKILL" in result.reason for result in summary.failures)


def test_diverged_runs_have_no_loss_and_end_the_sweep_well(tmp_path, fake_training, write_grid, monkeypatch):
    monkeypatch.setenv("FAKE_TRAINING_MODE", "diverge")
    out = tmp_path / "out"
    summary = launch(write_grid(), out, workers=1, train=fake_training)
    assert (summary.done, summary.diverged, summary.failed) == (4, 4, 0)
    assert all((row["loss"] == "") == (row["status"] == "diverged") for row in rows_of(out).values())


def test_a_changed_corpus_is_refused_by_the_worker(tmp_path, fake_training, make_config, text_corpus):
    config = make_config(corpus=text_corpus, corpus_hash="another")
    executor = LocalExecutor(Job(str(tmp_path / "out"), fake_training), 1)
    executor.submit(Task(config.trunk_key, (config,)))
    ended = wait_for(executor)
    executor.close()
    assert ended.ending is Ending.REFUSED and "has changed" in ended.reason


def test_a_trunk_held_by_another_process_is_told(tmp_path, fake_training, make_config, text_corpus):
    from sweeps import durable, leases

    config = make_config(corpus=text_corpus)
    folder = durable.make_folder(Store(tmp_path / "out").trunk_folder(config.trunk_key))
    executor = LocalExecutor(Job(str(tmp_path / "out"), fake_training), 1)
    with leases.acquire(folder):
        executor.submit(Task(config.trunk_key, (config,)))
        ended = wait_for(executor)
    executor.close()
    assert ended.ending is Ending.LOCKED and f"process {os.getpid()}" in ended.reason


def test_stopping_ends_workers_and_nothing_stays_behind(tmp_path, fake_training, make_config, text_corpus, monkeypatch):
    from sweeps.corpus import load_corpus

    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "30")
    config = make_config(corpus=text_corpus, corpus_hash=load_corpus(text_corpus).hash)
    executor = LocalExecutor(Job(str(tmp_path / "out"), fake_training), 1)
    executor.submit(Task(config.trunk_key, (config,)))
    wait_until(lambda: Store(tmp_path / "out").progress(config.trunk_key))
    (pid,) = executor.pids
    executor.stop()
    assert wait_for(executor).ending is Ending.INTERRUPTED
    executor.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_workers_end_when_the_sweep_is_killed(tmp_path, fake_training, write_grid, monkeypatch):
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "60")
    process = start_sweep(write_grid(), tmp_path / "out")
    workers = wait_until(lambda: children(process.pid))
    wait_until(lambda: list((tmp_path / "out").glob("trunks/*/progress.json")))
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(is_alive, workers)), seconds=20)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_sweep_cleanly(tmp_path, fake_training, write_grid, monkeypatch, number):
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "2")
    out = tmp_path / "out"
    process = start_sweep(write_grid(), out)
    wait_until(lambda: list(out.glob("runs/*/result.json")))
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "stopped with" in errors and "Give the same command to go on" in errors
    assert "Traceback" not in errors
    done = len(rows_of(out))
    assert 1 <= done < 8
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "0")
    assert launch(write_grid(), out, workers=2, train=fake_training).done == 8


def test_a_second_sweep_into_the_folder_is_refused_and_may_join(tmp_path, fake_training, write_grid, monkeypatch):
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "1")
    out = tmp_path / "out"
    process = start_sweep(write_grid(), out)
    wait_until(lambda: list(out.glob("trunks/*/progress.json")))
    status = read_status(out)
    assert status.holder.startswith(f"process {process.pid} ") and len(status.running) >= 1
    assert status.counts["done"] + status.counts["running"] + status.counts["waiting"] == 8
    with pytest.raises(SweepError, match=f"process {process.pid} .*--stop.*--join"):
        launch(write_grid(), out, train=fake_training)
    summary = launch(write_grid(), out, workers=1, train=fake_training, join=True)
    assert summary.done == 8
    process.communicate(timeout=30)
    assert process.returncode == 0
    attempts = [e for trunk in (out / "trunks").iterdir() for e in Store(out).attempts(trunk.name)]
    trained = [run for event in attempts if event["event"] == "started" for run in event["runs"]]
    assert len(trained) == len(set(trained)) == 8


def test_a_running_sweep_is_stopped_from_outside(tmp_path, fake_training, write_grid, monkeypatch):
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "60")
    out = tmp_path / "out"
    process = start_sweep(write_grid(), out)
    wait_until(lambda: list(out.glob("trunks/*/progress.json")))
    assert f"stopped process {process.pid}" in request_stop(out)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1 and "stopped with 8 runs to go" in errors
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "0")
    assert launch(write_grid(), out, workers=1, train=fake_training).done == 8
    assert request_stop(out) == "no sweep is running there."


def test_training_functions_are_found_or_named(fake_training):
    train, interrupted = load_train(fake_training)
    assert train.__name__ == "train_trunk" and issubclass(interrupted, Exception)
    with pytest.raises(SweepError, match="no module nowhere"):
        load_train("nowhere:train")
    with pytest.raises(SweepError, match="no function missing"):
        load_train("fake_training:missing")


def test_causes_of_death_are_in_words():
    assert "SIGKILL, perhaps for want of memory" in cause_of_death(-9)
    assert "SIGSEGV" in cause_of_death(-11)
    assert "status 3" in cause_of_death(3)


def start_sweep(grid, out):
    program = "from scaling.cli import main; main()"
    command = [sys.executable, "-c", program, "sweep", str(grid), "--out", str(out), "--workers", "2"]
    command += ["--train", "fake_training:train_trunk"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(pid):
    stats = [path for path in Path("/proc").glob("[0-9]*/stat")]
    found = []
    for path in stats:
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(executor, seconds=20.0):
    return wait_until(lambda: executor.poll(0.05), seconds)[0]


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value
