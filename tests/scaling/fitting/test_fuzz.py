"""No warning-free nonsense: any small table gives a fit of zero gradient, or a status and a message."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaling.errors import ScalingError
from scaling.fitting import fit_law
from scaling.fitting.study import StudyOptions, study

FAULTS = ("none", "nan", "zero", "negative", "infinite", "one size", "one ratio", "few points", "copies", "billions",
          "tiny units", "huge losses", "integers", "constant loss", "random loss")  # fmt: skip


@st.composite
def tables(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, fault = draw(st.integers(1, 30)), draw(st.sampled_from(FAULTS))
    N, D = 10 ** rng.uniform(6, 10.5, n), 10 ** rng.uniform(8, 12.5, n)
    E, A, B = rng.uniform(0, 3), 10 ** rng.uniform(0, 4), 10 ** rng.uniform(0, 5)
    alpha, beta = rng.uniform(0.02, 1.0, 2)
    if fault == "one size":
        N = np.full(n, N[0])
    if fault == "one ratio":
        D = 20 * N
    if fault == "few points":
        N, D = rng.choice(N[:2], n), rng.choice(D[:2], n)
    loss = (E + A / N**alpha + B / D**beta) * np.exp(draw(st.sampled_from([0, 1e-3, 0.05])) * rng.normal(size=n))
    at = rng.integers(0, n)
    faulty = {"nan": np.nan, "zero": 0.0, "negative": -1.0, "infinite": np.inf}
    loss[at] = faulty.get(fault, loss[at])
    if fault == "copies":
        N, D, loss = (np.repeat(v[: max(1, n // 3)], 3) for v in (N, D, loss))
    scale = {"billions": 1e-9, "tiny units": 1e-30}.get(fault, 1.0)
    N, D = N * scale, D * scale
    if fault == "huge losses":
        loss = loss * 1e20
    if fault == "constant loss":
        loss = np.full(n, 2.5)
    if fault == "random loss":
        loss = rng.uniform(1, 10, n)
    if fault == "integers":
        N, D = N.astype(np.int64), D.astype(np.int64)
    return fault, pd.DataFrame({"params": N, "tokens": D, "loss": loss})


def check(fault, runs):
    try:
        fit = fit_law(runs)
    except ScalingError as error:
        assert str(error) and fault in ("nan", "zero", "negative", "infinite", "tiny units")
        return
    assert fit.message and fit.status in ("converged", "at_bound", "not_converged", "unidentifiable")
    if fit.status == "converged":
        problem = fit.problem
        theta = problem.inverse(fit.theta)
        F, g, _ = problem.evaluate(theta[None], delta=problem.objective.threshold)
        scale = problem.scale(theta[None])[:, 0]
        # what a step could still gain is nothing beside F, or beside what rounding leaves uncertain in F
        assert (g[:, 0] ** 2 / scale).max() <= max(1e-7 * F[0], problem.blur(F[0]))
        assert all(np.isfinite(v) for v in fit.law.constants().values())
    if fit.status in ("not_converged", "unidentifiable"):
        assert fit.law is None
    if fault in ("one size", "one ratio", "few points"):
        assert fit.status == "unidentifiable"


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(tables())
def test_small_tables(case):
    check(*case)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(tables())
def test_two_thousand_small_tables(case):
    check(*case)


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(tables())
def test_everything_around_the_fit(case):
    fault, runs = case
    try:
        found = study(runs, StudyOptions(resamples=20, approach="all", compare=("tied", "chinchilla")))
    except ScalingError as error:
        assert str(error)
        return
    assert found.verdict.line and found.to_dict()["status"] == str(found.fit.status)
