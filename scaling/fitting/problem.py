"""One fit as the solver sees it: the runs, the objective, the bounds. Every form of the law is one such problem.

A form provides `evaluate`, `log_losses`, `starts`, `scale`, `law` and `losses_at`; the solver, the resampling and the
diagnostics need nothing else. Fit variables `theta` are in the form's own centred coordinates; `public` gives those of
the law itself, `inverse` goes back.
"""

import copy
from typing import Any

import numpy as np

from scaling.fitting.coordinates import Identity
from scaling.fitting.data import RunData
from scaling.fitting.newton import Box
from scaling.fitting.objective import Objective


class Problem:
    """What every form shares."""

    form: str
    names: tuple[str, ...]
    box: Box
    coordinates: Identity = Identity()
    precision: type = np.float64

    def __init__(self, data: RunData, objective: Objective, bounds: Any) -> None:
        self.data, self.objective, self.bounds = data, objective, bounds
        self.losses, self.log_loss = data.loss, np.log(data.loss)  # (n,), or (R, n) with one row per refit
        self.weights = data.weights

    # what a form provides

    def evaluate(self, theta, *, delta, weights=None, rows=None):
        """F (R,), gradient (p, R), Hessian (p, p, R); `weights` (M, n) and which of them (or of the losses) is whose."""
        raise NotImplementedError

    def log_losses(self, theta: np.ndarray, columns=slice(None)) -> np.ndarray:
        """log Lhat (R, n) at the runs."""
        raise NotImplementedError

    def losses_at(self, theta: np.ndarray, data: RunData) -> np.ndarray:
        """log Lhat (R, m) at other runs, of public fit variables (R, p)."""
        raise NotImplementedError

    def starts(self, wanted: Any, seed: int) -> np.ndarray:
        """Starts (R, p) for None, a number, or a sequence of laws."""
        raise NotImplementedError

    def scale(self, theta: np.ndarray, delta: float | None = None) -> np.ndarray:
        """Damping scale (p, R) at theta (R, p)."""
        raise NotImplementedError

    def law(self, theta: np.ndarray) -> Any:
        """The law at theta (p,)."""
        raise NotImplementedError

    def quantities(self, theta: np.ndarray, budget: float | None) -> dict[str, np.ndarray]:
        """What is reported, by name, of public fit variables (..., p)."""
        raise NotImplementedError

    def public(self, theta: np.ndarray) -> np.ndarray:
        """Fit variables of the law itself."""
        return theta

    def inverse(self, theta: np.ndarray) -> np.ndarray:
        """The inverse of `public`, within the box."""
        return np.clip(theta, self.box.low, self.box.high)

    # what follows

    def with_losses(self, log_losses: np.ndarray) -> "Problem":
        """The same runs with other losses, one row of them per refit."""
        other = copy.copy(self)
        other.log_loss, other.losses = log_losses, np.exp(log_losses)
        return other

    def in_single(self) -> "Problem | None":
        """The same problem in single precision, for the first iterations of many refits; None where that is too coarse."""
        return None

    def residual(self, theta: np.ndarray, columns=slice(None)) -> np.ndarray:
        """log Lhat - log L, or Lhat - L, (R, n) for losses (n,)."""
        predicted = self.log_losses(theta, columns)
        if self.objective.log_space:
            return predicted - self.log_loss[..., columns]
        return np.exp(predicted) - self.losses[..., columns]

    def rho(self, theta: np.ndarray, columns=slice(None)) -> np.ndarray:
        """rho of each residual (R, n), without weights."""
        size = np.abs(self.residual(theta, columns))
        psi = np.minimum(size, self.objective.threshold)
        return psi * (size - 0.5 * psi)

    def reported(self, theta: np.ndarray, F: float) -> float:
        """The objective that the loss function names, at theta (p,) where the solver's is F."""
        if self.objective.loss_function == "lad":
            return float(self.weights @ np.abs(self.residual(theta[None])[0]))
        return float(F)

    @property
    def noise(self) -> float:
        """Rounding makes F uncertain by noise sqrt(F) + noise^2: each residual is off by a few units in the last place."""
        size = max(float(np.abs(self.log_loss if self.objective.log_space else self.losses).max()), 1.0)
        return 4 * float(np.finfo(self.precision).eps) * size * float(np.sqrt(2 * self.weights.sum()))

    def blur(self, F: float) -> float:
        """That uncertainty at F."""
        return self.noise * F**0.5 + self.noise**2
