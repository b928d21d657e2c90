"""Coverage of the bootstrap's 95 % intervals: 200 synthetic tables of a known law, 1000 resamples each.

    python tests/benchmarks/fit_coverage.py
"""

from scaling.fitting import bootstrap, fit_law
from scaling.fitting.intervals import intervals
from scaling.laws import ChinchillaLaw
from scaling.synthetic import synthetic_runs

LAW = ChinchillaLaw(1.82, 478.0, 2143.0, 0.347, 0.367)
TABLES, RUNS, RESAMPLES, NOISE, BUDGET = 200, 60, 1000, 0.005, 1e21
FIRST_SEED = 7000  # table k and its bootstrap both use seed FIRST_SEED + k
METHODS = ("percentile", "bca")


def main() -> None:
    truth = {"N_exponent": LAW.beta / (LAW.alpha + LAW.beta), "params": float(LAW.N_opt(BUDGET))}
    covered = {(method, name): 0 for method in METHODS for name in truth}
    unusable = 0
    for seed in range(FIRST_SEED, FIRST_SEED + TABLES):
        fit = fit_law(synthetic_runs(LAW, runs=RUNS, noise=NOISE, seed=seed))
        if not fit.usable:
            unusable += 1
            continue
        draws = bootstrap(fit, RESAMPLES, seed=seed)
        for method in METHODS:
            found = intervals(fit, draws, method=method, budget=BUDGET).interval
            for name, value in truth.items():
                covered[method, name] += found[name][0] <= value <= found[name][1]
    print(f"{TABLES} tables of {RUNS} runs, noise {NOISE:.1%} normal, {RESAMPLES} resamples, {unusable} unusable")
    for (method, name), count in covered.items():
        what = "N_exponent" if name == "N_exponent" else f"N* at {BUDGET:g} FLOP"
        print(f"{method:<11} {what:<20} {count / TABLES:.1%} (wanted 90 to 98 %)")


if __name__ == "__main__":
    main()
