"""`scale sweep` and `scale status` as a person or a script meets them."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from scaling.cli import cli

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "sweeps"
TRAIN = ("--train", "fake_training:train_trunk")


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A grid of twelve runs over a little text, and a training function that takes no time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), str(ROOT)]))
    monkeypatch.syspath_prepend(str(FAKES))
    text = tmp_path / "text"
    text.mkdir()
    for i in range(20):
        (text / f"{i}.txt").write_text("\n".join(f"line {j} of document {i} says {i * j}" for j in range(40)))
    path = tmp_path / "grid.toml"
    path.write_text(
        f'corpus = "text:{text}"\nparams = ["20K", "60K"]\ntokens = ["512K", "1M", "2M"]\nseeds = 2\ndevice = "cpu"\n'
    )
    yield path
    sys.modules.pop("fake_training", None)


def scale(*arguments):
    """Exit status, standard output and standard error of a call, as `main` would give them."""
    code = "from scaling.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_dry_run_prints_every_run_its_cost_and_its_time_and_writes_nothing(grid, tmp_path):
    status, text, errors = scale("sweep", grid, "--out", tmp_path / "out", "--dry-run", "--workers", 2, *TRAIN)
    assert status == 0, errors
    rows = [line for line in text.splitlines() if re.match(r"d\d+L\d+-D", line)]
    assert len(rows) == 12
    for word in (
        "16.54K",
        "512K",
        "missing",
        "float32",
        "12 runs in 4 trunks",
        "less",
        "on 2 (speed measured just now)",
    ):
        assert word in text, text
    assert not (tmp_path / "out").exists()


def test_a_dry_run_in_json_adds_up(grid, tmp_path):
    status, text, _ = scale("sweep", grid, "--out", tmp_path / "out", "--dry-run", "--json", *TRAIN)
    plan = json.loads(text)
    assert status == 0 and plan["runs"] == plan["runs_missing"] == len(plan["rows"]) == 12
    assert plan["flops"] < plan["flops_separately"]
    for row in plan["rows"]:
        assert row["flops"] == 6 * row["params"] * row["tokens"]
        assert row["seconds_alone"] == pytest.approx(row["tokens"] / 1e6)  # the fake trains a million tokens a second
    tokens = sum({(row["d_model"], row["tokens"]): row["tokens"] for row in plan["rows"]}.values())
    assert plan["core_seconds"] < 2 * tokens / 1e6


def test_a_sweep_prints_one_line_and_status_agrees(grid, tmp_path):
    out = tmp_path / "out"
    status, text, errors = scale("sweep", grid, "--out", out, "--workers", 1, *TRAIN)
    assert status == 0 and text.startswith(f"{out}/runs.csv: 12 runs done")
    assert errors.count("done, loss") == 12
    with open(out / "runs.csv", newline="") as file:
        assert {row["status"] for row in csv.DictReader(file)} == {"done"}
    status, text, _ = scale("status", out)
    assert status == 0 and "12 done" in text and "(100%)" in text and "No sweep process" in text
    status, text, _ = scale("sweep", grid, "--out", out, "--json", *TRAIN)
    summary = json.loads(text)
    assert (status, summary["done"], summary["missing"]) == (0, 12, 0)
    assert json.loads(scale("status", out, "--json")[1])["counts"]["done"] == 12


def test_numerics_are_chosen_once_for_a_folder(grid, tmp_path):
    out = tmp_path / "out"
    scale("sweep", grid, "--out", out, "--workers", 1, *TRAIN)
    recorded = json.loads((out / "numerics.json").read_text())
    assert recorded["device"] == "cpu"
    assert {tuple(value) for value in recorded["shapes"].values()} == {
        ("float32", "explicit"),
        ("bfloat16", "explicit"),
    }
    for key in recorded["shapes"]:
        recorded["shapes"][key] = ["bfloat16", "fused"]
    (out / "numerics.json").write_text(json.dumps(recorded))
    plan = json.loads(scale("sweep", grid, "--out", out, "--dry-run", "--json", *TRAIN)[1])
    assert {(row["dtype"], row["attention"]) for row in plan["rows"]} == {("bfloat16", "fused")}
    (out / "numerics.json").write_text("{")
    status, _, errors = scale("sweep", grid, "--out", out, *TRAIN)
    assert status == 1 and "numerics.json" in errors and "damaged" in errors


def test_failures_are_told_with_status_one_and_kept_in_the_table(grid, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_TRAINING_MODE", "raise")
    out = tmp_path / "out"
    grid.write_text(grid.read_text() + "retries = 0\n")
    status, text, errors = scale("sweep", grid, "--out", out, "--workers", 1, *TRAIN)
    assert status == 1 and "6 runs done, 6 failed" in text
    assert "and 5 more failed: RuntimeError: a defect in training" in errors
    assert "a defect in training" in scale("status", out)[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text + "learning_rte = 1\n", ['unknown key "learning_rte"', "line 6", "learning_rate"]),
        (lambda text: text.replace('"512K"', "100"), ["below one batch"]),
        (lambda text: text.replace("text:", "nonsense:"), ["nonsense"]),
        (lambda text: "\x00", ["not valid TOML"]),
    ],
)
def test_a_grid_at_fault_is_one_message_and_status_one(grid, tmp_path, change, words):
    grid.write_text(change(grid.read_text()))
    status, text, errors = scale("sweep", grid, "--out", tmp_path / "out", *TRAIN)
    assert status == 1 and text == ""
    assert errors.startswith("Error: ") and errors.count("\n") == 1
    for word in words:
        assert word in errors, errors


def test_missing_or_misplaced_files_are_named(grid, tmp_path):
    assert scale("sweep", tmp_path / "nothing.toml", "--out", tmp_path / "out", *TRAIN)[::2] == (
        1, f"Error: {tmp_path}/nothing.toml: cannot be read (No such file or directory).\n",
    )  # fmt: skip
    assert "is a folder" in scale("sweep", tmp_path, "--out", tmp_path / "out", *TRAIN)[2]
    assert "is a file" in scale("sweep", grid, "--out", grid, *TRAIN)[2]
    assert "no sweep was begun here" in scale("status", tmp_path)[2]
    assert "there is no such sweep" in scale("sweep", "--stop", "--out", tmp_path / "out")[2]


def test_misuse_is_status_two():
    runner = CliRunner()
    assert runner.invoke(cli, ["sweep"]).exit_code == 2
    assert runner.invoke(cli, ["sweep", "--out", "x"]).exit_code == 2
    assert runner.invoke(cli, ["sweep", "g", "--out", "x", "--executor", "moon"]).exit_code == 2
    assert runner.invoke(cli, ["sweep", "--help"]).exit_code == 0


def test_without_torch_one_line_says_what_to_install(grid, tmp_path):
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "from scaling.cli import main\n"
        f"sys.argv = ['scale', 'sweep', {str(grid)!r}, '--out', {str(tmp_path / 'out')!r}]\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: scale sweep needs torch, which is not installed: pip install 'isoflop[train]'\n"


def test_the_sweep_process_imports_no_heavy_library(grid, tmp_path):
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from scaling.cli import cli\n"
        f"result = CliRunner().invoke(cli, ['sweep', {str(grid)!r}, '--out', {str(tmp_path / 'out')!r}, *{TRAIN!r}])\n"
        "assert result.exit_code == 0, result.output\n"
        "print([m for m in ('torch', 'scipy', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_the_folder_stays_inside_itself_whatever_the_grid_says(grid, tmp_path):
    """No key of a grid names a place to write to; the words in it reach no path, shell or table unescaped."""
    hostile = "{d_model = 16, n_layers = 2}"
    grid.write_text(grid.read_text().replace('params = ["20K", "60K"]', f"sizes = [{hostile}]"))
    before = sorted(path.name for path in tmp_path.iterdir())
    assert scale("sweep", grid, "--out", tmp_path / "a b;$(touch hacked)", "--workers", 1, *TRAIN)[0] == 0
    after = sorted(path.name for path in tmp_path.iterdir())
    assert set(after) - set(before) <= {"a b;$(touch hacked)", "cache"}
    assert not (ROOT / "hacked").exists()
