"""Intervals, regret and robust choices from joint draws."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from scaling.allocation import allocate
from scaling.allocation.comparison import parse_choice
from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost
from scaling.allocation.delta import normal_quantile
from scaling.allocation.law_choice import choose_law
from scaling.allocation.solver import solve
from scaling.allocation.surface import Surface
from scaling.allocation.uncertainty import stack_draws
from scaling.cli import cli
from scaling.errors import AllocationError, InputError, LawError
from scaling.fit_file import encode_draws, read_fit
from scaling.laws import PUBLISHED, ChinchillaLaw, law_to_dict

NAMES = ("E", "A", "B", "alpha", "beta")
CENTRE = ChinchillaLaw(E=1.8172, A=477.8, B=2143.4, alpha=0.3473, beta=0.3672)
EPOCH = Path(__file__).parents[2] / "../shared/data/raw/epoch_svg_extracted_data.csv"


def make_draws(count: int, seed: int = 0):
    """Joint draws as a bootstrap gives them: A with alpha, B with beta almost perfectly correlated."""
    rng = np.random.default_rng(seed)
    alpha, beta = CENTRE.alpha + 0.015 * rng.normal(size=count), CENTRE.beta + 0.02 * rng.normal(size=count)
    A, B = CENTRE.A * np.exp(16.6 * (alpha - CENTRE.alpha)), CENTRE.B * np.exp(22.3 * (beta - CENTRE.beta))
    return np.column_stack([CENTRE.E + 0.01 * rng.normal(size=count), A, B, alpha, beta])


def write_fit(path, draws, **changes):
    data = {"law": law_to_dict(CENTRE), "status": "converged", "draws": encode_draws(NAMES, draws)} | changes
    path.write_text(json.dumps(data))
    return str(path)


@pytest.fixture
def fit(tmp_path):
    return write_fit(tmp_path / "fit.json", make_draws(300))


def fit_epoch(folder) -> str:
    """fit.json of the 240 runs, by scale fit."""
    if not EPOCH.exists():
        pytest.skip(f"no {EPOCH.name} beside the project")
    path = folder / "fit.json"
    arguments = ["fit", str(EPOCH), "--drop-top-loss", "5", "--out", str(path), "--bootstrap", "2000"]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return str(path)


QUESTIONS = {
    "budget": ({"budget": 1e22}, Cost(), {}),
    "max tokens": ({"budget": 1e22, "max_tokens": 1e11}, Cost(), {"max_tokens": 1e11}),
    "ratio": ({"budget": 1e22, "ratio": 20}, Cost(), {"ratio": 20}),
    "params": ({"budget": 1e22, "params": 5e9}, Cost(), {"params": 5e9}),
    "target": ({"target_loss": 2.2}, Cost(), {"target_loss": 2.2}),
    "served target": (
        {"target_loss": 2.2, "inference_tokens": 1e12},
        Cost(inference_tokens=1e12),
        {"target_loss": 2.2},
    ),
    "served": ({"budget": 1e22, "inference_tokens": 1e11}, Cost(inference_tokens=1e11), {}),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_all_draws_at_once_equal_one_at_a_time(tmp_path, name):
    question, cost, constraints = QUESTIONS[name]
    draws = make_draws(25)
    found = allocate(**question, law=write_fit(tmp_path / "fit.json", draws)).intervals
    points = [
        solve(Surface(ChinchillaLaw(*row)), cost, question.get("budget"), Constraints(**constraints)) for row in draws
    ]
    for key, values in (("params", [p.N for p in points]), ("tokens", [p.D for p in points])):
        assert found[key] == pytest.approx(np.percentile(values, [2.5, 97.5]), rel=1e-9)
    assert found["draws"] == 25 and found["dropped"] == 0 and found["unsolved"] == 0


def test_repeats_under_draws_equal_one_at_a_time(tmp_path):
    draws = make_draws(12)
    question = {"unique_tokens": 25e9, "law": write_fit(tmp_path / "fit.json", draws), "comparisons": ["7B"]}
    answer = allocate(1e22, **question)
    source = PUBLISHED["muennighoff2023"].law
    extra = {"R_D_star": source.R_D_star, "R_N_star": source.R_N_star}
    each = [allocate(1e22, law=type(source)(*row, **extra), unique_tokens=25e9, comparisons=["7B"]) for row in draws]
    assert answer.intervals["params"] == pytest.approx(np.percentile([a.params for a in each], [2.5, 97.5]), rel=1e-8)
    wasted = [a.comparisons[0]["wasted_compute_factor"] for a in each]
    found = answer.comparisons[0]["intervals"]["wasted_compute_factor"]
    assert found == pytest.approx(np.percentile(wasted, [2.5, 97.5]), rel=1e-6)


def test_intervals_hold_the_best_and_widen_with_the_level(fit):
    narrow, wide = (allocate(5.76e23, law=fit, level=level).intervals for level in (0.5, 0.95))
    for key in ("params", "tokens", "tokens_per_param", "loss"):
        assert wide[key][0] < narrow[key][0] < narrow["median"][key] < narrow[key][1] < wide[key][1]


def test_intervals_widen_with_extrapolation(fit):
    near, far = (allocate(C, law=fit).intervals["tokens_per_param"] for C in (1e22, 1e26))
    assert far[1] / far[0] > 1.5 * near[1] / near[0]


def test_impossible_draws_are_dropped_and_counted(tmp_path):
    draws = make_draws(50)
    draws[:3, 3] = -0.1
    answer = allocate(1e22, law=write_fit(tmp_path / "fit.json", draws))
    assert answer.intervals["dropped"] == 3 and answer.intervals["draws"] == 47
    assert any("3 of the draws were left out: their constants are impossible" in w for w in answer.warnings)


def test_no_possible_draw_is_an_error(tmp_path):
    draws = make_draws(5)
    draws[:, 1] = -1
    with pytest.raises(LawError, match="none of its 5 draws"):
        allocate(1e22, law=write_fit(tmp_path / "fit.json", draws))


def test_draws_that_cannot_reach_a_target_are_counted(tmp_path):
    draws = make_draws(200)
    answer = allocate(law=write_fit(tmp_path / "fit.json", draws), target_loss=1.822)
    assert answer.intervals["unsolved"] == int((draws[:, 0] >= 1.822).sum()) > 0
    assert any("no answer under these constraints" in w for w in answer.warnings)


@pytest.mark.parametrize("level", [0, 1, 95, -0.5])
def test_a_level_is_a_share(fit, level):
    with pytest.raises(AllocationError, match="level"):
        allocate(1e22, law=fit, level=level)


def test_a_choice_at_the_optimum_wastes_nothing():
    best = allocate(5.76e23)
    (found,) = allocate(5.76e23, comparisons=[(best.params, best.tokens)]).comparisons
    assert found["wasted_compute_factor"] == pytest.approx(1, abs=1e-9)
    assert found["loss_gap"] == pytest.approx(0, abs=1e-12)


def test_the_regret_of_a_choice(fit):
    (found,) = allocate(5.76e23, law=fit, comparisons=["175B,300B"]).comparisons
    assert found["flops"] == pytest.approx(3.15e23)
    reached = allocate(law=CENTRE, target_loss=found["loss"])
    assert found["wasted_compute_factor"] == pytest.approx(3.15e23 / reached.flops, rel=1e-9)
    low, high = found["intervals"]["wasted_compute_factor"]
    assert 1 < low < found["wasted_compute_factor"] < high


def test_a_choice_of_params_spends_the_budget():
    (found,) = allocate(6e23, comparisons=["70B"]).comparisons
    assert found["tokens"] == pytest.approx(6e23 / 6 / 70e9)
    (served,) = allocate(6e23, comparisons=["70B"], inference_tokens="1T").comparisons
    assert served["flops"] == pytest.approx(6e23)


@pytest.mark.parametrize("text", ["", "70B,", "70B,1T,2", "big"])
def test_a_choice_that_cannot_be_read(text):
    with pytest.raises(InputError, match="choice"):
        parse_choice(text)


def test_the_robust_choice_beats_the_best_guess_on_average(fit):
    found = allocate(5.76e23, law=fit).robust
    assert found["mean_waste"] <= found["mean_waste_of_best"] * (1 + 1e-9)
    assert 0 <= found["mean_waste"] < found["high_waste"]


def test_the_robust_choice_minimises_the_mean_over_draws(tmp_path):
    """Half the draws want a far larger model: the compromise lies between."""
    small, large = (1.8, 400, 2000, 0.34, 0.34), (1.8, 400, 2000, 0.30, 0.36)
    draws = np.array([small] * 10 + [large] * 10)
    path = write_fit(tmp_path / "fit.json", draws, law=law_to_dict(ChinchillaLaw(*small)))
    found = allocate(1e23, law=path).robust
    low, high = (ChinchillaLaw(*row).N_opt(1e23) for row in (small, large))
    assert low < found["params"] < high
    assert found["mean_waste"] < 0.8 * found["mean_waste_of_best"]


def test_laws_side_by_side_and_the_choice_between_them():
    answer = allocate(5.76e23, other_laws=list(PUBLISHED))
    rows = {row["name"]: row for row in answer.laws}
    assert set(rows) == set(PUBLISHED)
    for name, row in rows.items():
        assert row["params"] == pytest.approx(allocate(5.76e23, law=name).params)
    found = answer.robust_across_laws
    factors = found["wasted_compute_factors"]
    assert "hoffmann2022-rounded" not in factors and max(factors.values()) < 1.1
    for other in (found["params"] * 0.8, found["params"] * 1.25):
        C = [allocate(5.76e23, law=name, comparisons=[other]).comparisons[0] for name in factors]
        assert max(c["wasted_compute_factor"] for c in C) > max(factors.values())


def test_stacked_draws_are_the_draws(tmp_path):
    draws = make_draws(4)
    choice = choose_law(write_fit(tmp_path / "fit.json", draws))
    stacked = stack_draws(choice, Surface(choice.law))
    expected = [ChinchillaLaw(*row).loss(1e9, 2e10) for row in draws]
    assert stacked.surface.loss(1e9, 2e10) == pytest.approx(expected, rel=1e-14)


# --- laws that come with a covariance and no draws --------------------------------------------------------------------


def test_the_normal_quantile():
    assert normal_quantile(0.975) == pytest.approx(1.959963984540054, rel=1e-12)
    assert normal_quantile(0.5) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("options", [{}, {"ratio": 20}, {"inference_tokens": "100B"}, {"max_tokens": "50B"}])
def test_the_delta_method_agrees_with_draws_of_the_same_covariance(tmp_path, options):
    choice = choose_law("besiroglu2024")
    law, covariance = choice.law, choice.covariance
    centre = [np.log(law.E), np.log(law.A), np.log(law.B), law.alpha, law.beta]
    draws = np.random.default_rng(0).multivariate_normal(centre, covariance.matrix, 4000)
    names = ("E", "A", "B", "alpha", "beta")
    data = {"law": law_to_dict(law), "status": "converged"}
    draws[:, :3] = np.exp(draws[:, :3])
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(data | {"draws": encode_draws(names, draws)}))
    drawn = allocate(1e22, law=str(path), **options).intervals
    delta = allocate(1e22, **options).intervals
    for key in ("params", "tokens", "tokens_per_param", "loss"):
        assert delta[key] == pytest.approx(drawn[key], rel=0.05), key


def test_the_default_law_says_how_sure_it_is():
    found = allocate(5.76e23).intervals
    low, high = found["tokens_per_param"]
    assert low == pytest.approx(8, abs=1) and high == pytest.approx(40, abs=4)
    assert "delta method" in found["method"] and "240 runs" in found["method"]
    wide, narrow = (allocate(5.76e23, level=level).intervals["params"] for level in (0.95, 0.5))
    assert wide[0] < narrow[0] < 72.25e9 < narrow[1] < wide[1]


def test_the_covariance_is_that_of_the_refits(tmp_path):
    fit = read_fit(fit_epoch(tmp_path))
    draws = fit.draws.copy()
    draws[:, :3] = np.log(draws[:, :3])
    shipped = np.array(choose_law("besiroglu2024").covariance.matrix)
    assert np.sqrt(np.diag(np.cov(draws.T))) == pytest.approx(np.sqrt(np.diag(shipped)), rel=0.08)
    assert np.corrcoef(draws.T)[1, 3] == pytest.approx(shipped[1, 3] / np.sqrt(shipped[1, 1] * shipped[3, 3]), abs=1e-3)


def test_a_fit_of_epoch_s_240_points(tmp_path):
    answer = allocate(5.76e23, law=fit_epoch(tmp_path))
    assert answer.tokens_per_param == pytest.approx(17.9, abs=0.3)
    low, high = answer.intervals["tokens_per_param"]
    assert low == pytest.approx(8, abs=1.5) and high == pytest.approx(37, abs=5)
    low, high = answer.intervals["params"]
    assert low == pytest.approx(51e9, rel=0.1) and high == pytest.approx(111e9, rel=0.1)
