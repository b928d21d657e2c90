"""Speed of the fit against SciPy on the same data and objective: CPU seconds, interleaved, medians of repeats.

    OMP_NUM_THREADS=1 python tests/benchmarks/fit_speed.py [--package]

The grid of 5^5 starts is a plain SciPy re-statement (L-BFGS-B, numeric gradients, log-Huber), measured on a few of its
starts and scaled. Where the PyPI package `chinchilla` can be imported, its own fit is measured as well: on 2^5 of these
starts and scaled, or with --package on all of them. Refits by SciPy are measured on 20 resamples and scaled to 4000.
"""

import importlib.util
import itertools
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from scaling.fitting import bootstrap, fit_law
from scaling.fitting.refit import PILOTS, candidates_around, pilots, refit
from scaling.fitting.resampling import counts
from scaling.laws import ChinchillaLaw
from scaling.synthetic import synthetic_runs

DELTA, RESAMPLES, SAMPLE, STARTS = 1e-3, 4000, 20, 20
LAW = ChinchillaLaw(1.82, 478.0, 2143.0, 0.347, 0.367)
GRID = {"e": np.linspace(-1, 1, 5), "a": np.linspace(0, 25, 5), "b": np.linspace(0, 25, 5),
        "alpha": np.linspace(0, 2, 5), "beta": np.linspace(0, 2, 5)}  # fmt: skip
TABLE = Path(__file__).resolve().parents[2].parent / "shared/data/epoch_chinchilla.csv"


def the_runs() -> pd.DataFrame:
    if not TABLE.exists():
        return synthetic_runs(LAW, runs=240, seed=1)
    rows = pd.read_csv(TABLE)
    rows = rows[rows.epoch_outlier == 0]
    return pd.DataFrame({"params": rows.n_params, "tokens": rows.n_tokens, "loss": rows.loss}).reset_index(drop=True)


def cpu(work, *arguments):
    start = time.process_time()
    found = work(*arguments)
    return time.process_time() - start, found


def child_cpu(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def scaled_objective(runs: pd.DataFrame):
    """F / delta, and with its gradient, of (log E, log A, log B, alpha, beta) and weights."""
    x, y, z = (np.log(runs[name].to_numpy(float)) for name in ("params", "tokens", "loss"))

    def both(t, w):
        e, a, b = np.exp(t[0]), np.exp(t[1] - t[3] * x), np.exp(t[2] - t[4] * y)
        total = e + a + b
        r = np.log(total) - z
        size = np.abs(r)
        psi = np.clip(r, -DELTA, DELTA)
        value = w @ (np.abs(psi) * (size - np.abs(psi) / 2)) / DELTA
        p = w * psi / total / DELTA
        return value, np.array([p.sum() * e, p @ a, p @ b, -(p * a) @ x, -(p * b) @ y])

    def value(t, w):
        size = np.abs(np.log(np.exp(t[0]) + np.exp(t[1] - t[3] * x) + np.exp(t[2] - t[4] * y)) - z)
        psi = np.minimum(size, DELTA)
        return w @ (psi * (size - psi / 2)) / DELTA

    return value, both


def global_fit(runs: pd.DataFrame, value) -> None:
    grid = list(itertools.product(*GRID.values()))
    picked = np.random.default_rng(3).permutation(len(grid))[:STARTS]
    ones, ours, theirs = np.ones(len(runs)), [], []
    for k in picked:
        ours.append(cpu(fit_law, runs)[0])
        with np.errstate(all="ignore"):
            theirs.append(cpu(lambda k=k: minimize(value, grid[k], args=(ones,), method="L-BFGS-B"))[0])
    mine, total = statistics.median(ours), statistics.mean(theirs) * len(grid)
    print(f"global fit            {mine * 1e3:8.2f} ms; 5^5 L-BFGS-B (scaled from {STARTS}) {total:.1f} s: {total / mine:,.0f}x")
    if importlib.util.find_spec("chinchilla"):
        whole = "--package" in sys.argv
        seconds = package_fit(runs, GRID if whole else {name: values[1::2] for name, values in GRID.items()})
        total = seconds if whole else seconds * 5**5 / 2**5
        print(f"  the package chinchilla, 5^5 {'' if whole else '(scaled from 2^5) '}{total:.1f} s: {total / mine:,.0f}x")


def package_fit(runs: pd.DataFrame, grid: dict) -> float:
    """CPU seconds of the package's own fit from a grid of starts, its figure left out."""
    from chinchilla import Chinchilla
    from chinchilla._metrics import log_huber

    with tempfile.TemporaryDirectory() as folder:
        model = Chinchilla(
            folder, param_grid={name: tuple(values) for name, values in grid.items()}, log_level=50,
            loss_fn=lambda true, predicted: log_huber(true, predicted, delta=DELTA),
        )  # fmt: skip
        named = runs.rename(columns={"params": "N", "tokens": "D"})
        model.database.df = named.assign(C=6 * named.N * named.D)
        model.visualizer.optim = lambda *args, **kwargs: None
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cpu(lambda: model.fit(parallel=False))[0]


def refits(runs: pd.DataFrame, value, both) -> None:
    fit = fit_law(runs)
    theta = fit.problem.inverse(fit.theta)
    rng = np.random.default_rng(5)
    some = pilots(fit.problem, counts(rng, PILOTS, len(runs)), theta)
    weights = counts(rng, SAMPLE, len(runs))
    mine = refit(fit.problem, weights, theta, candidates_around(fit.problem, some, theta, rng))
    ours, numeric, analytic, above = [], [], [], 0
    for k, w in enumerate(weights):
        if k % 4 == 0:
            ours.append(cpu(lambda: bootstrap(fit, RESAMPLES))[0])
        seconds, one = cpu(lambda w=w: minimize(value, fit.theta, args=(w,), method="BFGS"))
        numeric.append(seconds)
        seconds, two = cpu(lambda w=w: minimize(both, fit.theta, args=(w,), method="BFGS", jac=True))
        analytic.append(seconds)
        above += mine.value[k] > min(one.fun, two.fun) * DELTA * (1 + 1e-9)
    batch = statistics.median(ours)
    print(f"{RESAMPLES} refits           {batch:8.3f} s; refits above SciPy's by more than 1e-9: {above} of {SAMPLE}")
    for name, times in (("numeric", numeric), ("analytic", analytic)):
        total = statistics.mean(times) * RESAMPLES
        print(f"  BFGS, {name:<8} gradients (scaled from {SAMPLE}) {total:.1f} s: {total / batch:,.0f}x")


def process(runs: pd.DataFrame) -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs.to_csv(Path(folder) / "runs.csv", index=False)
        scale = [str(Path(sys.executable).parent / "scale"), "fit", str(Path(folder) / "runs.csv"), "--bootstrap",
                 str(RESAMPLES), "--out", str(Path(folder) / "fit.json")]  # fmt: skip
        ours, bare = [], []
        for _ in range(5):
            ours.append(child_cpu(scale))
            bare.append(child_cpu([sys.executable, "-c", "import scipy.optimize, pandas"]))
    print(f"scale fit             {min(ours):8.2f} s; the imports alone {min(bare):.2f} s: {min(ours) / min(bare):.2f}x")


def growth(runs: pd.DataFrame) -> None:
    big = synthetic_runs(LAW, runs=24_000, seed=2)
    small_fit, big_fit = fit_law(runs), fit_law(big)
    small, large = [], []
    for _ in range(3):
        small.append(cpu(lambda: bootstrap(small_fit, 2000))[0] / 2000)
        large.append(cpu(lambda: bootstrap(big_fit, 100))[0] / 100)
    ratio = statistics.median(large) / statistics.median(small)
    print(f"24,000 rows           {ratio:8.1f}x of {len(runs)} rows per refit (100 against 2000 refits, pilots included)")
    print(f"100,000 rows          {cpu(fit_law, synthetic_runs(LAW, runs=100_000, seed=3))[0]:8.2f} s for fit_law")


def main() -> None:
    runs = the_runs()
    print(f"{len(runs)} runs, {'Epoch' if TABLE.exists() else 'synthetic'}; CPU time", flush=True)
    value, both = scaled_objective(runs)
    global_fit(runs, value)
    refits(runs, value, both)
    process(runs)
    growth(runs)


if __name__ == "__main__":
    main()
