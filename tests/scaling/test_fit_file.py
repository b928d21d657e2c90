"""fit.json: written by a fit, read without scipy or pandas, and never filled in."""

import json
import subprocess
import sys

import numpy as np
import pytest

from scaling.errors import InputError, LawError
from scaling.files import to_json
from scaling.fit_file import constants_of, decode_draws, encode_draws, read_fit
from scaling.fitting.study import StudyOptions, study
from scaling.laws import published_law
from scaling.synthetic import synthetic_runs


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    runs = synthetic_runs(published_law("besiroglu2024").law, runs=60, noise=0.005, seed=1)
    found = study(runs, StudyOptions(resamples=30, budget=1e22))
    path = tmp_path_factory.mktemp("fit") / "fit.json"
    path.write_text(to_json(found.to_dict(draws=True)))
    return found, path


def test_round_trip(written):
    found, path = written
    fit = read_fit(path)
    assert fit.law == found.fit.law and fit.status == "converged"
    assert fit.flops_range == tuple(found.inputs["flops_range"])
    assert fit.draw_names == ("E", "A", "B", "alpha", "beta")
    np.testing.assert_allclose(fit.draws[:, :3], np.exp(found.draws.draws[:, :3]))
    np.testing.assert_array_equal(fit.draws[:, 3:], found.draws.draws[:, 3:])


def test_reading_imports_numpy_alone(written):
    code = (f"import sys; from scaling.fit_file import read_fit; read_fit({str(written[1])!r}); "
            "print([m for m in ('scipy', 'pandas', 'torch', 'matplotlib') if m in sys.modules])")  # fmt: skip
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_draws_round_trip_bit_for_bit():
    draws = np.random.default_rng(0).normal(size=(7, 2))
    names, back = decode_draws(json.loads(json.dumps(encode_draws(("log_E", "alpha"), draws))))
    np.testing.assert_array_equal(back, draws)
    assert constants_of(names, back)[0] == ("E", "alpha")


@pytest.mark.parametrize("change, error, message", [
    (lambda d: d["law"].pop("B"), LawError, "B missing"),
    (lambda d: d.pop("law"), LawError, 'no "law"'),
    (lambda d: d.update(law=None, status="unidentifiable", message="one size."), LawError, "unidentifiable. one size."),
    (lambda d: d["law"].update(alpha="x"), LawError, "not a number"),
    (lambda d: d["draws"].update(data="!!"), InputError, "draws cannot be read"),
    (lambda d: d["draws"].update(shape=[30, 4]), InputError, "draws"),
])  # fmt: skip
def test_damaged_files_say_what_is_wrong(written, tmp_path, change, error, message):
    data = json.loads(written[1].read_text())
    change(data)
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(data))
    with pytest.raises(error, match=message):
        read_fit(path)


def test_no_file_and_no_json(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_fit(tmp_path / "none.json")
    with pytest.raises(InputError, match="is a folder"):
        read_fit(tmp_path)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        read_fit(tmp_path / "bad.json")
