"""What repeated tokens are worth (Muennighoff et al. 2023, eq. 5-7), as `DataConstrainedLaw.loss` says it, with slopes
and with D solved for: on floats without numpy, on arrays elementwise.

    R_D = max(D/U - 1, 0)    D_eff = U (1 + R_D* (1 - exp(-R_D / R_D*)))
    R_N = max(N/N_U - 1, 0)  N_eff = N_U (1 + R_N* (1 - exp(-R_N / R_N*)))    N_U optimal for U tokens
"""

import math
from typing import Any, NamedTuple


class Effective(NamedTuple):
    """Effective N and D, and what their slopes need."""

    N: Any
    D: Any
    N_U: Any
    fade_N: Any  # exp(-R_N / R_N*): what the next parameter is worth
    fade_D: Any  # exp(-R_D / R_D*): what the next token is worth
    fresh: Any  # D below the distinct tokens
    excess: Any  # N above N_U


def effective(law: Any, N: Any, D: Any, unique_tokens: float) -> Effective:
    """Effective parameters and tokens."""
    least, exp = _functions(law, N, D)
    U = least(D, unique_tokens)
    N_for_U = law._N_for_tokens(U)
    N_U = least(N, N_for_U)
    fade_N, fade_D = exp(-(N / N_U - 1) / law.R_N_star), exp(-(D / U - 1) / law.R_D_star)
    N_eff, D_eff = N_U * (1 + law.R_N_star * (1 - fade_N)), U * (1 + law.R_D_star * (1 - fade_D))
    return Effective(N_eff, D_eff, N_U, fade_N, fade_D, D < unique_tokens, N > N_for_U)


def repeated_loss(law: Any, N: Any, D: Any, unique_tokens: float) -> Any:
    """Loss on D tokens of which `unique_tokens` are distinct; nats per token."""
    at = effective(law, N, D, unique_tokens)
    return law.E + law.A / at.N**law.alpha + law.B / at.D**law.beta


def repeated_slopes(law: Any, N: Any, D: Any, unique_tokens: float) -> tuple[Any, Any]:
    """(dL/dlog N, dL/dlog D), by the chain rule through N_eff, D_eff and, while tokens are fresh, N_U."""
    at = effective(law, N, D, unique_tokens)
    pull_N = -law.alpha * law.A * at.N**-law.alpha  # dL/dlog N_eff
    pull_D = -law.beta * law.B * at.D**-law.beta
    in_N = pull_N * N * at.fade_N / at.N
    worth = at.N / at.N_U
    through_N_U = (at.excess & at.fresh) * (worth - at.fade_N * N / at.N_U) / worth * (law.beta / law.alpha)
    return in_N, pull_N * through_N_U + pull_D * D * at.fade_D / at.D


def repeated_tokens_for_loss(law: Any, N: Any, target: Any, unique_tokens: float) -> Any:
    """D above `unique_tokens` at which the loss at N falls to the target; infinite where repeats never get there.

    Above U distinct tokens N_eff does not depend on D, so D_eff and then D follow by inversion.
    """
    at = effective(law, N, unique_tokens + 0.0 * N, unique_tokens)
    gap = target - law.E - law.A / at.N**law.alpha
    if not any(hasattr(value, "shape") for value in (gap, law.B, law.beta)):
        if gap <= 0:
            return math.inf
        left = 1 - ((law.B / gap) ** (1 / law.beta) / unique_tokens - 1) / law.R_D_star
        return math.inf if left <= 0 else unique_tokens * (1 - law.R_D_star * math.log(left))
    import numpy as np

    with np.errstate(all="ignore"):
        left = 1 - ((law.B / gap) ** (1 / law.beta) / unique_tokens - 1) / law.R_D_star
        return np.where((gap > 0) & (left > 0), unique_tokens * (1 - law.R_D_star * np.log(left)), np.inf)


def _functions(law, *values):
    """min and exp for floats or for arrays."""
    if not any(hasattr(value, "shape") for value in (*values, *law.constants().values())):
        return min, math.exp
    import numpy as np

    return np.minimum, np.exp
