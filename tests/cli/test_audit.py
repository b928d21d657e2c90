"""scale audit: the table, the JSON, the picture, the exit status."""

import json

import pytest
from click.testing import CliRunner

from scaling.cli import cli
from scaling.errors import ScalingError


def run(*arguments):
    return CliRunner().invoke(cli, ["audit", *map(str, arguments)], catch_exceptions=False)


def test_the_table_names_the_law_and_marks_what_is_not_certain():
    result = run()
    assert result.exit_code == 0
    assert "Law besiroglu2024" in result.stdout and "undertrained" in result.stdout
    assert "LaMDA ?" in result.stdout and "GPT-3 ?" not in result.stdout
    assert "Warning: LaMDA: N or D is not certain" in result.stderr


def test_a_few_models_are_put_in_words():
    text = run("--only", "GPT-3").stdout
    assert "GPT-3: 175B on 300B tokens, D/N 1.71. That is the ratio it used, not an optimum" in text
    assert "best spent on 53.02B and 990.1B tokens (D/N 18.7)" in text


def test_json_and_file(tmp_path):
    out = tmp_path / "audit.json"
    result = run("--model", "mine=13B,300B", "--mine", "--json", "--out", out)
    data = json.loads(result.stdout)
    assert data == json.loads(out.read_text())
    (row,) = data["models"]
    assert row["name"] == "mine" and row["flops"] == pytest.approx(2.34e22)
    assert set(row) >= {"params_optimal", "tokens_optimal", "loss_gap", "wasted_compute_factor", "verdict", "certain"}


def test_models_from_a_table_stand_beside_the_public_ones(tmp_path):
    table = tmp_path / "models.csv"
    table.write_text("name,params,tokens\nours,1B,1T\n")
    text = run("--csv", table, "--only", "Chinchilla", "--sources").stdout
    assert "ours" in text and "Chinchilla" in text and "2022-03" in text and str(table) in text


def test_the_picture(tmp_path):
    path = tmp_path / "audit.png"
    assert run("--plot", path).exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 30_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "GPT-9"], "unknown model"),
        (["--mine"], "no models"),
        (["--model", "x"], "NAME=N,D"),
        (["--csv", "none.csv"], "cannot be read"),
        (["--law", "nobody"], "unknown law"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ScalingError, match=message):
        run(*arguments)


def test_contradictory_options_are_misuse():
    assert run("--mine", "--only", "GPT-3").exit_code == 2
