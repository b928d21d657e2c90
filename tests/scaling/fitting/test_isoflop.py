"""Approaches 1 and 2: published exponents, what is rejected and why, and the three approaches side by side."""

import numpy as np
import pandas as pd
import pytest

from scaling.errors import FitError
from scaling.fitting import bootstrap, fit_law
from scaling.fitting.approaches import side_by_side
from scaling.fitting.data import run_data
from scaling.fitting.envelope import fit_envelope
from scaling.fitting.isoflop import fit_isoflop
from scaling.fitting.regression import consistency, power_law
from scaling.fitting.study import StudyOptions, study
from scaling.laws import ChinchillaLaw, published_law
from scaling.runs import read_runs
from scaling.synthetic import synthetic_isoflop

LAW = published_law("besiroglu2024").law
BUDGETS = (1e19, 1e20, 1e21, 1e22)


@pytest.mark.parametrize("name", ["llama3_raw", "llama3_exp", "mlscalefit_124", "cs336_72"])
def test_published_tables(name, table, golden):
    known = golden["special"][f"approach2_{name}"]
    found = fit_isoflop(run_data(table(name)))
    assert (len(found.accepted), len(found.budgets)) == (known["n_groups_used"], known["n_groups_total"])
    assert found.N_law.exponent == pytest.approx(known["a_N"], rel=1e-9)
    assert found.D_law.exponent == pytest.approx(known["b_D"], rel=1e-9)
    for budget, vertex in zip(found.accepted, known["vertices"], strict=True):
        assert (budget.N_opt, budget.loss) == pytest.approx((vertex["N_opt"], vertex["loss"]), rel=1e-6)


def test_llama_gap_and_the_rows_that_are_named(table):
    runs = table("llama3_raw")
    fit = fit_law(runs)
    sides = side_by_side(fit, None, 1e23)
    assert sides.answers["2"].N_exponent == pytest.approx(0.463, abs=5e-4)
    assert sides.answers["3"].N_exponent == pytest.approx(0.527, abs=5e-4)
    assert fit.law.E == pytest.approx(0.594, abs=1e-3)
    assert fit_law(table("llama3_exp")).law.N_exponent == pytest.approx(0.528, abs=5e-4)
    notes = {round(np.log10(b.flops), 2): " ".join(b.notes) for b in sides.answers["2"].detail.budgets}
    flat = {C for C, text in notes.items() if "weak curvature" in text}
    assert flat == {round(np.log10(3e21), 2), 22.0}  # the source's own two weak budgets
    near = sorted(C for C, text in notes.items() if "near-duplicate" in text)
    assert near == [19.0, round(np.log10(6e20), 2)]


MARIN = pd.DataFrame({
    "params": [4601984.0, 11622272, 28081408, 49520896], "tokens": [3.0115e9, 1.3894e9, 6.448e8, 4.0999e8],
    "loss": [1.5377929, 1.5102867, 1.6627489, 1.5365905], "flops": 3e17,
})  # fmt: skip


def test_a_curve_that_opens_downward_has_no_optimum():
    found = fit_isoflop(run_data(MARIN))
    (budget,) = found.budgets
    assert budget.rejected == "the parabola opens downward: no minimum" and budget.N_opt is None
    assert budget.outliers == (2,) and found.N_law is None
    assert any("provisional" in text for text in found.warnings)


def test_three_points_determine_a_parabola_exactly_and_say_so():
    (budget,) = fit_isoflop(run_data(MARIN.drop(index=2))).budgets
    assert budget.N_opt == pytest.approx(15.3e6, rel=0.01)
    assert budget.N_error is None and "exactly determined" in budget.rejected


def test_two_budgets_give_no_exponent(table):
    """A line through two accepted curves is exact whatever they are worth."""
    sides = side_by_side(fit_law(table("misfitting_final_all")), None, 1e22, wanted="2")
    answer = sides.answers["2"]
    assert answer.N_exponent is None and answer.params is None and len(answer.detail.accepted) == 2
    assert "2 of 6 curves are accepted, 3 are needed" in answer.reason and "opens downward" in answer.reason


def test_a_minimum_at_the_edge_is_rejected():
    runs = synthetic_isoflop(LAW, BUDGETS, off_centre=1.0, decades=1.0, noise=0.0)
    found = fit_isoflop(run_data(runs))
    assert not found.accepted and all("add smaller models" in b.rejected for b in found.budgets)


def test_a_wide_grid_is_biased_and_says_so():
    law = ChinchillaLaw(1.7, 3000, 60, 0.465, 0.155)
    narrow, wide = (
        fit_isoflop(run_data(synthetic_isoflop(law, BUDGETS, decades=d, noise=0)), resamples=0) for d in (0.4, 3.0)
    )
    truth = law.N_opt(1e24)
    assert narrow.N_law.at(1e24) == pytest.approx(truth, rel=0.03)
    assert wide.N_law.at(1e24) / truth > 1.2  # the intercept moves, the exponent does not
    assert wide.N_law.exponent == pytest.approx(law.N_exponent, abs=2e-3)
    assert any("wide" in text for text in wide.warnings) and not any("wide" in text for text in narrow.warnings)


def test_given_budgets_and_detected_ones_agree():
    runs = synthetic_isoflop(LAW, BUDGETS, noise=0.002, seed=3)
    jittered = runs.assign(flops=runs.flops * np.exp(np.random.default_rng(0).uniform(-0.02, 0.02, len(runs))))
    given = fit_isoflop(run_data(jittered), BUDGETS)
    found = fit_isoflop(run_data(jittered))
    assert [len(b.rows) for b in found.budgets] == [len(b.rows) for b in given.budgets] == [9] * 4
    assert found.N_law.exponent == pytest.approx(given.N_law.exponent, abs=0.01)


def test_no_grid_is_an_error_that_says_what_to_do(table):
    with pytest.raises(FitError, match="no isoFLOP grid"):
        fit_isoflop(run_data(table("gadre_rpj")))


C = [1e18, 2e18, 5e18, 1e19]
CONVENTIONS = {
    "first": ([110678115, 167797457, 250650865, 381758347], [1241505403, 1785336422, 2642234152, 3806871243],
              0.52, 0.48, 1.00, (0.80, 0.90)),
    "all parameters": ([416320605, 560239841, 741495903, 988644331], [1232157011, 1763669281, 2629909368, 3884841895],
                       0.37, 0.49, 0.86, (2.3, 3.1)),
    "transformer only": ([80259665, 131488566, 220985474, 401213504], [1315639547, 1864134141, 2595328843, 3328704512],
                         0.68, 0.40, 1.08, (0.63, 0.80)),
}  # fmt: skip


@pytest.mark.parametrize("N, D, a, b, total, ratio", CONVENTIONS.values(), ids=CONVENTIONS)
def test_exponents_that_do_not_sum_to_one_are_explained(N, D, a, b, total, ratio):
    found = consistency(C, N, D)
    assert (found.N_exponent, found.D_exponent, found.total) == pytest.approx((a, b, total), abs=0.008)
    assert found.ratio == pytest.approx(ratio, rel=0.02)
    assert (found.message is None) == (total == 1.00)


def test_three_optima_give_a_wide_interval():
    law = power_law([1e18, 3e18, 1e19], [2.84e9, 5.08e9, 9.90e9])
    assert law.exponent == pytest.approx(0.542, abs=1e-3)
    assert law.interval[1] - law.interval[0] > 0.15
    assert power_law([1e18, 1e19], [1e9, 3e9]).interval is None
    low, high = law.log_interval_at(1e21)
    assert np.exp(high - low) > 2.5 and low < np.log(law.at(1e21)) < high
    rng, C, hits = np.random.default_rng(0), np.geomspace(1e18, 1e20, 5), 0
    for _ in range(400):
        found = power_law(C, 0.1 * C**0.5 * np.exp(0.1 * rng.normal(size=5))).log_interval_at(1e22)
        hits += found[0] <= np.log(0.1 * 1e11) <= found[1]
    assert hits / 400 == pytest.approx(0.95, abs=0.03)


OPTIMA = {1e18: 2.84e9, 3e18: 5.08e9, 1e19: 9.90e9}  # marin-community/marin#8003: C to D*


def unfinished_sweep() -> pd.DataFrame:
    """Curves with those optima, and cells of the two budgets above that diverged or still run."""
    cells = [{"params": C / (6 * D) * f, "tokens": D / f, "flops": C, "status": "done",
              "loss": 3.0 - 0.1 * np.log10(C / 1e18) + 0.06 * np.log(f) ** 2}
             for C, D in OPTIMA.items() for f in (0.4, 0.65, 1.0, 1.55, 2.5)]  # fmt: skip
    for C, status in ((3e19, "diverged"), (3e19, "running"), (3e19, "done"), (1e20, "running"), (1e20, "diverged")):
        N = np.sqrt(C / 120) * {"diverged": 1.0, "running": 1.3, "done": 0.8}[status]
        loss = 2.8 if status == "done" else np.nan
        cells.append({"params": N, "tokens": C / (6 * N), "flops": C, "status": status, "loss": loss})
    return pd.DataFrame(cells).assign(run_id=[f"cell-{k}" for k in range(len(cells))])


def test_an_unfinished_sweep_gives_a_provisional_exponent_and_lists_what_it_left_out(tmp_path):
    path = tmp_path / "runs.csv"
    unfinished_sweep().to_csv(path, index=False)
    before = path.read_bytes()
    found = study(read_runs(path), StudyOptions(resamples=100, approach="2", budget=1e20)).to_dict()
    answer = found["approaches"]["2"]
    assert answer["D_exponent"] == pytest.approx(0.542, abs=1e-3) and answer["sum_of_exponents"] == pytest.approx(1)
    assert [b["tokens"] for b in answer["budgets"] if b["accepted"]] == pytest.approx(list(OPTIMA.values()), rel=1e-6)
    low, high = answer["D_exponent_interval"]
    assert high - low > 0.15  # three points
    low, high = answer["params_interval"]
    assert high / low > 1.5 and low < answer["params"] < high
    assert any(text == "provisional: the largest budget (3e+19 FLOP) has no accepted optimum." for text in answer["warnings"])
    assert {(item["run_id"], item["reason"]) for item in found["excluded"]} == {
        ("cell-15", "status diverged"), ("cell-16", "status running"),
        ("cell-18", "status running"), ("cell-19", "status diverged"),
    }  # fmt: skip
    assert found["verdict"]["level"] != "usable" and "2 runs of larger budgets did not finish" in found["verdict"]["line"]
    assert path.read_bytes() == before


def test_envelope_of_known_curves():
    law = ChinchillaLaw(1.7, 400, 400, 0.32, 0.32)
    N = np.repeat(np.geomspace(1e7, 1e10, 31), 60)
    D = np.tile(np.geomspace(1e8, 1e13, 60), 31)
    runs = pd.DataFrame({"params": N, "tokens": D, "loss": law.loss(N, D)})
    found = fit_envelope(run_data(runs), resamples=40)
    assert found.N_law.exponent == pytest.approx(law.N_exponent, abs=0.02)
    named = fit_envelope(run_data(runs), np.array([f"run {n:.0f}" for n in N]), resamples=0)
    assert named.N_law.exponent == pytest.approx(found.N_law.exponent, rel=1e-9)


def test_envelope_refuses_a_staircase(table):
    with pytest.raises(FitError, match="winner between smaller and larger"):
        fit_envelope(run_data(table("gadre_rpj")))


@pytest.fixture
def checkpoints(shared):
    runs = pd.read_csv(shared / "misfitting_ckpts.csv")
    return runs.rename(columns={"n_params": "params", "n_tokens": "tokens", "run": "run_id"})


@pytest.mark.parametrize("share, known", [(0.1, "frac>0.1"), (0.0, "all")])
def test_published_envelope_counts_every_level(checkpoints, golden, share, known):
    known = golden["special"][f"approach1_misfitting_ckpts_{known}"]
    found = fit_envelope(run_data(checkpoints[checkpoints.frac > share]), winners="all", resamples=0)
    assert found.curves_by == "run_id"
    assert (len(found.flops), len(np.unique(found.N))) == (known["n_grid"], known["distinct_N"])
    assert found.N_law.exponent == pytest.approx(known["a_N"], rel=1e-9)
    assert found.N_law.log_coefficient == pytest.approx(known["intercept_ln"], rel=1e-9)
    assert any("draws the exponent" in text for text in found.warnings)


@pytest.mark.parametrize("law, everything", [
    (ChinchillaLaw(1.81, 51.4, 467476, 0.2003, 0.6357), 0.56),
    (ChinchillaLaw(2.43, 1528, 3.34e5, 0.4164, 0.6236), 0.53),
    (ChinchillaLaw(1.8, 3000, 500, 0.5, 0.33), 0.49),
])  # fmt: skip
def test_on_that_grid_interior_winners_give_a_known_law_back_and_all_winners_do_not(checkpoints, law, everything):
    runs = run_data(checkpoints.assign(loss=law.loss(checkpoints.params, checkpoints.tokens)))
    assert fit_envelope(runs, resamples=0).N_law.exponent == pytest.approx(law.N_exponent, abs=0.015)
    assert fit_envelope(runs, winners="all", resamples=0).N_law.exponent == pytest.approx(everything, abs=0.01)


def test_the_lowest_of_several_runs_at_one_level_is_the_envelope_and_weight_zero_leaves_out():
    law = ChinchillaLaw(1.7, 400, 400, 0.32, 0.32)
    N, D = np.repeat(np.geomspace(1e7, 1e10, 31), 60), np.tile(np.geomspace(1e8, 1e13, 60), 31)
    runs = pd.DataFrame({"params": N, "tokens": D, "loss": law.loss(N, D)})
    clean = fit_envelope(run_data(runs), resamples=0).N_law.exponent
    worse = pd.concat([runs.assign(loss=runs.loss * 1.3), runs, runs.assign(loss=runs.loss * 1.1)])
    assert fit_envelope(run_data(worse), resamples=0).N_law.exponent == pytest.approx(clean, rel=1e-12)
    lucky = pd.concat([runs.assign(w=1.0), runs[runs.params < 1e8].assign(loss=1.0, w=0.0)])
    assert fit_envelope(run_data(lucky, "w"), resamples=0).N_law.exponent == pytest.approx(clean, rel=1e-12)
    with pytest.raises(FitError, match="Known: interior, all"):
        fit_envelope(run_data(runs), winners="edges")


def test_disagreement_is_the_headline():
    law = ChinchillaLaw(1.7, 3000, 60, 0.465, 0.155)
    runs = synthetic_isoflop(law, np.geomspace(1e19, 1e22, 7), sizes=15, decades=3.0, noise=2e-4, seed=1)
    fit = fit_law(runs)
    sides = side_by_side(fit, None, 1e24, draws=bootstrap(fit, 200), wanted="all")
    assert "disagree on N*" in sides.disagreement and "wide" in sides.disagreement
