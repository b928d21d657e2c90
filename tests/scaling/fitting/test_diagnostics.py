"""What is said beside a fit: hold-out, influence, sensitivity, conventions, noise, and the verdict."""

import numpy as np
import pandas as pd
import pytest

from scaling.errors import FitError
from scaling.fitting import bootstrap, fit_law
from scaling.fitting.diagnostics import lack_of_fit, sensitivity, specification_table, trends
from scaling.fitting.holdout import hold_out
from scaling.fitting.influence import influence
from scaling.fitting.study import StudyOptions, study
from scaling.fitting.verdict import verdict
from scaling.laws import published_law
from scaling.synthetic import synthetic_runs

LAW = published_law("besiroglu2024").law
BUDGET = 5.76e23


@pytest.mark.parametrize(
    "name", ["epoch_chinchilla_240", "mlscalefit_124", "gadre_c4_original", "llama3_exp", "datablations_1epoch"]
)
def test_hold_out_of_the_published_tables(name, table, golden):
    found, known = hold_out(fit_law(table(name)), resamples=0), golden["sets"][name]["extrapolation"]["test"]
    assert found.n_test == known["n"]
    for ours, theirs in (
        ("mean_abs", "mean_abs_rel"),
        ("max_abs", "max_abs_rel"),
        ("mean_signed", "mean_signed_rel"),
        ("rmse", "rmse"),
    ):
        assert getattr(found, ours) == pytest.approx(known[theirs], rel=1e-4)


def test_hold_out_covers_what_follows_the_law_and_not_what_leaves_it():
    runs = synthetic_runs(LAW, runs=120, noise=0.004, seed=2)
    assert hold_out(fit_law(runs), resamples=300).covered > 0.8
    top = runs.flops > runs.flops.max() / 10
    bent = runs.assign(loss=runs.loss * np.where(top, 1.03, 1.0))
    assert hold_out(fit_law(bent), resamples=300).covered < 0.5
    with pytest.raises(FitError, match="at least 10 below"):
        hold_out(fit_law(runs.assign(flops=1e20)))


def test_options_reach_the_held_out_refit():
    runs = synthetic_runs(LAW, runs=80, noise=0.01, kind="student", seed=3)
    found = hold_out(fit_law(runs, loss_function="mse", weights=np.linspace(0.5, 2, 80)), resamples=0)
    below = (runs.flops <= runs.flops.max() / 10).to_numpy()
    alone = fit_law(runs[below], loss_function="mse", weights=np.linspace(0.5, 2, 80)[below])
    assert found.fit.law.alpha == pytest.approx(alone.law.alpha, rel=1e-6)


def test_five_rows_decide_the_245_points(table):
    runs = table("epoch_chinchilla_245")
    fit = fit_law(runs)
    assert fit.status == "converged" and fit.law.N_exponent == pytest.approx(0.565, abs=1e-3)
    assert fit.law.B == pytest.approx(1.28e4, rel=0.01)
    assert fit.law.D_opt(BUDGET) / fit.law.N_opt(BUDGET) == pytest.approx(6.8, abs=0.1)
    found = influence(fit, BUDGET)
    decisive = next(item for item in found.handfuls if "highest losses" in item.what)
    assert abs(np.log1p(decisive.change)) > np.log(1.5)
    rows = runs.iloc[list(decisive.rows)]
    assert (rows.loss > 3.4).all() and (rows.tokens / rows.params < 0.5).all()
    assert any("highest losses" in text and "Nothing was dropped" in text for text in found.warnings)
    clean = influence(fit_law(table("epoch_chinchilla_240")), BUDGET)
    assert not clean.warnings and len(clean.runs) == 5


def test_one_planted_run_is_the_most_influential():
    runs = synthetic_runs(LAW, runs=60, noise=0.003, seed=4)
    at = int(runs.params.argmax())
    runs.loc[at, "loss"] *= 1.5
    fit = fit_law(runs, loss_function="mse_log")
    assert influence(fit, 1e23).runs[0].what == f"row {at + 1}"
    without = fit_law(runs.drop(index=at), loss_function="mse_log").law.N_opt(1e23)
    assert influence(fit, 1e23).runs[0].change == pytest.approx(without / fit.law.N_opt(1e23) - 1, rel=1e-6)


def test_sensitivity_to_delta(table):
    rows = sensitivity(fit_law(table("epoch_chinchilla_240")), BUDGET)
    assert [row.tokens_per_param for row in rows] == pytest.approx([18.3, 17.9, 16.9, 14.3], abs=0.1)
    assert sensitivity(fit_law(table("gadre_rpj"), loss_function="mse"), BUDGET) == []


def test_conventions_side_by_side(table):
    rows = {row.what.split(" (")[0]: row for row in specification_table(fit_law(table("misfitting_final_all")), 1e21)}
    assert rows["as fitted"].N_exponent == pytest.approx(0.760, abs=1e-3)
    assert rows["non-embedding N"].N_exponent > 0.9
    runs = table("mlscalefit_124")
    rows = {row.what.split(" (")[0]: row for row in specification_table(fit_law(runs), 1e23)}
    assert rows["without 35 flagged rows"].n_runs == 124 - 35
    assert rows["D = C/6N from the given C"].N_exponent == pytest.approx(0.529, abs=1e-3)


def test_residuals_that_follow_the_learning_rate_are_named(table):
    found = {t.column: t for t in trends(fit_law(table("misfitting_final_all")))}
    assert found["learning rate"].clear
    quiet = trends(fit_law(synthetic_runs(LAW, runs=100, noise=0.005, seed=5)))
    assert not any(t.clear for t in quiet)


def test_lack_of_fit_against_replicates():
    runs = synthetic_runs(LAW, runs=40, noise=0, seed=6)
    rng = np.random.default_rng(0)
    seeds = pd.concat([runs.assign(loss=runs.loss * np.exp(0.004 * rng.normal(size=40))) for _ in range(3)])
    good = lack_of_fit(fit_law(seeds, loss_function="mse_log"))
    assert good.noise == pytest.approx(0.004, rel=0.2) and good.probability > 0.01
    bent = seeds.assign(loss=seeds.loss * (1 + 0.05 * np.sin(2 * np.log(seeds.params))))
    assert lack_of_fit(fit_law(bent, loss_function="mse_log")).probability < 1e-6
    assert lack_of_fit(fit_law(runs)) is None


def test_verdicts():
    good = fit_law(synthetic_runs(LAW, runs=240, noise=0.004, seed=7))
    assert verdict(good, bootstrap(good, 200)).level == "usable"
    noisy = fit_law(synthetic_runs(LAW, runs=25, noise=0.08, params=(1e8, 6e8), tokens_per_param=(10, 40), seed=8))
    found = verdict(noisy, bootstrap(noisy, 200)) if noisy.usable else verdict(noisy)
    assert found.level in ("not_identified", "provisional") and found.reasons
    flat = fit_law(synthetic_runs(LAW, runs=30, seed=1).assign(params=1e9))
    assert verdict(flat).line.startswith("not identified: All runs have one model size")
    assert verdict(good).level == "provisional"  # without intervals


def test_unfinished_larger_budgets_make_a_law_provisional():
    from scaling.runs import Runs

    runs = synthetic_runs(LAW, runs=120, noise=0.004, seed=9)
    left = pd.DataFrame({"flops": [3 * runs.flops.max()], "status": ["unfinished"]})
    found = study(Runs(table=runs, left_out=left), StudyOptions(resamples=100, budget=1e23))
    assert found.verdict.level == "provisional" and "did not finish" in found.verdict.line


def test_a_study_says_what_it_left_out_and_keeps_its_draws(table):
    found = study(
        table("gadre_rpj"), StudyOptions(resamples=50, budget=1e22, approach="all", compare=("tied", "chinchilla"))
    )
    data = found.to_dict(draws=True)
    assert data["draws"]["shape"] == [50, 5] and data["draws"]["names"] == ["log_E", "log_A", "log_B", "alpha", "beta"]
    assert data["approaches"]["2"]["N_exponent"] is None and "isoFLOP" in data["approaches"]["2"]["reason"]
    assert data["at_budget"]["flops"] == 1e22
    assert {"E", "A", "B", "alpha", "beta", "N_exponent", "D_exponent"} <= set(data["intervals"])
    assert data["comparison"]["preferred"] in ("tied", "chinchilla")


def test_a_law_that_bends_at_the_top_is_provisional():
    """Beyond 1e21 FLOP losses fall 1.5 % below the law: less than what noise may do on average, but all on one side."""
    runs = synthetic_runs(LAW, runs=240, noise=0.004, seed=7)
    drop = np.where(runs.flops > runs.flops.max() / 10, 0.985, 1.0)
    straight, bent = fit_law(runs), fit_law(runs.assign(loss=runs.loss * drop))
    lines = [verdict(fit, bootstrap(fit, 200), holdout=hold_out(fit, resamples=0)).line for fit in (straight, bent)]
    assert lines[0].startswith("usable")
    assert lines[1].startswith("provisional") and "1.4% too high, nearly all runs alike" in lines[1]
