"""Every form of the law: recovered from its own runs, one row each; and what the published ones say."""

import numpy as np
import pandas as pd
import pytest

from scaling.errors import FitError
from scaling.files import to_json
from scaling.fitting import bootstrap, fit_law
from scaling.fitting.comparison import compare_forms
from scaling.fitting.form_fit import PROBLEMS
from scaling.fitting.intervals import intervals
from scaling.fitting.study import StudyOptions, study
from scaling.laws import (
    FORMS,
    BrokenLaw,
    ChinchillaLaw,
    ComputeLaw,
    InteractionLaw,
    KaplanLaw,
    ParameterLaw,
    TiedLaw,
    TokenLaw,
    published_law,
)

RECOVERY = [
    ChinchillaLaw(1.7, 400, 1500, 0.34, 0.37),
    TiedLaw(1.7, 400, 1500, 0.34),
    KaplanLaw(8.8e13, 5.4e13, 0.076, 0.095),
    InteractionLaw(1.7, 300, 900, 2e5, 0.33, 0.36),
    published_law("muennighoff2023").law,
    ParameterLaw(1.7, 400, 0.34),
    TokenLaw(1.7, 900, 0.33),
    ComputeLaw(1.6, 5e3, 0.18),
    BrokenLaw(1.5, 3e3, 0.15, 1e20, 0.12, 0.6),
]


def runs_of(law, noise=0.0, n=120, seed=0):
    rng = np.random.default_rng(seed)
    N = np.exp(rng.uniform(np.log(1e7), np.log(1e10), n))
    D = N * np.exp(rng.uniform(np.log(2), np.log(300), n))
    U = np.minimum(D, 2e10 * np.exp(rng.normal(size=n)))
    loss = law.loss(N, D, U) if law.form == "data_constrained" else law.loss(N, D)
    return pd.DataFrame(
        {"params": N, "tokens": D, "loss": loss * np.exp(noise * rng.normal(size=n)), "unique_tokens": U}
    )


def test_every_form_has_a_recovery_row():
    assert {law.form for law in RECOVERY} == set(FORMS) == {"chinchilla", *PROBLEMS}


@pytest.mark.parametrize("law", RECOVERY, ids=lambda law: law.form)
def test_recovery(law):
    fit = fit_law(runs_of(law), form=law.form)
    assert fit.status == "converged" and fit.n_agreeing == fit.n_starts
    for name, value in law.constants().items():
        assert getattr(fit.law, name) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("law", RECOVERY, ids=lambda law: law.form)
def test_intervals_hold_the_law(law):
    fit = fit_law(runs_of(law, noise=0.003, seed=1), form=law.form)
    draws = bootstrap(fit, 60, seed=2)
    found = intervals(fit, draws, budget=1e22)
    assert draws.not_converged == 0
    inside = [lo <= law.constants()[name] <= hi for name, (lo, hi) in found.interval.items() if name in law.constants()]
    assert sum(inside) >= len(inside) - 1
    for name, error in found.hessian.items():  # the Hessian's errors are of the same size
        spread = found.standard_error[name]
        assert spread == 0 or 0.2 < error / spread < 5, name


@pytest.mark.parametrize("law", [law for law in RECOVERY if hasattr(law, "N_opt")], ids=lambda law: law.form)
def test_closed_form_optimum_is_the_numeric_minimum(law):
    C = 1e22
    N = law.N_opt(C) * np.exp(np.linspace(-1, 1, 20001))
    assert N[law.loss(N, C / (6 * N)).argmin()] == pytest.approx(law.N_opt(C), rel=1e-3)
    assert np.log(law.N_opt(1e23) / law.N_opt(C)) / np.log(10) == pytest.approx(law.N_exponent, rel=1e-9)
    assert law.D_opt(C) * law.N_opt(C) * 6 == pytest.approx(C)


def test_overtraining_law_is_the_tied_law():
    eta, a, b, E = 0.13, 40.0, 60.0, 1.7
    law = TiedLaw(E, a * 6**-eta, b * 6**-eta, 2 * eta)
    N, D = np.array([1e8, 1e9, 7e9]), np.array([1e10, 3e11, 1e11])
    C, M = 6 * N * D, D / N
    np.testing.assert_allclose(law.loss(N, D), E + (a * M**eta + b * M**-eta) * C**-eta, rtol=1e-12)


@pytest.mark.parametrize("subset", ["dc_all_epochs", "dc_epochs<=60_loss<4.5"])
def test_repeats_reach_the_best_known_objective(subset, shared, golden):
    runs = pd.read_csv(shared / "datablations_repeat.csv").rename(columns={"n_params": "params", "n_tokens": "tokens"})
    runs = runs[(runs.dedup == 0) & (runs.opt_variant == 0)]
    if subset != "dc_all_epochs":
        runs = runs[(runs.tokens / runs.unique_tokens <= 60) & (runs.loss < 4.5)]
    known = golden["special"][subset]
    assert len(runs) == known["n"]
    fit = fit_law(runs, form="data_constrained")
    assert fit.objective <= known["joint_7param_best_of_5_starts"]["objective_sum"] * (1 + 1e-9)


def test_repeats_that_cost_nothing_are_a_bound_and_not_an_infinite_constant(shared, golden):
    """Up to 60 epochs the best known fit has R_D_star = 1e69: repeats as good as fresh tokens, which is a bound here."""
    runs = pd.read_csv(shared / "datablations_repeat.csv").rename(columns={"n_params": "params", "n_tokens": "tokens"})
    runs = runs[(runs.dedup == 0) & (runs.opt_variant == 0) & (runs.tokens / runs.unique_tokens <= 60)]
    known = golden["special"]["dc_epochs<=60"]
    fit = fit_law(runs, form="data_constrained")
    assert fit.n_runs == known["n"] and fit.status == "at_bound" and fit.at_bounds == ("R_D_star",)
    assert fit.objective == pytest.approx(known["joint_7param_best_of_5_starts"]["objective_sum"], rel=1e-5)


@pytest.mark.parametrize("form", ["tied", "kaplan", "interaction", "power_C", "power_N"])
@pytest.mark.parametrize("loss", ["constant", "huge", "shuffled", "rising"])
def test_losses_of_no_law_are_no_crash_and_no_silent_answer(form, loss):
    runs = runs_of(RECOVERY[0], noise=0.003, n=24)
    random = np.random.default_rng(3).permutation(runs.loss)
    runs["loss"] = {"constant": 2.5 + 0 * runs.loss, "huge": 1e20 * runs.loss, "shuffled": random, "rising": 10 - runs.loss}[loss]
    found = study(runs, StudyOptions(resamples=25, approach="all"), form=form)
    assert found.verdict.line and "NaN" not in to_json(found.to_dict(draws=True))
    assert found.verdict.level != "usable"


def test_a_form_the_runs_cannot_tell_gives_no_law():
    law = TokenLaw(1.7, 900, 0.33)
    one_size = runs_of(law).assign(params=1e9)
    assert fit_law(one_size, form="power_N").status == "unidentifiable"
    assert fit_law(one_size, form="power_D").status == "converged"
    fresh = runs_of(RECOVERY[0]).drop(columns="unique_tokens")
    fit = fit_law(fresh, form="data_constrained")
    assert fit.status == "unidentifiable" and "repeat" in fit.message
    with pytest.raises(FitError, match="own grid"):
        fit_law(fresh, form="tied", starts=[RECOVERY[1]])


def test_the_simplest_form_is_preferred_unless_the_held_out_runs_say_otherwise():
    tied = compare_forms(runs_of(TiedLaw(1.7, 400, 1500, 0.34), noise=0.003), ("tied", "chinchilla"))
    assert tied.preferred == "tied"
    split = compare_forms(runs_of(ChinchillaLaw(1.7, 4000, 60, 0.5, 0.2), noise=0.003), ("tied", "chinchilla"))
    assert split.preferred == "chinchilla" and "held-out" in split.why
    better = {item.form: item for item in split.ranked}
    assert better["chinchilla"].aicc < better["tied"].aicc and better["chinchilla"].bic < better["tied"].bic
