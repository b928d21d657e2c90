"""The loss over (N, D) and its slopes in log N and log D, for any law form.

`Surface` is what the solver sees. Slopes are exact for the forms named here and an eighth-order difference for others.
A law whose constants are arrays (one per bootstrap draw) gives arrays: see `stack_laws`.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from scaling.allocation.repeats import repeated_loss, repeated_slopes
from scaling.errors import AllocationError
from scaling.laws import PUBLISHED, ChinchillaLaw, DataConstrainedLaw, TiedLaw

_STENCIL = ((1, 4 / 5), (2, -1 / 5), (3, 4 / 105), (4, -1 / 280))  # central first derivative, error ~ h^8
_STEP = 0.05
ONE_VARIABLE = ("power_N", "power_D", "power_C", "broken")  # forms without a trade-off between N and D


@dataclass(frozen=True)
class Surface:
    """A law and, when data is limited, the number of distinct tokens: loss(N, D) and slopes(N, D)."""

    law: Any
    unique_tokens: float | None = None

    def loss(self, N, D):
        """Predicted loss, nats per token."""
        if self.unique_tokens is None:
            return self.law.loss(N, D)
        return repeated_loss(self.law, N, D, self.unique_tokens)

    def slopes(self, N, D):
        """(dL/dlog N, dL/dlog D); both negative where more of either helps."""
        if self.unique_tokens is None and isinstance(self.law, ChinchillaLaw | DataConstrainedLaw):
            law = self.law
            return -law.alpha * law.A * N**-law.alpha, -law.beta * law.B * D**-law.beta
        if self.unique_tokens is not None:
            return repeated_slopes(self.law, N, D, self.unique_tokens)
        return self._differences(N, D)

    def _differences(self, N, D):
        in_N = in_D = 0.0
        for k, weight in _STENCIL:
            up, down = math.exp(k * _STEP), math.exp(-k * _STEP)
            in_N = in_N + weight * (self.loss(N * up, D) - self.loss(N * down, D)) / _STEP
            in_D = in_D + weight * (self.loss(N, D * up) - self.loss(N, D * down)) / _STEP
        return in_N, in_D

    @property
    def plain(self) -> bool:
        """Whether the closed form holds: E + A/N^alpha + B/D^beta and no limit on distinct tokens."""
        return self.unique_tokens is None and isinstance(self.law, ChinchillaLaw | DataConstrainedLaw)


def as_chinchilla(law: Any) -> Any:
    """A tied law as the plain law it is, with beta = alpha; others unchanged."""
    if isinstance(law, TiedLaw):
        return ChinchillaLaw(law.E, law.A, law.B, law.alpha, law.alpha)
    return law


def make_surface(law: Any, unique_tokens: float | None) -> tuple[Surface, list[str]]:
    """The surface, and what had to be assumed for it.

    A law that says nothing about repeated tokens borrows R_D* and R_N* from Muennighoff et al. 2023, and says so.
    Raises AllocationError for a form that cannot be extended to repeats, or that does not tell N from D.
    """
    if getattr(law, "form", None) in ONE_VARIABLE:
        raise AllocationError(
            f'a law of form "{law.form}" ({law.equation}) does not say how to split compute between N and D. '
            "Fit runs that vary both, with form chinchilla."
        )
    law = as_chinchilla(law)
    if unique_tokens is None or isinstance(law, DataConstrainedLaw):
        return Surface(law, unique_tokens), []
    if not isinstance(law, ChinchillaLaw):
        raise AllocationError(
            f'unique tokens: a law of form "{law.form}" says nothing about repeats. '
            "Use a chinchilla or data_constrained law."
        )
    source = PUBLISHED["muennighoff2023"].law
    extended = DataConstrainedLaw(**law.constants(), R_D_star=source.R_D_star, R_N_star=source.R_N_star)
    return Surface(extended, unique_tokens), [
        f"This law says nothing about repeated tokens: R_D* = {source.R_D_star:.4g} and R_N* = {source.R_N_star:.4g} "
        "are borrowed from muennighoff2023."
    ]


def stack_laws(law: Any, columns: dict[str, Any]) -> Any:
    """One law of the same form whose constants are arrays, one value per draw: losses come out as arrays.

    Constants that were not drawn keep their value. The checks at the door are passed over on purpose: the caller
    drops impossible draws first.
    """
    stacked = object.__new__(type(law))
    for name, value in law.constants().items():
        object.__setattr__(stacked, name, columns.get(name, value))
    return stacked


def with_law(surface: Surface, law: Any) -> Surface:
    """The same surface over another law of the same form."""
    return replace(surface, law=law)
