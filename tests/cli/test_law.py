"""`scale law`: plateaus and parts of the loss, as numbers and as pictures."""

import json

import pytest
from click.testing import CliRunner

from scaling.cli import cli
from scaling.errors import ScalingError
from scaling.files import to_json
from scaling.laws import law_to_dict, published_law


def run(*arguments):
    return CliRunner().invoke(cli, ["law", *arguments])


def test_parts_sum_to_the_loss_and_balance_at_the_optimum():
    done = run("besiroglu2024", "--budget", "5.76e23", "--tokens", "1e12", "--json")
    data = json.loads(done.stdout)
    (row,), law = data["optima"], published_law("besiroglu2024").law
    assert row["params"] == pytest.approx(72.25e9, rel=1e-3)
    assert row["irreducible"] + row["too_few_params"] + row["too_few_tokens"] == pytest.approx(row["loss"], rel=1e-15)
    assert law.alpha * row["too_few_params"] == pytest.approx(law.beta * row["too_few_tokens"], rel=1e-12)
    assert 6 * row["params"] * row["tokens"] == pytest.approx(5.76e23, rel=1e-12)
    plateau = data["plateaus"][0]["loss_at_infinite_N"]
    assert plateau == pytest.approx(law.loss(1e60, 1e12), rel=1e-12)


def test_pictures_of_a_fitted_law(tmp_path):
    fit = tmp_path / "fit.json"
    fit.write_text(to_json({"law": law_to_dict(published_law("hoffmann2022").law), "status": "converged"}))
    plateaus, parts = tmp_path / "plateaus.png", tmp_path / "parts.svg"
    done = run(str(fit), "--plateaus", str(plateaus), "--bottlenecks", str(parts))
    assert done.exit_code == 0, done.output
    assert plateaus.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in parts.read_bytes()
    assert "E + B/D^beta" in done.stdout


def test_the_default_law_is_named():
    assert run().stdout.startswith("besiroglu2024: L = E + A/N^alpha + B/D^beta")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody2031"], "Known laws"),
        (["--budget", "0"], "must be above zero"),
        (["--plateaus", "a.bmp"], '".bmp" file'),
        (["missing.json"], "missing.json"),
        (["--plateaus", "a.png", *[f"--tokens={k}e9" for k in range(1, 10)]], "9 curves are too many"),
    ],
)
def test_mistakes_have_one_message(arguments, message):
    done = run(*arguments)
    assert isinstance(done.exception, ScalingError)
    assert message in str(done.exception)
