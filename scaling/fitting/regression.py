"""Straight lines in logarithms, with honest small-sample intervals."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PowerLaw:
    """value = coefficient * C^exponent, by least squares in logs; the interval of the exponent is Student's t.

    `interval` and `standard_error` are None with fewer than 3 points, where the line is exactly determined.
    """

    exponent: float
    log_coefficient: float
    n: int
    standard_error: float | None
    interval: tuple[float, float] | None
    level: float
    centre: float = 0.0  # mean of log C
    scatter: float = 0.0  # standard deviation of the points about the line, in log

    def at(self, C):
        """The value at C."""
        return np.exp(self.log_coefficient + self.exponent * np.log(C))

    def log_interval_at(self, C: float) -> tuple[float, float] | None:
        """Interval of the log of the line's value at C; it widens with the distance from the points."""
        if self.standard_error is None:
            return None
        error = math.hypot(self.scatter / math.sqrt(self.n), self.standard_error * (math.log(C) - self.centre))
        middle = self.log_coefficient + self.exponent * math.log(C)
        reach = student_t((1 + self.level) / 2, self.n - 2) * error
        return middle - reach, middle + reach


def power_law(C, value, *, level: float = 0.95) -> PowerLaw:
    """Fit value ~ C^exponent to two or more points, all above zero."""
    x, y = np.log(np.asarray(C, float)), np.log(np.asarray(value, float))
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    n = len(x)
    residual = y - y.mean() - slope * centred
    error = interval = None
    scatter = 0.0
    if n > 2:
        scatter = math.sqrt(float(residual @ residual) / (n - 2))
        error = scatter / math.sqrt(float(centred @ centred))
        reach = student_t((1 + level) / 2, n - 2) * error
        interval = (slope - reach, slope + reach)
    return PowerLaw(slope, float(y.mean() - slope * x.mean()), n, error, interval, level, float(x.mean()), scatter)


def student_t(probability: float, degrees: int) -> float:
    """Quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def f_tail(value: float, numerator: int, denominator: int) -> float:
    """Probability that an F-distributed number exceeds `value`."""
    from scipy.special import fdtrc

    return float(fdtrc(numerator, denominator, value))


@dataclass(frozen=True)
class Consistency:
    """Whether exponents of N* and D* go with a compute axis: they sum to 1, and 6 N* D* = C, where the counts agree."""

    N_exponent: float
    D_exponent: float
    total: float
    ratio: tuple[float, float]  # smallest and largest 6 N* D* / C
    message: str | None


def consistency(C, N, D) -> Consistency:
    """Exponents of optima N*, D* at budgets C, their sum and 6ND/C; a message when sum or ratio is off."""
    N_law, D_law = power_law(C, N), power_law(C, D)
    total = N_law.exponent + D_law.exponent
    ratio = 6 * np.asarray(N, float) * np.asarray(D, float) / np.asarray(C, float)
    low, high = float(ratio.min()), float(ratio.max())
    message = None
    if abs(total - 1) > 0.02 or low < 0.75 or high > 1.33:
        message = (
            f"The exponents of N and D sum to {total:.2f} and 6ND/C runs from {low:.2f} to {high:.2f}: N as counted here "
            "is not the N of this compute axis. Name the convention, or count N (or C) the other way."
        )
    return Consistency(N_law.exponent, D_law.exponent, total, (low, high), message)
