"""`scale fit` as people and scripts call it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from scaling.cli.fit import command
from scaling.errors import ScalingError
from scaling.laws import published_law
from scaling.synthetic import synthetic_isoflop, synthetic_runs

SHARED = Path(__file__).parents[3] / "shared" / "data"
LAW = published_law("besiroglu2024").law
QUICK = ["--bootstrap", "50"]


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "runs.csv"
    table = synthetic_runs(LAW, runs=80, noise=0.005, seed=1)
    table.assign(run_id=[f"r{i}" for i in range(80)], seed=np.arange(80) % 2, w=1.0).to_csv(path, index=False)
    return path


def call(*arguments, code=0):
    result = CliRunner().invoke(command, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit | ScalingError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def as_json(*arguments, code=0):
    return json.loads(call(*arguments, "--json", code=code).stdout)


def test_epoch_s_file_as_it_is():
    path = SHARED / "raw" / "epoch_svg_extracted_data.csv"
    if not path.exists():
        pytest.skip(f"public tables are not at {SHARED}")
    found = as_json(path, "--drop-top-loss", 5, "--budget", "5.76e23", *QUICK)
    assert found["objective"] == pytest.approx(1.0182740178006e-3, rel=1e-9)
    assert found["status"] == "converged" and found["n_runs"] == 240
    assert [row["row"] for row in found["excluded"]] == [2, 3, 4, 5, 6]
    assert all("highest loss" in row["reason"] for row in found["excluded"])
    assert found["at_budget"]["tokens_per_param"] == pytest.approx(17.9, abs=0.1)
    assert any("Model Size" in note for note in found["inputs"]["mapping"])


def test_json_has_the_promised_keys(runs):
    found = as_json(runs, *QUICK)
    for key in ("law", "status", "message", "objective", "delta", "loss_function", "n_runs", "n_parameters", "excluded",
                "starts", "N_exponent", "D_exponent", "condition", "intervals", "holdout", "approaches", "inputs"):  # fmt: skip
        assert key in found
    assert found["law"]["form"] == "chinchilla" and set(found["starts"]) == {"tried", "agreeing"}
    assert {"level", "method", "resamples", "not_converged", "E", "N_exponent"} <= set(found["intervals"])


def test_text_ends_with_the_verdict_and_warns_about_A_and_B(runs):
    text = call(runs, *QUICK, "--details").stdout
    assert text.strip().splitlines()[-1].startswith("Verdict: ")
    assert "A and B mean nothing without their exponents" in text and "Hold-out:" in text
    assert "The answer under other conventions:" in text and "delta 0.1" in text


def test_out_is_what_allocate_reads(runs, tmp_path):
    call(runs, *QUICK, "--out", tmp_path / "fit.json")
    from scaling.allocation import allocate

    answer = allocate(1e23, law=str(tmp_path / "fit.json"))
    fit = json.loads((tmp_path / "fit.json").read_text())
    assert fit["draws"]["shape"] == [50, 5]
    assert answer.params == pytest.approx(
        LAW.__class__(**{k: v for k, v in fit["law"].items() if k != "form"}).N_opt(1e23), rel=1e-9)  # fmt: skip
    assert answer.to_dict()["intervals"]


def test_options_reach_the_fit(runs):
    base = as_json(runs, *QUICK)
    assert as_json(runs, *QUICK, "--delta", "0.01")["delta"] == 0.01
    squares = as_json(runs, *QUICK, "--loss-function", "mse_log")
    assert squares["delta"] is None and squares["objective"] != base["objective"]
    assert as_json(runs, *QUICK, "--weights", "w")["law"] == base["law"]
    assert as_json(runs, *QUICK, "--starts", 5)["starts"]["tried"] == 5
    assert as_json(runs, *QUICK, "--holdout", "none")["holdout"] is None
    cluster = as_json(runs, *QUICK, "--cluster", "seed")
    assert cluster["intervals"]["kind"] == "cluster" and any("Only 2 clusters" in w for w in cluster["warnings"])
    assert as_json(runs, *QUICK, "--parametric", "--interval", "bca", "--level", "0.8")["intervals"]["level"] == 0.8
    assert "intervals" not in as_json(runs, "--bootstrap", 0)
    assert as_json(runs, *QUICK, "--form", "tied")["law"]["form"] == "tied"
    assert as_json(runs, *QUICK, "--compare")["comparison"]["preferred"] in ("tied", "chinchilla", "interaction")
    assert as_json(runs, *QUICK, "--compare", "tied,power_C")["comparison"]["forms"][0]["form"] == "tied"


def test_every_approach(tmp_path):
    path = tmp_path / "grid.csv"
    synthetic_isoflop(LAW, (1e19, 1e20, 1e21, 1e22), noise=0.002, seed=2).to_csv(path, index=False)
    sides = as_json(path, *QUICK, "--approach", "all", "--budget", "1e23")["approaches"]
    for key in ("2", "3"):
        assert sides[key]["N_exponent"] == pytest.approx(LAW.N_exponent, abs=0.03)
    assert len(sides["2"]["budgets"]) == 4 and all(b["accepted"] for b in sides["2"]["budgets"])
    text = call(path, *QUICK, "--approach", "2", "--isoflop-budgets", "1e19,1e20,1e21").stdout
    assert "2 isoFLOP" in text


def test_one_fit_per_group(runs, tmp_path):
    found = as_json(runs, *QUICK, "--group-by", "seed", "--out", tmp_path / "groups.json")
    assert set(found["groups"]) == {"0", "1"} and found["groups"]["0"]["n_runs"] == 40
    assert "draws" in json.loads((tmp_path / "groups.json").read_text())["groups"]["1"]
    assert "verdict" in call(runs, *QUICK, "--group-by", "seed").stdout
    call(runs, "--group-by", "seed", "--plot", tmp_path / "x.png", code=2)


@pytest.mark.parametrize("form", ["chinchilla", "interaction", "power_C", "kaplan"])
def test_plot(runs, tmp_path, form):
    call(runs, *QUICK, "--form", form, "--plot", tmp_path / "fit.png")
    assert (tmp_path / "fit.png").stat().st_size > 20_000


def test_unidentifiable_runs_exit_1_with_the_reason_and_the_offer(tmp_path):
    path = tmp_path / "one.csv"
    synthetic_runs(LAW, runs=20, seed=3).assign(params=1e9).drop(columns="flops").to_csv(path, index=False)
    result = call(path, code=1)
    assert "one model size" in result.output and "--form power_D" in result.output
    data = json.loads(call(path, "--json", code=1).stdout)
    assert data["law"] is None and data["status"] == "unidentifiable"
    assert call(path, "--form", "power_D", *QUICK).exit_code == 0


def test_a_bound_is_an_answer_with_a_loud_warning(tmp_path):
    path = tmp_path / "pure.csv"
    runs = synthetic_runs(LAW, runs=60, noise=0, seed=4)
    pure = 40 / runs.params**0.1 + 300 / runs.tokens**0.3
    runs.assign(loss=pure * np.exp(0.002 * np.random.default_rng(0).normal(size=60))).to_csv(path, index=False)
    result = call(path, *QUICK)
    if "at_bound" in result.stdout:
        assert "at_bound: E = 0" in result.stderr
    assert "provisional" in result.stdout or "usable" in result.stdout or "not identified" in result.stdout


@pytest.mark.parametrize("content, message", [
    ("", "empty"), ("params,tokens\n1e9,1e10\n", "loss"), ("params,tokens,loss\n1e9,1e10,nan\n", "loss"),
    ("params,tokens,loss\n-1e9,1e10,3\n", "params"), ("params,tokens,loss\nbig,1e10,3\n", "big"),
])  # fmt: skip
def test_bad_input_is_one_clear_message(tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    result = CliRunner().invoke(command, [str(path)])
    assert isinstance(result.exception, ScalingError) and message in str(result.exception)


def test_unwritable_output_and_bad_budget(runs, tmp_path):
    for arguments in (["--out", str(tmp_path)], ["--budget", "0"], ["--budget", "inf"], ["--compare", "cubic"]):
        result = CliRunner().invoke(command, [str(runs), *QUICK, *arguments])
        assert isinstance(result.exception, ScalingError), arguments
    assert CliRunner().invoke(command, [str(runs), "--form", "cubic"]).exit_code == 2


def test_a_fit_imports_neither_torch_nor_matplotlib_nor_scipy_stats(runs):
    code = ("import sys; sys.modules['torch'] = None; from click.testing import CliRunner; from scaling.cli.fit import command; "
            f"r = CliRunner().invoke(command, [{str(runs)!r}, '--bootstrap', '20']); assert r.exit_code == 0, r.output; "
            "print([m for m in ('matplotlib', 'scipy.stats', 'scipy.optimize') if m in sys.modules])")  # fmt: skip
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_the_table_is_not_changed(runs):
    before = runs.read_bytes()
    call(runs, *QUICK)
    assert runs.read_bytes() == before and len(pd.read_csv(runs)) == 80


def test_options_that_cannot_be_met_are_misuse_and_not_ignored(runs):
    assert "--parametric" in call(runs, "--parametric", "--cluster", "seed", code=2).stderr
    assert "-1" in call(runs, "--seed", "-1", code=2).stderr


def test_an_approach_asked_for_alone_that_has_no_answer_is_an_error_with_its_reason(runs):
    assert "Error: fit: isoFLOP: 2 of 5 curves are accepted, 3 are needed" in call(
        runs, "--approach", "2", *QUICK, code=1).stderr  # fmt: skip


def test_the_choices_are_in_the_output(runs):
    call(runs, "--weights", "w", *QUICK)
    assert "weighted by w" in call(runs, "--weights", "w", *QUICK).stdout
    options = as_json(runs, "--weights", "w", "--cluster", "seed", "--interval", "bca", *QUICK)["inputs"]["options"]
    assert (options["weights"], options["cluster"], options["method"]) == ("w", "seed", "bca")
    assert options["envelope"] == "interior"


def test_a_published_envelope_from_the_command_line():
    path = SHARED / "misfitting_ckpts.csv"
    if not path.exists():
        pytest.skip(f"public tables are not at {SHARED}")
    found = as_json(path, "--where", "frac > 0.1", "--approach", "1", "--envelope", "all", "--bootstrap", 0, "--holdout", "none")
    assert found["approaches"]["1"]["N_exponent"] == pytest.approx(0.524955, abs=1e-6)
    assert (found["approaches"]["1"]["curves_by"], found["approaches"]["1"]["winners"]) == ("run_id", "all")


def test_what_a_group_left_out_is_its_own(tmp_path):
    path = tmp_path / "runs.csv"
    table = synthetic_runs(LAW, runs=120, noise=0.004, seed=1).drop(columns="flops")
    lost = table.iloc[:1].assign(params=1e11, tokens=1e13, loss=np.nan)
    parts = [table.assign(corpus="c4", status="done"), table.assign(corpus="web", status="done"),
             lost.assign(corpus="web", status="diverged")]  # fmt: skip
    pd.concat(parts).to_csv(path, index=False)
    groups = as_json(path, "--group-by", "corpus", "--bootstrap", "100")["groups"]
    assert [len(groups[name]["excluded"]) for name in ("c4", "web")] == [0, 1]
    assert [groups[name]["inputs"]["n_rows"] for name in ("c4", "web")] == [120, 121]
    assert "did not finish" in groups["web"]["verdict"]["line"] and "did not finish" not in groups["c4"]["verdict"]["line"]


def test_a_change_of_many_orders_of_magnitude_is_no_percentage():
    from scaling.cli.fit_text import _change

    assert [_change(x) for x in (0.25, -0.1, 5e21, -1 + 1e-9)] == ["+25.0%", "-10.0%", "5e+21x", "1e-09x"]
