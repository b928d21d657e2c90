"""The Hessian's standard error: right on average, and not at the mercy of the few runs within delta of the law."""

from dataclasses import replace

import numpy as np
import pytest

from scaling.fitting import fit_law
from scaling.fitting.intervals import hessian_errors, quantities_of
from scaling.fitting.sandwich import bandwidth, covariance
from scaling.laws import published_law
from scaling.synthetic import synthetic_runs

LAW = published_law("besiroglu2024").law


@pytest.mark.parametrize("loss_function", ["huber_log", "lad"])
def test_standard_errors_are_those_of_repeated_tables(loss_function):
    estimates, errors = [], []
    for seed in range(60):
        fit = fit_law(synthetic_runs(LAW, runs=60, noise=0.004, seed=5000 + seed), loss_function=loss_function)
        estimates.append(fit.law.N_exponent)
        errors.append(hessian_errors(fit, quantities_of(fit, None))["N_exponent"])
    assert np.median(errors) == pytest.approx(np.std(estimates), rel=0.3)
    assert np.percentile(errors, 95) / np.percentile(errors, 5) < 5  # 7 by the Hessian of huber_log, 40 by that of lad


def test_a_threshold_above_the_noise_keeps_the_exact_hessian():
    runs = synthetic_runs(LAW, runs=60, noise=0.004, seed=1)
    for options in ({"loss_function": "mse_log"}, {"loss_function": "mse"}, {"delta": 0.1}):
        fit = fit_law(runs, **options)
        assert covariance(fit) is fit.covariance
    at_bound = replace(fit, covariance=None)
    assert covariance(at_bound) is None


def test_kernel_and_exact_agree_where_delta_is_about_the_bandwidth():
    runs = synthetic_runs(LAW, runs=240, noise=0.004, seed=2)
    r = np.random.default_rng(0).normal(0, 0.004, 240)
    fit = fit_law(runs, delta=0.9 * bandwidth(r))
    exact, kernel = (np.sqrt(np.diag(c)) for c in (fit.covariance, covariance(fit)))
    np.testing.assert_allclose(kernel, exact, rtol=0.25)
