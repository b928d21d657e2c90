"""The global fit: recovery, an independent optimiser, options, and what it refuses to answer."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

from scaling.errors import FitError
from scaling.fitting import fit_law
from scaling.fitting.kernel import evaluate, make_points
from scaling.fitting.objective import Objective
from scaling.laws import ChinchillaLaw, published_law
from scaling.synthetic import synthetic_runs

LAWS = {
    "symmetric": ChinchillaLaw(1.7, 400, 400, 0.31, 0.31),
    "hoffmann": published_law("hoffmann2022").law,
    "asymmetric": ChinchillaLaw(1.9, 2000, 35, 0.465, 0.155),
}
SYNTHETIC_SEEDS = range(20)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_noise_free_runs_give_the_law_back(law):
    fit = fit_law(synthetic_runs(law, runs=60, noise=0, seed=3))
    assert fit.status == "converged"
    for name, value in law.constants().items():
        assert getattr(fit.law, name) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("loss_function", ["huber_log", "mse_log", "mse"])
def test_gradient_and_hessian_are_those_of_finite_differences(loss_function):
    runs = synthetic_runs(LAWS["hoffmann"], runs=80, noise=0.01, seed=1)
    points = make_points(runs.params, runs.tokens, runs.loss)
    objective = Objective(loss_function, 4e-3)
    theta, h = np.array([[0.5, -1.0, -0.9, 0.34, 0.36]]), 1e-6
    _, g, H = evaluate(points, theta, objective)
    for j in range(5):
        step = h * np.eye(5)[j]
        up, down = evaluate(points, theta + step, objective), evaluate(points, theta - step, objective)
        assert g[j, 0] == pytest.approx((up[0][0] - down[0][0]) / (2 * h), rel=1e-4, abs=1e-7)
        np.testing.assert_allclose(H[j, :, 0], (up[1] - down[1])[:, 0] / (2 * h), rtol=1e-3, atol=2e-5)


def scipy_objective(runs, delta=1e-3):
    """F / delta and its gradient in (log E, log A', log B', alpha, beta), written apart from the package's own."""
    x, y = np.log(runs.params.to_numpy()), np.log(runs.tokens.to_numpy())
    x, y, log_loss = x - x.mean(), y - y.mean(), np.log(runs.loss.to_numpy())

    def function(t):
        terms = np.exp([t[0] + 0 * x, t[1] - t[3] * x, t[2] - t[4] * y])
        total = terms.sum(0)
        r = np.log(total) - log_loss
        psi = np.clip(r, -delta, delta)
        share = terms / total
        gradient = psi @ np.stack([share[0], share[1], share[2], -x * share[1], -y * share[2]], axis=1)
        return float((psi * (r - psi / 2)).sum()) / delta, gradient / delta

    return function


def problem_of(seed: int):
    """Runs of a random law whose three terms all show: each term at the centre is 0.15 to 1 of E."""
    rng = np.random.default_rng(seed)
    E, (alpha, beta) = rng.uniform(1, 2.5), rng.uniform(0.2, 0.5, 2)
    A, B = E * rng.uniform(0.15, 1, 2) * np.array([3e8**alpha, 7e9**beta])
    return synthetic_runs(ChinchillaLaw(E, A, B, alpha, beta), runs=int(rng.integers(60, 240)), noise=0.005, seed=seed)


@pytest.mark.parametrize("seed", SYNTHETIC_SEEDS)
def test_every_start_reaches_what_scipy_cannot_beat(seed):
    runs, rng = problem_of(seed), np.random.default_rng(100 + seed)
    fit = fit_law(runs)
    function = scipy_objective(runs)
    found = [
        minimize(function, [rng.uniform(-0.5, 1), *rng.uniform(-3, 0.5, 2), *rng.uniform(0.1, 0.8, 2)], jac=True,
                 method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
        for _ in range(4)
    ]  # fmt: skip
    assert fit.objective == pytest.approx(1e-3 * min(one.fun for one in found), rel=1e-10)
    every = fit.problem.solve(30, seed)
    assert (every.value <= fit.objective * (1 + 1e-10)).all()


def test_published_constants_as_the_only_start_reach_the_optimum(table):
    fit = fit_law(table("epoch_chinchilla_240"), starts=[published_law("hoffmann2022").law])
    assert fit.objective == pytest.approx(1.0182740178006e-3, rel=1e-9)
    assert fit.law.beta == pytest.approx(0.367, abs=0.003)


def test_least_squares_and_absolute_deviation(table):
    runs = table("epoch_chinchilla_240")
    squares = fit_law(runs, loss_function="mse").law
    assert (squares.alpha, squares.beta) == pytest.approx((0.3576, 0.4276), abs=1e-4)
    deviation = fit_law(runs, loss_function="lad")
    assert deviation.objective == pytest.approx(1.12949, rel=1e-4) and deviation.delta is None
    assert deviation.law.A == pytest.approx(482.0, rel=1e-3)


def test_integer_columns_do_not_overflow(shared):
    raw = (
        pd.read_csv(shared / "raw" / "kyo_takano_df.csv")
        .rename(columns={"N": "params", "D": "tokens"})
        .drop(columns="C")
    )
    assert raw.params.dtype == np.int64 and (6 * raw.params * raw.tokens < 0).any()
    fit = fit_law(raw, loss_function="mse")
    assert (fit.problem.data.flops > 0).all()
    assert (fit.law.alpha, fit.law.beta, fit.law.E) == pytest.approx((0.347, 0.359, 1.809), abs=1e-3)


def test_a_weight_of_two_is_the_run_twice():
    runs = synthetic_runs(LAWS["hoffmann"], runs=50, noise=0.01, seed=5)
    weights = np.where(np.arange(50) < 10, 2.0, 1.0)
    twice = pd.concat([runs, runs.iloc[:10]], ignore_index=True)
    weighted = fit_law(runs.assign(w=weights), weights="w")
    assert weighted.law.beta == pytest.approx(fit_law(twice).law.beta, rel=1e-6)
    assert fit_law(runs, weights=weights).law == weighted.law


def test_bounds_are_kept_and_reported():
    runs = synthetic_runs(LAWS["hoffmann"], runs=50, noise=0.002, seed=5)
    fit = fit_law(runs, bounds={"alpha": (0.0, 0.2)})
    assert fit.status == "at_bound" and fit.at_bounds == ("alpha",)
    assert "alpha = 0.2 is at its upper bound (0, 0.2)" in fit.message
    with pytest.raises(FitError, match="only E, alpha and beta"):
        fit_law(runs, bounds={"A": (0, 1)})
    with pytest.raises(FitError, match="not an interval"):
        fit_law(runs, bounds={"beta": (0.5, 0.2)})


GRID = np.geomspace(1e8, 1e10, 6)
UNIDENTIFIABLE = {
    "one size": (np.full(30, 1e9), np.geomspace(1e9, 1e11, 30), "one model size", "power_D"),
    "one token count": (np.geomspace(1e8, 1e10, 30), np.full(30, 1e10), "one token count", "power_N"),
    "one ratio": (np.geomspace(1e8, 1e10, 30), 20 * np.geomspace(1e8, 1e10, 30), r"one D/N \(20\)", "power_C"),
    "two sizes": (
        np.repeat([1e8, 1e9], 15),
        np.tile(np.geomspace(1e9, 1e11, 15), 2),
        "two distinct model sizes",
        "tied",
    ),
    "five points": (GRID[[0, 1, 2, 3, 4]], 1e10 * GRID[[3, 1, 4, 0, 2]] / 1e8, "Only 5 distinct", "tied"),
    "copies": (
        np.tile(GRID[:4], 9),
        np.tile(1e11 / GRID[:4] * 1e8, 9) * np.tile([1, 2, 1, 3], 9),
        "Only 4 distinct",
        None,
    ),
}


@pytest.mark.parametrize("N, D, message, offer", UNIDENTIFIABLE.values(), ids=UNIDENTIFIABLE)
def test_designs_that_cannot_tell_give_no_law(N, D, message, offer):
    loss = LAWS["hoffmann"].loss(N, D) * np.exp(0.003 * np.random.default_rng(0).normal(size=len(N)))
    runs = pd.DataFrame({"params": N, "tokens": D, "loss": loss})
    fit = fit_law(runs)
    assert fit.status == "unidentifiable" and fit.law is None
    assert re.search(message, fit.message)
    if offer:
        assert f"--form {offer}" in fit.message
        assert fit_law(runs, form=offer).usable


def test_a_loss_that_does_not_fall_is_no_law_of_size():
    runs = synthetic_runs(LAWS["hoffmann"], runs=60, noise=0, seed=2)
    flat = runs.assign(loss=2 + 300 / runs.tokens**0.3)
    fit = fit_law(flat)
    assert fit.status == "at_bound" and "A" in fit.at_bounds and "does not fall with N" in fit.message


@pytest.mark.parametrize("column, value", [("loss", np.nan), ("loss", 0.0), ("params", -1.0), ("tokens", np.inf)])
def test_bad_values_are_named(column, value):
    runs = synthetic_runs(LAWS["hoffmann"], runs=20, seed=0)
    runs.loc[7, column] = value
    with pytest.raises(FitError, match=f"row 8: {column} is"):
        fit_law(runs)


def test_unknown_options_name_the_known_ones():
    runs = synthetic_runs(LAWS["hoffmann"], runs=20, seed=0)
    with pytest.raises(FitError, match="Known: huber_log, mse_log, mse, lad"):
        fit_law(runs, loss_function="huber")
    with pytest.raises(FitError, match="Known: chinchilla, tied"):
        fit_law(runs, form="chinchila")
    with pytest.raises(FitError, match="above zero"):
        fit_law(runs, delta=0)
    with pytest.raises(FitError, match='no column "w"'):
        fit_law(runs, weights="w")
    with pytest.raises(FitError, match="column tokens missing"):
        fit_law(runs.drop(columns="tokens"))
    with pytest.raises(FitError, match="B missing"):
        fit_law(runs, starts=[{"E": 1, "A": 2, "alpha": 1, "beta": 1}])


def test_units_of_billions_give_the_same_exponents():
    runs = synthetic_runs(LAWS["hoffmann"], runs=60, noise=0.005, seed=4)
    small = runs.assign(params=runs.params / 1e9, tokens=runs.tokens / 1e9)
    one, other = fit_law(runs).law, fit_law(small).law
    assert other.alpha == pytest.approx(one.alpha, rel=1e-7) and other.E == pytest.approx(one.E, rel=1e-7)
    assert other.A == pytest.approx(one.A * 1e9**-one.alpha, rel=1e-6)


@pytest.mark.parametrize("number", [3, 48, 193])
def test_the_default_starts_find_a_basin_that_only_the_narrow_threshold_has(number):
    """From the wide rungs of the ladder alone these noisy tables end up to 2 % above the best of 30 random starts."""
    runs = hard_table(number)
    assert fit_law(runs).objective <= fit_law(runs, starts=30, seed=3).objective * (1 + 1e-9)


def hard_table(number: int):
    """The table of a number from one stream of random laws, sizes and noises."""
    rng = np.random.default_rng(1)
    for _ in range(number + 1):
        law = ChinchillaLaw(rng.uniform(0.3, 2.5), *np.exp([rng.uniform(3, 8), rng.uniform(3, 9)]), *rng.uniform(0.1, 0.6, 2))
        n, noise = int(rng.integers(15, 300)), float(np.exp(rng.uniform(-7, -3)))
    return synthetic_runs(law, runs=n, noise=noise, kind="student" if number % 2 else "normal", seed=number)
