"""The loss over (N, D) and its slopes in log N and log D, for any law form.

`Surface` is what the solver sees. Slopes are exact for the forms named here and an eighth-order difference for others.
A law whose constants are arrays (one per bootstrap draw) gives arrays: see `stack_laws`.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from scaling.errors import AllocationError
from scaling.laws import PUBLISHED, ChinchillaLaw, DataConstrainedLaw

_STENCIL = ((1, 4 / 5), (2, -1 / 5), (3, 4 / 105), (4, -1 / 280))  # central first derivative, error ~ h^8
_STEP = 0.05


@dataclass(frozen=True)
class Surface:
    """A law and, when data is limited, the number of distinct tokens: loss(N, D) and slopes(N, D)."""

    law: Any
    unique_tokens: float | None = None

    def loss(self, N, D):
        """Predicted loss, nats per token."""
        if self.unique_tokens is not None:
            return self.law.loss(N, D, self.unique_tokens)
        return self.law.loss(N, D)

    def slopes(self, N, D):
        """(dL/dlog N, dL/dlog D); both negative where more of either helps."""
        if self.unique_tokens is None and isinstance(self.law, ChinchillaLaw | DataConstrainedLaw):
            law = self.law
            return -law.alpha * law.A * N**-law.alpha, -law.beta * law.B * D**-law.beta
        if isinstance(self.law, DataConstrainedLaw):
            return _repeated_slopes(self.law, N, D, self.unique_tokens)
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


def make_surface(law: Any, unique_tokens: float | None) -> tuple[Surface, list[str]]:
    """The surface, and what had to be assumed for it.

    A law that says nothing about repeated tokens borrows R_D* and R_N* from Muennighoff et al. 2023, and says so.
    Raises AllocationError for a form that cannot be extended to repeats.
    """
    if unique_tokens is None or isinstance(law, DataConstrainedLaw):
        return Surface(law, unique_tokens), []
    if not isinstance(law, ChinchillaLaw):
        raise AllocationError(
            f'unique tokens: a law of form "{law.form}" says nothing about repeats. '
            "Use a chinchilla or data_constrained law."
        )
    source = PUBLISHED["muennighoff2023"].law
    extended = DataConstrainedLaw(*law.constants().values(), source.R_D_star, source.R_N_star)
    return Surface(extended, unique_tokens), [
        f"This law says nothing about repeated tokens: R_D* = {source.R_D_star:.4g} and R_N* = {source.R_N_star:.4g} "
        "are borrowed from muennighoff2023."
    ]


def stack_laws(law: Any, names: tuple[str, ...], draws: Any) -> Any:
    """One law of the same form whose constants are columns of draws (resamples, names): losses come out as arrays.

    Constants that were not drawn keep their value. The checks at the door are passed over on purpose: the caller
    drops impossible draws first.
    """
    columns = {name: draws[:, i] for i, name in enumerate(names)}
    stacked = object.__new__(type(law))
    for name, value in law.constants().items():
        object.__setattr__(stacked, name, columns.get(name, value))
    return stacked


def with_law(surface: Surface, law: Any) -> Surface:
    """The same surface over another law of the same form."""
    return replace(surface, law=law)


def _repeated_slopes(law, N, D, unique_tokens):
    """Slopes of Muennighoff et al. 2023, eq. 5-7, by the chain rule through U, N_U, N_eff and D_eff."""
    import numpy as np

    fresh = D < unique_tokens
    U = np.minimum(D, unique_tokens)
    N_for_U = law._N_for_tokens(U)
    excess = N > N_for_U
    N_U = np.minimum(N, N_for_U)
    decay_N, decay_D = np.exp(-(N / N_U - 1) / law.R_N_star), np.exp(-(D / U - 1) / law.R_D_star)
    worth = 1 + law.R_N_star * (1 - decay_N)
    N_eff, D_eff = N_U * worth, U * (1 + law.R_D_star * (1 - decay_D))
    pull_N = -law.alpha * law.A * N_eff**-law.alpha  # dL/dlog N_eff
    pull_D = -law.beta * law.B * D_eff**-law.beta
    in_N = pull_N * N * decay_N / N_eff  # decay_N is 1 without excess
    through_N_U = np.where(excess & fresh, (worth - decay_N * N / N_U) * N_U / N_eff * law.beta / law.alpha, 0.0)
    in_D = pull_N * through_N_U + pull_D * D * decay_D / D_eff
    if np.ndim(in_N) == 0:
        return float(in_N), float(in_D)
    return in_N, in_D
