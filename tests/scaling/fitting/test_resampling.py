"""Refits: each reaches its own minimum, every option reaches every refit, and the intervals are the published ones."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

from scaling.errors import FitError
from scaling.fitting import bootstrap, fit_law
from scaling.fitting.intervals import intervals
from scaling.fitting.quantities import derived, quantiles
from scaling.fitting.refit import refit
from scaling.fitting.resampling import counts, default_resamples, leave_out
from scaling.laws import published_law
from scaling.synthetic import synthetic_runs

LAW = published_law("besiroglu2024").law


@pytest.fixture(scope="module")
def epoch(table):
    fit = fit_law(table("epoch_chinchilla_240"))
    return fit, bootstrap(fit, 4000, seed=0)


def scipy_refit(problem, theta, weights, delta=1e-3):
    """The minimum that SciPy's BFGS with the analytic gradient reaches from the fit."""
    p = problem.points

    def function(t):
        terms = np.exp([t[0] + 0 * p.x, t[1] - t[3] * p.x, t[2] - t[4] * p.y])
        total = terms.sum(0)
        r = np.log(total) - p.log_loss
        psi = np.clip(r, -delta, delta)
        share = terms / total
        columns = np.stack([share[0], share[1], share[2], -p.x * share[1], -p.y * share[2]], axis=1)
        return float(weights @ (psi * (r - psi / 2))) / delta, (weights * psi) @ columns / delta

    return delta * minimize(function, theta, jac=True, method="BFGS", options={"gtol": 1e-7, "maxiter": 500}).fun


@pytest.mark.parametrize(
    "name, slack", [("epoch_chinchilla_240", 1e-9), ("gadre_rpj", 1e-9), ("datablations_1epoch", 1e-6)]
)
def test_no_refit_is_above_scipy_from_the_same_fit(name, slack, table):
    fit = fit_law(table(name))
    problem, theta = fit.problem, fit.problem.inverse(fit.theta)
    weights = counts(np.random.default_rng(5), 40, problem.data.n)
    ours = refit(problem, weights, theta)
    for row, value in zip(weights, ours.value, strict=True):
        assert value <= scipy_refit(problem, theta, row) * (1 + slack)


def test_published_standard_errors_and_intervals(epoch, golden):
    fit, draws = epoch
    found = intervals(fit, draws, budget=5.76e23)
    assert draws.not_converged == 0
    published = golden["epoch_analysis"]["published"]
    for name in ("A", "E", "alpha", "beta"):
        assert found.standard_error[name] == pytest.approx(published["se"][name], rel=0.05), name
    for name, (low, high) in published["ci95"].items():
        assert found.interval[name] == pytest.approx((low, high), rel=0.05), name
    assert found.standard_error["N_exponent"] == pytest.approx(0.020, rel=0.05)
    low, high = found.interval["tokens_per_param"]
    assert low == pytest.approx(8, rel=0.1) and high == pytest.approx(37, rel=0.1)
    assert min(found.correlation.values()) > 0.999


def test_published_standard_error_of_B_is_one_of_those_that_4000_resamples_give(epoch, golden):
    """B's draws have so long a tail that its standard error from 4,000 of them is itself uncertain by 4 %."""
    published = golden["epoch_analysis"]["published"]["se"]["B"]
    of_4000 = np.exp(bootstrap(epoch[0], 40_000, seed=7).draws[:, 2]).reshape(10, 4000).std(axis=1, ddof=1)
    assert 0.02 < of_4000.std() / of_4000.mean() < 0.08
    assert abs(published - of_4000.mean()) < 2 * of_4000.std()
    assert of_4000.min() < published < of_4000.max()


@pytest.mark.slow
def test_published_standard_error_of_B_within_5_percent_once_chance_is_small(epoch, golden):
    B = np.exp(bootstrap(epoch[0], 400_000, seed=7).draws[:, 2])
    assert B.std(ddof=1) == pytest.approx(golden["epoch_analysis"]["published"]["se"]["B"], rel=0.05)


def test_same_seed_same_draws(table):
    fit = fit_law(table("gadre_rpj"))
    one, two, other = (bootstrap(fit, 50, seed=seed).draws for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


def test_options_reach_every_refit():
    runs = synthetic_runs(LAW, runs=60, noise=0.01, kind="student", seed=1)
    weights = np.where(np.arange(60) % 2, 1.0, 0.0)
    half = fit_law(runs[weights > 0])
    fit = fit_law(runs, weights=weights)
    assert fit.law.alpha == pytest.approx(half.law.alpha, rel=1e-7)
    left = leave_out(fit)[1]
    unused = left.theta[weights == 0]
    np.testing.assert_allclose(unused, np.repeat(unused[:1], len(unused), 0), atol=1e-7)
    narrow, wide = (bootstrap(fit_law(runs, delta=d), 40, seed=0).draws.std(0) for d in (1e-3, 1.0))
    squares = bootstrap(fit_law(runs, loss_function="mse_log"), 40, seed=0).draws.std(0)
    np.testing.assert_allclose(wide, squares, rtol=1e-5)
    assert not np.allclose(narrow, squares, rtol=0.05)
    bounded = bootstrap(fit_law(runs, bounds={"alpha": (0.0, 0.3)}), 30, seed=0)
    assert (bounded.draws[:, 3] <= 0.3 + 1e-12).all()


def test_clusters_widen_what_copies_narrow():
    runs = synthetic_runs(LAW, runs=40, noise=0.01, seed=2)
    copies = pd.concat([runs.assign(run=range(40))] * 6, ignore_index=True)
    fit = fit_law(copies)
    alone, together = (bootstrap(fit, 200, kind=kind, cluster="run" if kind == "cluster" else None, seed=0)
                       for kind in ("runs", "cluster"))  # fmt: skip
    assert together.clusters == 40
    assert together.draws[:, 3].std() > 1.8 * alone.draws[:, 3].std()
    with pytest.raises(FitError, match="one cluster"):
        bootstrap(fit, 20, kind="cluster", cluster=np.zeros(240))
    with pytest.raises(FitError, match='no column "seed"'):
        bootstrap(fit, 20, kind="cluster", cluster="seed")


@pytest.mark.parametrize("kind", ["runs", "parametric"])
def test_both_kinds_agree_where_the_law_holds(kind):
    fit = fit_law(synthetic_runs(LAW, runs=150, noise=0.005, seed=3))
    draws = bootstrap(fit, 200, kind=kind, seed=1)
    found = intervals(fit, draws, budget=1e23)
    assert 0.5 < found.standard_error["N_exponent"] / found.hessian["N_exponent"] < 2
    assert found.estimate["N_exponent"] == pytest.approx(LAW.N_exponent, abs=4 * found.standard_error["N_exponent"])


def test_bca_and_percentile_differ_where_the_draws_are_skewed():
    fit = fit_law(synthetic_runs(LAW, runs=60, noise=0.01, seed=4))
    draws = bootstrap(fit, 400, seed=1)
    plain, corrected = (intervals(fit, draws, method=method) for method in ("percentile", "bca"))
    assert corrected.interval["B"] != plain.interval["B"]
    assert all(np.isfinite(pair).all() for pair in corrected.interval.values())
    with pytest.raises(FitError, match="Known: percentile, bca"):
        intervals(fit, draws, method="normal")


def test_bca_of_a_symmetric_statistic_is_the_percentile_interval():
    from scaling.fitting.intervals import _bca

    rng = np.random.default_rng(0)
    draws = rng.normal(size=20001)
    low, high = _bca(draws, float(np.median(draws)), np.array([-1.0, 1.0, -1.0, 1.0]), 0.95)
    assert (low, high) == pytest.approx(tuple(np.percentile(draws, [2.5, 97.5])), abs=0.02)


def test_large_tables_get_fewer_resamples_by_default():
    assert default_resamples(240) == 4000 and default_resamples(20_000) == 4000
    assert 200 <= default_resamples(100_000) < 4000


def test_quantiles_hold_infinities():
    values = np.array([1.0, 2.0, np.inf, 3.0])
    np.testing.assert_array_equal(quantiles(values, [0, 50, 100]), [1.0, 2.5, np.inf])


def test_derived_quantities_are_those_of_the_law():
    theta = np.array([np.log(LAW.E), np.log(LAW.A), np.log(LAW.B), LAW.alpha, LAW.beta])
    found = derived(theta, 1e24)
    assert found["params"] == pytest.approx(LAW.N_opt(1e24))
    assert found["loss"] == pytest.approx(LAW.loss(LAW.N_opt(1e24), LAW.D_opt(1e24)))


@pytest.mark.slow
def test_intervals_cover_the_truth():
    """200 tables of 240 runs of a known law: 95 % intervals of N_exponent and N* hold it 90 to 98 times in 100."""
    theta = np.array([np.log(LAW.E), np.log(LAW.A), np.log(LAW.B), LAW.alpha, LAW.beta])
    truth = derived(theta, 1e23)
    hits = {"N_exponent": 0, "params": 0}
    for seed in range(200):
        fit = fit_law(synthetic_runs(LAW, runs=240, noise=0.006, seed=1000 + seed))
        found = intervals(fit, bootstrap(fit, 1000, seed=seed), budget=1e23)
        for name in hits:
            low, high = found.interval[name]
            hits[name] += bool(low <= truth[name] <= high)
    assert all(0.90 <= count / 200 <= 0.98 for count in hits.values()), hits
