"""What a fit hands back."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a fit ended; only `converged` is success."""

    CONVERGED = "converged"
    """The gradient is zero inside the bounds, and every constant is determined by the runs."""
    AT_BOUND = "at_bound"
    """The minimum lies on a bound: that constant, and what depends on it, is the bound's choice and not the runs'."""
    NOT_CONVERGED = "not_converged"
    """No start reached a point of zero gradient."""
    UNIDENTIFIABLE = "unidentifiable"
    """The runs cannot determine this law, whatever their losses are; no law is given."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class FitResult:
    """A fit: its law, how it ended and how sure it is. `law` is None unless the runs can determine one.

    `objective` is sum of rho over runs, as `loss_function` names it (`scaling.fitting.objective`). `theta` are the fit
    variables (logarithms of E, A, B, and the exponents) under `names`; `covariance` is their sandwich covariance from
    the Hessian, None where a bound holds.
    """

    law: Any | None
    status: Status
    message: str
    form: str
    loss_function: str
    delta: float | None
    n_runs: int
    n_parameters: int
    objective: float | None = None
    n_starts: int = 0
    n_agreeing: int = 0
    condition: float | None = None
    gradient: float | None = None  # largest component of the free gradient, in units of sqrt(F times its curvature)
    at_bounds: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    excluded: tuple = ()  # what `read_runs` left out, each with row, run_id and reason
    names: tuple[str, ...] = ()
    theta: Any = field(default=None, repr=False)
    covariance: Any = field(default=None, repr=False)
    problem: Any = field(default=None, repr=False)  # what refits need: the runs and every option

    @property
    def usable(self) -> bool:
        """Whether there is a law to work with: converged, or at a bound (read the message)."""
        return self.law is not None and self.status in (Status.CONVERGED, Status.AT_BOUND)
