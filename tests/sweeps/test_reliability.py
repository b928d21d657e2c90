"""The promises of docs/reliability.md in seconds: kills, many processes on one folder, a full disk. The long versions
are tests/benchmarks/reliability_*.py."""

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sweeps.corpus import load_corpus
from sweeps.launch import launch
from sweeps.store import Store

ROOT = Path(__file__).parents[2]


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kills(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return load_script("reliability_kills")


def test_killed_again_and_again_nothing_is_lost_doubled_or_different(tmp_path, fake_training, kills, monkeypatch):
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "0.1")
    report = kills.run(tmp_path, kills=12, seed=3, train=fake_training, longest_wait=0.8)
    assert report["sound"], report
    assert report["kills"] == 12 and report["worker_kills"] > 0 and report["sweep_kills"] > 0


@pytest.mark.slow
def test_killed_again_and_again_real_training_ends_with_the_same_bits(tmp_path, kills):
    pytest.importorskip("torch")
    report = kills.run(tmp_path, kills=8, seed=4, train="sweeps.training:train_trunk", longest_wait=5.0)
    assert report["sound"], report


def test_the_comparison_of_the_kill_script_sees_what_is_wrong(tmp_path, fake_training, write_grid, kills):
    out = tmp_path / "out"
    launch(write_grid(), out, workers=1, train=fake_training)
    expected, rows = kills.comparable(out), kills.table(out)
    assert not any(kills.compare(out, expected, rows).values())
    first = rows[0]["run_id"]
    text = (out / "runs.csv").read_text()
    (out / "runs.csv").write_text(text.replace(rows[0]["loss"], "1.25"))
    wrong = kills.compare(out, expected, rows)
    assert wrong["different_losses"] == wrong["tables_that_differ"] == 1
    (out / "runs.csv").write_text(text + text.splitlines()[1] + "\n")
    assert kills.compare(out, expected, rows)["duplicated"] == 1
    (out / "runs.csv").write_text("\n".join(line for line in text.splitlines() if not line.startswith(first)) + "\n")
    assert kills.compare(out, expected, rows)["lost"] == 1


def test_many_processes_on_one_folder_train_each_run_once(tmp_path, fake_training, write_grid, monkeypatch):
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "0.2")
    counts = together(tmp_path / "out", write_grid(seeds=4), processes=6)
    assert counts == {"runs": 16, "started": 16, "rows": 16, "statuses": {0: 6}}


@pytest.mark.slow
def test_twenty_processes_on_one_folder_train_each_run_once(tmp_path, fake_training, write_grid, monkeypatch):
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "0.5")
    counts = together(tmp_path / "out", write_grid(seeds=10), processes=20)
    assert counts == {"runs": 40, "started": 40, "rows": 40, "statuses": {0: 20}}


def together(out, grid, *, processes):
    """One sweep and as many that join it, all started at once: runs trained, and how the processes ended."""
    program = "from scaling.cli import main; main()"
    command = [sys.executable, "-c", program, "sweep", str(grid), "--out", str(out), "--workers", "1", "--join"]
    command += ["--train", "fake_training:train_trunk"]
    started = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    ends = [(process.communicate(timeout=300)[1], process.returncode) for process in started]
    assert all(status == 0 for _, status in ends), ends
    store = Store(out)
    events = [event for path in (out / "trunks").iterdir() for event in store.attempts(path.name)]
    trained = [run for event in events if event["event"] == "started" for run in event["runs"]]
    return {
        "runs": len(set(trained)),
        "started": len(trained),
        "rows": len((out / "runs.csv").read_text().splitlines()) - 1,
        "statuses": dict(Counter(status for _, status in ends)),
    }


def test_a_full_disk_ends_the_sweep_with_one_message_and_freeing_space_goes_on(
    tmp_path, fake_training, write_grid, text_corpus
):
    """A file-size limit stands in for the disk: the kernel refuses the write, in a real worker process."""
    out, grid = tmp_path / "out", write_grid()
    load_corpus(text_corpus)  # its cache lies elsewhere
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))\n"
        "from scaling.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "sweep", str(grid), "--out", str(out), "--workers", "1"]
    done = subprocess.run([*command, "--train", fake_training], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("Error: ") == 1 and "cannot be written" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert "result.json" in done.stderr and "8 to go" in done.stdout
    assert launch(grid, out, workers=1, train=fake_training).done == 8
