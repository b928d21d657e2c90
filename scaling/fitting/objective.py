"""What a fit minimises: F = sum_i w_i rho(r_i), with r a residual and rho the Huber function.

    huber_log   r = log Lhat - log L,  rho = r^2/2 inside |r| <= delta, delta (|r| - delta/2) outside (the default)
    mse_log     r = log Lhat - log L,  rho = r^2/2
    mse         r = Lhat - L,          rho = r^2/2
    lad         r = log Lhat - log L,  rho = |r|; solved as huber_log at delta = 1e-6, reported as sum |r|

Huber (1964); the default is that of Hoffmann et al. (2022), delta = 1e-3.
"""

import math
from dataclasses import dataclass

from scaling.errors import FitError

DEFAULT_DELTA = 1e-3
LAD_DELTA = 1e-6
LOSS_FUNCTIONS = {
    "huber_log": "sum of Huber(log Lhat - log L)",
    "mse_log": "sum of (log Lhat - log L)^2 / 2",
    "mse": "sum of (Lhat - L)^2 / 2",
    "lad": "sum of |log Lhat - log L|",
}


@dataclass(frozen=True)
class Objective:
    """A loss function with its threshold, as the solver sees it."""

    loss_function: str = "huber_log"
    delta: float = DEFAULT_DELTA

    def __post_init__(self) -> None:
        if self.loss_function not in LOSS_FUNCTIONS:
            known = ", ".join(LOSS_FUNCTIONS)
            raise FitError(f'loss function "{self.loss_function}" is not known. Known: {known}.')
        if not (isinstance(self.delta, int | float) and math.isfinite(self.delta) and self.delta > 0):
            raise FitError(f"delta = {self.delta} must be a finite number above zero (default {DEFAULT_DELTA:g}).")

    @property
    def log_space(self) -> bool:
        """Whether residuals are of log loss."""
        return self.loss_function != "mse"

    @property
    def threshold(self) -> float:
        """Where rho turns from a parabola into a line, in units of the residual."""
        return {"huber_log": self.delta, "lad": LAD_DELTA}.get(self.loss_function, math.inf)

    @property
    def reported_delta(self) -> float | None:
        """delta where the loss function has one, else None."""
        return self.delta if self.loss_function == "huber_log" else None

    def short_ladder(self, rescue: bool = False) -> tuple[float, ...]:
        """Thresholds for a refit that starts near its minimum, and for one that failed from there."""
        delta = self.threshold
        if self.loss_function == "lad":
            return tuple(delta * 4.0**k for k in range(6 if rescue else 4, -1, -1))
        return (32 * delta, 8 * delta, 2 * delta, delta) if rescue and math.isfinite(delta) else (delta,)

    def ladder(self) -> tuple[float, ...]:
        """Thresholds from wide to narrow: a wide one is nearly least squares and has few local minima."""
        if math.isinf(self.threshold):
            return (math.inf,)
        steps = [self.threshold]
        while steps[-1] < 0.25:  # residuals of log loss beyond that are outliers under any reading
            steps.append(steps[-1] * 6)
        return tuple(reversed(steps))
